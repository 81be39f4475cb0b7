"""FedNova: updates are counted by what their clients' steps add up to, so that unequal work does not move the optimum.

Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", NeurIPS 2020, and its program, github.com/JYWa/FedNova.
"""

from __future__ import annotations

from typing import Any

import jax.core
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import criteria, server_step
from .base import broadcast_params
from .criteria import Criterion
from .local_solver import LocalSolver
from .server_step import ServerStep

__all__ = ["fednova"]


@record
class FedNova:
    """See `fednova`."""

    local: LocalSolver
    criterion: Criterion
    server: ServerStep
    penalty: Any = None
    effective: str = static(default="steps")

    broadcast = broadcast_params

    def init(self, params: Params, clients: Clients) -> Any:
        return self.server.init(params)

    def start(self, params: Params, client: Client) -> Rows:
        return {}

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        return Subproblem(penalty=self.penalty)

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        steps = solution.steps.astype(trees.scalar_dtype(sent))
        norm = self._norm(steps)
        share = jnp.where(steps > 0, 1 / jnp.where(steps > 0, norm, 1), 0)  # who did no step did not move
        direction = trees.scale(share, optax.tree.sub(solution.params, sent))
        return {"direction": direction, "steps": steps if self.effective == "steps" else norm}, {}

    def aggregate(self, params: Params, server: Any, received: Received, round: Round) -> tuple[Params, Any]:
        mean = optax.tree.scale(1 / received.weight, received.total)
        return self.server.apply(params, trees.scale(mean["steps"], mean["direction"]), server)

    def _norm(self, steps: Array) -> Array:
        """||a_i||_1: u_i - z is -eta times the gradients along the way, each with a factor; their sum."""
        options = self.local.options or {}
        if "momentum" in options:
            rho = jnp.asarray(options["momentum"]).astype(steps.dtype)
            return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
        if self.penalty is not None:
            pull = jnp.asarray(self.local.learning_rate * self.penalty).astype(steps.dtype)
            return -jnp.expm1(steps * jnp.log1p(-pull)) / pull  # (1 - (1 - pull)^steps) / pull, also where pull is tiny
        return steps


def fednova(
    local: LocalSolver,
    *,
    proximal: Any = None,
    effective: str = "steps",
    criterion: Criterion | None = None,
    server: ServerStep | None = None,
) -> FedNova:
    """FedNova: FedAvg or FedProx, with each client's update normalised by how much the client has worked.

    Each selected client does tau_i steps from z^k, which end at u_i+ = z - eta_i sum_s a_is g_is, and sends
    d_i = (u_i+ - z) / ||a_i||_1. Then, both sums over the selected clients with weights p_i that sum to one,

        z^{k+1} = z^k + tau_eff sum p_i d_i,
        tau_eff = sum p_i tau_i.

    The sum of the factors is

        ||a_i||_1 = tau_i    with plain steps,
        ||a_i||_1 = [tau_i - rho (1 - rho^{tau_i}) / (1 - rho)] / (1 - rho)    with momentum rho,
        ||a_i||_1 = [1 - (1 - eta_i mu)^{tau_i}] / (eta_i mu)    with a proximal term mu.

    Momentum begins anew in every solve.

    The paper has no formula for momentum and a proximal term together, so this is refused.

    If all clients do the same number of plain steps, it is FedAvg. A selected client sends d_i and tau_i, n + 1
    floats.

    Args:
        local: With `optax.sgd`, plain or with `options={"momentum": rho}`, since their factors are known. Clients may
            differ in epochs, in rows and in when a criterion stops them: tau_i is the number of steps done.
        proximal: mu of FedProx's mu / 2 ||u - z||^2, above 0 and below 1 / eta_i, a number or one per client
            [clients]; None: no such term.
        effective: How tau_eff counts a client's work: by its "steps", as in the paper, or by the "norm" ||a_i||_1, as
            in the authors' program with momentum. With "norm" and equal work the method is FedAvg or FedProx, also
            with momentum or a proximal term.
        criterion: When a local solve may stop early; by default it runs to `local.max_epochs`.
        server: A `ServerStep(...)`, an optimizer that the server applies to tau_eff sum p_i d_i; by default that is
            added as it is. The server momentum of the authors' program is its `options={"momentum": rho}`.

    >>> fednova(LocalSolver(learning_rate=0.1, batch_size=10, max_epochs=[1, 5, 2]), effective="norm").effective
    'norm'
    """
    checks.part("local", local, ("step",), "fa.LocalSolver(...)")
    options = local.options or {}
    if local.optimizer is not optax.sgd or options.keys() - {"momentum"}:
        raise ValueError(
            "fednova needs optimizer=optax.sgd in local, plain or with options={'momentum': ...}, got "
            f"{getattr(local.optimizer, '__name__', local.optimizer)!r} with {options}"
        )
    rho = checks.number("momentum", options.get("momentum", 0.0), at_least=0, below=1, per_client=True)
    if proximal is not None:
        if "momentum" in options:
            raise ValueError(f"proximal and momentum={rho} at once have no factor in the paper: leave one of them out")
        proximal = checks.number("proximal", proximal, above=0, per_client=True)
        _check_pull(local.learning_rate, proximal)
    return FedNova(
        local=local,
        criterion=criteria.checked(criterion, unless_kept="'server'"),
        server=server_step.checked(server),
        penalty=proximal,
        effective=checks.choice("effective", effective, ("steps", "norm")),
    )


def _check_pull(rate: Any, proximal: Any) -> None:
    """Steps that go beyond z have factors of both signs, whose sum is not their norm."""
    if isinstance(rate, jax.core.Tracer) or isinstance(proximal, jax.core.Tracer):
        return
    sizes = {np.size(value) for value in (rate, proximal) if np.ndim(value)}
    if len(sizes) < 2 and np.max(np.multiply(rate, proximal)) >= 1:
        raise ValueError(
            f"proximal times the learning rate must be below 1, got {np.max(np.multiply(rate, proximal)):g}: lower one"
        )
