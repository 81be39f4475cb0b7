"""The level that a pooled rule's clients share, and that the server finds."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core import trees
from ...core.record import record
from .arithmetic import or_one

FASTEST = float(np.log(10))  # that a pooled level changes in a round: one corrupted message must not move it far


@record
class Level:
    """What the server knows of a pooled rule's level."""

    log: Array  # of the factor by which it differs from the first penalties
    rounds: Array  # int32, in which anybody proposed anything

    @classmethod
    def start(cls, dtype: Any) -> Level:
        """The first penalties' own."""
        return cls(jnp.zeros((), dtype), jnp.int32(0))

    def moved(self, proposals: Array, clients: Array) -> Level:
        """After the sum of a round's proposals and of who made one: their mean over rounds, the k-th with weight k."""
        step = 2 / (self.rounds + 2).astype(self.log.dtype)
        log = self.log + step * jnp.clip(proposals / or_one(clients), -FASTEST, FASTEST).astype(self.log.dtype)
        return trees.where(clients > 0, Level(log, self.rounds + 1), self)


def pools(rule: Any) -> bool:
    """Whether a rule's clients share one level that the server finds.

    Args:
        rule: How a penalty changes.

    Returns:
        Whether it proposes instead of changing.

    >>> pools(fa.penalties.constant())
    False
    """
    return hasattr(rule, "propose")
