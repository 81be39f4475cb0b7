"""The files of clients' evaluations: `client_metrics.npy`, which grows, and `clients.npy`: whose they are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import DamagedFileError, load_array, open_in_place, write_whole
from ..results.client_metrics import ClientMetrics, EvaluatedClients, stack
from .checksums import CLIENTS, REBUILD, Block, block_after
from .growing_files import is_shorter_npy, lengthen_npy, npy_header

CLIENT_METRICS = "client_metrics.npy"
Evaluations = dict[int, Mapping[str, np.ndarray]]  # after which round -> name -> [clients]


class ClientFiles:
    """The values of each evaluation as a NumPy structured array [evaluations, clients], `np.load` reads it.

    The file has its full length from the start; evaluations that are not done yet are zeros and take no room.

    Args:
        folder: The run's.
        about: Whom the run evaluates.
        names: What of each of them.
        rounds: After which rounds.
        real: The values' dtype.
    """

    def __init__(
        self, folder: Path, about: EvaluatedClients, names: Sequence[str], rounds: Sequence[int], real: Any
    ) -> None:
        self.path, self._clients_path = folder / CLIENT_METRICS, folder / CLIENTS
        self._about, self._rounds, self._names = about, list(rounds), list(names)
        self._dtype = np.dtype([(name, real) for name in names])
        self._header = npy_header(self._dtype, (len(self._rounds), len(about.clients)))
        self._row = len(about.clients) * self._dtype.itemsize
        self._length = len(self._header) + len(self._rounds) * self._row

    def begin(self) -> None:
        """Makes both files anew, whatever was there."""
        write_whole(self.path, self._blank)
        self.write_clients()

    def write_clients(self) -> None:
        """Makes the file that says whose the values are: it follows from the problem alone."""
        table = client_table(self._about)
        write_whole(self._clients_path, lambda file: np.save(file, table))

    def start_if_shorter(self) -> Block | None:
        """What round 0 will have in the file of a run with fewer evaluations, once `lengthen` is done; else None."""
        if not is_shorter_npy(self.path, self._header):
            return None
        with open(self.path, "rb") as file:
            file.seek(len(self._header))
            return block_after(0, self._header + file.read(self._row))

    def lengthen(self) -> None:
        """Makes the file of a run with fewer evaluations as long as this run's."""
        lengthen_npy(self.path, self._header, self._length)

    def check(self) -> None:
        """Checks that the files have this run's headers and lengths.

        Raises:
            DamagedFileError: One has not, so that values would be written to a wrong place.
        """
        try:
            with open(self.path, "rb") as file:
                sound = file.read(len(self._header)) == self._header and self.path.stat().st_size == self._length
        except OSError:
            sound = False
        if not sound:
            raise DamagedFileError(f"{self.path} is damaged or missing: it needs this run's header and length", REBUILD)

    def write(self, rounds: Sequence[int], evaluations: Evaluations) -> tuple[list[Block], list[Block]]:
        """Writes evaluations in their place.

        Args:
            rounds: Consecutive rounds that were done.
            evaluations: Of those of them that were followed by one: name -> [clients].

        Returns:
            What each round left in the metrics' file, and in the clients': most rounds nothing.
        """
        metrics, clients = [], []
        whole = self._clients_path.stat().st_size
        # Not a memory map: on a full disk that would be SIGBUS.
        with open(open_in_place(self.path, os.O_RDWR), "r+b", buffering=0) as file:
            for round in rounds:
                place = len(self._header) + sum(done < round for done in self._rounds) * self._row
                data = self._table(evaluations[round]).tobytes() if round in evaluations else b""
                file.seek(place)
                if file.write(data) != len(data):
                    raise OSError(f"{self.path} was not written whole")
                metrics.append(block_after(place, data) if round else block_after(0, self._header + data))
                clients.append(block_after(whole, b"") if round else block_after(0, self._clients_path.read_bytes()))
        return metrics, clients

    def _table(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        table = np.empty(len(self._about.clients), self._dtype)
        for name in self._names:
            table[name] = values[name]
        return table

    def read(self, last: int) -> Evaluations:
        """The evaluations up to a round."""
        metrics = read_client_metrics(self.path.parent, [round for round in self._rounds if round <= last])
        return {int(round): {name: metrics[name][k] for name in metrics} for k, round in enumerate(metrics.rounds)}

    def _blank(self, file: Any) -> None:
        file.write(self._header)
        file.truncate(self._length)


def client_table(about: EvaluatedClients) -> np.ndarray:
    """Whom a run evaluates, as one structured array [clients]."""
    kinds: list[Any] = [("client", np.int32), ("size", np.int32), ("evaluated_rows", np.int32), ("weight", np.float64)]
    if about.labels is not None:
        kinds.append(("labels", np.int32, about.labels.shape[1:]))
    table = np.empty(len(about.clients), kinds)
    table["client"], table["size"] = about.clients, about.sizes
    table["evaluated_rows"], table["weight"] = about.evaluated_rows, about.weights
    if about.labels is not None:
        table["labels"] = about.labels
    return table


def read_client_metrics(folder: Path, rounds: Sequence[int]) -> ClientMetrics:
    """Reads the evaluations after these rounds, the run's first ones.

    Args:
        folder: The run's.
        rounds: After which rounds they took place.

    Returns:
        The metrics.

    Raises:
        DamagedFileError: A file is missing or does not hold them.
    """
    try:
        values, about = load_array(folder / CLIENT_METRICS), load_array(folder / CLIENTS)
        names = values.dtype.names or ()
        if values.ndim != 2 or len(values) < len(rounds) or values.shape[1] != len(about) or not names:
            raise ValueError("of another shape")
        labels = np.array(about["labels"]) if "labels" in (about.dtype.names or ()) else None
        whose = EvaluatedClients(
            clients=np.array(about["client"]),
            sizes=np.array(about["size"]),
            evaluated_rows=np.array(about["evaluated_rows"]),
            weights=np.array(about["weight"]),
            labels=labels,
        )
        every = [{name: np.array(values[name][k]) for name in names} for k in range(len(rounds))]
        return stack(rounds, whose, every)
    except FileNotFoundError as error:
        raise DamagedFileError(f"{error.filename} is missing", REBUILD) from None
    except (ValueError, EOFError, OSError, KeyError, IndexError):  # which speak of NumPy's formats
        named = f"{folder / CLIENT_METRICS} or {folder / CLIENTS}"
        raise DamagedFileError(f"{named} is damaged: it does not hold {len(rounds)} evaluations", REBUILD) from None
