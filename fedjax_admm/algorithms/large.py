"""The parts of FedADMM that fit populations of which a round sees a small share, together and without tuned numbers."""

from __future__ import annotations

from typing import Any

from . import criteria, penalties
from .admm import FedADMM, fedadmm
from .criteria import Criterion
from .local_solver import LocalSolver

__all__ = ["fedadmm_large"]


def fedadmm_large(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    share: Any = 0.1,
    heard: str = "only",
    forgetting: float | str = "auto",
    criterion: Criterion | None = None,
) -> FedADMM:
    """FedADMM for large populations: the server counts whom it has heard, forgets by itself, and finds the penalty.

    It is `fedadmm(heard="only", forgetting="auto", penalty_rule=penalties.stiffness(share))` with solves that end when
    the epoch's mean residual is a tenth of that at z. Not a method of the paper's.

    Args:
        local: How a client solves its subproblem.
        penalty: beta_i^0 above 0, with which the first round is solved, a number or one per client [clients].
        share: The penalty as a share of the clients' stiffness, above 0 (see `penalties.stiffness`).
        heard: Whether the server counts "only" clients that it has heard from, or "all".
        forgetting: How it forgets, "auto" or a factor (see `fedadmm`).
        criterion: When a local solve may stop. With one that does not look at z, as `relative_residual` with
            reference="server" does, stiffness is not measured: penalties then stay as they are.

    >>> fedadmm_large(LocalSolver(learning_rate=0.1, max_epochs=5)).heard
    'only'
    """
    criterion = criteria.relative_residual(sigma=0.1, residual="epoch_mean") if criterion is None else criterion
    measured = getattr(criterion, "reference", None) == "server"
    rule = penalties.stiffness(share) if measured else penalties.constant()
    return fedadmm(local, penalty, criterion=criterion, penalty_rule=rule, heard=heard, forgetting=forgetting)
