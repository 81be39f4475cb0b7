"""Clients' rows in host memory or in a file: a row per client that was ever selected, as bytes.

A client that was never selected is at its start, which is computed, not kept. In a file that checkpoints refer to, a
row is never overwritten while one of the last two checkpoints needs it: its new version goes to a free place, and
which place is whose is the index, a part of the checkpoint. So a run that was killed goes back to the checkpoint's
rows by going back to its index.
"""

from __future__ import annotations

import os
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...core.files import DamagedFileError, open_in_place
from .. import processes

_CHUNK = 256  # rows that host memory grows by


class HostBytes:
    """Rows of bytes in memory, by place."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._chunks: list[np.ndarray] = []

    def write(self, places: np.ndarray, rows: np.ndarray) -> None:
        while len(self._chunks) * _CHUNK <= int(places.max()):
            self._chunks.append(np.empty((_CHUNK, self._width), np.uint8))
        for place, row in zip(places, rows, strict=True):
            self._chunks[place // _CHUNK][place % _CHUNK] = row

    def read(self, places: np.ndarray) -> np.ndarray:
        rows = np.empty((len(places), self._width), np.uint8)
        for k, place in enumerate(places):
            rows[k] = self._chunks[place // _CHUNK][place % _CHUNK]
        return rows

    def forget(self, places: np.ndarray) -> None:
        """The rows at these places are no longer asked for, but for checkpoints."""

    def sync(self) -> None:
        """What was written is kept, also if the process ends."""


class FileBytes:
    """Rows of bytes in a file, by place, each with a checksum. Plain reads: a memory map would count as memory."""

    def __init__(self, path: Path, width: int) -> None:
        self.path, self._width = path, width
        self._file = open_in_place(path, os.O_RDWR | os.O_CREAT)
        weakref.finalize(self, os.close, self._file)

    def write(self, places: np.ndarray, rows: np.ndarray) -> None:
        for place, row in zip(places, rows, strict=True):
            data = row.tobytes() + zlib.crc32(row).to_bytes(4, "little")
            if os.pwrite(self._file, data, int(place) * (self._width + 4)) != len(data):
                raise OSError(f"{self.path} was not written whole")

    def read(self, places: np.ndarray) -> np.ndarray:
        rows = np.empty((len(places), self._width), np.uint8)
        for k, place in enumerate(places):
            data = os.pread(self._file, self._width + 4, int(place) * (self._width + 4))
            if zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
                raise DamagedFileError(
                    f"{self.path} is damaged: row {place} is not what was written",
                    "remove the run's checkpoints to compute it again from round 0",
                )
            rows[k] = np.frombuffer(data, np.uint8, self._width)
        return rows

    def forget(self, places: np.ndarray) -> None:
        """The rows at these places are no longer asked for, but for checkpoints."""

    def sync(self) -> None:
        """What was written is kept, also if the process ends."""
        os.fsync(self._file)

    @property
    def places(self) -> int:
        """How many there is room for in the file."""
        return self.path.stat().st_size // (self._width + 4) + 1


class MirroredBytes:
    """Rows of bytes in memory, by place, that a file has too as soon as a checkpoint refers to them."""

    def __init__(self, file: FileBytes) -> None:
        self._file = file
        self._rows: dict[int, np.ndarray] = {}
        self._unwritten: set[int] = set()

    def write(self, places: np.ndarray, rows: np.ndarray) -> None:
        self._rows |= zip(places.tolist(), rows.copy(), strict=True)
        self._unwritten |= set(places.tolist())

    def read(self, places: np.ndarray) -> np.ndarray:
        missing = np.array([place for place in places.tolist() if place not in self._rows], np.int64)
        if missing.size:  # of a run that goes on
            self._rows |= zip(missing.tolist(), self._file.read(missing), strict=True)
        return np.stack([self._rows[place] for place in places.tolist()])

    def forget(self, places: np.ndarray) -> None:
        """The rows at these places are no longer asked for, but for checkpoints."""
        for place in places.tolist():
            self._rows.pop(place, None)
            self._unwritten.discard(place)

    def sync(self) -> None:
        """What was written is kept, also if the process ends."""
        places = np.array(sorted(self._unwritten), np.int64)
        for some in np.array_split(places, range(_CHUNK, len(places), _CHUNK)):
            if some.size:
                self._file.write(some, np.stack([self._rows[place] for place in some.tolist()]))
        self._unwritten.clear()
        self._file.sync()

    @property
    def places(self) -> int:
        """How many there is room for in the file."""
        return self._file.places


class StoredClients(Mapping[str, Any]):
    """What an algorithm keeps for each client, name -> pytree of `LazyLeaf` [clients, ...].

    Several processes have one file: each keeps the rows of its own clients there, in places of its own, and learns at a
    checkpoint where the others' are.

    Args:
        like: The shapes of all rows, leaves [clients, ...].
        number: How many clients there are.
        start: ids -> rows of clients at their start, a pytree of arrays [ids, ...], which may be under way on a device.
        store: Where the rows are kept.
        versions: Whether checkpoints refer to the rows where they are.
        mine: Whether a client is this process's [clients]; None: all are.
    """

    def __init__(
        self, like: Any, number: int, start: Callable[[np.ndarray], Any], store: Any, *, versions: bool,
        mine: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.like, self._start, self._store, self._versions = like, start, store, versions
        self._mine = np.ones(number, bool) if mine is None else mine
        leaves, self._structure = jax.tree.flatten(like)
        self._kinds = [(leaf.shape[1:], np.dtype(leaf.dtype)) for leaf in leaves]
        self.index = np.full(number, -1, np.int32)
        self._end, self._free = 0, []
        self.round = 0  # that the rows are of: a state of another round has none of its own any more
        self._needed: deque[np.ndarray] = deque([self.index[:0]] * 2, maxlen=2)  # by the last two checkpoints

    def begin(self, ids: np.ndarray) -> Any:
        """What a later `take` of the same clients needs of a device; None if that is nothing."""
        return None if np.all(self.index[ids] >= 0) else self._start(ids)

    def take(self, ids: np.ndarray, begun: Any = None) -> Any:
        """Rows of clients `ids`, a pytree of arrays [ids, ...]; `begun` is what `begin` returned."""
        places = self.index[ids]
        known = np.flatnonzero(places >= 0)
        if known.size == len(ids):
            return jax.tree.unflatten(self._structure, self._unpack(self._store.read(places)))
        rows = jax.tree.map(np.array, self._start(ids) if begun is None else begun)
        if known.size:
            read = self._unpack(self._store.read(places[known]))
            for leaf, new in zip(jax.tree.leaves(rows), read, strict=True):
                leaf[known] = new
        return rows

    def put(self, ids: np.ndarray, rows: Any) -> None:
        """New rows of clients `ids`."""
        if not self._kinds:
            return
        places = self.index[ids]
        fresh = np.flatnonzero((places < 0) | self._versions)
        self._store.forget(places[fresh][places[fresh] >= 0])
        places[fresh] = [self._place() for _ in fresh]
        self._store.write(places, self._pack(jax.tree.leaves(rows)))
        self.index[ids] = places

    def saved(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps of it: in which place of the file each client's row is; without a file, the rows."""
        if not self._versions:
            known = np.flatnonzero(self.index >= 0)
            rows = self._store.read(self.index[known]) if known.size else np.zeros((1, max(1, self._width)), np.uint8)
            return {"index": self.index.copy(), "rows": rows}
        self._store.sync()
        (self.index,) = processes.greatest_of(np.where(self._mine, self.index, -1))
        return {"index": self.index.copy()}

    def was_saved(self) -> None:
        """A checkpoint has the index: what the two before it needed alone is free."""
        self._needed.append(self.index[self.index >= 0].copy())
        if all(needed is not None for needed in self._needed):
            used = np.union1d(*self._needed)
            number, count = jax.process_index(), jax.process_count()
            self._free = np.setdiff1d(np.arange(number, self._end, count), used).tolist()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes back to what was saved."""
        if "rows" in saved:
            index = np.array(saved["index"])
            known = np.flatnonzero(index >= 0)
            if known.size:
                self._store.write(np.arange(known.size), np.asarray(saved["rows"]))
            index[known] = np.arange(known.size)
            self.index, self._end = index, known.size
            return
        # What the other checkpoint needs is not known: nothing is free until two new ones are there.
        self._needed = deque([None, None], maxlen=2)  # pyright: ignore[reportAttributeAccessIssue]
        self._end = self._store.places
        self.index = np.array(saved["index"])

    @property
    def _width(self) -> int:
        return row_bytes(self.like)

    def _place(self) -> int:
        """A place of this process's, which has every so many-th of them."""
        if self._free:
            return self._free.pop()
        place = self._end + (jax.process_index() - self._end) % jax.process_count()
        self._end = place + 1
        return place

    def _pack(self, leaves: list[Any]) -> np.ndarray:
        parts = [np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8) for leaf in leaves]
        return np.concatenate(parts, axis=1)

    def _unpack(self, rows: np.ndarray) -> list[np.ndarray]:
        leaves, at = [], 0
        for shape, dtype in self._kinds:
            size = int(np.prod(shape)) * dtype.itemsize
            leaves.append(np.ascontiguousarray(rows[:, at : at + size]).view(dtype).reshape(len(rows), *shape))
            at += size
        return leaves

    def __getitem__(self, name: str) -> Any:
        flat, structure = jax.tree.flatten(self.like)
        numbered = jax.tree.unflatten(structure, range(len(flat)))
        return jax.tree.map(lambda k: LazyLeaf(self, k, flat[k].shape, flat[k].dtype), numbered[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.like)

    def __len__(self) -> int:
        return len(self.like)


class LazyLeaf:
    """An array [clients, ...] that is read when it is looked at: `leaf[5]`, `leaf[[1, 7]]`, `np.asarray(leaf)`."""

    def __init__(self, clients: StoredClients, number: int, shape: tuple[int, ...], dtype: Any) -> None:
        self._clients, self._number = clients, number
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.ndim = len(shape)

    def __getitem__(self, ids: Any) -> np.ndarray:
        first, *rest = ids if isinstance(ids, tuple) and ids else (ids,)
        if not isinstance(first, slice):
            first = np.asarray(first)
            if first.dtype.kind not in "iu" and (first.dtype.kind != "b" or first.ndim != 1):
                return np.asarray(self)[ids]  # an ellipsis, a new axis, a mask of several axes: from everyone's
        chosen = np.arange(self.shape[0])[first]  # one client, or an array of them
        needed, places = np.unique(chosen, return_inverse=True)
        rows = jax.tree.leaves(self._clients.take(needed))[self._number]
        # By an index of the kind that was given, so that NumPy's rules hold for all of them together.
        if isinstance(first, slice):
            return rows[:: -1 if (first.step or 1) < 0 else 1][(slice(None), *rest)]
        return rows[(places.reshape(chosen.shape) if chosen.ndim else 0, *rest)]

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def __repr__(self) -> str:
        return f"LazyLeaf({self.dtype}{list(self.shape)})"


def row_bytes(like: Any) -> int:
    """Bytes of one client's rows, of leaves [clients, ...]."""
    leaves = jax.tree.leaves(like)
    return sum(int(np.prod(leaf.shape[1:])) * np.dtype(leaf.dtype).itemsize for leaf in leaves)
