"""FedADMM, FedADMM-In and FedADMM-InSa: one method with different parts.

Song, Wang and Zuazua, "FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning", Algorithms 1
to 3. They differ in the criterion that ends a local solve, in the rule by which a client's penalty changes, and
in the server's memory delta.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.sums import RunningSum, weighted
from ..core.vocabulary import Clients, Solutions, Subproblem
from . import criteria, penalties
from .criteria import Criterion
from .local_solver import LocalSolver
from .penalties import PenaltyRule


@record
class Server:
    """The server's sums over all clients, with the penalty by which it counts each of them."""

    total: RunningSum  # [...] sum_i alpha_i (beta_i u_i - lambda_i)
    weight: RunningSum  # sum_i alpha_i beta_i
    penalty_mean: RunningSum  # mean of beta_i over all clients


@record
class FedADMM:
    """The family. See `fedadmm`, `fedadmm_in` and `fedadmm_insa`."""

    local: LocalSolver
    criterion: Criterion
    penalty_rule: PenaltyRule
    penalty: Any
    delta: Any
    unselected_penalty: str = static()

    @property
    def display_name(self) -> str:
        """The paper's name for these parts: In with an inexactness criterion, Sa with penalties that adapt."""
        inexact = "" if self.criterion.residual is None else "In"
        adaptive = "" if isinstance(self.penalty_rule, penalties.Constant) else "Sa"
        return f"FedADMM-{inexact}{adaptive}".removesuffix("-")

    def init(self, params: Any, clients: Clients) -> tuple[Server, dict[str, Any]]:
        number = clients.ids.shape[0]
        beta = trees.per_client(self.penalty, clients.ids).astype(trees.scalar_dtype(params))
        weight = jnp.sum(clients.weights * beta)
        # u_i^0 = z^0 and lambda_i^0 = 0, so the sum is weight * z^0.
        total = jax.tree.map(lambda leaf: (weight * leaf.astype(weight.dtype)).astype(leaf.dtype), params)
        server = Server(RunningSum.of(total), RunningSum.of(weight), RunningSum.of(jnp.mean(beta)))
        rows = {
            "client_params": trees.repeat(params, number),
            "duals": trees.repeat(optax.tree.zeros_like(params), number),
            "penalties": beta,
        }
        if self.unselected_penalty == "sent":
            rows["sent_penalties"] = beta
        return server, rows

    def subproblems(self, params: Any, server: Server, rows: dict[str, Any], cohort: Clients) -> Subproblem:
        return Subproblem(linear=rows["duals"], penalty=rows["penalties"], previous=rows["client_params"])

    def update(
        self, params: Any, server: Server, rows: dict[str, Any], solutions: Solutions, cohort: Clients
    ) -> tuple[Any, Server, dict[str, Any]]:
        alpha, beta = cohort.weights, rows["penalties"]
        z, u_old, u = params, rows["client_params"], solutions.params
        step = trees.scale_rows(beta, trees.minus(u, z))
        duals = optax.tree.sub(rows["duals"], step)  # (3.10b): lambda+ = lambda - beta (u+ - z)

        # What the server holds of each client changes from counted * u - lambda to beta * u+ - lambda+.
        counted = rows.get("sent_penalties", beta)
        change = optax.tree.sub(_message(beta, u, duals), _message(counted, u_old, rows["duals"]))
        total = server.total.add(weighted(alpha, change))
        weight = server.weight.add(jnp.sum(alpha * (beta - counted)))
        new_params = self._aggregate(z, total.value, weight.value)

        rule = trees.per_client(self.penalty_rule, cohort.ids)
        new_beta = rule(beta, solutions.consensus_gap, solutions.movement)  # (3.15)
        new_rows = {"client_params": u, "duals": duals, "penalties": new_beta}
        if "sent_penalties" in rows:
            new_rows["sent_penalties"] = beta
        else:
            # Until the client is selected again, the server counts it with its new penalty.
            total = total.add(weighted(alpha * (new_beta - beta), u))
            weight = weight.add(jnp.sum(alpha * (new_beta - beta)))
        mean = server.penalty_mean.add(jnp.sum(jnp.where(alpha > 0, new_beta - beta, 0)) / cohort.population)
        return new_params, Server(total, weight, mean), new_rows

    def penalty_mean(self, server: Server) -> Array:
        return server.penalty_mean.value

    def floats_down(self, num_params: int) -> int:
        return num_params

    def floats_up(self, num_params: int) -> int:
        # To count a client with a penalty that changes after its message, the server needs u and lambda apart.
        return (2 if self.unselected_penalty == "current" else 1) * num_params + 1

    def _aggregate(self, z: Any, total: Any, weight: Array) -> Any:
        """(3.1): z_hat = total / weight, then the memory z+ = (z_hat + delta z) / (1 + delta)."""
        delta = self.delta
        return jax.tree.map(lambda t, z: ((t / weight + delta * z) / (1 + delta)).astype(z.dtype), total, z)


def _message(beta: Array, u: Any, duals: Any) -> Any:
    """What a client sends, beta u - lambda, [cohort, ...]."""
    return optax.tree.sub(trees.scale_rows(beta, u), duals)


def fedadmm(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    delta: float = 0.0,
    criterion: Criterion | None = None,
    penalty_rule: PenaltyRule | None = None,
    unselected_penalty: str | None = None,
) -> FedADMM:
    """FedADMM (Algorithm 1), and by its arguments every mixture of the paper's parts.

    Each selected client solves min_u f_i(u) - <lambda_i, u - z> + beta_i / 2 ||u - z||^2 from z^k to its
    maximum of epochs or until the criterion holds; then lambda_i+ = lambda_i - beta_i (u_i+ - z^k), and

        z_hat = sum_i alpha_i (beta_i u_i+ - lambda_i+) / sum_i alpha_i beta_i,    over all clients,
        z^{k+1} = (z_hat + delta z^k) / (1 + delta).

    penalty: beta_i^0 above 0, a number or one per client [clients].
    delta: the server's memory, at least 0.
    criterion: by default every solve does its maximum of epochs.
    penalty_rule: how beta_i changes after a solve; by default not at all.
    unselected_penalty: with which penalty the server counts a client that it did not select: its "current" one
        (Algorithm 3 read literally; needs u and lambda apart, so 2 n + 1 floats up) or the one last "sent"
        (n + 1 floats up). By default "sent" without a penalty rule, where they are the same, else "current".

    >>> fedadmm(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0).delta
    0.0
    """
    if unselected_penalty is None:
        unselected_penalty = "sent" if penalty_rule is None or penalty_rule == penalties.constant() else "current"
    return FedADMM(
        local=checks.part("local", local, ("step",), "fa.LocalSolver(...)"),
        criterion=criteria.checked(criterion),
        penalty_rule=checks.part("penalty_rule", penalty_rule or penalties.constant(), ("__call__",), "fa.penalties"),
        penalty=checks.number("penalty", penalty, above=0, per_client=True),
        delta=checks.number("delta", delta, at_least=0),
        unselected_penalty=checks.choice("unselected_penalty", unselected_penalty, ("current", "sent")),
    )


def fedadmm_in(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    c: Any = 0.01,
    delta: float = 0.01,
    reference: str = "server",
    residual: str = "exact",
    sigma_factor: float = 0.999,
    criterion: Criterion | None = None,
) -> FedADMM:
    """FedADMM-In (Algorithm 2): FedADMM whose local solves end at the inexactness criterion (3.7).

    penalty: beta_i above 0, a number or one per client [clients].
    c: the modulus of strong convexity c_i of the clients' losses, a number or one per client [clients].
    delta: the server's memory, at least 0.
    reference: the right-hand side is the residual at "server", z^k, or at "client", u_i^k.
    residual: how it is obtained: "exact", "epoch_mean" or "verified" (see `criteria`).
    sigma_factor: sigma is this share of its bound sqrt2 / (sqrt2 + sqrt(beta / c)), below 1.
    criterion: another criterion instead; c, reference, residual and sigma_factor are then not used.

    >>> fedadmm_in(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0, reference="client").criterion.c
    0.01
    """
    relative = criteria.relative_residual(c=c, reference=reference, residual=residual, sigma_factor=sigma_factor)
    return fedadmm(local, penalty, delta=delta, criterion=relative if criterion is None else criterion)


def fedadmm_insa(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    c: Any = 0.01,
    delta: float = 0.01,
    mu: float = 5.0,
    tau: float = 2.0,
    unselected_penalty: str = "current",
    reference: str = "server",
    residual: str = "exact",
    sigma_factor: float = 0.999,
    criterion: Criterion | None = None,
) -> FedADMM:
    """FedADMM-InSa (Algorithm 3): FedADMM-In whose penalties balance gap and movement (3.15).

    The criterion's sigma follows each client's current penalty.

    mu: the penalty changes if gap and penalty * movement differ by more than this factor, above 1.
    tau: the factor by which it changes, above 1.
    unselected_penalty: the server counts a client that it did not select with its "current" penalty or with the
        one last "sent".

    The other arguments are `fedadmm_in`'s.

    >>> fedadmm_insa(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0).penalty_rule
    ResidualBalancing(mu=5.0, tau=2.0)
    """
    relative = criteria.relative_residual(c=c, reference=reference, residual=residual, sigma_factor=sigma_factor)
    return fedadmm(
        local,
        penalty,
        delta=delta,
        criterion=relative if criterion is None else criterion,
        penalty_rule=penalties.residual_balancing(mu, tau),
        unselected_penalty=unselected_penalty,
    )
