"""The command `fedjax-admm`: all of its parts, put together by being imported."""

from __future__ import annotations

import contextlib

from ..core import environment
from ..data import cache
from ..engine.devices import use_cpu_devices
from . import datasets, demo, directories, examples, failures
from .application import app

PARTS = (demo, examples, directories, datasets)  # in the order in which help lists them


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; see `fedjax_admm.cli.main`."""
    with contextlib.suppress(RuntimeError):  # called from Python after JAX has started
        use_cpu_devices()
        environment.keep_programs(cache.folder() / "xla")
    return failures.run(app, arguments)
