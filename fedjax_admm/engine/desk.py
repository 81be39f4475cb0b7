"""A client's part of a round: a lane takes its row and makes a job of it, and settles what came of the solve.

A job is an index. A lane that takes one reads the client's row where the rows are; when the solve has ended it computes
the reply, adds the message to the sum and writes the row back. Nothing here is as large as the cohort times the
parameters.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from ..algorithms.base import Algorithm
from ..core import randomness, trees
from ..core.sums import RunningSum, weighted
from ..core.vocabulary import Client, Round, Solution, Solves, StopReason
from ..exchange.stage import MEMORIES, PRESENT, Exchange, Outcome
from . import lanes, solves
from .ledger import Entries, Ledger, Store, Tally
from .plan import Plan
from .rounds import Layout, Queue, Setup, client_of, communicates, start_row

# Of a client's keys in a round: `subproblem` and `reply` each have their own.
_CLIENT_STREAM = 2**31 + 2


def work_off(setup: Setup, layout: Layout, params: Any, sent: Any, number: Array, queue: Queue, store: Store) -> Store:
    """Works off a device's queue: the rows with its clients' new ones, the ledger with their entries and messages."""
    worker = _Worker(setup, layout, params, sent, number, queue)
    program = solves.Solver(worker.plan(), setup.problem, worker.server_params).program()
    desk = lanes.Desk(worker.take, worker.hand_over, lambda job: job.task.absent != PRESENT)
    store, trips = lanes.run(program, desk, store, queue.length, min(layout.width, queue.room))
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

    def plan(self) -> Plan:
        """What all jobs have in common."""
        job = jax.eval_shape(lambda rows: self.take(Store(rows, None), jnp.int32(0)), self.example_rows())  # pyright: ignore[reportArgumentType]
        return Plan.of(self.setup.algorithm, job.subproblem, self.layout.rows_per_trip, self.dtype)

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
        queue = self.queue
        place = place if queue.order is None else queue.order[place]
        id, address, runs, offsets = queue.ids[place], queue.addresses[place], queue.runs, queue.offsets
        slot, run = place if queue.slots is None else queue.slots[place], None if runs is None else runs[place]
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

    def write(leaf: Array, new: Array) -> Array:
        return lax.dynamic_update_index_in_dim(leaf, new[0].astype(leaf.dtype), places[0], 0)

    if len(which) > 1:
        return jax.tree.map(put, stack, values)
    # A loop of one trip or none: XLA would fuse a single write with the read that follows, which then needs the rows as
    # they were before, and copy all of them for every job.
    return lax.fori_loop(0, jnp.sum(which), lambda _, stack: jax.tree.map(write, stack, values), stack)


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
