"""Where the clients' stacked state lives: on the devices, in host memory or in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jax.sharding import Mesh

from ...core.vocabulary import State
from ..ledger import RoundInfo
from ..rounds import Layout, Setup
from .blocks import Room
from .device import DevicePopulation, device_rounds
from .feed import Feed
from .rows import StoredClients
from .start import init_state
from .stored import StoredPopulation
from .streamed import StreamedPopulation

__all__ = [
    "DevicePopulation", "Feed", "Population", "Room", "StoredClients", "StoredPopulation", "StreamedPopulation",
    "device_rounds", "init_state", "make_population",
]  # fmt: skip


class Population(Protocol):
    """What a simulation asks of it."""

    @property
    def placed(self) -> Setup:
        """The setup where rounds need it."""
        ...

    def init(self, params: Any) -> State:
        """z^0, and every client at its start."""
        ...

    def run(
        self, state: State, cohorts: np.ndarray, count: int, upcoming: np.ndarray | None, wait: Callable[[Any], Any]
    ) -> tuple[State, RoundInfo, Any]:
        """The first `count` rounds with `cohorts` [rounds, cohort]: the state, the infos, and how many were done."""
        ...

    def saved(self, state: State) -> State:
        """The state as a checkpoint keeps it: arrays alone."""
        ...

    def was_saved(self, state: State) -> None:
        """A checkpoint has what `saved` returned."""
        ...

    def saved_shape(self) -> State:
        """The structure of what `saved` returns."""
        ...

    def restored(self, saved: State, first_params: Any) -> State:
        """The state that `saved` was made from."""
        ...


def make_population(
    kind: str,
    setup: Setup,
    shapes: State,
    layout: Layout,
    mesh: Mesh | None,
    placement: str | None,
    room: Room,
    feed: Feed | None,
    folder: Path | None,
) -> Population:
    """The population of a kind, "device", "host" or "disk"; with a feed the setup is without data."""
    if kind != "device":
        return StoredPopulation(kind, setup, shapes, layout, mesh, room, feed, folder)
    if feed is None:
        return DevicePopulation(setup, shapes, layout, mesh, placement)
    return StreamedPopulation(setup, shapes, layout, mesh, placement, room, feed)
