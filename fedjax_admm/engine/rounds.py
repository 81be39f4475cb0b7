"""The server's part of a round: what is sent, who works and in which order, and what becomes of the sums.

What a client does is in `desk`, what a round writes in `ledger`.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..algorithms.base import Algorithm, RenewableSums, SeparateIterate, SilentRounds
from ..core import trees
from ..core.record import record
from ..core.sums import PositiveSum, RunningSum
from ..core.vocabulary import AWAY, VACANT, Client, Clients, Received, Round, Solution, Solves
from ..exchange.stage import MEMORIES, Exchange
from ..problems.problem import Problem
from .ledger import Entries, Ledger, RoundInfo, Tally

# Of keys, beyond every round's number: `broadcast`, `aggregate` and `communicates` each have their own.
_SERVER_STREAM = 2**31


@record
class Setup:
    """What all rounds of a run have in common. In a sweep all but the problem has a leading axis [runs]."""

    problem: Problem
    algorithm: Algorithm
    exchange: Exchange
    key: Array  # the run's, from which all randomness on the device follows


@dataclass(frozen=True)
class Layout:
    """How a device works; compiled in."""

    width: int  # lanes
    rows_per_trip: int
    devices: int = 1  # that share the cohort
    share: int = 0  # of clients that a device takes at a time, where rows travel in blocks
    floats: int = 0  # that a client receives and sends


class Queue(NamedTuple):
    """The jobs of a device: `order` names the places in which they are, among what is known of more places perhaps."""

    ids: Array  # [places] whose they are
    addresses: Array  # [places] where the client's row is, among the rows at hand
    length: Array  # how many jobs there are: the rest is padding
    order: Array | None = None  # [jobs] places in the order in which they are begun; None: as they stand
    slots: Array | None = None  # [places] where its entry goes, among the ledger's; None: to the same place
    runs: Array | None = None  # [places] in a sweep: which run each is of
    offsets: Array | None = None  # [places] where a client's data begin, among those at hand; None: as the problem says

    @property
    def room(self) -> int:
        """How many jobs it may have."""
        return (self.ids if self.order is None else self.order).shape[0]


def clients_of(problem: Problem, ids: Array, dtype: Any) -> Clients:
    """The records of clients `ids` [ids]."""
    data = problem.data
    return Clients(ids, data.sizes[ids], data.weights[ids].astype(dtype), data.num_clients)


def client_of(problem: Problem, id: Array, dtype: Any) -> Client:
    """The record of one client."""
    data = problem.data
    return Client(id, data.sizes[id], data.weights[id].astype(dtype), data.num_clients)


def start_row(setup: Setup, params: Any, id: Array) -> dict[str, Any]:
    """What a client keeps before it was ever selected: the algorithm's row, and the stages' memories."""
    client = client_of(setup.problem, id, trees.scalar_dtype(params))
    row = trees.per_client(setup.algorithm, id).start(params, client)
    memories = setup.exchange.of_client(id).start(params, client)
    return trees.strongly_typed(row | ({MEMORIES: memories} if memories else {}))


def broadcast(setup: Setup, params: Any, server: Any, number: Array) -> Any:
    """What goes to every selected client."""
    return setup.algorithm.broadcast(params, server, _server_round(setup, number, 0))


def iterate(setup: Setup, params: Any, server: Any) -> Any:
    """z, at which clients work: the server's parameters, but for methods that return others."""
    algorithm = setup.algorithm
    return algorithm.iterate(params, server) if isinstance(algorithm, SeparateIterate) else params


def message_shape(setup: Setup, params: Any) -> Any:
    """The structure, shapes and dtypes of a client's message after all stages."""

    def message(setup: Setup, params: Any) -> Any:
        dtype, id, number = trees.scalar_dtype(params), jnp.int32(0), jnp.int32(0)
        everyone = jnp.arange(setup.problem.data.num_clients, dtype=jnp.int32)
        server = setup.algorithm.init(params, clients_of(setup.problem, everyone, dtype))
        client, row = client_of(setup.problem, id, dtype), start_row(setup, params, id)
        sent, memories = broadcast(setup, params, server, number), row.pop(MEMORIES, {})
        zero = jnp.zeros((), dtype)
        solution = Solution(params, number, number, zero, zero, jnp.bool_(True), linear=params, gradient=params)
        reply, _ = trees.per_client(setup.algorithm, id).reply(sent, row, solution, client, Round(number, setup.key))
        return setup.exchange.of_client(id).transform(reply, memories, client, Round(number, setup.key))[0]

    return jax.eval_shape(message, setup, params)


def empty_ledger(setup: Setup, params: Any, entries: Entries | int) -> Ledger:
    """A round's ledger before anything was done; `setup` and `params` of one run, `entries` or the room for so many."""
    dtype = trees.scalar_dtype(params)
    zero, none = jnp.zeros((), dtype), jnp.int32(0)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), message_shape(setup, params))
    tally = Tally(RunningSum.of(nothing), zero, none, none, none, zero, jnp.float32(0), none)
    return Ledger(Entries.empty((entries,), dtype) if isinstance(entries, int) else entries, tally)


def expected_work(sizes: Any, last_epochs: Any) -> Any:
    """How long solves of clients of these sizes will take, by the epochs of their last; arrays of NumPy or of JAX."""
    return sizes.astype(np.float32) * last_epochs.astype(np.float32)


def order_of_work(problem: Problem, ids: Array, last_epochs: Array) -> Array:
    """The cohort's places [cohort] in the order in which they are worked off: longest first, empty ones at the end."""
    # Longest first: the last to end are short.
    work = jnp.where(ids == VACANT, -1, expected_work(problem.data.sizes[ids], last_epochs))
    return jnp.argsort(-work).astype(jnp.int32)


def count_clients(ids: Array) -> Array:
    """How many of the cohort's places [cohort] have a client."""
    return jnp.sum(ids != VACANT, dtype=jnp.int32)


def remember_epochs(last_epochs: Array, ids: Array, solves: Entries) -> Array:
    """`last_epochs` [clients] after a round of clients `ids` [cohort]; those that did nothing keep theirs."""
    beyond = jnp.where(_away(solves), last_epochs.shape[0], ids)  # and so does nobody
    return last_epochs.at[beyond].set(_cost(solves), mode="drop", wrap_negative_indices=False)


def remember_epochs_on_host(last_epochs: np.ndarray, ids: np.ndarray, solves: Solves) -> None:
    """Writes the same into an array of the host."""
    worked = ~_away(solves)
    last_epochs[ids[worked]] = _cost(solves)[worked]


def _away(solves: Any) -> Any:
    return functools.reduce(operator.or_, [solves.stop_code == reason.code for reason in AWAY])


def _cost(solves: Any) -> Any:
    return solves.epochs + (solves.epochs == 0).astype(solves.epochs.dtype)  # at least one: a solve costs something


class ServerState(NamedTuple):
    """The server's part of a state."""

    params: Any
    server: Any
    penalty_mean: PositiveSum


def aggregate(setup: Setup, before: ServerState, tally: Tally, number: Array) -> tuple[ServerState, Array, Array]:
    """The server after a round of one run: (state, whether it is finite, whether its sums are worn)."""
    algorithm, came = setup.algorithm, tally.count > 0  # in a silent round nothing does
    received = Received(tally.messages.value, tally.weight, tally.count)
    new = algorithm.aggregate(before.params, before.server, received, _server_round(setup, number, 1))
    params, server = trees.where(came, new, (before.params, before.server))  # without any message it stays as it was
    share = tally.count.astype(tally.weight.dtype) / setup.problem.data.num_clients
    mean = before.penalty_mean.change(tally.penalty_change, share)
    solved = (tally.sound > 0) | (tally.present == 0)
    worn = jnp.bool_(False)
    if isinstance(algorithm, RenewableSums) and not setup.exchange.transforms:
        worn = algorithm.worn(server) | (mean.worn & jnp.isfinite(mean.value))
    return ServerState(params, server, mean), solved & trees.all_finite(params), worn


def info_of(
    setup: Setup,
    number: Array,
    ledger: Ledger,
    longest: Array,
    after: ServerState,
    finite: Array,
    worn: Array,
) -> RoundInfo:
    """What is told of a round of one run."""
    tally, talked = ledger.tally, jnp.asarray(communicates(setup.algorithm, setup.key, number))
    return RoundInfo(ledger.entries, tally.trips, longest, tally.rows, after.penalty_mean.value, finite, worn, talked)


def communicates(algorithm: Algorithm, key: Array, number: Array) -> Any:
    """Whether server and clients exchange anything in round `number` of the run with this key: True, or traced."""
    if not isinstance(algorithm, SilentRounds):
        return True
    key = jax.random.fold_in(jax.random.fold_in(key, number), _SERVER_STREAM + 2)
    return jnp.asarray(algorithm.communicates(Round(number, key)), bool)


def _server_round(setup: Setup, number: Array, function: int) -> Round:
    key = jax.random.fold_in(jax.random.fold_in(setup.key, number), _SERVER_STREAM + function)
    return Round(number, key, communicates(setup.algorithm, setup.key, number))
