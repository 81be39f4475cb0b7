"""Sums over all clients that a round changes only where its cohort changed them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import trees
from .record import record
from .vocabulary import Clients


@record
class RunningSum:
    """A sum kept as high + low: what rounding takes from `high` is kept in `low` (Knuth's two-sum).

    A round adds the cohort's differences alone, so its cost does not grow with the number of clients, and the
    error after many rounds is that of the differences, not of the sum.

    >>> total = RunningSum.of(jnp.float32(1e8)).add(jnp.float32(1.0)).add(jnp.float32(-1e8))
    >>> float(total.value)
    1.0
    """

    high: Any
    low: Any

    @classmethod
    def of(cls, value: Any) -> RunningSum:
        value = jax.tree.map(_at_least_single, value)
        return cls(high=value, low=jax.tree.map(jnp.zeros_like, value))

    @property
    def value(self) -> Any:
        return jax.tree.map(jnp.add, self.high, self.low)

    def add(self, change: Any) -> RunningSum:
        high = jax.tree.map(jnp.add, self.high, change)
        low = jax.tree.map(_add_error, self.high, change, high, self.low)
        return RunningSum(high, low)


def _add_error(a: Array, b: Array, total: Array, low: Array) -> Array:
    virtual = total - a
    return low + ((a - (total - virtual)) + (b - virtual))


def weighted(weights: Array, rows: Any) -> Any:
    """sum_i weights_i rows_i over the leading axis, in the rows' dtypes, but not below single precision."""

    def total(leaf: Array) -> Array:
        leaf = _at_least_single(leaf)
        return jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1)

    return jax.tree.map(total, rows)


def _at_least_single(leaf: Array) -> Array:
    return leaf.astype(trees.at_least_single(leaf.dtype))


def exact(clients: Clients, rows: Any) -> Any:
    """sum_i alpha_i rows_i in double precision on the host: what a `RunningSum` is checked against."""
    weights = np.asarray(clients.weights, np.float64)
    return jax.tree.map(lambda leaf: np.tensordot(weights, np.asarray(leaf, np.float64), axes=1), rows)
