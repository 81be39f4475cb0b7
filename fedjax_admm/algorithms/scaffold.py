"""SCAFFOLD: local SGD whose steps are corrected by control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1 with
option II.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record
from ..core.sums import RunningSum, weighted
from ..core.trees import add_scaled
from ..core.vocabulary import Clients, Solutions, Subproblem
from . import criteria
from .criteria import Criterion
from .local_solver import LocalSolver


@record
class Scaffold:
    """See `scaffold`. The server's record is its own control variate c = sum_i alpha_i c_i over all clients."""

    local: LocalSolver
    criterion: Criterion
    server_learning_rate: Any

    def init(self, params: Any, clients: Clients) -> tuple[RunningSum, dict[str, Any]]:
        zeros = optax.tree.zeros_like(params)
        return RunningSum.of(zeros), {"controls": trees.repeat(zeros, clients.ids.shape[0])}

    def subproblems(self, params: Any, server: RunningSum, rows: dict[str, Any], cohort: Clients) -> Subproblem:
        # The step u - eta (g_i(u) - c_i + c) is one on f_i(u) - <c_i - c, u>.
        c = optax.tree.cast_like(server.value, params)
        return Subproblem(linear=trees.minus(rows["controls"], c))

    def update(
        self, params: Any, server: RunningSum, rows: dict[str, Any], solutions: Solutions, cohort: Clients
    ) -> tuple[Any, RunningSum, dict[str, Any]]:
        alpha, z, c_i = cohort.weights, params, rows["controls"]
        c = optax.tree.cast_like(server.value, z)
        moved = trees.minus(solutions.params, z)
        rate = trees.per_client(self.local.learning_rate, cohort.ids)
        length = rate * jnp.maximum(solutions.steps, 1).astype(rate.dtype)  # K_i eta_i
        # Option II: c_i+ = c_i - c + (z - u+) / (K_i eta_i). Without a step there is no gradient to learn from.
        controls = optax.tree.sub(trees.minus(c_i, c), trees.scale_rows(1 / length, moved))
        controls = trees.where(solutions.steps > 0, controls, c_i)
        new_params = add_scaled(z, self.server_learning_rate, weighted(alpha / jnp.sum(alpha), moved))
        return new_params, server.add(weighted(alpha, optax.tree.sub(controls, c_i))), {"controls": controls}

    def penalty_mean(self, server: RunningSum) -> Array:
        return jnp.full((), jnp.nan, trees.scalar_dtype(server.high))

    def floats_up(self, num_params: int) -> int:
        return 2 * num_params  # u+ - z and c_i+ - c_i

    def floats_down(self, num_params: int) -> int:
        return 2 * num_params  # z and c


def scaffold(local: LocalSolver, *, server_learning_rate: Any = 1.0, criterion: Criterion | None = None) -> Scaffold:
    """SCAFFOLD with option II: control variates c_i and c keep a client's steps from drifting to its own optimum.

    Each selected client does K_i steps u <- u - eta_i (g_i(u) - c_i + c) from z^k, with g_i a gradient of f_i on a
    minibatch. In this package's subproblem, linear = c_i - c and there is no penalty. Then

        c_i+    = c_i - c + (z^k - u_i+) / (K_i eta_i),          the mean of the g_i along the way,
        z^{k+1} = z^k + eta_g sum alpha_i (u_i+ - z^k) / sum alpha_i,     both over the selected clients,
        c+      = c + sum alpha_i (c_i+ - c_i),                           over the selected clients.

    The paper has equal weights; with alpha_i = 1 / N these are its lines. With any weights c = sum alpha_i c_i over
    all clients, so at a fixed point (u_i+ = z, c = 0, c_i = grad f_i(z)) sum alpha_i grad f_i(z) = 0: the minimiser
    of sum alpha_i f_i. All c_i are 0 at first.

    local: with `optax.sgd`, since for any other optimizer (z - u+) / (K_i eta_i) is not a mean of gradients. K_i is
        the number of steps done, max_epochs * ceil(N_i / batch_size) if nothing stops the solve.
    server_learning_rate: eta_g, above 0.
    criterion: when a local solve may stop early; by default it runs to `local.max_epochs`. A client that did no
        step keeps its c_i.

    The clients' rows are `controls`, c_i [clients, ...]. A selected client receives z and c and sends both
    differences, 2 n floats each way, as in the paper.

    >>> scaffold(LocalSolver(learning_rate=0.1, batch_size=10, max_epochs=5)).server_learning_rate
    1.0
    """
    checks.part("local", local, ("step",), "fa.LocalSolver(...)")
    if local.optimizer is not optax.sgd:
        raise ValueError(f"scaffold needs optimizer=optax.sgd in local, got {local.optimizer!r}")
    criterion = criteria.checked(criterion, unless_kept="'server'")
    rate = checks.number("server_learning_rate", server_learning_rate, above=0)
    return Scaffold(local=local, criterion=criterion, server_learning_rate=rate)
