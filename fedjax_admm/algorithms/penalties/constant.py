"""The penalty stays as it was."""

from __future__ import annotations

from jax import Array

from ...core.record import record

__all__ = ["Constant", "constant"]


@record
class Constant:
    """The penalty stays as it was."""

    bounds = None

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        return penalty


def constant() -> Constant:
    """A penalty that never changes: Algorithms 1 and 2.

    >>> constant()
    Constant()
    """
    return Constant()
