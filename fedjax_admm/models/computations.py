"""A part of a network whose results XLA writes once instead of computing them where they are read."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as a computation of its own where it runs on a CPU.

    XLA's CPU backend fuses element-wise operations into all that read them, however many those are, and
    `optimization_barrier` does not keep it from that. A call that is not inlined does.

    Args:
        function: Takes trees of arrays; its keyword arguments are static.
    """
    name = getattr(function, "__name__", "kept")

    def call(*arrays: Any, **static: Any) -> Any:
        plain = functools.partial(function, **static)
        own = functools.wraps(function)(plain)

        def alone(*arrays: Any) -> Any:
            with set_xla_metadata(inlineable="false"):
                return jax.jit(own)(*arrays)

        return lax.platform_dependent(*arrays, cpu=alone, default=plain)

    call.__name__ = name
    return call
