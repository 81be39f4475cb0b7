"""FedAvg and FedProx: the server averages its clients' parameters.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (FedProx).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.sums import RunningSum, weighted
from ..core.vocabulary import Clients, Solutions, Subproblem
from . import criteria
from .base import ModelExchange
from .criteria import Criterion
from .local_solver import LocalSolver


@record
class Averaging(ModelExchange):
    """FedAvg, and FedProx if it has a penalty. See `fedavg` and `fedprox`."""

    local: LocalSolver
    criterion: Criterion
    penalty: Any = None
    average: str = static(default="selected")

    @property
    def display_name(self) -> str:
        return "FedAvg" if self.penalty is None else "FedProx"

    def init(self, params: Any, clients: Clients) -> tuple[Any, dict[str, Any]]:
        server: dict[str, Any] = {"penalty_mean": self._mean_penalty(params, clients)}
        if self.average == "selected":
            return server, {}
        # Every client's last model is z^0 at first, and the weights sum to one.
        server["total"] = RunningSum.of(params)
        return server, {"client_params": trees.repeat(params, clients.ids.shape[0])}

    def subproblems(self, params: Any, server: Any, rows: dict[str, Any], cohort: Clients) -> Subproblem:
        penalty = None if self.penalty is None else trees.per_client(self.penalty, cohort.ids)
        return Subproblem(penalty=penalty, previous=rows.get("client_params"))

    def update(
        self, params: Any, server: Any, rows: dict[str, Any], solutions: Solutions, cohort: Clients
    ) -> tuple[Any, Any, dict[str, Any]]:
        if self.average == "selected":
            share = cohort.weights / jnp.sum(cohort.weights)
            return optax.tree.cast_like(weighted(share, solutions.params), params), server, {}
        change = optax.tree.sub(solutions.params, rows["client_params"])
        total = server["total"].add(weighted(cohort.weights, change))
        return optax.tree.cast_like(total.value, params), server | {"total": total}, {"client_params": solutions.params}

    def penalty_mean(self, server: Any) -> Array:
        return server["penalty_mean"]

    def _mean_penalty(self, params: Any, clients: Clients) -> Array:
        penalty = jnp.nan if self.penalty is None else self.penalty
        return jnp.mean(jnp.asarray(penalty, trees.scalar_dtype(params)))


def fedavg(local: LocalSolver, *, average: str = "selected", criterion: Criterion | None = None) -> Averaging:
    """FedAvg: each selected client minimises its own loss from z^k, and the server averages.

    average: "selected", z^{k+1} = sum alpha_i u_i / sum alpha_i over the selected clients, the usual one and
        without memory for the others; or "all", z^{k+1} = sum alpha_i u_i over every client's last model,
        selected or not, as in the paper's experiments.
    criterion: when a local solve may stop early; by default it runs to `local.max_epochs`.

    >>> fedavg(LocalSolver(learning_rate=0.1, batch_size=10, max_epochs=5)).average
    'selected'
    """
    return _averaging(local, None, average, criterion)


def fedprox(
    local: LocalSolver, penalty: Any, *, average: str = "selected", criterion: Criterion | None = None
) -> Averaging:
    """FedProx: FedAvg with penalty / 2 ||u - z^k||^2 added to each client's loss.

    penalty: above 0, a number or one per client [clients]. FedProx's gamma-inexactness is
    `criterion=criteria.relative_residual(sigma=gamma)`. The other arguments are `fedavg`'s.

    >>> fedprox(LocalSolver(learning_rate=0.1), penalty=0.5).penalty
    0.5
    """
    return _averaging(local, checks.number("penalty", penalty, above=0, per_client=True), average, criterion)


def _averaging(local: LocalSolver, penalty: Any, average: str, criterion: Criterion | None) -> Averaging:
    checks.choice("average", average, ("selected", "all"))
    checks.part("local", local, ("step",), "fa.LocalSolver(...)")
    criterion = criteria.checked(criterion, unless_kept=None if average == "all" else "average='all'")
    return Averaging(local=local, criterion=criterion, penalty=penalty, average=average)
