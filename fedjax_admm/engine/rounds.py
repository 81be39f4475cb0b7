"""The round: what is sent, the lanes that take clients' rows and hand their replies over, and the server.

A job is an index. A lane that takes one reads the client's row where the rows are; when the solve has ended it computes
the reply, adds the message to the sum and writes the row back. Nothing here is as large as the cohort times the
parameters.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..algorithms.base import Algorithm, RenewableSums, SilentRounds
from ..core import randomness, trees
from ..core.record import record
from ..core.sums import PositiveSum, RunningSum, weighted
from ..core.vocabulary import AWAY, VACANT, Client, Clients, Received, Round, Solution, Solves, StopReason
from ..exchange.stage import MEMORIES, PRESENT, Exchange, Outcome
from ..problems.problem import Problem
from . import devices, lanes, solves

# Of keys, beyond every round's number. Each function has its own: the server's broadcast, aggregate and communicates; a
# client's subproblem and reply.
_SERVER_STREAM, _CLIENT_STREAM = 2**31, 2**31 + 2


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
    """The jobs of a device, in the order in which they are begun; all [jobs]."""

    ids: Array  # whose they are
    addresses: Array  # where the client's row is, among the rows at hand
    slots: Array  # where its entry goes, among the round's solves
    length: Array  # how many of them there are: the rest is padding
    runs: Array | None = None  # in a sweep: which run each is of
    offsets: Array | None = None  # where a client's data begin, among those at hand; None: where the problem's data say


@record
class Tally:
    """What the server has of a round so far. In a sweep everything but `rows` and `trips` has an axis [runs]."""

    messages: RunningSum  # sum of alpha_i * message_i, over clients whose message came
    weight: Array  # sum of alpha_i, over the same
    count: Array  # how many they are
    sound: Array  # clients whose solve was finite
    present: Array  # clients that took part
    penalty_change: Array  # of the mean of all clients' penalties
    rows: Array  # rows whose gradient was computed, line searches apart; as a real number, which holds any cohort's
    trips: Array  # of the lanes loop


class Entries(NamedTuple):
    """Solves as two arrays, their fields side by side: whatever writes or moves them is one kernel for each array, not
    for each field, and kernels are what takes the compiler's time."""

    real: Array  # [..., fields that are real numbers]
    whole: Array  # [..., the others], int32

    @classmethod
    def of(cls, solves: Solves, dtype: Any) -> Entries:
        """From solves [...]."""

        def stacked(names: list[str], kind: Any) -> Array:
            return jnp.stack([jnp.asarray(getattr(solves, name), kind) for name in names], axis=-1)

        return cls(stacked(_REAL, dtype), stacked(list(_WHOLE), jnp.int32))

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: Any) -> Entries:
        """Room for so many."""
        return cls(jnp.zeros((*shape, len(_REAL)), dtype), jnp.zeros((*shape, len(_WHOLE)), jnp.int32))

    @property
    def solves(self) -> Solves:
        """What they were made of."""
        real = {name: self.real[..., k] for k, name in enumerate(_REAL)}
        whole = {name: self.whole[..., k].astype(kind) for k, (name, kind) in enumerate(_WHOLE.items())}
        return Solves(**real, **whole)


_WHOLE: dict[str, Any] = dict.fromkeys(("epochs", "max_epochs", "gradient_samples", "criterion_samples"), jnp.int32)
_WHOLE["stop_code"] = jnp.int8
_REAL = [field.name for field in dataclasses.fields(Solves) if field.name not in _WHOLE]


class Ledger(NamedTuple):
    """What a round writes besides the rows."""

    entries: Entries  # of the solves [cohort]
    tally: Tally


class Store(NamedTuple):
    """What finished jobs change."""

    rows: dict[str, Any]  # leaves [addresses, ...]
    ledger: Ledger


@record
class RoundInfo:
    """What a round leaves behind besides the state."""

    solves: Solves  # [cohort]
    trips: Array  # trips of the lanes loop, of all devices together
    longest: Array  # of one device, the most
    rows: Array  # rows whose gradient those trips computed, line searches apart
    penalty_mean: Array
    finite: Array  # whether the server's parameters are, and any client's
    renewed: Array  # whether the server's sums are formed anew after it
    communicated: Array  # whether server and clients exchanged anything

    @classmethod
    def empty(cls, rounds: int, cohort: int, dtype: Any) -> RoundInfo:
        """Room for the infos [rounds, ...] of several rounds."""
        whole, real, true = jnp.zeros(rounds, jnp.int32), jnp.zeros(rounds, dtype), jnp.ones(rounds, bool)
        rows = jnp.zeros(rounds, jnp.float32)
        solves = empty_solves((rounds, cohort), dtype)
        return cls(solves, whole, whole, rows, real, finite=true, renewed=~true, communicated=true)


def empty_solves(shape: tuple[int, ...], dtype: Any) -> Solves:
    """Room for so many solves."""
    return Entries.empty(shape, dtype).solves


def no_solve(shape: tuple[int, ...], dtype: Any) -> Solves:
    """What is told of places that no client took."""
    empty = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        empty_solves(shape, dtype),
    )
    return dataclasses.replace(empty, stop_code=jnp.full_like(empty.stop_code, StopReason.NOBODY.code))


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


def empty_ledger(setup: Setup, params: Any, cohort: int) -> Ledger:
    """A round's ledger before anything was done; `setup` and `params` of one run."""
    dtype = trees.scalar_dtype(params)
    zero, none = jnp.zeros((), dtype), jnp.int32(0)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), message_shape(setup, params))
    tally = Tally(RunningSum.of(nothing), zero, none, none, none, zero, jnp.float32(0), none)
    return Ledger(Entries.empty((cohort,), dtype), tally)


def expected_work(sizes: Any, last_epochs: Any) -> Any:
    """How long solves of clients of these sizes will take, by the epochs of their last; arrays of NumPy or of JAX."""
    return sizes.astype(np.float32) * last_epochs.astype(np.float32)


def order_of_work(problem: Problem, ids: Array, last_epochs: Array) -> Array:
    """The cohort's places [cohort] in the order in which they are worked off: longest first, empty ones at the end."""
    # Longest first: the last to end are short.
    return jnp.argsort(-jnp.where(ids == VACANT, -1, expected_work(problem.data.sizes[ids], last_epochs)))


def count_clients(ids: Array) -> Array:
    """How many of the cohort's places [cohort] have a client."""
    return jnp.sum(ids != VACANT, dtype=jnp.int32)


def put_at_clients(values: Array, ids: Array, new: Array) -> Array:
    """One value per client [clients] with new ones for those of a cohort [cohort]."""
    beyond = jnp.where(ids == VACANT, values.shape[0], ids)
    return values.at[beyond].set(new, mode="drop", wrap_negative_indices=False)


def remembered_epochs(last_epochs: Any, solves: Solves) -> Any:
    """`last_epochs` [cohort] after a round; clients that did nothing keep theirs. Arrays of NumPy or of JAX."""
    away = functools.reduce(operator.or_, [solves.stop_code == reason.code for reason in AWAY])
    one = (solves.epochs == 0).astype(solves.epochs.dtype)  # at least one: a solve costs something
    away = away.astype(solves.epochs.dtype)
    return last_epochs * away + (solves.epochs + one) * (1 - away)


def work_off(setup: Setup, layout: Layout, params: Any, sent: Any, number: Array, queue: Queue, store: Store) -> Store:
    """Works off a device's queue: the rows with its clients' new ones, the ledger with their entries and messages."""
    worker = _Worker(setup, layout, params, sent, number, queue)
    program = solves.Solver(worker.plan(), setup.problem, worker.server_params).program()
    desk = lanes.Desk(worker.take, worker.hand_over, lambda job: job.task.absent != PRESENT)
    store, trips = lanes.run(program, desk, store, queue.length, min(layout.width, queue.ids.shape[0]))
    ledger = store.ledger
    tally = dataclasses.replace(ledger.tally, trips=ledger.tally.trips + trips)
    return Store(store.rows, Ledger(ledger.entries, tally))


class Task(NamedTuple):
    """What a lane knows of its job besides the solve."""

    client: Client
    row: dict[str, Any]
    address: Array
    slot: Array
    absent: Array  # a stop code if the client does nothing in this round, else PRESENT
    run: Array | None


class Settled(NamedTuple):
    """One client's part of the round."""

    message: Any
    row: dict[str, Any]
    entry: Entries
    heard: Array  # the message came
    sound: Array
    penalty_change: Array


class _Worker(NamedTuple):
    """The desk of the lanes: reads rows, makes jobs of them, and settles what came of those."""

    setup: Setup
    layout: Layout
    params: Any  # z, in a sweep [runs, ...]
    sent: Any  # likewise
    number: Array  # of the round
    queue: Queue

    def of_run(self, tree: Any, run: Array | None) -> Any:
        return tree if run is None else trees.take(tree, run)

    def server_params(self, job: solves.Job) -> Any:
        return self.of_run(self.params, job.task.run)

    @property
    def dtype(self) -> Any:
        return trees.scalar_dtype(self.params)

    def parts(self, run: Array | None, id: Array, function: int) -> tuple[Algorithm, Exchange, Round, Round]:
        """The algorithm and the stages with this client's numbers, and the round as each of them sees it.

        Args:
            run: Whose, in a sweep.
            id: The client's number.
            function: 0 for `subproblem`, 1 for `reply`: each has a key of its own.
        """
        setup = self.setup
        algorithm, exchange, key = self.of_run((setup.algorithm, setup.exchange, setup.key), run)
        mine = randomness.client_key(key, self.number, id)
        talks = communicates(algorithm, key, self.number)
        return (
            trees.per_client(algorithm, id),
            exchange.of_client(id),
            Round(self.number, jax.random.fold_in(mine, _CLIENT_STREAM + function), talks),
            Round(self.number, key, talks),
        )

    def plan(self) -> solves.Plan:
        """What all jobs have in common."""
        job = jax.eval_shape(lambda rows: self.take(Store(rows, None), jnp.int32(0)), self.example_rows())  # pyright: ignore[reportArgumentType]
        return solves.Plan.of(self.setup.algorithm, job.subproblem, self.layout.rows_per_trip, self.dtype)

    def example_rows(self) -> dict[str, Any]:
        """Rows of one address, by their shapes."""

        def row(setup: Setup, params: Any) -> Any:
            if self.queue.runs is not None:
                setup = Setup(setup.problem, *trees.take((setup.algorithm, setup.exchange, setup.key), 0))
                params = trees.take(params, 0)
            return jax.tree.map(lambda leaf: leaf[None], start_row(setup, params, jnp.int32(0)))

        return jax.eval_shape(row, self.setup, self.params)

    def take(self, store: Store, place: Array) -> solves.Job:
        """A job, from its place in the queue."""
        ids, addresses, slots, _, runs, offsets = self.queue
        id, address, slot, run = ids[place], addresses[place], slots[place], None if runs is None else runs[place]
        algorithm, exchange, round, run_round = self.parts(run, id, 0)
        client, row = client_of(self.setup.problem, id, self.dtype), trees.take(store.rows, address)
        own = {name: value for name, value in row.items() if name != MEMORIES}
        subproblem = algorithm.subproblem(self.of_run(self.sent, run), own, client, round)
        if subproblem.penalty is not None:
            subproblem = subproblem._replace(penalty=jnp.asarray(subproblem.penalty, self.dtype))
        key = randomness.client_key(run_round.key, self.number, id)
        return solves.Job(
            subproblem=subproblem,
            solver=algorithm.local,
            criterion=algorithm.criterion,
            offset=self.setup.problem.data.offsets[id] if offsets is None else offsets[place],
            size=client.size,
            key=jax.random.key_data(key),
            round=self.number,
            task=Task(client, row, address, slot, exchange.absent(row.get(MEMORIES, {}), client, run_round), run),
        )

    def hand_over(self, store: Store, jobs: solves.Job, carry: solves.Carry, done: Array) -> Store:
        """Writes rows, entries and messages of those lanes [lanes] that are `done`."""
        settled, task = jax.vmap(self.settle)(jobs, carry), jobs.task
        rows = _put(store.rows, task.address, done, settled.row)
        entries = _put(store.ledger.entries, task.slot, done, settled.entry)
        counted = done & settled.heard
        weights = jnp.where(counted, task.client.weight, 0)
        messages = trees.where(counted, settled.message, jax.tree.map(jnp.zeros_like, settled.message))
        present = done & (task.absent == PRESENT)
        old = store.ledger.tally
        add = partial(_add, runs=task.run)
        tally = Tally(
            messages=_add_messages(old.messages, weights, messages, task.run),
            weight=add(old.weight, weights),
            count=add(old.count, counted),
            sound=add(old.sound, done & settled.sound),
            present=add(old.present, present),
            penalty_change=add(old.penalty_change, jnp.where(done, settled.penalty_change, 0)),
            rows=old.rows + jnp.sum(jnp.where(done, carry.rows, 0).astype(jnp.float32)),
            trips=old.trips,
        )
        return Store(rows, Ledger(entries, tally))

    def settle(self, job: solves.Job, carry: solves.Carry) -> Settled:
        """What comes of one client's solve."""
        client, row, task = job.task.client, dict(job.task.row), job.task
        algorithm, exchange, round, run_round = self.parts(task.run, client.id, 1)
        memories = row.pop(MEMORIES, {})
        z, sent = self.server_params(job), self.of_run(self.sent, task.run)
        present = task.absent == PRESENT
        sound = present & trees.all_finite(carry.params) & (carry.stop_code != StopReason.FAILED.code)
        start = z if job.subproblem.start is None else job.subproblem.start
        code = jnp.where(sound, carry.stop_code, jnp.where(present, StopReason.FAILED.code, task.absent))
        gradients = carry.rows + carry.search_samples
        u = trees.where(sound, carry.params, start)
        silent, floats = round.communicates is not True, self.layout.floats
        floats = jnp.where(round.communicates, floats, 0) if silent else floats
        out = Outcome(u, z, sound, code, jnp.bool_(False), gradients, floats)
        received = exchange.receive(out, memories, client, run_round)
        out = trees.where(round.communicates, received, out) if silent else received  # nothing is received in silence
        unsaid = sound & ~out.ok & (out.stop_code == code)  # a stage kept it out, and did not say why
        out = out._replace(stop_code=jnp.where(unsaid, StopReason.REJECTED.code, out.stop_code))

        center = z if job.subproblem.center is None else job.subproblem.center
        gap, movement = _distance(out.params, center, self.dtype), jnp.full((), jnp.nan, self.dtype)
        if job.subproblem.previous is not None:
            movement = _distance(out.params, job.subproblem.previous, self.dtype)
        steps = carry.epoch * algorithm.local.steps_per_epoch(client.size)
        solution = Solution(
            out.params, steps, carry.epoch, gap, movement,
            measured=out.ok & ~out.clipped,
            linear=None if carry.local is None else carry.local.linear,
            gradient=carry.gradient,
            start_residual=carry.reference_residual if algorithm.criterion.reference == "server" else jnp.nan,
        )  # fmt: skip
        message, new = algorithm.reply(sent, row, solution, client, round)
        message, new_memories = exchange.transform(message, memories, client, run_round)
        # A client that failed, or of which nothing came, keeps its row.
        heard = out.ok & round.communicates
        new, new_memories = trees.where(out.ok, new, row), trees.where(heard, new_memories, memories)
        kept = exchange.remember(new_memories, out.stop_code)
        entry = Entries.of(self.entry(job, carry, out, gap, movement, new), self.dtype)
        change = jnp.zeros((), self.dtype)
        if "penalties" in row:
            change = ((new["penalties"] - row["penalties"]) / client.population).astype(self.dtype)
        return Settled(message, new | ({MEMORIES: kept} if kept else {}), entry, heard, sound, change)

    def entry(
        self, job: solves.Job, carry: solves.Carry, out: Outcome, gap: Array, movement: Array, new: dict[str, Any]
    ) -> Solves:
        """The solve in the records."""
        nan, present = jnp.full((), jnp.nan, self.dtype), job.task.absent == PRESENT
        penalty = nan if job.subproblem.penalty is None else job.subproblem.penalty
        sigma = job.criterion.sigma(solves.progress(job, carry))
        return Solves(
            epochs=carry.epoch,
            max_epochs=job.solver.max_epochs * (1 if carry.local is None else job.subproblem.local_rounds),
            gradient_samples=out.gradients,
            criterion_samples=carry.criterion_samples,
            reference_residual=jnp.where(present, carry.reference_residual, nan),
            final_residual=jnp.where(present, carry.residual, nan),
            sigma=jnp.where(present, sigma, nan),
            consensus_gap=jnp.where(out.ok, gap, nan),
            movement=jnp.where(out.ok, movement, nan),
            penalty=penalty,
            new_penalty=new.get("penalties", penalty),
            stop_code=out.stop_code.astype(jnp.int8),
        )


def _distance(one: Any, other: Any, dtype: Any) -> Array:
    return optax.tree.norm(optax.tree.sub(one, other)).astype(dtype)


def _put(stack: Any, places: Array, which: Array, values: Any) -> Any:
    """The stack with lanes' values at their places, of those lanes that `which` says."""

    def put(leaf: Array, new: Array) -> Array:
        beyond = jnp.where(which, places, leaf.shape[0])
        return leaf.at[beyond].set(new.astype(leaf.dtype), mode="drop", wrap_negative_indices=False)

    return jax.tree.map(put, stack, values)


def _add(total: Array, values: Array, runs: Array | None) -> Array:
    """The total with all lanes' values, each to its run's."""
    values = values.astype(total.dtype)
    return total + jnp.sum(values, dtype=total.dtype) if runs is None else total.at[runs].add(values)


def _add_messages(total: RunningSum, weights: Array, messages: Any, runs: Array | None) -> RunningSum:
    if runs is None:
        return total.add(weighted(weights, messages))

    def add(high: Array, message: Array) -> Array:
        share = weights.astype(high.dtype).reshape(-1, *[1] * (message.ndim - 1))
        return high.at[runs].add(share * message.astype(high.dtype))

    return RunningSum(jax.tree.map(add, total.high, messages), total.low)


def gather_ledger(ledger: Ledger, number: int) -> tuple[Ledger, Array]:
    """All devices' ledgers as one, and the most trips that any of them did."""
    if number == 1:
        return ledger, ledger.tally.trips
    tally = dataclasses.replace(ledger.tally, messages=ledger.tally.messages.value)
    each = devices.each_one(tally.trips, number)
    # Devices meet once for each dtype, so whole numbers go together: the solves', whose bits are added, and the counts.
    entries = ledger.entries
    whole, real = _split_by_kind((tally, each))
    bits, whole, real = devices.summed((devices.as_bits(entries), devices.as_bits(whole), real))
    tally, each = _joined(devices.from_bits(whole, _split_by_kind((tally, each))[0]), real)
    entries = devices.from_bits(bits, entries)
    tally = dataclasses.replace(tally, messages=RunningSum.of(tally.messages))
    return Ledger(entries, tally), jnp.max(each)


def _split_by_kind(tree: Any) -> tuple[Any, Any]:
    """The tree's whole numbers, and its others; None in the places of the rest."""

    def is_whole(leaf: Array) -> bool:
        return jnp.issubdtype(leaf.dtype, jnp.integer)

    whole = jax.tree.map(lambda leaf: leaf if is_whole(leaf) else None, tree)
    return whole, jax.tree.map(lambda leaf: None if is_whole(leaf) else leaf, tree)


def _joined(one: Any, other: Any) -> Any:
    """What `_split_by_kind` split."""
    return jax.tree.map(lambda a, b: b if a is None else a, one, other, is_leaf=lambda leaf: leaf is None)


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
    ids: Array,
    longest: Array,
    after: ServerState,
    finite: Array,
    worn: Array,
) -> RoundInfo:
    """What is told of a round of one run, with clients `ids` [cohort]."""
    tally, talked = ledger.tally, jnp.asarray(communicates(setup.algorithm, setup.key, number))
    solves = trees.where(ids == VACANT, no_solve(ids.shape, tally.weight.dtype), ledger.entries.solves)
    return RoundInfo(solves, tally.trips, longest, tally.rows, after.penalty_mean.value, finite, worn, talked)


def communicates(algorithm: Algorithm, key: Array, number: Array) -> Any:
    """Whether server and clients exchange anything in round `number` of the run with this key: True, or traced."""
    if not isinstance(algorithm, SilentRounds):
        return True
    key = jax.random.fold_in(jax.random.fold_in(key, number), _SERVER_STREAM + 2)
    return jnp.asarray(algorithm.communicates(Round(number, key)), bool)


def _server_round(setup: Setup, number: Array, function: int) -> Round:
    key = jax.random.fold_in(jax.random.fold_in(setup.key, number), _SERVER_STREAM + function)
    return Round(number, key, communicates(setup.algorithm, setup.key, number))
