"""Clients' rows on the devices: rounds, several of them in one call, that read and write them in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...core import trees
from ...core.vocabulary import State
from .. import placement as placements
from .. import renewal
from ..desk import work_off
from ..devices import AXIS, as_bits, dealt, everywhere, from_bits, pack_rows
from ..ledger import Entries, RoundInfo, Store, gather_ledger
from ..rounds import (
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
from .start import first_server, init_state


class DevicePopulation:
    """A population whose rows are on the devices."""

    def __init__(self, setup: Setup, shapes: State, layout: Layout, mesh: Mesh | None, placement: str | None) -> None:
        self._setup, self._shapes, self._layout, self._mesh = setup, shapes, layout, mesh
        self._alone = dataclasses.replace(setup, problem=setup.problem.without_rows())  # for one device of this process
        self._placement = placement
        self._placed: Setup | None = None

    @property
    def placed(self) -> Setup:
        """The setup where rounds need it; placed at the first use."""
        if self._placed is None:
            self._placed = placements.place(self._setup, self._mesh, self._placement)
        return self._placed

    def init(self, params: Any) -> State:
        """z^0, and every client at its start."""
        if self._mesh is None:
            return init_state(self._alone, params)
        # Where it is to be from the start: everyone's rows may be too much for one device.
        start = jax.jit(init_state, out_shardings=shardings(self._shapes, self._mesh))
        state = start(self._alone, params)
        # By one device, as a stored population's: sums over all clients that devices share are rounded in another way.
        first = everywhere(first_server(self._alone, params), self._mesh)
        return dataclasses.replace(state, **first._asdict())

    def run(
        self, state: State, cohorts: np.ndarray, count: int, upcoming: Any, wait: Callable[[Any], Any]
    ) -> tuple[State, RoundInfo, Any]:
        """The first `count` of the rounds with `cohorts` [rounds, cohort]; their infos may be under way."""
        ids, done, parts = np.asarray(cohorts, np.int32), 0, []
        while True:
            state, infos, ended = device_rounds(
                self.placed, state, ids, np.int32(done), np.int32(count),
                layout=self._layout, mesh=self._mesh, placement=self._placement,
            )  # fmt: skip
            parts.append((done, infos))
            done, finite, worn = wait(ended)
            if worn and finite:
                state = self._renewed(state)
            if done == count or not finite:
                return state, _joined(parts), done

    def _renewed(self, state: State) -> State:
        """The state with sums that were formed anew."""
        server = ServerState(state.params, state.server, state.penalty_mean)
        split = self._mesh is not None and state_specs(state, self._mesh).clients != PartitionSpec()
        anew = renewal.renew(
            self.placed, server, state.clients, mesh=self._mesh, placement=self._placement, split=split
        )
        return dataclasses.replace(state, **anew._asdict())

    def saved(self, state: State) -> State:
        """The state as a checkpoint keeps it."""
        return state

    def was_saved(self, state: State) -> None:
        """A checkpoint has what `saved` returned."""

    def saved_shape(self) -> State:
        """The structure of what `saved` returns, with its shardings."""
        if self._mesh is None:
            return self._shapes
        places = shardings(self._shapes, self._mesh)
        return jax.tree.map(lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at), self._shapes, places)

    def restored(self, saved: State, first_params: Any) -> State:
        """The state that `saved` was made from."""
        return saved


@partial(jax.jit, static_argnames=("layout", "mesh", "placement"), donate_argnames=("state",))
def device_rounds(
    setup: Setup,
    state: State,
    cohorts: Array,
    first: Array,
    count: Array,
    *,
    layout: Layout,
    mesh: Mesh | None = None,
    placement: str | None = None,
) -> tuple[State, RoundInfo, tuple[Array, Array, Array]]:
    """The rounds from the `first` to the `count`-th with these `cohorts` [rounds, cohort], on a stacked state.

    Ends early after a round that leaves something not finite, or the server's sums worn: to form them anew takes all
    rows, and is no part of this program.

    Returns:
        (state, infos, ended): the rounds' infos [rounds, ...], zeros before the first; and how many rounds are done,
        whether all is finite, and whether the sums are worn.
    """
    if mesh is None:
        return _rounds(setup, state, cohorts, first, count, layout=layout, placement=None, split=False)
    same, kept = PartitionSpec(), state_specs(state, mesh)
    shared = jax.shard_map(
        partial(_rounds, layout=layout, placement=placement, split=kept.clients != same),
        mesh=mesh,
        in_specs=(placements.specs(setup, placement), kept, same, same, same),
        out_specs=(kept, same, same),
        check_vma=False,  # the lanes loop has device-varying lengths
    )
    return shared(setup, state, cohorts, first, count)


def state_specs(state: State, mesh: Mesh) -> Any:
    """How a state lies on a mesh: the clients' rows are split if they can be split evenly, all else is everywhere."""
    same = PartitionSpec()
    split = PartitionSpec(AXIS) if state.last_epochs.shape[0] % mesh.size == 0 else same
    specs = {field.name: same for field in dataclasses.fields(State)}
    return State(**specs | {"clients": split})  # pyright: ignore[reportArgumentType]


def shardings(state: State, mesh: Mesh) -> Any:
    """The state's tree of shardings."""
    specs = state_specs(state, mesh)

    def everywhere(part: Any, spec: PartitionSpec) -> Any:
        return jax.tree.map(lambda _: NamedSharding(mesh, spec), part)

    names = [field.name for field in dataclasses.fields(State)]
    return State(**{name: everywhere(getattr(state, name), getattr(specs, name)) for name in names})


def _rounds(
    setup: Setup,
    state: State,
    cohorts: Array,
    first: Array,
    count: Array,
    *,
    layout: Layout,
    placement: str | None,
    split: bool,
) -> tuple[State, RoundInfo, tuple[Array, Array, Array]]:
    def body(loop: tuple) -> tuple:
        state, entries, infos, (done, _, _) = loop
        state, entries, info = _one_round(setup, state, cohorts, done, entries, layout, placement, split)
        infos = jax.tree.map(
            lambda room, new: lax.dynamic_update_index_in_dim(room, new.astype(room.dtype), done, 0), infos, info
        )
        return state, entries, infos, (done + 1, info.finite, info.renewed)

    def goes_on(loop: tuple) -> Array:
        done, finite, worn = loop[3]
        return (done < count) & finite & ~worn

    infos = RoundInfo.empty(cohorts.shape[0], cohorts.shape[1], trees.scalar_dtype(state.params))
    ended = (first, jnp.bool_(True), jnp.bool_(False))
    state, entries, infos, ended = lax.while_loop(goes_on, body, (state, infos.entries, infos.without_entries(), ended))
    return state, dataclasses.replace(infos, entries=entries), ended


def _joined(parts: list[tuple[int, RoundInfo]]) -> RoundInfo:
    """The infos [rounds, ...] of rounds that were done in several calls, each from a round on."""
    (_, whole), *others = parts
    for first, infos in others:
        whole = jax.tree.map(lambda old, new, first=first: np.concatenate([old[:first], new[first:]]), whole, infos)
    return whole


def _one_round(
    setup: Setup,
    state: State,
    cohorts: Array,
    done: Array,
    entries: Entries,
    layout: Layout,
    placement: str | None,
    split: bool,
) -> tuple[State, Entries, RoundInfo]:
    """The next state, all rounds' entries [rounds, cohort] with this one's, and its info without them."""
    ids, size = _anew(cohorts[done], state.round), cohorts.shape[1]
    before = ServerState(state.params, state.server, state.penalty_mean)
    sent = broadcast(setup, state.params, state.server, state.round)
    order, number = order_of_work(setup.problem, ids, state.last_epochs[ids]), count_clients(ids)
    work = partial(work_off, setup, layout, iterate(setup, state.params, state.server), sent, state.round)
    if placement is None:
        # Places among all rounds': then jobs are read, and entries written, where they are.
        queue = Queue(cohorts.reshape(-1), cohorts.reshape(-1), number, done * size + order)
        rows, ledger = work(queue, Store(state.clients, empty_ledger(setup, state.params, entries.flat())))
    else:
        store = Store(state.clients, empty_ledger(setup, state.params, size))
        if placement == placements.HOME:
            rows, ledger = work(_queue_at_home(setup, ids, order, layout.devices), store)
        else:
            rows, ledger = work_off_dealt(work, layout, Queue(ids, ids, number, order), store, split)
    ledger, longest = gather_ledger(ledger, layout.devices)
    after, finite, worn = aggregate(setup, before, ledger.tally, state.round)
    info = info_of(setup, state.round, ledger, longest, after, finite, worn)
    if placement is None:
        entries = jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), ledger.entries, entries)
    else:
        entries = jax.tree.map(lambda room, new: room.at[done].set(new), entries, ledger.entries)
    ids = _anew(cohorts[done], ledger.tally.trips)
    epochs = remember_epochs(state.last_epochs, ids, trees.take(entries, done))
    state = State(state.round + 1, after.params, after.server, rows, epochs, after.penalty_mean)
    return state, entries, info.without_entries()


def _anew(value: Array, after: Array) -> Array:
    """A value that is computed once `after` is known, not kept from where it was computed before."""
    return lax.optimization_barrier((value, after))[0]


def _queue_at_home(setup: Setup, ids: Array, order: Array, devices: int) -> Queue:
    """Those of the cohort that live on this device, in their order, before all others, which are not counted.

    The number of a place without a client lives nowhere.
    """
    each = setup.problem.data.num_clients // devices
    addresses = ids - lax.axis_index(AXIS) * each
    here = (addresses >= 0) & (addresses < each)
    order = order[jnp.argsort(~here[order], stable=True)]
    return Queue(ids, jnp.clip(addresses, 0, each - 1), jnp.sum(here, dtype=jnp.int32), order)


def work_off_dealt(
    work: Callable[[Queue, Store], Store], layout: Layout, cohort: Queue, store: Store, split: bool
) -> Store:
    """Works off a cohort that is dealt over the devices; rows travel to whom they are dealt, in blocks.

    Dealt in snake order, so that with the longest jobs first each device gets as much work.

    Args:
        work: works off a queue of one device.
        layout: with its `share` of a block.
        cohort: all jobs, whose `addresses` are of all clients' rows; empty places are last in the order.
        store: all clients' rows, or with `split` those that are on this device.
        split: whether the rows are split over the devices, in order.
    """
    jobs, share, order = cohort.room, layout.share, cohort.order
    assert order is not None
    table = dealt(jobs, layout.devices)  # places in the order of work [devices, share of the cohort]
    blocks = -(-table.shape[1] // share)
    padding = np.full((layout.devices, blocks * share - table.shape[1]), jobs)
    table = jnp.asarray(np.concatenate([table, padding], axis=1))

    def one_block(k: Any, store: Store) -> Store:
        places = lax.dynamic_slice_in_dim(table, k * share, share, axis=1)  # [devices, share]
        exists = places < cohort.length
        chosen = order[jnp.minimum(places, jobs - 1)]
        me = lax.axis_index(AXIS)
        mine = chosen[me]
        queue = Queue(
            ids=cohort.ids[mine],
            addresses=cohort.addresses[chosen],
            length=jnp.sum(exists[me], dtype=jnp.int32),
            slots=mine if cohort.slots is None else cohort.slots[mine],
            runs=None if cohort.runs is None else cohort.runs[mine],
        )
        return work_off_travelling(work, queue, exists, store, split)

    if blocks == 1:
        return one_block(0, store)
    return lax.fori_loop(0, blocks, one_block, store)


def work_off_travelling(
    work: Callable[[Queue, Store], Store], queue: Queue, exists: Array, store: Store, split: bool
) -> Store:
    """Works off this device's part of a block whose rows travel to it and back.

    Args:
        work: works off a queue of one device.
        queue: this device's, but with everyone's `addresses` [devices, share] among all clients' rows.
        exists: whether there is a client [devices, share].
        store: all clients' rows, or with `split` those that are on this device.
        split: whether the rows are split over the devices, in order.
    """
    addresses = queue.addresses
    mine = _fetch(store.rows, addresses, split)
    here = queue._replace(addresses=jnp.arange(addresses.shape[1], dtype=jnp.int32))
    new, ledger = work(here, Store(mine, store.ledger))
    return Store(_bring_back(store.rows, addresses, exists, new, split), ledger)


def _fetch(rows: Any, addresses: Array, split: bool) -> Any:
    """This device's rows of those at `addresses` [devices, share]."""
    if not split:
        return trees.take(rows, addresses[lax.axis_index(AXIS)])

    def mine(leaf: Array) -> Array:
        place, here = _local(leaf, addresses.reshape(-1))
        values = as_bits(leaf[jnp.where(here, place, 0)])
        return jnp.where(here.reshape(-1, *[1] * (values.ndim - 1)), values, jnp.zeros((), values.dtype))

    packed, unpack = pack_rows(jax.tree.map(mine, rows))
    sent = [lax.psum_scatter(block, AXIS, scatter_dimension=0, tiled=True) for block in packed]
    return from_bits(unpack(sent), rows)


def _bring_back(rows: Any, addresses: Array, exists: Array, new: Any, split: bool) -> Any:
    """The rows with every device's new ones [share, ...] at their addresses [devices, share]."""
    addresses, exists = addresses.reshape(-1), exists.reshape(-1)
    packed, unpack = pack_rows(as_bits(new))
    everyone = from_bits(unpack([lax.all_gather(block, AXIS, tiled=True) for block in packed]), rows)

    def put(leaf: Array, values: Array) -> Array:
        place, here = _local(leaf, addresses) if split else (addresses, exists)
        return leaf.at[jnp.where(here & exists, place, leaf.shape[0])].set(values, mode="drop")

    return jax.tree.map(put, rows, everyone)


def _local(leaf: Array, ids: Array) -> tuple[Array, Array]:
    """Where clients `ids` are in this device's part of a leaf, and whether they are there."""
    place = ids - lax.axis_index(AXIS) * leaf.shape[0]
    return place, (place >= 0) & (place < leaf.shape[0])
