"""Rows of tables, block by block: `.npy`, `.npz`, CSV, Parquet, folders of them, and images that TFDS has prepared.

A block is at most `BLOCK` rows; nothing larger is in memory, however large the source.
"""

from __future__ import annotations

import contextlib
import csv
import importlib
import itertools
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from . import sources, tfds

BLOCK = 4096  # rows
KINDS = (".npy", ".npz", ".csv", ".parquet")


class Block(NamedTuple):
    """Some rows."""

    fields: dict[str, np.ndarray]  # name -> [rows, ...]
    keys: Any = None  # [rows] whose each row is, where the table says
    labels: np.ndarray | None = None  # [rows] where a column of labels is named


class Table(Protocol):
    """Where rows come from, in an order that stays the same."""

    numbers: bool  # fields are columns of plain numbers, of which the builder chooses the types

    def blocks(self) -> Iterator[Block]: ...

    def files(self) -> list[Path]:
        """What the rows are read from; other sizes or times are another table."""
        ...


class ArrayTable:
    """Arrays of `.npy` and `.npz` files: a field for each, by the file's or the member's name."""

    numbers = False

    def __init__(self, paths: Sequence[Path], key: str | None, label: str | None) -> None:
        self._paths, self._key, self._label = paths, key, label

    def files(self) -> list[Path]:
        return list(self._paths)

    def blocks(self) -> Iterator[Block]:
        with contextlib.ExitStack() as opened:
            readers = [reader for path in self._paths for reader in _array_readers(path, opened)]
            names = [reader.name for reader in readers]
            for what in (self._key, self._label):
                _check_column(what, names, ", ".join(map(str, self._paths)))
            if names == [self._key]:
                raise ValueError(f"{self._paths[0]} has the key {self._key!r} alone: give arrays of the rows as well")
            lengths = {reader.shape[0] if reader.shape else None for reader in readers}
            if len(lengths) != 1 or None in lengths:
                shapes = ", ".join(f"{reader.name} {list(reader.shape)}" for reader in readers)
                raise ValueError(f"arrays must have as many rows each, got {shapes}")
            rows = int(lengths.pop() or 0)
            for start in range(0, rows, BLOCK):
                arrays = {reader.name: reader.read(min(BLOCK, rows - start)) for reader in readers}
                labels = None if self._label is None else arrays[self._label]
                keys = None if self._key is None else arrays.pop(self._key)
                if keys is not None and keys.ndim != 1:
                    raise ValueError(
                        f"key {self._key!r} must be one key per row, [rows], got rows of {list(keys.shape[1:])}"
                    )
                yield Block(arrays, keys, labels)


class _ArrayReader:
    """An array's rows one after the other, from a file or from a member of an archive."""

    def __init__(self, name: str, file: Any, path: Path) -> None:
        self.name, self._file, self._path = name, file, path
        with _damage(path):
            version = np.lib.format.read_magic(file)
            read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
            self.shape, fortran, self.dtype = read[version[0]](file)
        if self.dtype.hasobject:
            raise ValueError(f"{path}: {name} holds Python objects, which are not read: save numbers or words")
        if fortran and len(self.shape) > 1:
            raise ValueError(f"{path}: {name} is in Fortran order: save np.ascontiguousarray of it")

    def read(self, rows: int) -> np.ndarray:
        shape = (rows, *self.shape[1:])
        wanted = int(np.prod(shape)) * self.dtype.itemsize
        with _damage(self._path):
            data = bytearray()
            while len(data) < wanted and (part := self._file.read(wanted - len(data))):
                data += part
            if len(data) < wanted:
                raise ValueError(f"{self.name} is shorter than its header says")
        return np.frombuffer(bytes(data), self.dtype).reshape(shape)


def _array_readers(path: Path, opened: contextlib.ExitStack) -> list[_ArrayReader]:
    if path.suffix == ".npy":
        return [_ArrayReader(path.stem, opened.enter_context(_open(path)), path)]
    with _damage(path):
        archive = opened.enter_context(zipfile.ZipFile(path))
        members = [name for name in archive.namelist() if name.endswith(".npy")]
        files = [opened.enter_context(archive.open(name)) for name in members]
    return [_ArrayReader(name.removesuffix(".npy"), file, path) for name, file in zip(members, files, strict=True)]


class ColumnTable:
    """A file of named columns, CSV or Parquet: "y" is the column of labels, "x" the others side by side."""

    numbers = True

    def __init__(self, path: Path, key: str | None, label: str | None, columns: Sequence[str] | None) -> None:
        self._path, self._key, self._label, self._columns = path, key, label, columns

    def files(self) -> list[Path]:
        return [self._path]

    def blocks(self) -> Iterator[Block]:
        with contextlib.ExitStack() as opened:
            read = _read_csv if self._path.suffix == ".csv" else _read_parquet
            names, blocks = read(self._path, opened)
            for what in (self._key, self._label, *(self._columns or ())):
                _check_column(what, names, str(self._path))
            used = self._columns or [name for name in names if name not in (self._key, self._label)]
            if not used:
                raise ValueError(
                    f"{self._path} has no columns besides the key and the label: there is nothing to learn from"
                )
            start = 0
            for block in blocks:
                values = [_numbers(block[name], name, self._path, start) for name in used]
                fields = {"x": np.stack(values, axis=1)}
                labels = keys = None
                if self._label is not None:
                    labels = fields["y"] = _numbers(block[self._label], self._label, self._path, start)
                if self._key is not None:
                    keys = _keys(block[self._key], self._key, self._path, start)
                start += len(values[0])
                yield Block(fields, keys, labels)


class FolderTable:
    """A folder with a file for each client, whose names are the clients'."""

    def __init__(self, folder: Path, label: str | None, columns: Sequence[str] | None) -> None:
        self._paths = sorted(
            path for path in folder.iterdir() if path.suffix in KINDS and not path.name.startswith(".")
        )
        kinds = {path.suffix for path in self._paths}
        if len(kinds) != 1:
            found = " and ".join(sorted(kinds)) or "none"
            raise ValueError(
                f"{folder} must have one file for each client, all of one kind ({', '.join(KINDS)}), got {found}"
            )
        self.numbers = kinds <= {".csv", ".parquet"}
        self._label, self._columns = label, columns

    def files(self) -> list[Path]:
        return self._paths

    def blocks(self) -> Iterator[Block]:
        for path in self._paths:
            rows = 0
            table = open_table([path], None, self._label, self._columns)
            for block in table.blocks():
                number = len(next(iter(block.fields.values())))
                rows += number
                named = {"x": block.fields[path.stem]} if path.suffix == ".npy" else block.fields
                yield Block(named, [path.stem] * number, block.labels)
            if rows == 0:
                raise ValueError(f"{path} has no rows: remove the file, or give the client at least one")


class ImageTable:
    """The training images of a data set that TFDS has prepared, or of the embedded one: "x", and their labels, "y"."""

    numbers = False

    def __init__(self, name: str, data_dir: Any) -> None:
        self._name, self._folder = name, None if name == sources.EMBEDDED else tfds.find(name, data_dir)

    def files(self) -> list[Path]:
        return [] if self._folder is None else sorted(path for path in self._folder.iterdir() if path.is_file())

    def blocks(self) -> Iterator[Block]:
        for images, labels in sources.training_batches(self._name, self._folder):
            yield Block({"x": images, "y": labels}, labels=labels)


def open_table(
    paths: Sequence[Path], key: str | None, label: str | None, columns: Sequence[str] | None, data_dir: Any = None
) -> Table:
    """The table at a path or at several, or of a name of TFDS's; nothing of it is read yet."""
    first = paths[0]
    if len(paths) > 1 and any(path.suffix not in (".npy", ".npz") for path in paths):
        raise ValueError(
            f"several sources must be .npy or .npz files, one for each field, got {', '.join(map(str, paths))}"
        )
    kind = first.suffix
    if kind in (".npy", ".npz", ".csv", ".parquet"):
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"there is no file {path}")
    if kind in (".npy", ".npz"):
        if columns is not None:
            raise ValueError("columns is of CSV and Parquet files; of arrays all are fields")
        return ArrayTable(paths, key, label)
    if kind in (".csv", ".parquet"):
        return ColumnTable(first, key, label, columns)
    if first.is_dir():
        if key is not None:
            raise ValueError(
                f"key={key!r} is of tables with rows of all clients; in a folder the files are the clients'"
            )
        return FolderTable(first, label, columns)
    for what, value in (("key", key), ("label", label), ("columns", columns)):
        if value is not None:
            raise ValueError(f"{what} is of files; of a data set of TFDS the labels are known: give a partition")
    return ImageTable(str(first), data_dir)


def _read_csv(path: Path, opened: contextlib.ExitStack) -> tuple[list[str], Iterator[dict[str, Any]]]:
    file = opened.enter_context(path.open(newline="", encoding="utf-8-sig"))
    lines = csv.reader(file, strict=True)
    with _damage(path):
        names = next(lines, [])
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path} needs a first line with a name for each column, all different, got {names}")

    def blocks() -> Iterator[dict[str, Any]]:
        while True:
            with _damage(path):
                rows = list(itertools.islice((line for line in lines if line), BLOCK))
            if not rows:
                return
            for k, row in enumerate(rows):
                if len(row) != len(names):
                    place = lines.line_num - (len(rows) - 1 - k)
                    raise ValueError(f"{path} has {len(row)} instead of {len(names)} values in line {place} or nearby")
            yield dict(zip(names, zip(*rows, strict=True), strict=True))

    return names, blocks()


def _read_parquet(path: Path, opened: contextlib.ExitStack) -> tuple[list[str], Iterator[dict[str, Any]]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ImportError(f"Parquet files need: pip install 'fedjax_admm[parquet]' ({error})") from error
    with _damage(path):
        file = opened.enter_context(parquet.ParquetFile(path))
        names = list(file.schema_arrow.names)

    def blocks() -> Iterator[dict[str, Any]]:
        batches = file.iter_batches(batch_size=BLOCK)
        while True:
            with _damage(path):
                batch = next(batches, None)
            if batch is None:
                return
            yield {name: batch.column(name).to_pylist() for name in names}

    return names, blocks()


def _numbers(values: Sequence[Any], name: str, path: Path, start: int) -> np.ndarray:
    """A column's values, float64 [rows]."""
    try:
        return np.asarray(values, np.float64) if None not in values else _refuse(values, name, path, start)
    except (ValueError, TypeError):
        return _refuse(values, name, path, start)


def _refuse(values: Sequence[Any], name: str, path: Path, start: int) -> np.ndarray:
    for k, value in enumerate(values):
        try:
            float(value)
        except (ValueError, TypeError):
            raise ValueError(
                f"{path} has {value!r} in row {start + k + 1}, column {name!r}, which is no number: fill it, write "
                "words as numbers, or choose other columns"
            ) from None
    raise ValueError(f"{path}: column {name!r} is no column of numbers")


def _keys(values: Sequence[Any], name: str, path: Path, start: int) -> list[Any]:
    missing = [k for k, value in enumerate(values) if value is None or value == ""]
    if missing:
        raise ValueError(
            f"{path} has no key in row {start + missing[0] + 1}, column {name!r}: fill it, or leave the row out"
        )
    return list(values)


def _check_column(name: str | None, names: Sequence[str], where: str) -> None:
    if name is not None and name not in names:
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise ValueError(f"{where} has no column {name!r}: it has {shown}")


def _open(path: Path) -> Any:
    return open(path, "rb")


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Turns whatever a reader says of a damaged file into one line that names it."""
    try:
        yield
    except (MemoryError, ImportError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # csv, zipfile, zlib, NumPy and pyarrow each raise their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is damaged or of another kind: {reason}") from error
