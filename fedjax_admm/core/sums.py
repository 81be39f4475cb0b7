"""Sums over all clients that a round changes only where its cohort changed them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from . import trees
from .record import record

LIMIT = 2**7  # of a sum's wear, in multiples of the sum


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

    def add_product(self, factor: Array, change: Any) -> RunningSum:
        """The sum with factor * change, of which nothing is lost but what is lost of `low`.

        For terms that cancel each other: the rounding of a product may be larger than what is left of them all.

        >>> third = jnp.float32(1 / 3)
        >>> float(RunningSum.of(-third * third).add_product(third, third).value) != 0
        True
        """
        total = self
        for f in _halves(_at_least_single(factor)):
            halves = jax.tree.map(lambda leaf: _halves(_at_least_single(leaf)), change)
            for k in range(2):
                part = jax.tree.map(lambda _, pair, k=k: pair[k], change, halves)
                total = total.add(jax.tree.map(lambda leaf, f=f: f.astype(leaf.dtype) * leaf, part))
        return total

    def scale(self, factor: Array) -> RunningSum:
        """factor * the sum, of which nothing is lost but what is lost of `low`.

        >>> third = jnp.float32(1 / 3)
        >>> float(RunningSum.of(third).scale(third).low) != 0
        True
        """
        factor = _at_least_single(jnp.asarray(factor))
        scaled = RunningSum.of(jax.tree.map(jnp.zeros_like, self.high)).add_product(factor, self.high)
        return scaled.add(trees.scale(factor, self.low))

    def merge(self, other: RunningSum) -> RunningSum:
        """The sum of both."""
        return self.add(other.high).add(other.low)


@record
class PositiveSum:
    """A running sum of one positive number per client that knows how much rounding it has taken in.

    To replace what is counted of some clients rounds by about eps times what was counted of them before and is
    afterwards. `wear` adds that up, without the eps. Where the numbers shrink together, rounding of the large sum of
    former rounds would drown the small one of today; then the sum is `worn`, and to be formed anew from all clients.
    Renewed whenever it is, it is exact to about LIMIT * eps. With steady numbers and a share p of the clients in each
    round that is every LIMIT / (2 p) rounds, which is one more read of a client's row for every LIMIT / 2.

    >>> total = PositiveSum.of(jnp.float32(1.0)).change(jnp.float32(-0.999), share=1.0)
    >>> bool(total.worn)
    True
    """

    sum: RunningSum
    wear: Array

    @classmethod
    def of(cls, value: Array | RunningSum) -> PositiveSum:
        """The sum that was just formed from all clients."""
        sum = value if isinstance(value, RunningSum) else RunningSum.of(value)
        return cls(sum, jnp.zeros_like(sum.high))

    @property
    def value(self) -> Array:
        """The sum."""
        return self.sum.value

    @property
    def worn(self) -> Array:
        """Whether it is to be formed anew; also where nothing of it is left."""
        return ~(self.wear <= LIMIT * self.value)

    def add(self, term: Array) -> PositiveSum:
        """The sum with one more client's number, which wears nothing."""
        return PositiveSum(self.sum.add(term), self.wear)

    def scale(self, factor: Array) -> PositiveSum:
        """The sum of numbers that are all this factor of what they were; so is the rounding that it has taken in."""
        return PositiveSum(self.sum.scale(factor), self.wear * factor.astype(self.wear.dtype))

    def change(self, change: Array, share: Any) -> PositiveSum:
        """The sum after a change of what is counted of some clients, who are about this share of it."""
        after = self.sum.add(change)
        size = jnp.abs(self.value) + jnp.abs(after.value)  # of all; of those who changed, their share on average
        return PositiveSum(after, self.wear + (share * size).astype(self.wear.dtype))


@record
class Apart:
    """What a server's record has beside its sums: forming those anew leaves it as it is."""

    value: Any


def _add_error(a: Array, b: Array, total: Array, low: Array) -> Array:
    virtual = total - a
    return low + ((a - (total - virtual)) + (b - virtual))


def _halves(x: Array) -> tuple[Array, Array]:
    """x as a sum of two numbers of half its digits: products of such numbers are exact."""
    kind = jnp.finfo(x.dtype)
    high = lax.reduce_precision(x, kind.nexp, (kind.nmant - 1) // 2)
    return high, x - high


def weighted(weights: Array, rows: Any) -> Any:
    """sum_i weights_i rows_i over the leading axis, in the rows' dtypes, but not below single precision."""

    def total(leaf: Array) -> Array:
        leaf = _at_least_single(leaf)
        # In full: accelerators would else multiply with fewer digits than the numbers have.
        return jnp.tensordot(weights.astype(leaf.dtype), leaf, axes=1, precision=lax.Precision.HIGHEST)

    return jax.tree.map(total, rows)


def _at_least_single(leaf: Array) -> Array:
    return leaf.astype(trees.at_least_single(leaf.dtype))


def exact(weights: Any, rows: Any) -> Any:
    """sum_i weights_i rows_i in double precision on the host: what a `RunningSum` is checked against."""
    weights = np.asarray(weights, np.float64)
    return jax.tree.map(lambda leaf: np.tensordot(weights, np.asarray(leaf, np.float64), axes=1), rows)
