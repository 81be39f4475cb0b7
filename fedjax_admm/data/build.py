"""Federation directories from tables of any size: rows stream to their clients; what was interrupted goes on.

The first pass counts each client's rows and says what is wrong; the second writes every row where its client's rows
are, noting every few seconds how far it is; the third takes the checksums. Until all is done the directory has another
name, `.NAME.building`, by which the same call finds what is there.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from ..core import checks
from ..core.files import check_writable, write_json, write_whole
from . import tables
from .directory import checksums_of, create_fields, write_index
from .federated import check_disjoint, checked_parts
from .fields import check_finite
from .tables import Block, Table, open_table

_PLAN, _PROGRESS = "plan.npz", "progress.json"
_SECONDS = 2.0  # between two notes of how far it is


class _Plan(NamedTuple):
    """What the first pass found."""

    sizes: np.ndarray  # [clients] rows
    places: np.ndarray | None  # [rows] where each goes, -1 for nowhere; None where keys tell
    labels: np.ndarray | None  # [rows] what the partition was given
    names: np.ndarray | None  # [clients] their keys
    dropped: np.ndarray  # names of those with too few rows
    whole_labels: bool
    rows: int  # of the source


def build_federation(
    out: Any,
    source: Any,
    *,
    key: str | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    partition: Callable[[np.ndarray], Sequence[Any]] | None = None,
    min_size: int = 1,
    data_dir: Any = None,
    progress: bool = True,
) -> Path:
    """Makes a federation directory of a source that may be larger than memory; `FederatedData.open` maps it.

    Called again after an interruption, it goes on. Whose the rows are, a key says, or a partition, or their files:

    | source | fields | clients |
    |---|---|---|
    | `.npy` files, or a `.npz` file | one for each array, by its name | `key`, one of the arrays; or `partition` |
    | a CSV or Parquet file | "y", the `label`; "x", the other columns side by side | `key`, a column; or `partition` |
    | a folder with one such file for each client | as in its files; of a `.npy` file "x" | the files' names |
    | TFDS's name of a data set of images | "x" and "y", of the training split | `partition` |

    Args:
        out: The directory, new or empty. It is there when it is complete, and else not.
        source: A path, several of `.npy` or `.npz` files, or a name of TFDS's.
        key: The column, or the array, that says whose a row is; clients are in the order in which they first appear.
        label: The column of labels, whole numbers or not; of arrays, the one that `partition` is given.
        columns: The columns of "x"; by default all but the key and the label.
        partition: labels [rows] -> the rows of each client, as `fa.partition` returns them; without labels it is given
            the rows' numbers.
        min_size: Clients with fewer rows are left out.
        data_dir: Where TFDS's data sets are; by default `TFDS_DATA_DIR`, else TFDS's own folder.
        progress: Show a bar in a terminal.

    Returns:
        The directory.

    Raises:
        ValueError: The source is damaged, or lacks what is asked for, or `out` is not empty. Nothing is left then.
        FileNotFoundError: There is no such source.
    """
    out, min_size = Path(out), checks.integer("min_size", min_size, at_least=1)
    paths = [Path(path) for path in (source if isinstance(source, (list, tuple)) else [source])]
    if not paths:
        raise ValueError("source is empty: give a path or a name")
    check_writable(out, "out")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"out: {out} exists and is not empty: give a new directory, or remove what is there")
    table = open_table(paths, key, label, columns, data_dir)
    _check_owners(paths, key, partition)
    work = _Work(out.absolute().with_name(f".{out.name}.building"), table, progress)
    wanted = _description(paths, table, key, label, columns, min_size)
    try:
        plan = work.begin(wanted, lambda blocks: _make_plan(blocks, partition, min_size))
        if partition is not None and not work.new:
            _check_dealt(plan, partition, min_size, work.folder)
        work.place(plan)
    except Exception as error:
        # Where the disk is full or away, the same call may go on.
        if work.new and (not isinstance(error, OSError) or isinstance(error, FileNotFoundError)):
            shutil.rmtree(work.folder, ignore_errors=True)
        raise
    work.finish(plan, out)
    return out


class _Work:
    """The directory under way."""

    def __init__(self, folder: Path, table: Table, progress: bool) -> None:
        self.folder, self._table, self._show, self.new = folder, table, progress, False

    def _bar(self, doing: str, unit: str, **options: Any) -> Any:
        return tqdm(desc=doing, unit=f" {unit}", disable=None if self._show else True, **options)

    def begin(self, wanted: dict[str, Any], make: Callable[[Any], _Plan]) -> _Plan:
        """The plan of this build: that of the former call, if it was interrupted, or a new one."""
        if (self.folder / _PROGRESS).is_file():
            try:
                begun = json.loads((self.folder / _PROGRESS).read_bytes())["source"]
            except (ValueError, KeyError, TypeError):
                begun = None
            if begun != wanted:
                raise _another(self.folder)
            return _read_plan(self.folder / _PLAN)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.new = True
        with self._bar("counting", "rows") as bar:
            plan = make(_counted(self._table, bar))
        write_whole(self.folder / _PLAN, lambda file: np.savez(file, **_plan_arrays(plan)))
        write_json(self.folder / _PROGRESS, {"source": wanted, "blocks": 0, "rows": 0})
        return plan

    def place(self, plan: _Plan) -> None:
        """Writes the rows."""
        note = json.loads((self.folder / _PROGRESS).read_bytes())
        filled = np.zeros(len(plan.sizes), np.int64)
        if note["blocks"]:
            filled = np.load(self.folder / note["filled"])
        offsets, number = np.cumsum(plan.sizes) - plan.sizes, _numbering(plan)
        leaves: list[np.ndarray] = []
        row, saved = note["rows"], time.monotonic()
        with tqdm(
            total=plan.rows, initial=row, desc="writing", unit=" rows", disable=None if self._show else True
        ) as bar:
            for k, block in enumerate(islice(self._table.blocks(), note["blocks"], None), start=note["blocks"] + 1):
                fields = _typed(block, self._table.numbers, plan.whole_labels)
                rows = len(next(iter(fields.values())))
                check_finite(fields, _source(self._table), row + 1)
                leaves = leaves or self._open(fields, int(plan.sizes.sum()))
                to, filled = _destinations(plan, block, row, rows, offsets, filled, number)
                for leaf, new in zip(leaves, jax.tree.leaves(fields), strict=True):
                    if new.shape[1:] != leaf.shape[1:] or new.dtype != leaf.dtype:
                        raise ValueError(
                            f"rows {row + 1} to {row + rows} have {new.dtype} {list(new.shape[1:])} where those before "
                            f"have {leaf.dtype} {list(leaf.shape[1:])}: give all the same"
                        )
                    leaf[to[to >= 0]] = new[to >= 0]
                row += rows
                bar.update(rows)
                if time.monotonic() - saved >= _SECONDS:
                    self._note(note, k, row, filled, leaves)
                    saved = time.monotonic()

    def _open(self, fields: dict[str, np.ndarray], rows: int) -> list[Any]:
        note = self.folder / "fields.json"
        if not note.is_file():
            described, paths = create_fields(self.folder, fields, rows)
            write_json(note, {"described": described, "files": [path.name for path in paths]})
        return [np.lib.format.open_memmap(self.folder / n, mode="r+") for n in json.loads(note.read_bytes())["files"]]

    def _note(self, note: dict[str, Any], blocks: int, rows: int, filled: np.ndarray, leaves: list[Any]) -> None:
        for leaf in leaves:
            leaf.flush()
        former, name = note.get("filled"), f"filled-{blocks}.npy"
        write_whole(self.folder / name, lambda file: np.save(file, filled))
        note |= {"blocks": blocks, "rows": rows, "filled": name}
        write_json(self.folder / _PROGRESS, note)
        if former is not None:
            (self.folder / former).unlink(missing_ok=True)

    def finish(self, plan: _Plan, out: Path) -> None:
        """Takes the checksums, writes the index, and gives the directory its name."""
        made = json.loads((self.folder / "fields.json").read_bytes())
        leaves = [np.lib.format.open_memmap(self.folder / name, mode="r+") for name in made["files"]]
        with self._bar("checking", "clients", total=len(plan.sizes)) as bar:
            sums = []
            for one in checksums_of(leaves, plan.sizes):
                sums.append(one)
                bar.update(1)
        for leaf in leaves:
            leaf.flush()
        write_index(self.folder, made["described"], plan.sizes, sums, names=plan.names)
        (self.folder / _PROGRESS).unlink()  # from here on a build begins again
        for leftover in (*self.folder.glob("filled-*.npy"), self.folder / "fields.json", self.folder / _PLAN):
            leftover.unlink(missing_ok=True)
        if out.exists():
            out.rmdir()
        os.rename(self.folder, out)


def _source(table: Table) -> str:
    """How a table is called where one of its fields is named."""
    files = table.files()
    return f"{files[0]}: " if len(files) == 1 else "the source: "


def _counted(table: Table, bar: Any) -> Any:
    row = 0
    for block in table.blocks():
        rows = len(next(iter(block.fields.values())))
        check_finite(block.fields, _source(table), row + 1)
        row += rows
        bar.update(rows)
        yield block


def _make_plan(blocks: Any, partition: Callable[[np.ndarray], Sequence[Any]] | None, min_size: int) -> _Plan:
    numbers: dict[Any, int] = {}
    sizes, labels, rows, whole = [], [], 0, True
    for block in blocks:
        rows += len(next(iter(block.fields.values())))
        if block.labels is not None:
            whole &= bool(np.all(block.labels == np.floor(block.labels)))
            labels += [block.labels] if partition is not None else []
        if block.keys is not None:
            kinds, counts = _runs(block.keys)
            for kind, count in zip(kinds, counts, strict=True):
                if kind not in numbers:
                    numbers[kind] = len(sizes)
                    sizes.append(0)
                sizes[numbers[kind]] += count
    if rows == 0:
        raise ValueError("the source has no rows: give at least one")
    if partition is not None:
        given = np.concatenate(labels) if labels else np.arange(rows)
        counts, places = _dealt(given, partition, min_size)
        plan = _Plan(counts, places, given, None, np.array([]), whole, rows)
    else:
        counts, names = np.array(sizes), np.array(list(numbers))
        kept = counts >= min_size
        plan = _Plan(counts[kept], None, None, names[kept], names[~kept], whole, rows)
    if not len(plan.sizes):
        raise ValueError(f"min_size={min_size} leaves no client: lower it")
    return plan


def _dealt(
    labels: Any, partition: Callable[[np.ndarray], Sequence[Any]], min_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each client's number of rows, and where each row goes."""
    dealt = partition(labels)
    if np.iterable(dealt):
        dealt = [part for part in dealt if np.size(part) >= min_size]
        if not dealt:
            raise ValueError(f"min_size={min_size} leaves no client: lower it")
    parts = checked_parts(dealt, len(labels))
    check_disjoint(parts, len(labels))
    places, order = np.full(len(labels), -1, np.int64), np.concatenate(parts)
    places[order] = np.arange(len(order))
    return np.array([len(part) for part in parts], np.int64), places


def _check_dealt(plan: _Plan, partition: Callable[[np.ndarray], Sequence[Any]], min_size: int, folder: Path) -> None:
    """A partition may be any function, so whether it is that of the former call only its rows tell."""
    if plan.places is None or not np.array_equal(_dealt(plan.labels, partition, min_size)[1], plan.places):
        raise _another(folder)


def _another(folder: Path) -> ValueError:
    return ValueError(
        f"{folder} has a build of another source or with other options: remove it, or give the former ones"
    )


def _runs(keys: Any) -> tuple[list[Any], list[int]]:
    """The distinct keys in the order of their first rows, and how many rows each has."""
    counts: dict[Any, int] = {}
    for key in keys.tolist() if isinstance(keys, np.ndarray) else keys:
        if key != key:
            raise ValueError("a key is NaN: remove its row, or give it a key")
        counts[key] = counts.get(key, 0) + 1
    return list(counts), list(counts.values())


def _numbering(plan: _Plan) -> dict[Any, int]:
    names = [] if plan.names is None else plan.names.tolist()
    return {name: i for i, name in enumerate(names)} | dict.fromkeys(plan.dropped.tolist(), -1)


def _destinations(
    plan: _Plan, block: Block, row: int, rows: int, offsets: np.ndarray, filled: np.ndarray, number: dict[Any, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows of a block go, -1 for nowhere, and how many rows each client has after it."""
    if row + rows > plan.rows:
        raise ValueError("the source has grown since its rows were counted: begin again")
    if plan.places is not None:
        return plan.places[row : row + rows], filled
    try:
        keys = block.keys.tolist() if isinstance(block.keys, np.ndarray) else block.keys
        clients = np.array([number[key] for key in keys], np.int64)
    except KeyError as error:
        raise ValueError(f"key {error} was not there when the rows were counted: begin again") from None
    order = np.argsort(clients, kind="stable")
    kinds, first, counts = np.unique(clients[order], return_index=True, return_counts=True)
    rank = np.empty(rows, np.int64)
    rank[order] = np.arange(rows) - np.repeat(first, counts)
    to = np.where(clients >= 0, offsets[clients] + filled[clients] + rank, -1)
    filled = filled.copy()
    filled[kinds[kinds >= 0]] += counts[kinds >= 0]
    return to, filled


def _typed(block: Block, numbers: bool, whole_labels: bool) -> dict[str, np.ndarray]:
    """The fields as they are kept: of plain numbers single precision, and labels that are all whole as such."""
    if not numbers:
        return block.fields
    kinds = {"x": np.float32, "y": np.int32 if whole_labels else np.float32}
    return {name: values.astype(kinds[name]) for name, values in block.fields.items()}


def _check_owners(paths: list[Path], key: str | None, partition: Any) -> None:
    folder = len(paths) == 1 and paths[0].is_dir()
    if folder and partition is not None:
        raise ValueError("partition is of tables with rows of all clients; in a folder the files are the clients'")
    if not folder and (key is None) == (partition is None):
        given = "both" if key is not None else "none"
        raise ValueError(f"give a key, the column that says whose a row is, or a partition, got {given}")


def _description(paths: list[Path], table: Table, *options: Any) -> dict[str, Any]:
    """What makes two builds the same, as JSON has it; the partition's rows are in the plan."""
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in table.files()]
    digest = zlib.crc32(json.dumps(stats).encode())
    return json.loads(
        json.dumps({"paths": [str(path) for path in paths], "files": digest, "block": tables.BLOCK, "options": options})
    )


def _plan_arrays(plan: _Plan) -> dict[str, Any]:
    return {name: value for name, value in plan._asdict().items() if value is not None}


def _read_plan(path: Path) -> _Plan:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        return _Plan(
            arrays["sizes"], arrays.get("places"), arrays.get("labels"), arrays.get("names"), arrays["dropped"],
            bool(arrays["whole_labels"]), int(arrays["rows"]),
        )  # fmt: skip
    except Exception as error:  # NumPy and zipfile each raise their own
        raise ValueError(f"{path} is damaged: remove {path.parent}, and the build begins again") from error
