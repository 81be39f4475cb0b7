"""FedPD: ADMM whose clients go on by themselves when a coin says so.

Zhang, Hong, Dhople, Yin and Liu, "FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data", IEEE Trans.
Signal Processing 69, 2021, Algorithm 1, with any local solver for its oracle I. Its oracle II, whose gradient estimate
outlives the solve, is not here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import criteria
from .base import broadcast_params
from .criteria import Criterion
from .local_solver import LocalSolver

__all__ = ["fedpd"]


@record
class FedPD:
    """See `fedpd`. The server's record is sum_i alpha_i beta_i over all clients, who never change their penalties."""

    local: LocalSolver
    criterion: Criterion
    penalty: Any
    skip: Any
    solve_start: str = static(default="client")

    needs_everyone: ClassVar[bool] = True
    broadcast = broadcast_params

    def init(self, params: Params, clients: Clients) -> Array:
        beta = trees.per_client(self.penalty, clients.ids).astype(trees.scalar_dtype(params))
        return jnp.sum(clients.weights * beta)

    def communicates(self, round: Round) -> Array:
        """One coin for all clients, in any precision the same."""
        return jax.random.uniform(round.key, dtype=jnp.float32) >= jnp.asarray(self.skip).astype(jnp.float32)

    def start(self, params: Params, client: Client) -> Rows:
        zero = optax.tree.zeros_like(params)
        # Where a round was silent a client has a center of its own; else it is what the server sends.
        return {"client_params": params, "duals": zero, "centers": params, "alone": jnp.bool_(False)}

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        u, center = row["client_params"], trees.where(row["alone"], row["centers"], sent)
        start = u if self.solve_start == "client" else center
        return Subproblem(linear=row["duals"], penalty=self.penalty, center=center, start=start, previous=u)

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        u, center = solution.params, trees.where(row["alone"], row["centers"], sent)
        duals = optax.tree.sub(row["duals"], trees.scale(self.penalty, optax.tree.sub(u, center)))
        center = optax.tree.sub(u, trees.scale(1 / self.penalty, duals))  # c_i
        message = trees.scale(self.penalty, optax.tree.sub(center, sent))
        alone = ~jnp.asarray(round.communicates)
        return message, {"client_params": u, "duals": duals, "centers": center, "alone": alone}

    def aggregate(self, params: Params, server: Array, received: Received, round: Round) -> tuple[Params, Array]:
        move = trees.scale(1 / server, received.total)
        return optax.tree.cast_like(optax.tree.add(params, move), params), server


def fedpd(
    local: LocalSolver,
    penalty: Any,
    *,
    skip: float = 0.0,
    criterion: Criterion | None = None,
    start: str = "client",
) -> FedPD:
    """FedPD: all clients solve in every round, and a coin decides in which rounds they communicate with the server.

    With its own center z_i, each client solves min_u f_i(u) - <lambda_i, u> + beta_i / 2 ||u - z_i||^2, and then

        lambda_i+ = lambda_i - beta_i (u_i+ - z_i),     c_i = u_i+ - lambda_i+ / beta_i.

    One coin decides for all. With probability 1 - skip they send their c_i, and

        z_i+ = z = sum alpha_i beta_i c_i / sum alpha_i beta_i;

    Otherwise nothing is sent, z stays as it is, and z_i+ = c_i. With `skip=0` it is `fedadmm(start="client")` with
    every client in every round. With `skip` above 0 it does not converge to the minimiser of sum alpha_i f_i, unless
    the f_i have the same minimiser: the paper's theory leaves an error in proportion to their dissimilarity.

    Every round is in the history; one without communication counts its gradients and no floats. The coins follow from
    the run's seed. The paper has equal weights and one penalty 1 / eta. The method is only defined for all clients, so
    `participation` must be 1. A client that fails or drops out counts as if its c_i were z.

    A client's state is `client_params` u_i, `duals` lambda_i, `centers` c_i, and `alone`, whether c_i is the client's
    center.

    Args:
        local: How a client solves its subproblem.
        penalty: beta_i = 1 / eta above 0, a number or one per client [clients].
        skip: The probability of a round without communication, at least 0 and below 1.
        criterion: When a local solve may stop early; by default it does its maximum of epochs.
        start: Where a solve starts: at the "client"'s own u_i, as in the paper's oracle I, or at the "server"'s z,
            which is replaced by the client's center after rounds without communication.

    >>> fedpd(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0, skip=0.5).skip
    0.5
    """
    return FedPD(
        local=checks.part("local", local, ("step",), "fa.LocalSolver(...)"),
        criterion=criteria.checked(criterion),
        penalty=checks.number("penalty", penalty, above=0, per_client=True),
        skip=checks.number("skip", skip, at_least=0, below=1),
        solve_start=checks.choice("start", start, ("client", "server")),
    )
