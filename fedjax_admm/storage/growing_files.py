"""The two files of a run that grow by a round: `history.csv` and `solves.npy`."""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..core.files import DamagedFileError, write_whole
from ..core.vocabulary import Solves
from ..results.history import History

Row = dict[str, float]


class HistoryFile:
    """A line a round, numbers as Python writes them, so that they are read back to the bit; NaN is empty.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = HistoryFile(pathlib.Path(folder) / "history.csv")
    ...     file.append([{"round": 0, "loss": 0.1}])
    ...     file.rows()
    [{'round': 0, 'loss': 0.1}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: list[Row]) -> None:
        """Adds lines, in one write."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self.path.exists() or self.path.stat().st_size == 0:
            writer.writerow(rows[0])
        writer.writerows([_text(value) for value in row.values()] for row in rows)
        with open(self.path, "ab", buffering=0) as file:
            data = text.getvalue().encode()
            if file.write(data) != len(data):
                raise OSError(f"{self.path} was not written whole")

    def rows(self) -> list[Row]:
        """All lines that are complete; half a line at the end is one that was being written."""
        text = self._complete().decode(errors="replace")
        lines = list(csv.reader(text.splitlines()))
        if not lines:
            return []
        for k, line in enumerate(lines):
            if len(line) != len(lines[0]):
                cut = f"line {k + 1} has {len(line)} values instead of {len(lines[0])}"
                raise DamagedFileError(f"{self.path} is damaged: {cut}; remove it and all below")
        try:
            rows = [{name: _number(item) for name, item in zip(lines[0], line, strict=True)} for line in lines[1:]]
        except ValueError as error:
            raise DamagedFileError(f"{self.path} is damaged: {error}; remove the bad lines and all below") from None
        for k, row in enumerate(rows):
            if row.get("round") != k:
                raise DamagedFileError(
                    f"{self.path} is damaged: line {k + 2} is not round {k}; remove it and all below"
                )
        return rows

    def keep(self, number: int) -> list[Row]:
        """The first `number` rows; whatever follows is cut off the file."""
        kept = self.rows()[:number]
        if self.path.exists():
            lines = self._complete().split(b"\n")[: len(kept) + 1]
            length = sum(len(line) + 1 for line in lines) if kept else 0
            if length < self.path.stat().st_size:
                os.truncate(self.path, length)
        return kept

    def sync(self) -> None:
        _sync(self.path)

    def _complete(self) -> bytes:
        data = self.path.read_bytes() if self.path.exists() else b""
        return data[: data.rfind(b"\n") + 1]


class SolvesFile:
    """Every solve of a run as a NumPy structured array [rounds, cohort], `np.load` reads it.

    The file has its full length from the start; rounds that are not done yet are zeros and take no room.
    """

    def __init__(self, path: Path, rounds: int, cohort: int, real: Any) -> None:
        self.path, self._shape = path, (rounds, cohort)
        self._dtype = solve_dtype(real)
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": self._shape}
        text = io.BytesIO()
        np.lib.format.write_array_header_1_0(text, header)
        self._header = text.getvalue()
        self._row = cohort * self._dtype.itemsize

    def write(self, start: int, cohorts: np.ndarray, solves: Solves) -> None:
        """The rounds from `start` on."""
        if not self.path.exists():
            write_whole(self.path, self._blank)
        with open(self.path, "r+b", buffering=0) as file:  # not a memory map: on a full disk that would be SIGBUS
            file.seek(len(self._header) + start * self._row)
            data = solve_table(cohorts, solves, self._dtype).tobytes()
            if file.write(data) != len(data):
                raise OSError(f"{self.path} was not written whole")

    def _blank(self, file: BinaryIO) -> None:
        file.write(self._header)
        file.truncate(len(self._header) + self._shape[0] * self._row)

    def read(self, rounds: int) -> tuple[np.ndarray, Solves]:
        """The cohorts and the solves of the first `rounds` rounds."""
        return read_solves(self.path, rounds)

    def sync(self) -> None:
        _sync(self.path)


def read_solves(path: Path, rounds: int) -> tuple[np.ndarray, Solves]:
    """The cohorts [rounds, cohort] and the solves of the first `rounds` rounds in a file of solves."""
    try:
        table = np.load(path, allow_pickle=False)[:rounds]
        columns: dict[str, Any] = {f.name: np.array(table[f.name]) for f in fields(Solves)}
        return np.array(table["client"]), Solves(**columns)
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing") from None
    except (ValueError, EOFError, OSError, KeyError, IndexError):  # which speak of NumPy's formats
        raise DamagedFileError(f"{path} is damaged: it does not hold the solves of {rounds} rounds") from None


def solve_table(cohorts: np.ndarray, solves: Solves, dtype: np.dtype) -> np.ndarray:
    """Cohorts and solves [rounds, cohort] as one structured array."""
    table = np.empty(cohorts.shape, dtype)
    table["client"] = cohorts
    for field in fields(Solves):
        table[field.name] = getattr(solves, field.name)
    return table


def solve_dtype(real: Any) -> np.dtype:
    """The entries of a file of solves; `real` is the dtype of residuals and penalties."""
    whole = {"epochs": np.int32, "max_epochs": np.int32, "gradient_samples": np.int32, "criterion_samples": np.int32}
    kinds = whole | {"stop_code": np.int8}
    return np.dtype([("client", np.int32), *((f.name, kinds.get(f.name, real)) for f in fields(Solves))])


def read_history(path: Path) -> History:
    """The history in a CSV file, up to its last complete line."""
    return History(HistoryFile(path).rows())


def _text(value: float) -> str:
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    return "" if math.isnan(value) else repr(float(value))


def _number(text: str) -> float:
    if text.lstrip("-").isdigit():
        return int(text)
    return float(text or "nan")


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
