"""The two files of a run that grow with every round: `history.csv` and `solves.npy`."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..core.files import (
    DamagedFileError,
    append_whole,
    directory_in_place_of,
    load_array,
    open_in_place,
    truncate,
    write_whole,
)
from ..core.vocabulary import Solves
from ..results.history import History
from .checksums import REBUILD, Block, block_after

Row = dict[str, float]


class HistoryFile:
    """One line per round, numbers as Python writes them, so that they are read back to the bit; NaN is empty.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = HistoryFile(pathlib.Path(folder) / "history.csv")
    ...     _ = file.append([{"round": 0, "loss": 0.1}])
    ...     file.rows()
    [{'round': 0, 'loss': 0.1}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: list[Row]) -> list[Block]:
        """Adds lines, in one write.

        Args:
            rows: Column -> number, one dict per round.

        Returns:
            What each round wrote; the first of all also the heading.
        """
        empty = not self.path.exists() or self.path.stat().st_size == 0
        lines = [_line([_text(value) for value in row.values()]) for row in rows]
        if empty:
            lines[0] = _line(rows[0]) + lines[0]
        end = append_whole(self.path, b"".join(lines)) - sum(map(len, lines))
        blocks = []
        for line in lines:
            blocks.append(block_after(end, line))
            end = blocks[-1].end
        return blocks

    def rows(self, number: int | None = None) -> list[Row]:
        """Reads lines that are complete; half a line at the end is one that was being written.

        Args:
            number: How many; by default all.

        Returns:
            One dict per round.

        Raises:
            DamagedFileError: A line is not what `append` writes.
        """
        text = self._complete().decode(errors="replace")
        lines = list(csv.reader(text.splitlines()[: None if number is None else number + 1]))
        if not lines:
            return []
        below = "remove it and all below"
        for k, line in enumerate(lines):
            if len(line) != len(lines[0]):
                cut = f"line {k + 1} has {len(line)} values instead of {len(lines[0])}"
                raise DamagedFileError(f"{self.path} is damaged: {cut}", below)
        try:
            rows = [{name: _number(item) for name, item in zip(lines[0], line, strict=True)} for line in lines[1:]]
        except ValueError as error:
            raise DamagedFileError(f"{self.path} is damaged: {error}", "remove the bad lines and all below") from None
        for k, row in enumerate(rows):
            if row.get("round") != k:
                raise DamagedFileError(f"{self.path} is damaged: line {k + 2} is not round {k}", below)
        return rows

    def keep(self, number: int) -> None:
        """Cuts off all but the first `number` rounds."""
        if self.path.exists():
            kept = len(self.rows(number))
            lines = self._complete().split(b"\n")[: kept + 1]
            truncate(self.path, sum(len(line) + 1 for line in lines) if kept else 0)

    def _complete(self) -> bytes:
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
        except IsADirectoryError:
            raise directory_in_place_of(self.path) from None
        return data[: data.rfind(b"\n") + 1]


class SolvesFile:
    """Every solve of a run as a NumPy structured array [rounds, cohort], `np.load` reads it.

    The file has its full length from the start; rounds that are not done yet are zeros and take no room.
    """

    def __init__(self, path: Path, rounds: int, cohort: int, real: Any) -> None:
        self.path, self._shape = path, (rounds, cohort)
        self._dtype = solve_dtype(real)
        self._header = npy_header(self._dtype, self._shape)
        self._row = cohort * self._dtype.itemsize
        self._length = len(self._header) + rounds * self._row

    def begin(self) -> Block:
        """Makes the file anew, whatever was there.

        Returns:
            What it wrote: the header.
        """
        write_whole(self.path, self._blank)
        return block_after(0, self._header)

    def start_if_shorter(self) -> Block | None:
        """What round 0 will have in the file of a run with fewer rounds, once `lengthen` is done; else None."""
        return block_after(0, self._header) if is_shorter_npy(self.path, self._header) else None

    def lengthen(self) -> None:
        """Makes the file of a run with fewer rounds as long as this run's."""
        lengthen_npy(self.path, self._header, self._length)

    def check(self) -> None:
        """Checks that the file has this run's header and length.

        Raises:
            DamagedFileError: It has not, so that solves would be written to a wrong place.
        """
        try:
            with open(self.path, "rb") as file:
                sound = file.read(len(self._header)) == self._header and self.path.stat().st_size == self._length
        except OSError:
            sound = False
        if not sound:
            raise DamagedFileError(f"{self.path} is damaged or missing: it needs this run's header and length", REBUILD)

    def write(self, start: int, cohorts: np.ndarray, solves: Solves) -> list[Block]:
        """Writes the solves of rounds in their place.

        Args:
            start: Rounds done before.
            cohorts: Clients [rounds, cohort].
            solves: Their solves [rounds, cohort].

        Returns:
            What each round wrote.
        """
        table = solve_table(cohorts, solves, self._dtype)
        place = len(self._header) + start * self._row
        # Not a memory map: on a full disk that would be SIGBUS.
        with open(open_in_place(self.path, os.O_RDWR), "r+b", buffering=0) as file:
            file.seek(place)
            data = table.tobytes()
            if file.write(data) != len(data):
                raise OSError(f"{self.path} was not written whole")
        return [block_after(place + k * self._row, row.tobytes()) for k, row in enumerate(table)]

    def _blank(self, file: BinaryIO) -> None:
        file.write(self._header)
        file.truncate(self._length)

    def read(self, rounds: int) -> tuple[np.ndarray, Solves]:
        """The cohorts and the solves of the first `rounds` rounds."""
        return read_solves(self.path, rounds)


def npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """How a `.npy` file of such an array begins."""
    text = io.BytesIO()
    header: Any = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(text, header)
    return text.getvalue()


def is_shorter_npy(path: Path, header: bytes) -> bool:
    """Whether a `.npy` file has the same rows as an array with this header, but is for fewer of them."""
    try:
        with open(path, "rb") as file:
            (number, *row), dtype = _shape_and_dtype(file)
            (wanted, *wanted_row), wanted_dtype = _shape_and_dtype(io.BytesIO(header))
            return (row, dtype, file.tell()) == (wanted_row, wanted_dtype, len(header)) and number < wanted
    except (OSError, ValueError, EOFError):  # it is damaged or missing, which a check tells
        return False


def lengthen_npy(path: Path, header: bytes, length: int) -> None:
    """Gives a `.npy` file for fewer rows this header and length; NumPy leaves room in headers for more digits."""
    with open(open_in_place(path, os.O_RDWR), "r+b", buffering=0) as file:
        file.truncate(length)  # first: the header is what says that it was done
        file.write(header)


def _shape_and_dtype(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    """Of the array in a `.npy` file, which is left where its rows begin."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("of another version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype


def read_solves(path: Path, rounds: int) -> tuple[np.ndarray, Solves]:
    """The cohorts [rounds, cohort] and the solves of the first `rounds` rounds in a file of solves."""
    try:
        table = load_array(path)[:rounds]
        columns: dict[str, Any] = {f.name: np.array(table[f.name]) for f in fields(Solves)}
        return np.array(table["client"]), Solves(**columns)
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing", REBUILD) from None
    except (ValueError, EOFError, OSError, KeyError, IndexError):  # which speak of NumPy's formats
        raise DamagedFileError(f"{path} is damaged: it does not hold the solves of {rounds} rounds", REBUILD) from None


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


def _line(items: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(items)
    return text.getvalue().encode()


def _text(value: float) -> str:
    if isinstance(value, (int, np.integer)):
        return str(int(value))
    return "" if math.isnan(value) else repr(float(value))


def _number(text: str) -> float:
    if text.lstrip("-").isdigit():
        return int(text)
    return float(text or "nan")


def sync(path: Path) -> None:
    """Sees to it that a file survives a power failure, if it is there."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        os.fsync(file.fileno())
