"""Convex terms g that the server adds to the problem, by their proximal maps.

The problem is then min sum_i alpha_i f_i(x) + g(x). The clients never see g, which need not be smooth, and the `loss`
in the history does not include it. The server's parameters are

    prox_{step g}(x) = argmin_v  g(v) + ||v - x||^2 / (2 step).

Your own term is a function `(params, step) -> params` that you define once. If it has numbers, make it a `fa.record`
with `__call__`, so that changing them does not recompile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..core import checks
from ..core.record import record, static
from ..core.types import Params


@record
class L1:
    """See `l1`."""

    weight: Any

    def __call__(self, params: Params, step: Array) -> Params:
        def shrink(leaf: Array) -> Array:
            least = jnp.asarray(step * self.weight).astype(leaf.dtype)
            return jnp.sign(leaf) * jnp.maximum(jnp.abs(leaf) - least, 0)

        return jax.tree.map(shrink, params)


@record
class L2:
    """See `l2`."""

    weight: Any

    def __call__(self, params: Params, step: Array) -> Params:
        return jax.tree.map(lambda leaf: leaf / jnp.asarray(1 + step * self.weight).astype(leaf.dtype), params)


@record
class Box:
    """See `box`. None where there is no bound."""

    low: Any
    high: Any

    def __call__(self, params: Params, step: Array) -> Params:
        def bounded(leaf: Array) -> Array:
            low, high = (None if b is None else jnp.asarray(b).astype(leaf.dtype) for b in (self.low, self.high))
            return jnp.clip(leaf, low, high)

        return jax.tree.map(bounded, params)


@record
class Own:
    """A function of the user's."""

    function: Callable[..., Any] = static()

    def __call__(self, params: Params, step: Array) -> Params:
        return self.function(params, step)


def l1(weight: float) -> L1:
    """g(x) = weight ||x||_1, whose proximal map is the soft threshold: parameters become exactly zero.

    Args:
        weight: At least 0.

    >>> l1(0.5)(jnp.array([-2.0, 0.25, 3.0]), 1.0).tolist()
    [-1.5, 0.0, 2.5]
    """
    return L1(checks.number("weight", weight, at_least=0))


def l2(weight: float) -> L2:
    """g(x) = weight / 2 ||x||^2, whose proximal map shrinks: x / (1 + step weight).

    Args:
        weight: At least 0.

    >>> l2(1.0)(jnp.array([-2.0, 4.0]), 1.0).tolist()
    [-1.0, 2.0]
    """
    return L2(checks.number("weight", weight, at_least=0))


def box(low: float, high: float) -> Box:
    """g(x) = 0 where all parameters are between `low` and `high`, else infinite: the projection onto the box.

    Args:
        low: The least that a parameter may be.
        high: The most that a parameter may be, at least `low`.

    >>> box(-1, 1)(jnp.array([-2.0, 0.5]), 1.0).tolist()
    [-1.0, 0.5]
    """
    low = checks.number("low", low)
    return Box(low, checks.number("high", high, at_least=low))


def nonnegative() -> Box:
    """g(x) = 0 where no parameter is negative, else infinite: negative parameters become zero.

    >>> nonnegative()(jnp.array([-2.0, 0.5]), 1.0).tolist()
    [0.0, 0.5]
    """
    return Box(0.0, None)


def checked(prox: Any) -> Any:
    """A proximal map as a method's argument.

    Args:
        prox: None, a record of this module or of the user's, or a function.

    Returns:
        None or a record.
    """
    if prox is None:
        return None
    makers = "fa.prox.l1(weight), fa.prox.box(low, high) or a function (params, step) -> params"
    if isinstance(prox, type) or not callable(prox) or prox in (l1, l2, box, nonnegative):
        raise ValueError(f"server_prox must be {makers}, got {prox!r}")
    return Own(prox) if jax.tree_util.all_leaves([prox]) else prox
