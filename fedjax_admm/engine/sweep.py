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
from .ledger import Entries, Ledger, RoundInfo, Store, Tally, gather_ledger
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
    iterate,
    order_of_work,
    remember_epochs,
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
            done, states, entries, infos = loop
            states, entries, info = _one_round(setup, states, cohorts, done, entries, layout)
            infos = jax.tree.map(lambda room, new: room.at[:, done].set(new.astype(room.dtype)), infos, info)
            return done + 1, states, entries, infos

        loop = (jnp.int32(0), states, room.entries, room.without_entries())
        _, states, entries, infos = lax.while_loop(lambda loop: loop[0] < count, body, loop)
        return states, dataclasses.replace(infos, entries=entries)

    if mesh is None:
        return rounds(setup, states, cohorts, count)
    same = PartitionSpec()
    shared = jax.shard_map(rounds, mesh=mesh, in_specs=(same,) * 4, out_specs=same, check_vma=False)
    return shared(setup, states, cohorts, count)


def _one_round(
    setup: Setup, states: State, cohorts: Array, done: Array, entries: Entries, layout: Layout
) -> tuple[State, Entries, RoundInfo]:
    """A round of every run: that of `cohorts` [runs, rounds, cohort] which comes when so many are done.

    All jobs are in one queue: lanes that a short run leaves go on with another's.

    Returns:
        The states, all rounds' entries [runs, rounds, cohort] with this one's, and its infos without them.
    """
    runs, rounds, size = cohorts.shape
    number, clients = states.round[0], setup.problem.data.num_clients
    each = (setup.algorithm, setup.exchange, setup.key)

    def of_run(algorithm: Any, exchange: Any, key: Any) -> Setup:
        return Setup(setup.problem, algorithm, exchange, key)

    own = (each, states.params, states.server)
    sent = jax.vmap(lambda each, params, server: broadcast(of_run(*each), params, server, number))(*own)
    z = jax.vmap(lambda each, params, server: iterate(of_run(*each), params, server))(*own)
    now = cohorts[:, done]  # [runs, cohort]
    last_epochs = jax.vmap(trees.take)(states.last_epochs, now)
    ids, run = now.reshape(-1), jnp.repeat(jnp.arange(runs, dtype=jnp.int32), size)
    order = order_of_work(setup.problem, ids, last_epochs.reshape(-1))
    # Places among all rounds', so that one device writes entries where they are.
    slots = (run * rounds + done) * size + jnp.tile(jnp.arange(size, dtype=jnp.int32), runs)
    queue = Queue(ids, run * clients + ids, count_clients(ids), order, slots, run)
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states.clients)
    one = of_run(*trees.take(each, 0)), trees.take(states.params, 0)
    work = partial(work_off, setup, layout, z, sent, number)
    if layout.devices == 1:
        rows, ledger = work(queue, Store(rows, _empty_ledger(*one, runs, entries.flat())))
    else:
        store = Store(rows, _empty_ledger(*one, runs, runs * size))
        rows, ledger = work_off_dealt(work, layout, queue._replace(slots=None), store, split=False)
    rows = jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), rows, states.clients)
    ledger, longest = gather_ledger(ledger, layout.devices)
    shared = {name: jnp.broadcast_to(getattr(ledger.tally, name), (runs,)) for name in ("rows", "trips")}
    tallies = dataclasses.replace(ledger.tally, **shared)
    if layout.devices == 1:
        entries = jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), ledger.entries, entries)
    else:
        entries = jax.tree.map(
            lambda room, new: room.at[:, done].set(new.reshape(runs, size, -1)), entries, ledger.entries
        )

    def settle(each: Any, before: ServerState, tally: Tally, ids: Array) -> Any:
        mine = of_run(*each)
        after, finite, worn = aggregate(mine, before, tally, number)
        worn &= jnp.any(ids != VACANT)  # of a run that has ended nothing need be exact
        told = Ledger(None, tally)  # pyright: ignore[reportArgumentType]
        return after, info_of(mine, number, told, longest, after, finite, worn)

    before = ServerState(states.params, states.server, states.penalty_mean)
    after, info = jax.vmap(settle)(each, before, tallies, now)
    after = renewal.renew_many(setup, after, rows, info.renewed)
    mine = jax.tree.map(lambda leaf: leaf[:, done], entries)
    epochs = jax.vmap(remember_epochs)(states.last_epochs, now, mine)
    return State(states.round + 1, after.params, after.server, rows, epochs, after.penalty_mean), entries, info


def _empty_ledger(setup: Setup, params: Any, runs: int, entries: Entries | int) -> Ledger:
    """The ledger of all runs: their solves in one row, sums [runs, ...], rows and trips of all together."""
    entries, tally = empty_ledger(setup, params, entries)
    sums = trees.repeat(tally, runs)
    return Ledger(entries, dataclasses.replace(sums, rows=tally.rows, trips=tally.trips))
