"""What an algorithm is: what the server and a client say to each other, as six pure functions.

Every method here solves, on each selected client,

    min_u  f_i(u) - <linear_i, u> + penalty_i / 2 * ||u - center||^2      from start_i.

Methods differ in these terms (`subproblem`), in what a client sends afterwards (`reply`) and in what the server makes
of the sum of all messages (`aggregate`). A client sees what it was sent and its own row, never the server's record; the
server sees the sum of messages, never a client's row. A new method is a `record` with the members of `Algorithm`, in a
file of its own in this folder. What it lacks, and what its functions return that has not the shapes said here, is told
when a simulation is made (`contract`).
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jax import Array

from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from .criteria import Criterion
from .local_solver import LocalSolver


class Algorithm(Protocol):
    """What the engine asks of an algorithm.

    `start`, `subproblem` and `reply` are for ONE client and are vectorized by the engine. In them every number of the
    record is that client's own: a `penalty` that was given as one per client is a scalar there. In `init`, `broadcast`
    and `aggregate` it is as it was given.

    A method that is only defined for all clients in every round has `needs_everyone = True`; other participation is
    then refused. One with `needs_gradient = True` gets the subproblem's gradient at the start of each solve, over all
    of the client's rows, as `solution.gradient`; where no solver or criterion computes it anyway it costs a pass, which
    the history counts among `criterion_samples`.

    Failed solves need no thought: a client whose solve failed, that dropped out or whose message was kept out keeps
    its row, and its message is not in the sum. Without any message the server keeps its record too.
    """

    @property
    def local(self) -> LocalSolver: ...
    @property
    def criterion(self) -> Criterion: ...

    def init(self, params: Params, clients: Clients) -> Any:
        """The server's record at the start, from z^0 and all clients' sizes and weights."""
        ...

    def start(self, params: Params, client: Client) -> Rows:
        """What a client keeps before it was ever selected, by names; {} keeps nothing.

        A number called `penalties` is taken for the client's penalty: the records of solves have it after the round,
        and the history the mean over all clients. Names of a state's own fields, and `exchange`, are refused.
        """
        ...

    def broadcast(self, params: Params, server: Any, round: Round) -> Any:
        """What the server sends to every selected client. Its floats are counted from it."""
        ...

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        """What the client is to solve."""
        ...

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        """(message, row): what the client sends, whose floats are counted from it, and what it keeps."""
        ...

    def aggregate(self, params: Params, server: Any, received: Received, round: Round) -> tuple[Params, Any]:
        """(params, server): z^{k+1} and the server's record, from the sum of the messages."""
        ...


@runtime_checkable
class RenewableSums(Protocol):
    """What an algorithm has besides if its server's record is sums over all clients that can lose their digits.

    After a round that leaves the record `worn`, the engine forms it anew: it counts one client after another from their
    rows, wherever those live, beginning with a record of zeros, in which only whole numbers, such as a round's, and
    what is marked as no sum (`sums.Apart`) are those of the record that was worn. What several devices have counted is
    merged.
    """

    def worn(self, server: Any) -> Array:
        """Whether the sums have taken in too much rounding."""
        ...

    def count(self, server: Any, row: Rows, client: Client) -> Any:
        """The server's record with the share of one more client, from its row."""
        ...


@runtime_checkable
class SilentRounds(Protocol):
    """What an algorithm has besides if server and clients do not exchange anything in some rounds.

    In such a round clients solve, call `reply` and keep the row, but the message is not sent: nothing is added to the
    server's sum, the server keeps its record and parameters, and no floats are counted. All functions can see which
    kind of round it is, as `round.communicates`. What the server answers to a round's messages is counted in that
    round, though clients use it in the next one.
    """

    def communicates(self, round: Round) -> Array:
        """Whether the round exchanges anything, for all clients alike; `round.key` is its own, the same for all."""
        ...


@runtime_checkable
class SeparateIterate(Protocol):
    """What an algorithm has besides if its clients work at other parameters than those that it returns.

    A state's `params` are what is evaluated and returned. Solves begin at what `iterate` says, and criteria look there;
    it is z in all of this package's words, and what `broadcast` should send.
    """

    def iterate(self, params: Params, server: Any) -> Params:
        """z^k, from the parameters and the server's record."""
        ...


def broadcast_params(algorithm: Any, params: Params, server: Any, round: Round) -> Params:
    """`broadcast` of a method whose server sends its parameters and nothing else."""
    return params
