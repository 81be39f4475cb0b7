"""The parts of FedADMM that fit populations of which a round sees a small share, together and without tuned numbers."""

from __future__ import annotations

from typing import Any

from ..core import checks
from . import criteria, penalties
from .averaged import Averaged, averaged
from .criteria import Criterion
from .fedadmm import fedadmm
from .local_solver import LocalSolver

__all__ = ["fedadmm_large"]


def fedadmm_large(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    share: Any = 0.5,
    step: Any = 1.5,
    power: Any = 1.0,
    returning_power: Any = 4.0,
    heard: str = "only",
    forgetting: float | str = "returning",
    criterion: Criterion | None = None,
) -> Averaged:
    """FedADMM for large populations: an ADMM whose server chooses penalties and memory, averaged over rounds.

    It is `averaged(fedadmm(...), power, returning_power=returning_power)` with `heard="only"`,
    `forgetting="returning"`, a server that moves `step` times as far as the clients' messages say,
    `penalty_rule=penalties.stiffness(share)`, and solves that stop when the epoch's mean residual is a tenth of the
    residual at z. It is not a method of the paper.

    Args:
        local: How a client solves its subproblem.
        penalty: The penalty beta_i^0 of the first round, above 0, a number or one per client [clients].
        share: The penalty as a fraction of the clients' stiffness, above 0 (see `penalties.stiffness`).
        step: How far the server moves, above 0 and below 2; above 1 is over-relaxation. It is 1 / (1 + delta) of
            `fedadmm`. The average over rounds removes the noise that a longer step brings.
        power: At least 0. Round k has a weight of about k^power in the result (see `averaged`).
        returning_power: The power when all clients have been heard before, so that there is less noise to average.
        heard: Whether the server counts "only" clients that have sent something, or "all".
        forgetting: How the server forgets old messages: "returning", "auto" or a factor (see `fedadmm`).
        criterion: When a local solve may stop. Stiffness is only measured by a criterion that measures the residual at
            z, such as `relative_residual` with reference="server"; with any other, penalties stay as they are.

    >>> fedadmm_large(LocalSolver(learning_rate=0.1, max_epochs=5)).algorithm.heard
    'only'
    """
    criterion = criteria.relative_residual(sigma=0.1, residual="epoch_mean") if criterion is None else criterion
    measured = getattr(criterion, "reference", None) == "server"
    rule = penalties.stiffness(share) if measured else penalties.constant()
    delta = 1 / checks.number("step", step, above=0, below=2) - 1
    method = fedadmm(
        local, penalty, delta=delta, criterion=criterion, penalty_rule=rule, heard=heard, forgetting=forgetting
    )
    knows = method.knows_who_returns
    return averaged(method, power, returning_power=returning_power if knows else None)
