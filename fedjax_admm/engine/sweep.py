"""The rounds of several runs as one program: all their jobs are one queue.

Everything but the problem has a leading axis [runs]: the algorithms' numbers, the seeds' keys, the states.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from ..core import trees
from ..core.vocabulary import VACANT, State
from . import renewal
from .desk import work_off
from .ledger import Ledger, RoundInfo, Store, Tally, gather_ledger
from .population.device import work_off_dealt
from .rounds import (
    Layout,
    Queue,
    ServerState,
    Setup,
    aggregate,
    broadcast,
    count_clients,
    empty_ledger,
    info_of,
    order_of_work,
    put_at_clients,
    remembered_epochs,
)


@partial(jax.jit, static_argnames=("layout", "mesh"), donate_argnames=("states",))
def sweep_rounds(
    setup: Setup, states: State, cohorts: Array, count: Array, *, layout: Layout, mesh: Mesh | None
) -> tuple[State, RoundInfo]:
    """The first rounds of all runs.

    Args:
        setup: The problem of all runs; algorithms, stages and keys [runs, ...].
        states: The states [runs, ...], all of the same round.
        cohorts: The rounds' clients [runs, rounds, cohort]; all places of a run that has ended, or that fills a place,
            are VACANT: it costs nothing and stays as it is.
        count: How many of the rounds take place.
        layout: How a device works.
        mesh: The devices, None for one.

    Returns:
        The states [runs, ...] and the rounds' infos [runs, rounds, ...], zeros after `count`.
    """

    def rounds(setup: Setup, states: State, cohorts: Array, count: Array) -> Any:
        runs, most, size = cohorts.shape
        room = trees.repeat(RoundInfo.empty(most, size, trees.scalar_dtype(states.params)), runs)

        def body(loop: tuple) -> tuple:
            done, states, infos = loop
            states, info = _one_round(setup, states, cohorts[:, done], layout)
            infos = jax.tree.map(lambda room, new: room.at[:, done].set(new.astype(room.dtype)), infos, info)
            return done + 1, states, infos

        return lax.while_loop(lambda loop: loop[0] < count, body, (jnp.int32(0), states, room))[1:]

    if mesh is None:
        return rounds(setup, states, cohorts, count)
    same = PartitionSpec()
    shared = jax.shard_map(rounds, mesh=mesh, in_specs=(same,) * 4, out_specs=same, check_vma=False)
    return shared(setup, states, cohorts, count)


def _one_round(setup: Setup, states: State, cohorts: Array, layout: Layout) -> tuple[State, RoundInfo]:
    """A round of every run with `cohorts` [runs, cohort].

    All jobs are in one queue: lanes that a short run leaves go on with another's.
    """
    runs, size = cohorts.shape
    number, clients = states.round[0], setup.problem.data.num_clients
    each = (setup.algorithm, setup.exchange, setup.key)

    def of_run(algorithm: Any, exchange: Any, key: Any) -> Setup:
        return Setup(setup.problem, algorithm, exchange, key)

    sent = jax.vmap(lambda each, z, server: broadcast(of_run(*each), z, server, number))(
        each, states.params, states.server
    )
    last_epochs = jax.vmap(trees.take)(states.last_epochs, cohorts)
    ids, run = cohorts.reshape(-1), jnp.repeat(jnp.arange(runs, dtype=jnp.int32), size)
    order = order_of_work(setup.problem, ids, last_epochs.reshape(-1))
    queue = Queue(ids, run * clients + ids, order, count_clients(ids), run)
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states.clients)
    store = Store(rows, _empty_ledger(of_run(*trees.take(each, 0)), trees.take(states.params, 0), runs, size))
    work = partial(work_off, setup, layout, states.params, sent, number)
    if layout.devices == 1:
        ordered = Queue(ids[order], queue.addresses[order], order, queue.length, run[order])
        rows, ledger = work(ordered, store)
    else:
        rows, ledger = work_off_dealt(work, layout, queue, store, split=False)
    rows = jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), rows, states.clients)
    ledger, longest = gather_ledger(ledger, layout.devices)
    shared = {name: jnp.broadcast_to(getattr(ledger.tally, name), (runs,)) for name in ("rows", "trips")}
    tallies = dataclasses.replace(ledger.tally, **shared)
    solves = jax.tree.map(lambda leaf: leaf.reshape(cohorts.shape), ledger.solves)

    def settle(each: Any, before: ServerState, tally: Tally, solves: Any, ids: Array) -> Any:
        mine = of_run(*each)
        after, finite, worn = aggregate(mine, before, tally, number)
        worn &= jnp.any(ids != VACANT)  # of a run that has ended nothing need be exact
        return after, info_of(mine, number, Ledger(solves, tally), ids, longest, after, finite, worn)

    before = ServerState(states.params, states.server, states.penalty_mean)
    after, info = jax.vmap(settle)(each, before, tallies, solves, cohorts)
    after = renewal.renew_many(setup, after, rows, info.renewed)
    epochs = jax.vmap(put_at_clients)(states.last_epochs, cohorts, remembered_epochs(last_epochs, info.solves))
    return State(states.round + 1, after.params, after.server, rows, epochs, after.penalty_mean), info


def _empty_ledger(setup: Setup, params: Any, runs: int, cohort: int) -> Ledger:
    """The ledger of all runs: their solves in one row, sums [runs, ...], rows and trips of all together."""
    solves, tally = empty_ledger(setup, params, runs * cohort)
    sums = trees.repeat(tally, runs)
    return Ledger(solves, dataclasses.replace(sums, rows=tally.rows, trips=tally.trips))
