"""The files of a run to which every round adds: its history, its solves, its clients' metrics and their checksums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.vocabulary import Solves
from .checksums import CLIENTS, Checksums
from .client_files import CLIENT_METRICS, ClientFiles, Evaluations
from .growing_files import HistoryFile, Row, SolvesFile, sync
from .run_files import HISTORY, SOLVES


class RunRecords:
    """The records of a run's rounds, as its directory has them.

    Args:
        folder: The directory.
        rounds: How many rounds the run has.
        cohort: How many clients are in a round.
        real: The dtype of residuals and penalties.
        client_files: The files of clients' evaluations; None for a run without.
    """

    def __init__(self, folder: Path, rounds: int, cohort: int, real: Any, client_files: ClientFiles | None) -> None:
        self._folder, self._client_files = folder, client_files
        self._history = HistoryFile(folder / HISTORY)
        self._solves = SolvesFile(folder / SOLVES, rounds, cohort, real)
        self._checksums = Checksums(folder)

    def written(self) -> int:
        """How many rounds the history has, round 0 counted."""
        return len(self._history.rows())

    def checked(self) -> int:
        """How many rounds have checksums, round 0 counted; of a run without them, how many the history has."""
        rounds = self._checksums.rounds()
        return self.written() if rounds is None else rounds

    def damaged(self, number: int) -> dict[str, list[int]]:
        """File -> the rounds among the first `number`, round 0 counted, of which it has other bytes than it should."""
        return self._checksums.damaged(number - 1)

    def last_sound_round(self, number: int, damaged: Mapping[str, list[int]]) -> int:
        """The round before all damage to the first `number` rounds; -1 if round 0 is damaged, or a whole file."""
        try:
            self.check_lengths()
        except OSError:
            return -1
        return min((rounds[0] for rounds in damaged.values()), default=number) - 1

    def check_lengths(self) -> None:
        """Checks that the files of full length have it."""
        for file in (self._solves, self._client_files):
            if file is not None:
                file.check()

    def fit(self) -> None:
        """Makes files of full length that are a shorter run's as long as this run's."""
        files = {SOLVES: self._solves} | ({} if self._client_files is None else {CLIENT_METRICS: self._client_files})
        starts = {name: start for name, file in files.items() if (start := file.start_if_shorter()) is not None}
        self._checksums.restart(starts)  # first: after a crash in between, the files still say what is to be done
        for name in starts:
            files[name].lengthen()

    def mend(self) -> list[str]:
        """Writes again what does not depend on the rounds, where it is damaged or lost: the names of such files."""
        if self._client_files is None or CLIENTS not in self._checksums.damaged(0):
            return []
        self._client_files.write_clients()
        return [CLIENTS]

    def keep(self, number: int) -> None:
        """Keeps the records of the first `number` rounds, round 0 counted."""
        if number:
            self._checksums.keep(number)  # first: a checksum is never without the bytes that it is about
            self._history.keep(number)
        else:
            self._checksums.begin(more=self._client_files is not None)
            self._history.keep(0)
            self._header = self._solves.begin()
            if self._client_files is not None:
                self._client_files.begin()

    def read(self, round: int) -> tuple[list[Row], np.ndarray, Solves, Evaluations]:
        """What is recorded up to a round: rows of the history, cohorts, solves and evaluations of clients."""
        evaluations = {} if self._client_files is None else self._client_files.read(round)
        return self._history.rows(round + 1), *self._solves.read(round), evaluations

    def append(
        self, rows: list[Row], start: int, cohorts: np.ndarray, solves: Solves | None, evaluations: Evaluations
    ) -> None:
        """Adds the records of rounds that were done; the arguments are those of `RunDirectory.record`."""
        # First, so that no round in the history is without its solves.
        solved = [self._header] if solves is None else self._solves.write(start, cohorts, solves)
        rounds = [int(row["round"]) for row in rows]
        clients = () if self._client_files is None else self._client_files.write(rounds, evaluations)
        self._checksums.append(rounds[0], self._history.append(rows), solved, *clients)

    def sync(self) -> None:
        """Sees to it that what was written survives a crash of the machine."""
        for path in (self._history.path, self._solves.path, self._folder / CLIENT_METRICS, self._checksums.path):
            sync(path)
