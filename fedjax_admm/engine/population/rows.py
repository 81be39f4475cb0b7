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

    def sync(self) -> None:
        pass


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

    def sync(self) -> None:
        os.fsync(self._file)


class StoredClients(Mapping[str, Any]):
    """What an algorithm keeps for each client, name -> pytree of `LazyLeaf` [clients, ...].

    Args:
        like: The shapes of all rows, leaves [clients, ...].
        number: How many clients there are.
        start: ids -> rows of clients at their start, a pytree of arrays [ids, ...], which may be under way on a device.
        store: Where the rows are kept.
        versions: Whether checkpoints refer to the rows where they are.
    """

    def __init__(
        self, like: Any, number: int, start: Callable[[np.ndarray], Any], store: Any, *, versions: bool
    ) -> None:
        self.like, self._start, self._store, self._versions = like, start, store, versions
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
        places[fresh] = [self._place() for _ in fresh]
        self._store.write(places, self._pack(jax.tree.leaves(rows)))
        self.index[ids] = places

    def saved(self, *, with_rows: bool) -> dict[str, np.ndarray]:
        """What a checkpoint keeps of it; with the rows themselves where they are not in a file."""
        if not with_rows:
            self._store.sync()
            return {"index": self.index.copy()}
        known = np.flatnonzero(self.index >= 0)
        rows = self._store.read(self.index[known]) if known.size else np.zeros((1, max(1, self._width)), np.uint8)
        return {"index": self.index.copy(), "rows": rows}

    def was_saved(self) -> None:
        """A checkpoint has the index: what the two before it needed alone is free."""
        self._needed.append(self.index[self.index >= 0].copy())
        if all(needed is not None for needed in self._needed):
            used = np.union1d(*self._needed)
            self._free = np.setdiff1d(np.arange(self._end), used).tolist()

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes back to what was saved."""
        index = np.array(saved["index"])
        if "rows" in saved:
            known = np.flatnonzero(index >= 0)
            if known.size:
                self._store.write(np.arange(known.size), np.asarray(saved["rows"]))
            index[known] = np.arange(known.size)
            self._end = known.size
        else:
            # What the other checkpoint needs is not known: nothing is free until two new ones are there.
            self._needed = deque([None, None], maxlen=2)  # pyright: ignore[reportAttributeAccessIssue]
            self._end = self._store.path.stat().st_size // (self._width + 4) + 1
        self.index = index

    @property
    def _width(self) -> int:
        return row_bytes(self.like)

    def _place(self) -> int:
        if self._free:
            return self._free.pop()
        self._end += 1
        return self._end - 1

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
