"""Clients' rows off the device: the cohort is worked off in blocks, and the next block's are read meanwhile."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...core import trees
from ...core.vocabulary import State
from .. import placement, processes, renewal
from ..devices import everywhere, on_one_device, parts_here, spread
from ..ledger import RoundInfo
from ..rounds import Layout, ServerState, Setup
from .block_rounds import BlockRounds, Lies
from .blocks import Block, Homes, Room, devices_here
from .feed import Feed
from .rows import FileBytes, HostBytes, MirroredBytes, StoredClients, row_bytes
from .start import first_server, start_rows


class StoredPopulation:
    """A population whose rows are in host memory or in a file.

    Args:
        kind: "host" or "disk".
        setup: of the run.
        shapes: the state's, with all clients' rows.
        layout: whose `share` times `devices` is a block.
        mesh: of the devices, None for one.
        room: what a device takes of a block.
        feed: the data, if it is not on the devices; the setup is then without.
        folder: where the file is; by default a temporary folder that lasts as long as the state.
    """

    def __init__(
        self, kind: str, setup: Setup, shapes: State, layout: Layout, mesh: Mesh | None, room: Room,
        feed: Feed | None = None, folder: Path | None = None,
    ) -> None:  # fmt: skip
        self._setup, self._shapes, self._layout, self._mesh = setup, shapes, layout, mesh
        self._room, self._feed, self.here = room, feed, devices_here(mesh)
        self._on_disk, self._folder = kind == "disk", folder
        self._alone = dataclasses.replace(setup, problem=setup.problem.without_rows())  # for one device of this process
        self._homes = Homes.anywhere(self._number, layout.devices)
        if mesh is not None and processes.several():
            self._homes = Homes.on_processes(np.asarray(setup.problem.data.sizes), mesh)
        self._placed: Setup | None = None
        self._made: BlockRounds | None = None
        # What was read for the next block: of which clients' rows, for whom, and the rows.
        self.ahead: tuple[weakref.ref[StoredClients], np.ndarray, Any] | None = None

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
        first = everywhere(first_server(self._alone, params), self._mesh)
        return State(np.int32(0), first.params, first.server, clients, maximum, first.penalty_mean)  # pyright: ignore[reportArgumentType]

    @property
    def _number(self) -> int:
        return self._setup.problem.data.num_clients

    def _clients(self, params: Any) -> StoredClients:
        width = row_bytes(self._shapes.clients)
        first = jax.tree.map(jnp.copy, params)  # z^0: the state's own will be given away

        def start(ids: np.ndarray) -> Any:
            return start_rows(self._alone, first, jnp.asarray(ids, jnp.int32))

        temporary = Path(tempfile.mkdtemp()) if self._on_disk and self._folder is None else None
        folder, store = self._folder or temporary, HostBytes(width)
        if folder is not None:
            file = FileBytes(folder / "rows.bin", width)
            store = file if self._on_disk else MirroredBytes(file)
        clients = StoredClients(
            self._shapes.clients, self._number, start, store, versions=self._folder is not None, mine=self._mine
        )
        if temporary is not None:
            weakref.finalize(clients, shutil.rmtree, temporary, ignore_errors=True)
        return clients

    @property
    def _mine(self) -> np.ndarray:
        """Whether clients are this process's [clients]."""
        first, stop = self._homes.clients_of(self.here)
        ids = np.arange(self._number)
        return (ids >= first) & (ids < stop)

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
        server = ServerState(state.params, state.server, state.penalty_mean)
        clients.round = -1  # rows of a round under way are of no state: one that is interrupted cannot be repeated
        server, infos, done = self._rounds.run(
            server, _Stored(self, clients), last_epochs, int(state.round), cohorts[:count], upcoming, wait
        )
        clients.round = int(state.round) + done
        params, record, mean = server
        return State(state.round + done, params, record, clients, last_epochs, mean), infos, done

    @property
    def _rounds(self) -> BlockRounds:
        if self._made is None:
            self._made = BlockRounds(
                self.placed, self._layout, self._mesh, self._homes, self._room, Lies(split=True), self._feed
            )
        return self._made

    def _renewed(self, server: ServerState, clients: StoredClients) -> ServerState:
        """The server's sums, formed anew from all clients' rows, a block at a time."""
        like, mine = self._shapes.clients, np.flatnonzero(self._mine).astype(np.int32)
        blocks = ((ids, clients.take(ids)) for ids in renewal.block_ids(like, mine) if len(ids))
        anew = renewal.renew_by_blocks(self._alone, on_one_device(server), like, blocks)
        return everywhere(anew, self._mesh)

    def saved(self, state: State) -> State:
        """The state as a checkpoint keeps it."""
        clients: Any = state.clients
        return dataclasses.replace(state, clients=clients.saved())

    def was_saved(self, state: State) -> None:
        """A checkpoint has what `saved` returned."""
        clients: Any = state.clients
        clients.was_saved()

    def saved_shape(self) -> State:
        """The structure of what `saved` returns."""
        index = jax.ShapeDtypeStruct((self._number,), np.int32)
        kept = dataclasses.replace(self._shapes, clients={"index": index})
        if self._mesh is None:
            return kept
        same = NamedSharding(self._mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=same), kept)

    def restored(self, saved: State, first_params: Any) -> State:
        """The state that `saved` was made from."""
        clients = self._clients(first_params)
        clients.restore(saved.clients)
        clients.round = int(saved.round)
        kept = on_one_device(ServerState(saved.params, saved.server, saved.penalty_mean))
        server = everywhere(kept, self._mesh)
        return dataclasses.replace(
            saved, round=np.int32(saved.round), clients=clients, last_epochs=np.array(saved.last_epochs),
            **server._asdict(),
        )  # fmt: skip


class _Stored:
    """The rows of clients at work, read from where they are kept and written there."""

    def __init__(self, population: StoredPopulation, clients: StoredClients) -> None:
        self._population, self._clients = population, clients
        self._following: np.ndarray | None = None  # whose rows are to be read, and what that takes of a device
        self._begun: Any = None

    def ready(self, block: Block) -> tuple[Any, np.ndarray]:
        rows = self._rows_of(block.ids)
        share = block.exists.shape[1]
        if self._population._mesh is None:  # rows stay as they were read, and the queue says where they are
            if share > len(block.ids):
                rows = jax.tree.map(lambda leaf: leaf[np.minimum(np.arange(share), len(leaf) - 1)], rows)
            return rows, block.places.astype(np.int32)
        arranged = jax.tree.map(lambda leaf: leaf[block.places.reshape(-1)], rows)
        arranged = spread(arranged, self._population._mesh)
        return arranged, np.broadcast_to(np.arange(share, dtype=np.int32), block.exists.shape)

    def _rows_of(self, ids: np.ndarray) -> Any:
        ahead, self._population.ahead = self._population.ahead, None
        if ahead is not None and ahead[0]() is self._clients and np.array_equal(ahead[1], ids):
            return ahead[2]
        if len(ids) == 0:  # none of this process's clients is in the block
            return jax.tree.map(
                lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), self._population._shapes.clients
            )
        return self._clients.take(ids)

    def prepare(self, following: Block | None) -> None:
        self._following, self._begun = None, None
        if following is not None and len(following.ids):
            self._following, self._begun = following.ids, self._clients.begin(following.ids)

    def read_ahead(self) -> None:
        if self._following is not None:
            rows = self._clients.take(self._following, self._begun)
            self._population.ahead = weakref.ref(self._clients), self._following, rows

    def keep(self, block: Block, rows: Any, wait: Callable[[Any], Any]) -> None:
        new = self._in_order(self._here(rows, wait), block)
        if len(block.ids):
            self._clients.put(block.ids, new)
        if self._population.ahead is not None:  # read before this block ended
            _, following, ahead = self._population.ahead
            _, next_places, places = np.intersect1d(following, block.ids, return_indices=True)
            for leaf, newer in zip(jax.tree.leaves(ahead), jax.tree.leaves(new), strict=True):
                leaf[next_places] = newer[places]

    def _here(self, rows: Any, wait: Callable[[Any], Any]) -> Any:
        """This process's part of new rows, on the host."""
        if not processes.several():
            return wait(rows)
        parts = [np.concatenate(parts) for parts in wait(parts_here(rows))]
        return jax.tree.unflatten(jax.tree.structure(rows), parts)

    def _in_order(self, rows: Any, block: Block) -> Any:
        """A block's new rows in the order of its clients."""
        number = len(block.ids)
        if self._population._mesh is None:
            return jax.tree.map(lambda leaf: leaf[:number], rows)
        exists = block.exists[self._population.here]
        _, first = np.unique(np.where(exists, block.places, number), return_index=True)
        return jax.tree.map(lambda leaf: leaf[first[:number]], rows)

    def renew(self, server: ServerState) -> ServerState:
        return self._population._renewed(server, self._clients)
