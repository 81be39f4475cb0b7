"""A tolerance that stays, or is multiplied by a factor in each round."""

from __future__ import annotations

from typing import Any

from jax import Array

from ...core import checks
from ...core.record import record, static
from ...core.vocabulary import LocalProgress
from .criterion import RESIDUALS, Absolute

__all__ = ["DecayingTolerance", "constant_tolerance", "decaying_squared_tolerance", "decaying_tolerance"]


@record
class DecayingTolerance(Absolute):
    """Stop when ||e|| <= eps * factor^k in round k = 0, 1, ..."""

    eps: Any
    factor: Any = 1.0
    residual: str = static(default="exact")

    def tolerance(self, progress: LocalProgress) -> Array:
        return self.eps * self.factor ** progress.round.astype(progress.residual.dtype)


def constant_tolerance(eps: Any, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)|| <= eps: the preset accuracy that the paper argues against.

    An exact residual is checked before each epoch, so a client that is already accurate enough does none. The other
    two are only known after an epoch.

    Args:
        eps: The tolerance, above 0; a number, or one per client [clients].
        residual: "exact", "epoch_mean" or "verified".

    >>> constant_tolerance(1e-3).eps
    0.001

    Reference: Zhang et al., "FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data", IEEE
    Trans. Signal Processing 69, 2021 (its oracle I solves each subproblem to a given accuracy).
    """
    return decaying_tolerance(eps, factor=1.0, residual=residual)


def decaying_tolerance(eps: Any, factor: Any = 0.9, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)|| <= eps * factor^k in round k = 0, 1, ...

    With factor < 1 the tolerances are summable, the condition under which an inexact ADMM converges for convex
    functions.

    Args:
        eps: The tolerance of the first round, above 0; a number, or one per client [clients].
        factor: Above 0 and at most 1, which gives a constant tolerance; a number, or one per client [clients].
        residual: "exact", "epoch_mean" or "verified".

    >>> decaying_tolerance(0.1, factor=0.5).factor
    0.5

    Reference: Eckstein and Bertsekas, "On the Douglas-Rachford splitting method and the proximal point
    algorithm for maximal monotone operators", Mathematical Programming 55, 1992, Theorem 8.
    """
    return DecayingTolerance(
        eps=checks.number("eps", eps, above=0, per_client=True),
        factor=checks.number("factor", factor, above=0, at_most=1, per_client=True),
        residual=checks.choice("residual", residual, RESIDUALS),
    )


def decaying_squared_tolerance(eps: Any, factor: Any = 0.95, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)||^2 <= eps * factor^k in round k = 0, 1, ..., the condition of Zhou and Li's FedADMM.

    Theirs is ||e||^2 <= eps_i^{k+1} <= factor_i eps_i^k with factor_i < 1: `decaying_tolerance` with both roots.

    The decay is counted in rounds. The authors' program lowers eps_i only when client i is selected. A decay by
    rounds keeps their inequality from each solve of a client to its next and needs no count for each client, but
    where a fraction p of the clients is selected, eps_i falls by factor^(1 / p) a solve: give factor^p for theirs.
    Their residual has the client's weight alpha_i in it, and their program's bound is eps_i times the number n of
    parameters: its eps_i is our eps * alpha_i^2 / n.

    Args:
        eps: The bound on the squared norm in the first round, above 0; a number, or one per client [clients].
        factor: In (0, 1); a number, or one per client [clients]. The authors' program uses 0.95.
        residual: "exact", "epoch_mean" or "verified".

    >>> decaying_squared_tolerance(4.0, factor=0.25)
    DecayingTolerance(eps=2.0, factor=0.5, residual='exact')

    Reference: Zhou and Li, "Federated Learning via Inexact ADMM", IEEE Trans. Pattern Analysis and Machine
    Intelligence 45, 2023, and its program, github.com/ShenglongZhou/FedADMM.
    """
    eps = checks.number("eps", eps, above=0, per_client=True)
    factor = checks.number("factor", factor, above=0, below=1, per_client=True)
    return decaying_tolerance(eps**0.5, factor**0.5, residual=residual)
