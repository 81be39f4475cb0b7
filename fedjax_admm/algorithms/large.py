"""The parts of FedADMM that fit populations of which a round sees a small share, together and without tuned numbers."""

from __future__ import annotations

from typing import Any

from ..core import checks
from . import criteria, penalties
from .admm import fedadmm
from .averaged import Averaged, averaged
from .criteria import Criterion
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
    """FedADMM for large populations: the average over rounds of an ADMM whose server finds out all numbers itself.

    It is `averaged(fedadmm(...), power, returning_power=returning_power)` with `heard="only"`,
    `forgetting="returning"`, a server that goes `step` times as far as its clients' messages say,
    `penalty_rule=penalties.stiffness(share)`, and solves that end when the epoch's mean residual is a tenth of that at
    z. Not a method of the paper's.

    Args:
        local: How a client solves its subproblem.
        penalty: beta_i^0 above 0, with which the first round is solved, a number or one per client [clients].
        share: The penalty as a share of the clients' stiffness, above 0 (see `penalties.stiffness`).
        step: Above 0 and below 2, over-relaxation if above 1: 1 / (1 + delta) of `fedadmm`. An average over rounds
            takes out the noise that a longer step brings.
        power: At least 0: the k-th round has a weight of about k^power in the result (see `averaged`).
        returning_power: The power where all clients have been heard before, so that there is less noise to average.
        heard: Whether the server counts "only" clients that it has heard from, or "all".
        forgetting: How it forgets, "returning", "auto" or a factor (see `fedadmm`).
        criterion: When a local solve may stop. With one that does not look at z, as `relative_residual` with
            reference="server" does, stiffness is not measured: penalties then stay as they are.

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
