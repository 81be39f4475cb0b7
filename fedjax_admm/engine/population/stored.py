"""Clients' rows off the device: the cohort is worked off in blocks, and the next block's are read meanwhile."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from ...core import trees
from ...core.vocabulary import VACANT, State
from .. import placement, renewal
from ..devices import AXIS, dealt, everywhere, on_one_device
from ..rounds import (
    Layout,
    Ledger,
    Queue,
    RoundInfo,
    ServerState,
    Setup,
    Store,
    aggregate,
    broadcast,
    empty_ledger,
    expected_work,
    gather_ledger,
    info_of,
    remembered_epochs,
    work_off,
)  # fmt: skip
from .rows import FileBytes, HostBytes, StoredClients, row_bytes
from .start import first_server, start_rows


class Block(NamedTuple):
    """Some of a cohort's clients, and how the devices share them; a queue's arrays are [devices * share]."""

    positions: np.ndarray  # of its clients in the cohort, ascending
    arrangement: np.ndarray  # [devices * share] which of its clients' rows is where
    queue: Queue


@partial(jax.jit, static_argnames=("layout", "mesh"), donate_argnames=("rows", "ledger"))
def _work_off_block(
    setup: Setup,
    params: Any,
    server: Any,
    number: Array,
    rows: dict[str, Any],
    queue: Queue,
    ledger: Ledger,
    *,
    layout: Layout,
    mesh: Mesh | None,
) -> tuple[dict[str, Any], Ledger]:
    """A block's new rows, and the devices' ledgers [devices, ...] with it."""

    def on_a_device(setup: Setup, params: Any, server: Any, number: Array, rows: Any, queue: Queue, ledger: Any) -> Any:
        sent = broadcast(setup, params, server, number)
        queue, ledger = queue._replace(length=queue.length[0]), trees.take(ledger, 0)
        rows, ledger = work_off(setup, layout, params, sent, number, queue, Store(rows, ledger))
        return rows, jax.tree.map(lambda leaf: leaf[None], ledger)

    if mesh is None:
        return on_a_device(setup, params, server, number, rows, queue, ledger)
    same, split = PartitionSpec(), PartitionSpec(AXIS)
    specs = (same, same, same, same, split, split, split)
    shared = jax.shard_map(on_a_device, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    return shared(setup, params, server, number, rows, queue, ledger)


@partial(jax.jit, static_argnames=("layout", "mesh"), donate_argnames=("before",))
def _finish(
    setup: Setup, before: ServerState, ledger: Ledger, ids: Array, number: Array, *, layout: Layout, mesh: Mesh | None
) -> tuple[ServerState, RoundInfo]:
    """The server after the round, and what is told of it."""

    def on_a_device(setup: Setup, before: ServerState, ledger: Ledger, ids: Array, number: Array) -> Any:
        ledger, longest = gather_ledger(trees.take(ledger, 0), layout.devices)
        after, finite, worn = aggregate(setup, before, ledger.tally, number)
        return after, info_of(setup, number, ledger, ids, longest, after, finite, worn)

    if mesh is None:
        return on_a_device(setup, before, ledger, ids, number)
    same, split = PartitionSpec(), PartitionSpec(AXIS)
    shared = jax.shard_map(
        on_a_device, mesh=mesh, in_specs=(same, same, split, same, same), out_specs=same, check_vma=False
    )
    return shared(setup, before, ledger, ids, number)


@partial(jax.jit, static_argnames=("cohort", "devices"))
def _empty_ledgers(setup: Setup, params: Any, *, cohort: int, devices: int) -> Ledger:
    """The devices' ledgers [devices, ...] at the round's start."""
    return trees.repeat(empty_ledger(setup, params, cohort), devices)


class StoredPopulation:
    """A population whose rows are in host memory or in a file.

    Args:
        kind: "host" or "disk".
        setup: of the run.
        shapes: the state's, with all clients' rows.
        layout: whose `share` times `devices` is a block.
        mesh: of the devices, None for one.
        folder: where the file is; by default a temporary folder that lasts as long as the state.
    """

    def __init__(
        self, kind: str, setup: Setup, shapes: State, layout: Layout, mesh: Mesh | None, folder: Path | None = None
    ) -> None:
        self._setup, self._shapes, self._layout, self._mesh = setup, shapes, layout, mesh
        self._on_disk = kind == "disk"
        self._versions = self._on_disk and folder is not None
        self._folder = folder
        self._sizes = np.asarray(setup.problem.data.sizes)
        self._placed: Setup | None = None
        # What was read for the next round: of which clients' rows, for whom, and the rows.
        self._ahead: tuple[weakref.ref[StoredClients], np.ndarray, Any] | None = None

    @property
    def placed(self) -> Setup:
        """The setup where rounds need it; placed at the first use."""
        if self._placed is None:
            self._placed = placement.place(self._setup, self._mesh, None)
        return self._placed

    def init(self, params: Any) -> State:
        """z^0, and every client at its start."""
        everyone = jnp.arange(self._number)
        maximum = np.array(trees.per_client(self._setup.algorithm.local.max_epochs, everyone), np.int32)
        clients = self._clients(params)
        first = everywhere(first_server(self._setup, params), self._mesh)
        return State(np.int32(0), first.params, first.server, clients, maximum, first.penalty_mean)  # pyright: ignore[reportArgumentType]

    @property
    def _number(self) -> int:
        return self._setup.problem.data.num_clients

    def _clients(self, params: Any) -> StoredClients:
        width = row_bytes(self._shapes.clients)
        first = jax.tree.map(jnp.copy, params)  # z^0: the state's own will be given away

        def start(ids: np.ndarray) -> Any:
            return start_rows(self._setup, first, jnp.asarray(ids, jnp.int32))

        temporary = Path(tempfile.mkdtemp()) if self._on_disk and self._folder is None else None
        folder = self._folder or temporary
        store = FileBytes(folder / "rows.bin", width) if self._on_disk and folder else HostBytes(width)
        clients = StoredClients(self._shapes.clients, self._number, start, store, versions=self._versions)
        if temporary is not None:
            weakref.finalize(clients, shutil.rmtree, temporary, ignore_errors=True)
        return clients

    def run(
        self, state: State, cohorts: np.ndarray, count: int, upcoming: np.ndarray | None, wait: Callable[[Any], Any]
    ) -> tuple[State, RoundInfo, int]:
        """The first `count` rounds with `cohorts` [rounds, cohort], one after the other.

        Args:
            state: of the population, which it takes over.
            cohorts: who takes part.
            count: how many of the rounds to do.
            upcoming: the cohort after the last, if it is known.
            wait: fetches what is under way on a device.
        """
        clients: Any = state.clients
        last_epochs: Any = state.last_epochs
        server, infos = ServerState(state.params, state.server, state.penalty_mean), []
        clients.round = -1  # rows of a round under way are of no state: one that is interrupted cannot be repeated
        for k, places in enumerate(cohorts[:count]):
            ids, following = _clients_in(places), _clients_in(cohorts[k + 1] if k + 1 < count else upcoming)
            last = last_epochs[ids]
            number = np.int32(state.round + k)
            ledger = _empty_ledgers(
                self.placed, on_one_device(server.params), cohort=len(places), devices=self._layout.devices
            )
            if len(ids):
                ledger = self._work_off(clients, server, number, ids, last, following, ledger, wait)
            server, info = _finish(self.placed, server, ledger, places, number, **self._static)
            info = wait(info)
            if info.renewed:
                server = self._renewed(server, clients)
            solves = jax.tree.map(lambda leaf, ids=ids: leaf[: len(ids)], info.solves)
            last_epochs[ids] = remembered_epochs(last, solves)
            infos.append(info)
            if not info.finite:
                break
        done = len(infos)
        clients.round = int(state.round) + done
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *infos)
        params, record, mean = server
        return State(state.round + done, params, record, clients, last_epochs, mean), stacked, done

    @property
    def _static(self) -> dict[str, Any]:
        return {"layout": self._layout, "mesh": self._mesh}

    def _work_off(
        self,
        clients: StoredClients,
        server: ServerState,
        number: Any,
        ids: np.ndarray,
        last_epochs: np.ndarray,
        following: np.ndarray,
        ledger: Ledger,
        wait: Callable[[Any], Any],
    ) -> Ledger:
        """A round's clients, block by block: the devices' ledgers with them."""
        params = server.params
        blocks = self._blocks(ids, last_epochs)
        rows = self._rows_of(clients, ids[blocks[0].positions])
        for k, block in enumerate(blocks):
            chosen = ids[block.positions]
            # What is read meanwhile: the next block, or the next round's cohort where a cohort is one block.
            after = ids[blocks[k + 1].positions] if k + 1 < len(blocks) else following if len(blocks) == 1 else None
            after = None if after is None or not len(after) else after
            # Before the block: on one device what is asked for later comes after it.
            begun = None if after is None else clients.begin(after)
            arranged = self._arranged(rows, block)
            new, ledger = _work_off_block(
                self.placed, params, server.server, number, arranged, block.queue, ledger, **self._static
            )
            ahead = None if after is None else clients.take(after, begun)  # while the device computes
            new = self._in_order(wait(new), block)
            clients.put(chosen, new)
            rows = ahead
            if k + 1 == len(blocks) and after is not None:
                self._ahead = weakref.ref(clients), after, _handed_over(ahead, after, new, chosen)
        return ledger

    def _blocks(self, ids: np.ndarray, last_epochs: np.ndarray) -> list[Block]:
        """The cohort in blocks of clients whose work is alike, the longest first, and each block's queue."""
        devices, share = self._layout.devices, self._layout.share
        order = np.argsort(-expected_work(self._sizes[ids], last_epochs), kind="stable")
        most = devices * share
        return [self._block(order[k : k + most], ids) for k in range(0, len(ids), most)]

    def _block(self, order: np.ndarray, ids: np.ndarray) -> Block:
        """A block of the cohort's positions in `order`, the order of work."""
        devices, share = self._layout.devices, self._layout.share
        positions = np.sort(order)
        places = np.searchsorted(positions, order)  # of the block, in the order of work
        table = dealt(len(order), devices)
        table = np.concatenate([table, np.full((devices, share - table.shape[1]), len(order))], axis=1)
        exists, work = table < len(order), np.minimum(table, len(order) - 1)
        arrangement = places[work].reshape(-1)
        addresses = np.tile(np.arange(share, dtype=np.int32), devices)
        if devices == 1:  # rows stay as they were read, and the queue says where they are
            addresses = arrangement.astype(np.int32)
            arrangement = np.minimum(np.arange(share), len(order) - 1)
        slots = order[work].reshape(-1).astype(np.int32)
        return Block(positions, arrangement, Queue(ids[slots], addresses, slots, exists.sum(axis=1, dtype=np.int32)))  # pyright: ignore[reportArgumentType]

    def _arranged(self, rows: Any, block: Block) -> Any:
        """A block's rows as the devices get them."""
        arrangement = block.arrangement
        if self._layout.devices == 1 and len(arrangement) == len(block.positions):
            return rows
        return jax.tree.map(lambda leaf: leaf[arrangement], rows)

    def _in_order(self, rows: Any, block: Block) -> Any:
        """A block's new rows in the order of its positions."""
        number = len(block.positions)
        if self._layout.devices == 1:
            return jax.tree.map(lambda leaf: leaf[:number], rows)
        _, first = np.unique(np.where(self._exists(block), block.arrangement, number), return_index=True)
        return jax.tree.map(lambda leaf: leaf[first[:number]], rows)

    def _exists(self, block: Block) -> np.ndarray:
        """[devices * share] whether there is a client."""
        counts = np.asarray(block.queue.length)
        return (np.arange(self._layout.share)[None] < counts[:, None]).reshape(-1)

    def _renewed(self, server: ServerState, clients: StoredClients) -> ServerState:
        """The server's sums, formed anew from all clients' rows, a block at a time."""
        blocks = ((ids, clients.take(ids)) for ids in renewal.block_ids(self._shapes.clients))
        anew = renewal.renew_by_blocks(self._setup, on_one_device(server), blocks)
        return everywhere(anew, self._mesh)

    def _rows_of(self, clients: StoredClients, ids: np.ndarray) -> Any:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0]() is clients and np.array_equal(ahead[1], ids):
            return ahead[2]
        return clients.take(ids)

    def saved(self, state: State) -> State:
        """The state as a checkpoint keeps it."""
        clients: Any = state.clients
        return dataclasses.replace(state, clients=clients.saved(with_rows=not self._versions))

    def was_saved(self, state: State) -> None:
        """A checkpoint has what `saved` returned."""
        clients: Any = state.clients
        clients.was_saved()

    def saved_shape(self) -> State:
        """The structure of what `saved` returns."""
        index = jax.ShapeDtypeStruct((self._number,), np.int32)
        kept = {"index": index} | ({} if self._versions else {"rows": jax.ShapeDtypeStruct((0, 0), np.uint8)})
        return dataclasses.replace(self._shapes, clients=kept)

    def restored(self, saved: State, first_params: Any) -> State:
        """The state that `saved` was made from."""
        clients = self._clients(first_params)
        clients.restore(saved.clients)
        clients.round = int(saved.round)
        server = everywhere(ServerState(saved.params, saved.server, saved.penalty_mean), self._mesh)
        return dataclasses.replace(
            saved, round=np.int32(saved.round), clients=clients, last_epochs=np.array(saved.last_epochs),
            **server._asdict(),
        )  # fmt: skip


def _clients_in(cohort: np.ndarray | None) -> np.ndarray:
    """The clients of a cohort [cohort], without its empty places, which come last; of an unknown one nobody."""
    return np.empty(0, np.int32) if cohort is None else cohort[cohort != VACANT]


def _handed_over(rows: Any, following: np.ndarray, new: Any, ids: np.ndarray) -> Any:
    """Rows of the next cohort that were read before this round ended, with this round's for clients in both."""
    _, next_places, places = np.intersect1d(following, ids, return_indices=True)
    for leaf, newer in zip(jax.tree.leaves(rows), jax.tree.leaves(new), strict=True):
        leaf[next_places] = newer[places]
    return rows
