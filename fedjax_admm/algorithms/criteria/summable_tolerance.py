"""Tolerances with a finite sum over rounds."""

from __future__ import annotations

from typing import Any

from jax import Array

from ...core import checks
from ...core.record import record, static
from ...core.vocabulary import LocalProgress
from .criterion import RESIDUALS, Absolute

__all__ = ["SummableTolerance", "summable_tolerance"]


@record
class SummableTolerance(Absolute):
    """Stop when ||e|| <= eps / (k + 1)^power in round k = 0, 1, ..."""

    eps: Any
    power: Any = 2.0
    residual: str = static(default="exact")

    def tolerance(self, progress: LocalProgress) -> Array:
        return self.eps / (progress.round + 1).astype(progress.residual.dtype) ** self.power


def summable_tolerance(eps: Any, power: Any = 2.0, *, residual: str = "exact") -> SummableTolerance:
    """Stop when ||e(u)|| <= eps / (k + 1)^power in round k = 0, 1, ..., tolerances with a finite sum.

    With convex f_i and a constant penalty beta the local problem is strongly convex, so the distance to its solution
    is at most ||e|| / beta. The errors then have a finite sum, and ADMM converges as with exact solves. The theorem
    requires all clients in every round, exact residuals, and that no solve ends at its maximum of epochs.

    Args:
        eps: The tolerance of the first round, above 0; a number, or one per client [clients].
        power: Above 1, since otherwise the sum is infinite; a number, or one per client [clients].
        residual: "exact", "epoch_mean" or "verified".

    >>> summable_tolerance(0.1, power=1.5).power
    1.5

    Reference: Eckstein and Bertsekas, "On the Douglas-Rachford splitting method and the proximal point
    algorithm for maximal monotone operators", Mathematical Programming 55, 1992, Theorem 8.
    """
    return SummableTolerance(
        eps=checks.number("eps", eps, above=0, per_client=True),
        power=checks.number("power", power, above=1, per_client=True),
        residual=checks.choice("residual", residual, RESIDUALS),
    )
