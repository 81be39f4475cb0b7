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
    """FedADMM for large populations: the server counts only clients that have sent something, forgets old messages,
    and chooses the penalty.

    It is `fedadmm(heard="only", forgetting="auto", penalty_rule=penalties.stiffness(share))`, with solves that stop
    when the epoch's mean residual is a tenth of the residual at z. It is not a method of the paper.

    Args:
        local: How a client solves its subproblem.
        penalty: The penalty beta_i^0 of the first round, above 0, a number or one per client [clients].
        share: The penalty as a fraction of the clients' stiffness, above 0 (see `penalties.stiffness`).
        heard: Whether the server counts "only" clients that have sent something, or "all".
        forgetting: How the server forgets old messages: "auto" or a factor (see `fedadmm`).
        criterion: When a local solve may stop. Stiffness is only measured by a criterion that measures the residual at
            z, such as `relative_residual` with reference="server"; with any other, penalties stay as they are.

    >>> fedadmm_large(LocalSolver(learning_rate=0.1, max_epochs=5)).heard
    'only'
    """
    criterion = criteria.relative_residual(sigma=0.1, residual="epoch_mean") if criterion is None else criterion
    measured = getattr(criterion, "reference", None) == "server"
    rule = penalties.stiffness(share) if measured else penalties.constant()
    return fedadmm(local, penalty, criterion=criterion, penalty_rule=rule, heard=heard, forgetting=forgetting)
