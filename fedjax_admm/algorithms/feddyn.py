"""FedDyn: a proximal term and a linear one that follows each client's gradient.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record
from ..core.sums import RunningSum, weighted
from ..core.vocabulary import Clients, Solutions, Subproblem
from . import criteria
from .base import ModelExchange
from .criteria import Criterion
from .local_solver import LocalSolver


@record
class Server:
    """What the server knows of all clients."""

    dual: RunningSum  # [...] h = sum_i alpha_i g_i
    weight: Array  # sum_i alpha_i a_i
    penalty_mean: Array  # mean of a_i over all clients


@record
class FedDyn(ModelExchange):
    """See `feddyn`."""

    local: LocalSolver
    criterion: Criterion
    penalty: Any

    def init(self, params: Any, clients: Clients) -> tuple[Server, dict[str, Any]]:
        zeros = optax.tree.zeros_like(params)
        a = trees.per_client(self.penalty, clients.ids).astype(trees.scalar_dtype(params))
        server = Server(RunningSum.of(zeros), jnp.sum(clients.weights * a), jnp.mean(a))
        return server, {"duals": trees.repeat(zeros, clients.ids.shape[0])}

    def subproblems(self, params: Any, server: Server, rows: dict[str, Any], cohort: Clients) -> Subproblem:
        return Subproblem(linear=rows["duals"], penalty=trees.per_client(self.penalty, cohort.ids))

    def update(
        self, params: Any, server: Server, rows: dict[str, Any], solutions: Solutions, cohort: Clients
    ) -> tuple[Any, Server, dict[str, Any]]:
        u, a = solutions.params, trees.per_client(self.penalty, cohort.ids)
        duals = optax.tree.sub(rows["duals"], trees.scale_rows(a, trees.minus(u, params)))  # g+ = g - a (u+ - z)
        h = server.dual.add(weighted(cohort.weights, optax.tree.sub(duals, rows["duals"])))
        share = cohort.weights * a
        mean = weighted(share / jnp.sum(share), u)
        # z+ = mean of the selected u+ - h+ / a
        new_params = jax.tree.map(lambda m, h: m - h / server.weight.astype(h.dtype), mean, h.value)
        return optax.tree.cast_like(new_params, params), Server(h, server.weight, server.penalty_mean), {"duals": duals}

    def penalty_mean(self, server: Server) -> Array:
        return server.penalty_mean


def feddyn(local: LocalSolver, penalty: Any, *, criterion: Criterion | None = None) -> FedDyn:
    """FedDyn: each client's loss is corrected so that all local optima agree at the global one.

    Each selected client solves min_u f_i(u) - <g_i, u> + a_i / 2 ||u - z^k||^2 from z^k: in this package's
    subproblem linear = +g_i, its dual. An exact solve has grad f_i(u_i+) = g_i - a_i (u_i+ - z^k). Then

        g_i+    = g_i - a_i (u_i+ - z^k),                                         its gradient at its own optimum,
        h+      = h - sum alpha_i a_i (u_i+ - z^k),                               over the selected clients,
        z^{k+1} = sum alpha_i a_i u_i+ / sum alpha_i a_i - h+ / sum_all alpha_i a_i,   the first over the selected.

    The paper has equal weights and one a; with alpha_i = 1 / m and a_i = a these are its lines. With any weights
    h = sum alpha_i g_i over all clients, so at a fixed point (u_i+ = z, h = 0, g_i = grad f_i(z)) sum alpha_i
    grad f_i(z) = 0: the minimiser of sum alpha_i f_i. `penalty = a / (m alpha)` is the paper's method with one a on
    the losses m alpha_i f_i. With all clients selected in every round it is `fedadmm` without memory.

    penalty: a_i above 0, a number or one per client [clients]; the paper's alpha.
    criterion: when a local solve may stop early; by default it runs to `local.max_epochs`.

    The clients' rows are `duals`, g_i [clients, ...], 0 at first. A selected client sends u_i+ alone, n floats.

    >>> feddyn(LocalSolver(learning_rate=0.1, batch_size=10, max_epochs=5), penalty=0.1).penalty
    0.1
    """
    checks.part("local", local, ("step",), "fa.LocalSolver(...)")
    criterion = criteria.checked(criterion, unless_kept="'server'")
    penalty = checks.number("penalty", penalty, above=0, per_client=True)
    return FedDyn(local=local, criterion=criterion, penalty=penalty)
