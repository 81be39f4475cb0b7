"""FedDyn: a proximal term and a linear one that follows each client's gradient.

Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.sums import RunningSum
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import criteria
from .base import broadcast_params
from .criteria import Criterion
from .local_solver import LocalSolver

__all__ = ["feddyn"]


@record
class Server:
    """What the server knows of all clients."""

    dual: RunningSum  # [...] h = sum_i alpha_i g_i
    weight: Array  # sum_i alpha_i a_i


@record
class FedDyn:
    """See `feddyn`."""

    local: LocalSolver
    criterion: Criterion
    penalty: Any
    one_for_all: bool = static(init=False, default=False)  # the penalty is one number, which the server knows

    def __post_init__(self) -> None:
        object.__setattr__(self, "one_for_all", np.ndim(self.penalty) == 0)

    broadcast = broadcast_params

    def init(self, params: Params, clients: Clients) -> Server:
        a = trees.per_client(self.penalty, clients.ids).astype(trees.scalar_dtype(params))
        return Server(RunningSum.of(optax.tree.zeros_like(params)), jnp.sum(clients.weights * a))

    def start(self, params: Params, client: Client) -> Rows:
        return {"duals": optax.tree.zeros_like(params)}

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        return Subproblem(linear=row["duals"], penalty=self.penalty)

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        a = self.penalty
        pull = trees.scale(a, optax.tree.sub(solution.params, sent))  # a (u+ - z)
        known = {} if self.one_for_all else {"penalty": a}
        return {"pull": pull, **known}, {"duals": optax.tree.sub(row["duals"], pull)}  # g+ = g - a (u+ - z)

    def aggregate(self, params: Params, server: Server, received: Received, round: Round) -> tuple[Params, Server]:
        pull = received.total["pull"]
        a = self.penalty * received.weight if self.one_for_all else received.total["penalty"]  # sum of alpha a
        h = server.dual.add(optax.tree.scale(-1, pull))
        # z+ = mean of the selected u+, weighted by alpha a, - h+ / (sum of all alpha a)
        new = jax.tree.map(
            lambda z, p, h: z + (p / a.astype(p.dtype) - h / server.weight.astype(h.dtype)).astype(z.dtype),
            params,
            pull,
            h.value,
        )
        return new, Server(h, server.weight)


def feddyn(local: LocalSolver, penalty: Any, *, criterion: Criterion | None = None) -> FedDyn:
    """FedDyn: each client's loss is corrected so that all local optima agree at the global one.

    Each selected client solves from z^k

        min_u f_i(u) - <g_i, u> + a_i / 2 ||u - z^k||^2:

    (in this package's subproblem, linear = +g_i, the client's dual). An exact solve has grad f_i(u_i+) = g_i - a_i
    (u_i+ - z^k). Then

        g_i+    = g_i - a_i (u_i+ - z^k),                                         its gradient at its own optimum,
        h+      = h - sum alpha_i a_i (u_i+ - z^k),                               over the selected clients,
        z^{k+1} = sum alpha_i a_i u_i+ / sum alpha_i a_i - h+ / sum_all alpha_i a_i,   the first over the selected.

    The paper has equal weights and one a; with alpha_i = 1 / m and a_i = a these are its lines. With any weights
    h = sum alpha_i g_i over all clients, so at a fixed point (u_i+ = z, h = 0, g_i = grad f_i(z)) sum alpha_i
    grad f_i(z) = 0: the minimiser of sum alpha_i f_i. `penalty = a / (m alpha)` is the paper's method with one a on
    the losses m alpha_i f_i. With all clients selected in every round it is `fedadmm` without memory.

    A client's state is `duals`, g_i [clients, ...], 0 at the start. A selected client sends a_i (u_i+ - z^k), n
    floats, and also a_i if clients have their own penalties.

    Args:
        local: How a client solves its subproblem.
        penalty: a_i above 0, a number or one per client [clients]; the paper's alpha.
        criterion: When a local solve may stop early; by default it runs to `local.max_epochs`.

    >>> feddyn(LocalSolver(learning_rate=0.1, batch_size=10, max_epochs=5), penalty=0.1).penalty
    0.1
    """
    checks.part("local", local, ("step",), "fa.LocalSolver(...)")
    criterion = criteria.checked(criterion, unless_kept="'server'")
    penalty = checks.number("penalty", penalty, above=0, per_client=True)
    return FedDyn(local=local, criterion=criterion, penalty=penalty)
