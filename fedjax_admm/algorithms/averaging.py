"""FedAvg and FedProx: the server averages its clients' parameters.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (FedProx).
"""

from __future__ import annotations

from typing import Any

import optax

from ..core import checks
from ..core.record import record, static
from ..core.sums import RunningSum
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import criteria, server_step
from .base import broadcast_params
from .criteria import Criterion
from .local_solver import LocalSolver
from .server_step import ServerStep

__all__ = ["fedavg", "fedprox"]


@record
class Averaging:
    """FedAvg, and FedProx if it has a penalty. See `fedavg` and `fedprox`."""

    local: LocalSolver
    criterion: Criterion
    server: ServerStep = ServerStep()
    penalty: Any = None
    average: str = static(default="selected")
    name: str | None = static(default=None)  # of a method that is this one with another server; else by the penalty

    broadcast = broadcast_params

    @property
    def display_name(self) -> str:
        return self.name or ("FedAvg" if self.penalty is None else "FedProx")

    def init(self, params: Params, clients: Clients) -> dict[str, Any]:
        if self.average == "selected":
            return {"optimizer": self.server.init(params)}
        # Every client's last model is z^0 at first, and the weights sum to one.
        return {"total": RunningSum.of(params)}

    def start(self, params: Params, client: Client) -> Rows:
        return {} if self.average == "selected" else {"client_params": params}

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        return Subproblem(penalty=self.penalty, previous=row.get("client_params"))

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        if self.average == "selected":
            return optax.tree.sub(solution.params, sent), {}
        return optax.tree.sub(solution.params, row["client_params"]), {"client_params": solution.params}

    def aggregate(
        self, params: Params, server: dict[str, Any], received: Received, round: Round
    ) -> tuple[Params, dict[str, Any]]:
        if self.average == "selected":
            mean = optax.tree.scale(1 / received.weight, received.total)
            params, state = self.server.apply(params, mean, server["optimizer"])
            return params, {"optimizer": state}
        total = server["total"].add(received.total)
        return optax.tree.cast_like(total.value, params), {"total": total}


def fedavg(
    local: LocalSolver,
    *,
    average: str = "selected",
    criterion: Criterion | None = None,
    server: ServerStep | None = None,
) -> Averaging:
    """FedAvg: each selected client minimises its own loss from z^k, and the server averages.

    Args:
        local: How a client minimises its loss.
        average: "selected", z^{k+1} = sum alpha_i u_i / sum alpha_i over the selected clients, which is the usual
            FedAvg; or "all", z^{k+1} = sum alpha_i u_i over every client's last model, selected or not, as in the
            paper's experiments.
        criterion: When a local solve may stop early; by default it runs to `local.max_epochs`.
        server: A `ServerStep(...)`, an optimizer that the server applies to the averaged update; by default the update
            is added as it is.

    >>> fedavg(LocalSolver(learning_rate=0.1, batch_size=10, max_epochs=5)).average
    'selected'
    """
    return _averaging(local, None, average, criterion, server)


def fedprox(
    local: LocalSolver,
    penalty: Any,
    *,
    average: str = "selected",
    criterion: Criterion | None = None,
    server: ServerStep | None = None,
) -> Averaging:
    """FedProx: FedAvg with penalty / 2 ||u - z^k||^2 added to each client's loss.

    FedProx's gamma-inexactness is `criterion=criteria.relative_residual(sigma=gamma)`.

    Args:
        penalty: Above 0, a number or one per client [clients].

    The other arguments are `fedavg`'s.

    >>> fedprox(LocalSolver(learning_rate=0.1), penalty=0.5).penalty
    0.5
    """
    return _averaging(local, checks.number("penalty", penalty, above=0, per_client=True), average, criterion, server)


def _averaging(
    local: LocalSolver, penalty: Any, average: str, criterion: Criterion | None, server: ServerStep | None
) -> Averaging:
    checks.choice("average", average, ("selected", "all"))
    checks.part("local", local, ("step",), "fa.LocalSolver(...)")
    if average == "all" and server is not None:
        raise ValueError("server is a step along the selected clients' averaged update: it needs average='selected'")
    criterion = criteria.checked(criterion, unless_kept=None if average == "all" else "average='all'")
    step = server_step.checked(server)
    return Averaging(local=local, criterion=criterion, server=step, penalty=penalty, average=average)
