"""Clients' rows on the devices and the data on the host: only the rows of data of clients at work are copied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ...core.vocabulary import State
from .. import placement as placements
from ..devices import everywhere
from ..ledger import RoundInfo
from ..rounds import Layout, ServerState, Setup
from .block_rounds import BlockRounds, Lies
from .blocks import Block, Homes, Room
from .device import DevicePopulation, state_specs
from .feed import Feed


class StreamedPopulation(DevicePopulation):
    """A population whose rows of state are on the devices, and whose rows of data are not.

    Args:
        setup: of the run, without data.
        shapes: the state's.
        layout: how a device works.
        mesh: of the devices, None for one.
        placement: who solves a client.
        room: what a device takes of a block.
        feed: the data.
    """

    def __init__(
        self, setup: Setup, shapes: State, layout: Layout, mesh: Mesh | None, placement: str | None, room: Room,
        feed: Feed,
    ) -> None:  # fmt: skip
        super().__init__(setup, shapes, layout, mesh, None)  # there is no data to place
        self._at_home, self._room, self._feed = placement == placements.HOME, room, feed
        self._made: BlockRounds | None = None

    @property
    def _rounds(self) -> BlockRounds:
        if self._made is None:
            number, mesh = self._shapes.last_epochs.shape[0], self._mesh
            devices = self._layout.devices
            homes = (Homes.on_devices if self._at_home else Homes.anywhere)(number, devices)
            split = mesh is not None and state_specs(self._shapes, mesh).clients != PartitionSpec()
            lies = Lies(split, travel=mesh is not None and not self._at_home)
            self._made = BlockRounds(self.placed, self._layout, mesh, homes, self._room, lies, self._feed)
        return self._made

    def run(
        self, state: State, cohorts: np.ndarray, count: int, upcoming: Any, wait: Callable[[Any], Any]
    ) -> tuple[State, RoundInfo, Any]:
        """The first `count` of the rounds with `cohorts` [rounds, cohort], one after the other."""
        first = int(state.round)
        last_epochs = np.array(state.last_epochs)
        keeper = _OnDevices(self, state)
        server = ServerState(state.params, state.server, state.penalty_mean)
        server, infos, done = self._rounds.run(server, keeper, last_epochs, first, cohorts[:count], upcoming, wait)
        round, epochs = everywhere((jnp.int32(first + done), jnp.asarray(last_epochs)), self._mesh)
        return State(round, server.params, server.server, keeper.rows, epochs, server.penalty_mean), infos, done


class _OnDevices:
    """The rows where they are."""

    def __init__(self, population: StreamedPopulation, state: State) -> None:
        self._population, self._state, self.rows = population, state, state.clients
        number, devices = state.last_epochs.shape[0], population._layout.devices
        self._firsts = np.arange(devices, dtype=np.int32)[:, None] * (number // devices) * population._at_home
        self._last = number // devices - 1 if population._at_home else number - 1

    def ready(self, block: Block) -> tuple[Any, np.ndarray]:
        return self.rows, np.clip(block.queue.ids - self._firsts, 0, self._last)  # pyright: ignore[reportOperatorIssue]

    def prepare(self, following: Block | None) -> None:
        pass

    def read_ahead(self) -> None:
        pass

    def keep(self, block: Block, rows: Any, wait: Callable[[Any], Any]) -> None:
        self.rows = rows

    def renew(self, server: ServerState) -> ServerState:
        state = dataclasses.replace(self._state, clients=self.rows, **server._asdict())
        after = self._population._renewed(state)
        return ServerState(after.params, after.server, after.penalty_mean)
