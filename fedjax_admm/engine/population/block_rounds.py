"""Rounds whose cohort is worked off in blocks: what the devices do with a block, and the loop around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from ...core import trees
from ...core.vocabulary import VACANT
from ..desk import work_off
from ..devices import AXIS, on_one_device, spread
from ..ledger import Ledger, RoundInfo, Store, gather_ledger
from ..rounds import (
    Layout,
    Queue,
    ServerState,
    Setup,
    aggregate,
    broadcast,
    empty_ledger,
    expected_work,
    info_of,
    iterate,
    remember_epochs_on_host,
)
from .blocks import Block, Homes, Room, devices_here, divide
from .device import work_off_travelling
from .feed import Feed


class Lies(NamedTuple):
    """Where the clients' rows of state are on a mesh, while a block is worked off."""

    split: bool  # over the devices, in order; else everywhere
    travel: bool = False  # to the device that solves the client, and back


@partial(jax.jit, static_argnames=("layout", "mesh", "lies"), donate_argnames=("rows", "ledger"))
def _work_off_block(
    setup: Setup,
    fields: Any,
    params: Any,
    server: Any,
    number: Array,
    rows: dict[str, Any],
    queue: Queue,
    exists: Array,
    ledger: Ledger,
    *,
    layout: Layout,
    mesh: Mesh | None,
    lies: Lies,
) -> tuple[dict[str, Any], Ledger]:
    """A block's new rows, and the devices' ledgers [devices, ...] with it.

    Args:
        setup: of the run; with its data, if that is on the devices.
        fields: the block's rows of data [devices * rows, ...]; None if the setup has them.
        params: z.
        server: the server's record.
        number: of the round.
        rows: of state, given away.
        queue: of all devices [devices, share].
        exists: whether there is a client [devices, share].
        ledger: the devices' so far, given away.
        layout: how a device works.
        mesh: the devices, None for one.
        lies: where `rows` are.

    Returns:
        The rows, where they were, and the ledgers.
    """

    def on_a_device(
        setup: Setup, fields: Any, params: Any, server: Any, number: Array, rows: Any, queue: Queue, exists: Array,
        ledger: Any,
    ) -> Any:  # fmt: skip
        if fields is not None:
            setup = Setup(setup.problem.with_rows(fields), setup.algorithm, setup.exchange, setup.key)
        mine = jax.tree.map(lambda leaf: leaf[0 if mesh is None else lax.axis_index(AXIS)], queue)
        sent = broadcast(setup, params, server, number)
        work = partial(work_off, setup, layout, iterate(setup, params, server), sent, number)
        store = Store(rows, trees.take(ledger, 0))
        if lies.travel:
            mine = mine._replace(addresses=queue.addresses)
            rows, ledger = work_off_travelling(work, mine, exists, store, lies.split)
        else:
            rows, ledger = work(mine, store)
        return rows, jax.tree.map(lambda leaf: leaf[None], ledger)

    arguments = (setup, fields, params, server, number, rows, queue, exists, ledger)
    if mesh is None:
        return on_a_device(*arguments)
    same, split = PartitionSpec(), PartitionSpec(AXIS)
    kept = split if lies.split else same
    specs = (same, split, same, same, same, kept, same, same, split)
    run = jax.shard_map(on_a_device, mesh=mesh, in_specs=specs, out_specs=(kept, split), check_vma=False)
    return run(*arguments)


@partial(jax.jit, static_argnames=("layout", "mesh"), donate_argnames=("before",))
def _finish(
    setup: Setup, before: ServerState, ledger: Ledger, number: Array, *, layout: Layout, mesh: Mesh | None
) -> tuple[ServerState, RoundInfo]:
    """The server after the round, and what is told of it."""

    def on_a_device(setup: Setup, before: ServerState, ledger: Ledger, number: Array) -> Any:
        ledger, longest = gather_ledger(trees.take(ledger, 0), layout.devices)
        after, finite, worn = aggregate(setup, before, ledger.tally, number)
        return after, info_of(setup, number, ledger, longest, after, finite, worn)

    if mesh is None:
        return on_a_device(setup, before, ledger, number)
    same, split = PartitionSpec(), PartitionSpec(AXIS)
    shared = jax.shard_map(on_a_device, mesh=mesh, in_specs=(same, same, split, same), out_specs=same, check_vma=False)
    return shared(setup, before, ledger, number)


@partial(jax.jit, static_argnames=("cohort", "devices"))
def _empty_ledgers(setup: Setup, params: Any, *, cohort: int, devices: int) -> Ledger:
    """The devices' ledgers [devices, ...] at the round's start."""
    return trees.repeat(empty_ledger(setup, params, cohort), devices)


class Keeper(Protocol):
    """Who has the clients' rows of state during a round."""

    def ready(self, block: Block) -> tuple[Any, np.ndarray]:
        """The rows as `_work_off_block` gets them, and where among them each client's is [devices, share]."""
        ...

    def prepare(self, following: Block | None) -> None:
        """Before a block is worked off: what will be read meanwhile, for the block after it."""
        ...

    def read_ahead(self) -> None:
        """While the block is worked off."""
        ...

    def keep(self, block: Block, rows: Any, wait: Callable[[Any], Any]) -> None:
        """The block's new rows, which may be under way."""
        ...

    def renew(self, server: ServerState) -> ServerState:
        """The server with sums that are formed anew from all rows."""
        ...


class BlockRounds:
    """Rounds in blocks.

    Args:
        setup: where the devices need it; without data, if there is a feed.
        layout: how a device works.
        mesh: of the devices, None for one.
        homes: who may solve whom.
        room: what a device takes of a block.
        lies: where the rows are that a block is given.
        feed: the data's rows; None: they are on the devices.
    """

    def __init__(
        self, setup: Setup, layout: Layout, mesh: Mesh | None, homes: Homes, room: Room, lies: Lies, feed: Feed | None
    ) -> None:
        self._setup, self._layout, self._mesh, self._homes, self._room = setup, layout, mesh, homes, room
        self._lies, self._feed, self._here = lies, feed, devices_here(mesh)
        self._sizes = np.asarray(setup.problem.data.sizes)

    def run(
        self,
        server: ServerState,
        keeper: Keeper,
        last_epochs: np.ndarray,
        first: int,
        cohorts: np.ndarray,
        upcoming: np.ndarray | None,
        wait: Callable[[Any], Any],
    ) -> tuple[ServerState, RoundInfo, int]:
        """Rounds one after the other.

        Args:
            server: before them.
            keeper: of the clients' rows.
            last_epochs: of all clients; what the rounds make of it is written there.
            first: the first round's number.
            cohorts: who takes part [rounds, cohort].
            upcoming: the cohort after the last, if it is known.
            wait: fetches what is under way on a device.

        Returns:
            (server, infos, number): after them, their infos [rounds, ...], and how many were done.
        """
        infos = []
        for k, places in enumerate(cohorts):
            ids, following = _clients_in(places), _clients_in(cohorts[k + 1] if k + 1 < len(cohorts) else upcoming)
            number = np.int32(first + k)
            ledger = self._empty_ledgers(server.params, len(places))
            if len(ids):
                ledger = self._work_off(server, keeper, number, ids, last_epochs, following, ledger, wait)
            server, info = _finish(self._setup, server, ledger, number, layout=self._layout, mesh=self._mesh)
            info = wait(info)
            if info.renewed:
                server = keeper.renew(server)
            solves = jax.tree.map(lambda leaf, ids=ids: leaf[: len(ids)], info.solves)
            remember_epochs_on_host(last_epochs, ids, solves)
            infos.append(info)
            if not info.finite:
                break
        return server, jax.tree.map(lambda *leaves: np.stack(leaves), *infos), len(infos)

    def _work_off(
        self,
        server: ServerState,
        keeper: Keeper,
        number: Any,
        ids: np.ndarray,
        last_epochs: np.ndarray,
        following: np.ndarray,
        ledger: Ledger,
        wait: Callable[[Any], Any],
    ) -> Ledger:
        """A round's clients, block by block: the devices' ledgers with them."""
        layout, params, feed = self._layout, server.params, self._feed
        blocks = self._blocks(ids, last_epochs)
        # Of the next round, as far as it can be known before this one's epochs are.
        beyond = self._blocks(following, last_epochs)[0] if len(following) else None
        for block, after in zip(blocks, [*blocks[1:], beyond], strict=True):
            fields = None if feed is None else feed.take(block)
            rows, addresses = keeper.ready(block)
            queue = block.queue._replace(addresses=addresses)  # pyright: ignore[reportArgumentType]
            # Before the block: on one device what is asked for later comes after it.
            keeper.prepare(after if len(blocks) == 1 or after is not beyond else None)
            rows, ledger = _work_off_block(
                self._setup, fields, params, server.server, number, rows, queue, block.exists, ledger,
                layout=layout, mesh=self._mesh, lies=self._lies,
            )  # fmt: skip
            if feed is not None and after is not None:
                feed.begin(after)
            keeper.read_ahead()
            del fields
            keeper.keep(block, rows, wait)
            if feed is not None:
                wait(on_one_device(ledger.tally.trips))
                feed.done()
        return ledger

    def _empty_ledgers(self, params: Any, cohort: int) -> Ledger:
        setup, params = on_one_device((self._setup, params))
        return spread(_empty_ledgers(setup, params, cohort=cohort, devices=len(self._here)), self._mesh)

    def _blocks(self, ids: np.ndarray, last_epochs: np.ndarray) -> list[Block]:
        sizes = self._sizes[ids]
        order = np.argsort(-expected_work(sizes, last_epochs[ids]), kind="stable")
        return divide(ids, order, sizes, self._homes, self._room, self._here)


def _clients_in(cohort: np.ndarray | None) -> np.ndarray:
    """The clients of a cohort [cohort], without its empty places, which come last; of an unknown one nobody."""
    return np.empty(0, np.int32) if cohort is None else cohort[cohort != VACANT]
