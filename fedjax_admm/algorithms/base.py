"""What an algorithm is: what the server and a client say to each other, as six pure functions.

Every method here solves, on each selected client,

    min_u  f_i(u) - <linear_i, u> + penalty_i / 2 * ||u - center||^2      from start_i.

Methods differ in these terms (`subproblem`), in what a client sends afterwards (`reply`) and in what the server makes
of the sum of all messages (`aggregate`). A client sees what it was sent and its own row, never the server's record; the
server sees the sum of messages, never a client's row. A new method is a `record` with the members of `Algorithm`, in a
file of its own in this folder. If a member is missing, or a function returns something of a wrong form, making the
simulation fails with one line that says so (`contract`).
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
    record is that client's own: a `penalty` that was given as one number per client is a scalar there. In `init`,
    `broadcast` and `aggregate` it is what the user gave.

    A method that is only defined for all clients in every round has `needs_everyone = True`; other participation is
    then refused. A method with `needs_gradient = True` gets, as `solution.gradient`, the subproblem's gradient at the
    start of each solve, over all of the client's rows. Unless the solver or the criterion computes it anyway, this
    costs one pass over the rows, which the history counts among `criterion_samples`.

    You need not handle failures. A client whose solve failed, that dropped out or whose message was kept out keeps its
    row, and its message is not in the sum. If no message arrives, the server keeps its parameters and its record.
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
    """Two more functions, for an algorithm whose server keeps sums over all clients that lose digits to rounding.

    If the record is `worn` after a round, the engine forms it anew. It begins with zeros in place of the sums, keeps
    whole numbers and what is marked as no sum (`sums.Apart`), and then counts one client after another from its row,
    wherever that is kept. What several devices have counted is merged.
    """

    def worn(self, server: Any) -> Array:
        """Whether the sums have taken in too much rounding."""
        ...

    def count(self, server: Any, row: Rows, client: Client) -> Any:
        """The server's record with the share of one more client, from its row."""
        ...


@runtime_checkable
class SilentRounds(Protocol):
    """One more function, for an algorithm in which server and clients exchange nothing in some rounds.

    In such a round clients solve and keep the row that `reply` returns, but nothing is sent: the server keeps its
    record and parameters, and no floats are counted. All functions can read which kind of round it is, as
    `round.communicates`. The server's answer to a round's messages is counted in that round, although clients use it in
    the next one.
    """

    def communicates(self, round: Round) -> Array:
        """Whether the round exchanges anything, for all clients alike; `round.key` is its own, the same for all."""
        ...


@runtime_checkable
class SeparateIterate(Protocol):
    """One more function, for an algorithm whose clients start from other parameters than those that it returns.

    A state's `params` are evaluated and returned. Solves start from what `iterate` returns, and criteria measure their
    reference residual there: these parameters are z wherever this package speaks of z, and `broadcast` sends them.
    """

    def iterate(self, params: Params, server: Any) -> Params:
        """z^k, from the parameters and the server's record."""
        ...


def broadcast_params(algorithm: Any, params: Params, server: Any, round: Round) -> Params:
    """`broadcast` of a method whose server sends its parameters and nothing else."""
    return params
