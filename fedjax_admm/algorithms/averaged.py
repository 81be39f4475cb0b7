"""Any method, with the average of its parameters over the rounds as the result (Polyak and Ruppert).

Where a round sees few of the clients, the server's parameters change with every cohort. An average over rounds has less
of this noise. It does not slow the method down, as a longer memory of the server would: clients are sent the method's
own parameters, and only what is evaluated and returned is the average. Nothing more is sent. The server keeps one more
set of parameters.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ..core import checks, trees
from ..core.record import display_name, record
from ..core.sums import Apart
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import contract
from .base import Algorithm, RenewableSums, SilentRounds
from .criteria import Criterion
from .local_solver import LocalSolver


@record
class Iterate:
    """The method's own parameters, of which the server's are the average."""

    params: Any  # [...] z
    rounds: Array  # int32, that the average has


@record
class Server:
    """What the server keeps."""

    own: Any  # the method's record
    iterate: Apart  # `Iterate`


@record
class Averaged:
    """A method with averaged parameters. See `averaged`."""

    algorithm: Any
    power: Any
    returning_power: Any = None  # None: the same

    @property
    def display_name(self) -> str:
        """The method's, and that it is averaged."""
        return f"{display_name(self.algorithm)}, averaged"

    @property
    def local(self) -> LocalSolver:
        return self.algorithm.local

    @property
    def criterion(self) -> Criterion:
        return self.algorithm.criterion

    @property
    def penalty_rule(self) -> Any:
        """The method's; there is none where it has none."""
        return self.algorithm.penalty_rule

    @property
    def needs_everyone(self) -> bool:
        return getattr(self.algorithm, "needs_everyone", False)

    @property
    def needs_gradient(self) -> bool:
        return getattr(self.algorithm, "needs_gradient", False)

    def init(self, params: Params, clients: Clients) -> Server:
        return Server(self.algorithm.init(params, clients), Apart(Iterate(params, jnp.int32(0))))

    def start(self, params: Params, client: Client) -> Rows:
        return self.algorithm.start(params, client)

    def iterate(self, params: Params, server: Server) -> Params:
        return server.iterate.value.params

    def broadcast(self, params: Params, server: Server, round: Round) -> Any:
        return self.algorithm.broadcast(self.iterate(params, server), server.own, round)

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        return self.algorithm.subproblem(sent, row, client, round)

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        return self.algorithm.reply(sent, row, solution, client, round)

    def aggregate(self, params: Params, server: Server, received: Received, round: Round) -> tuple[Params, Server]:
        old = server.iterate.value
        z, own = self.algorithm.aggregate(old.params, server.own, received, round)
        power = jnp.asarray(self.power, trees.scalar_dtype(params))
        if self.returning_power is not None:
            power += (self.returning_power - power) * self.algorithm.returned(own).astype(power.dtype)
        # Of the first 1: the start is not in the average.
        share = (power + 1) / (power + 1 + old.rounds.astype(power.dtype))
        mean = jax.tree.map(lambda mean, z: mean + (share * (z - mean)).astype(mean.dtype), params, z)
        return mean, Server(own, Apart(Iterate(z, old.rounds + 1)))


@record
class AveragedSums(Averaged):
    """The same of a method whose server's sums are formed anew when they are worn."""

    def worn(self, server: Server) -> Array:
        return self.algorithm.worn(server.own)

    def count(self, server: Server, row: Rows, client: Client) -> Server:
        return Server(self.algorithm.count(server.own, row, client), server.iterate)


def averaged(algorithm: Algorithm, power: Any = 2.0, *, returning_power: Any = None) -> Averaged:
    """Any method, with the average over rounds as its result.

    The method itself runs unchanged. What is evaluated and returned is a weighted average of its parameters z^1, z^2,
    ..., in which the weight of z^k grows about like k^power. So the first rounds, which are far from the solution,
    count for little: with power=2, half of the weight is on the last fifth of the rounds, however many there are.

    Args:
        algorithm: The method, as `fedavg(...)` makes it.
        power: At least 0. With 0 all rounds count the same, which has the least noise in the end. A larger power
            forgets the first rounds sooner.
        returning_power: Another power for rounds whose clients have all been heard before. `power` is then for rounds
            whose clients are all new, and other rounds have a power in between. A server that remembers its clients has
            less noise when they return, so it needs less averaging: a larger power. This needs a method that knows who
            returns, `fedadmm(forgetting="returning")`. None: always `power`.

    Returns:
        The averaged method.

    Raises:
        ValueError: The method has rounds in which nothing is exchanged (`fedpd`), or an argument is not as said here.

    >>> fa.averaged(fa.fedavg(LocalSolver(learning_rate=0.1))).power
    2.0

    References: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control and
    Optimization 30, 1992. Shamir and Zhang, "Stochastic gradient descent for non-smooth optimization", ICML 2013 (the
    weights).
    """
    contract.check_parts(algorithm)
    if isinstance(algorithm, SilentRounds):
        raise ValueError(f"algorithm {display_name(algorithm)} has rounds without a server: averaged is of others")
    if returning_power is not None:
        returning_power = checks.number("returning_power", returning_power, at_least=0)
        if not getattr(algorithm, "knows_who_returns", False):
            raise ValueError(
                "returning_power needs a method whose server knows who returns: fedadmm(forgetting='returning')"
            )
    kind = AveragedSums if isinstance(algorithm, RenewableSums) else Averaged
    return kind(algorithm, checks.number("power", power, at_least=0), returning_power)
