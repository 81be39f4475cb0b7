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

    def call(*arrays: Any, **static: Any) -> Any:
        alone, plain = _versions(function, tuple(sorted(static.items())))
        return lax.platform_dependent(*arrays, cpu=alone, default=plain)

    call.__name__ = getattr(function, "__name__", "kept")
    return call


@functools.cache
def _versions(function: Callable[..., Any], static: tuple[tuple[str, Any], ...]) -> tuple[Callable[..., Any], ...]:
    """The function as a computation of its own, and as it is.

    The same objects in each layer, so that layers of the same shape are traced once.
    """
    plain = functools.partial(function, **dict(static))
    own = jax.jit(functools.wraps(function)(plain))

    def alone(*arrays: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return own(*arrays)

    return alone, plain
