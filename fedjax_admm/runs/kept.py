"""A run that stands still in memory between two calls: what its directory would have, for one that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.vocabulary import RunStatus, Solves
from ..storage.client_files import Evaluations
from ..storage.growing_files import Row
from ..storage.run_directory import Restored
from .collected_solves import CollectedSolves


class KeptRun:
    """The calls of a `RunDirectory`; the state is that of the round after which the run paused.

    The state is not a copy: whoever goes on with the run takes it over.
    """

    path = None

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._cohorts: list[np.ndarray] = []
        self._evaluations: Evaluations = {}
        self._solves = CollectedSolves()
        self._state: tuple[int, Any] | None = None

    def restore(self, like: Any, at_most: int | None = None) -> Restored | None:
        if self._state is None:
            self.__init__()  # an attempt that did not come to its pause leaves nothing
            return None
        return Restored(
            *self._state, list(self._rows), np.stack(self._cohorts), self._solves.solves(), dict(self._evaluations)
        )

    def record(
        self, rows: list[Row], start: int, cohorts: np.ndarray, solves: Solves | None, evaluations: Evaluations
    ) -> None:
        self._evaluations |= evaluations
        self._rows += rows
        if solves is not None and rows:
            self._solves.add(solves)
            self._cohorts += list(cohorts)

    def due(self) -> bool:
        return False

    def save(self, round: int, state: Callable[[], Any]) -> bool:
        self._state = (round, state())
        return True

    def say(self, status: RunStatus, message: str | None = None, **more: Any) -> None:
        pass
