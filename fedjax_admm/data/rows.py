"""Rows that stay where they are, in memory, in files or in a source, and are read when they are needed.

A memory-mapped file is read by plain reads: pages of a map that were looked at count as this process's memory, and a
file that was cut short ends the process.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ALIGNMENT = 64  # bytes: a CPU device computes on an array that is aligned so where it is, without a copy


def is_source(leaf: Any) -> bool:
    """Whether it is no array, but has `shape`, `dtype` and rows that can be asked for by their numbers."""
    in_memory = any(hasattr(leaf, name) for name in ("__array_interface__", "__dlpack__", "to_numpy"))
    described = isinstance(getattr(leaf, "shape", None), tuple) and isinstance(getattr(leaf, "dtype", None), np.dtype)
    return described and not in_memory and not isinstance(leaf, jax.Array) and hasattr(type(leaf), "__getitem__")


def stays(leaf: Any) -> bool:
    """Whether its rows are not in memory: a memory-mapped array, or a source."""
    return isinstance(leaf, np.memmap) or is_source(leaf)


def in_memory(fields: Any) -> bool:
    """Whether all fields are arrays in memory, or on the device.

    >>> in_memory({"x": np.zeros(3)})
    True
    """
    return not any(stays(leaf) for leaf in jax.tree.leaves(fields))


def on_device(fields: Any) -> bool:
    """Whether all fields are arrays on a device."""
    return all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(fields))


def kept(fields: Any) -> Any:
    """Arrays in memory as a federation keeps them: in the device's dtypes, and on the device where that is a CPU."""
    if jax.default_backend() == "cpu":
        return jax.tree.map(jnp.asarray, fields)
    host = jax.tree.map(np.asarray, fields)
    return jax.tree.map(lambda leaf: leaf.astype(_dtype(leaf), copy=False), host)


def kinds(fields: Any, rows: int | None = None) -> Any:
    """The fields' shapes and dtypes on a device, with so many rows.

    >>> kinds({"x": np.zeros((4, 2), np.uint8)}, rows=3)
    {'x': ShapeDtypeStruct(shape=(3, 2), dtype=uint8)}
    """

    def kind(leaf: Any) -> jax.ShapeDtypeStruct:
        number = leaf.shape[0] if rows is None else rows
        return jax.ShapeDtypeStruct((number, *leaf.shape[1:]), _dtype(leaf))

    return jax.tree.map(kind, fields)


def row_bytes(fields: Any) -> int:
    """Bytes of a row of all fields on a device.

    >>> row_bytes({"x": np.zeros((4, 2), np.uint8), "y": np.zeros(4, np.float32)})
    6
    """
    leaves = jax.tree.leaves(kinds(fields, rows=1))
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def empty(kind: jax.ShapeDtypeStruct) -> np.ndarray:
    """An array that a CPU device can compute on where it is; its pages take memory once they are written."""
    size = int(np.prod(kind.shape)) * kind.dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size].view(kind.dtype).reshape(kind.shape)


class Rows:
    """Reads rows of fields by their positions.

    Args:
        fields: A pytree of arrays or sources [rows, ...].
        index: The row at each position; None: a position is a row.
    """

    def __init__(self, fields: Any, index: Any = None) -> None:
        named = jax.tree_util.tree_leaves_with_path(fields)
        self._columns = [_Column(leaf, jax.tree_util.keystr(path)) for path, leaf in named]
        self._structure = jax.tree.structure(fields)
        self._index = None if index is None else np.asarray(index)
        self._fields = fields

    def read(self, start: int, stop: int, out: list[np.ndarray], at: int = 0) -> None:
        """Copies the rows at positions `start` to `stop`, into arrays of the device's dtypes, from `at` on."""
        numbers = np.arange(start, stop) if self._index is None else self._index[start:stop]
        for column, room in zip(self._columns, out, strict=True):
            column.read(numbers, room[at : at + len(numbers)])

    def take(self, start: int, stop: int, *, as_they_are: bool = False) -> Any:
        """The rows at these positions, a pytree of arrays of their own; `as_they_are` in dtypes that no device has."""
        like = jax.tree.leaves(kinds(self._fields, rows=stop - start))
        if as_they_are:
            pairs = zip(like, jax.tree.leaves(self._fields), strict=True)
            like = [jax.ShapeDtypeStruct(kind.shape, leaf.dtype) for kind, leaf in pairs]
        out = [empty(kind) for kind in like]
        self.read(start, stop, out)
        return jax.tree.unflatten(self._structure, out)


class _Column:
    """One field."""

    def __init__(self, leaf: Any, name: str) -> None:
        self._leaf, self._name = (np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf), name
        self._file = _file_of(leaf)

    def read(self, numbers: np.ndarray, out: np.ndarray) -> None:
        """Copies rows by their numbers."""
        if len(numbers) == 0:
            return
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first + 1 == len(numbers) and np.array_equal(numbers, np.arange(first, last + 1)):
            self._run(first, last + 1, numbers, out)
        elif isinstance(self._leaf, np.ndarray):
            self._copy(self._leaf[numbers], numbers, out)
            _forget(self._leaf)
        else:  # in order: some sources can do no other, and files are quicker so
            order = np.argsort(numbers, kind="stable")
            rows = np.empty_like(out)
            self._copy(self._leaf[numbers[order]], numbers[order], rows)
            out[order] = rows

    def _run(self, first: int, stop: int, numbers: np.ndarray, out: np.ndarray) -> None:
        if self._file is not None and out.dtype == self._leaf.dtype:
            self._file(first, out)
        elif isinstance(self._leaf, np.ndarray):
            self._copy(self._leaf[first:stop], numbers, out)
            _forget(self._leaf)
        else:
            self._copy(self._leaf[numbers], numbers, out)

    def _copy(self, values: Any, numbers: np.ndarray, out: np.ndarray) -> None:
        values = np.asarray(values)
        if values.shape != out.shape:
            raise ValueError(
                f"data{self._name} gave {list(values.shape)} for {len(numbers)} rows, and its shape says "
                f"{list(out.shape)}: mend the source"
            )
        if values.dtype != out.dtype:
            fine = survives(values, out.dtype)
            if not fine.all():
                row = numbers[np.argwhere(~fine)[0][0]]
                raise ValueError(f"data{self._name} is not finite in row {row} as {out.dtype}: remove or fill it")
        np.copyto(out, values, casting="unsafe")


def survives(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Which of the values are finite numbers in this dtype too, where 64 bits may become 32."""
    if jnp.issubdtype(values.dtype, jnp.inexact):
        with np.errstate(over="ignore"):
            return np.isfinite(values.astype(dtype, copy=False))
    if dtype != values.dtype and jnp.issubdtype(values.dtype, jnp.integer):
        return (values >= jnp.iinfo(dtype).min) & (values <= jnp.iinfo(dtype).max)
    return np.ones(values.shape[:1] or 1, bool)


def _dtype(leaf: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(leaf.dtype)


def _file_of(leaf: Any) -> Callable[[int, np.ndarray], None] | None:
    """What reads rows of a memory-mapped array from its file, from a row on; None where that cannot be done."""
    plain = isinstance(leaf, np.memmap) and leaf.flags.c_contiguous and leaf.size and hasattr(os, "preadv")
    if not plain or leaf.mode not in ("r", "r+") or leaf.filename is None:
        return None
    try:
        file = os.open(leaf.filename, os.O_RDONLY)
    except OSError:  # removed since it was mapped
        return None
    begin = leaf.offset - leaf.offset % mmap.ALLOCATIONGRANULARITY  # of the map in the file, as NumPy makes it
    mapped = np.frombuffer(leaf._mmap, np.uint8)  # pyright: ignore[reportAttributeAccessIssue]
    begin += leaf.ctypes.data - mapped.ctypes.data
    row, path = leaf.nbytes // len(leaf), leaf.filename

    def read(first: int, out: np.ndarray) -> None:
        room = out.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(room):
            got = os.preadv(file, [room[done:]], begin + first * row + done)
            if got == 0:
                raise OSError(f"{path} ends before row {first + done // row}: it was cut short; restore it")
            done += got

    weakref.finalize(read, os.close, file)
    return read


def _forget(leaf: np.ndarray) -> None:
    """Pages of a map that were looked at no longer count as memory."""
    if isinstance(leaf, np.memmap) and leaf.mode in ("r", "r+") and hasattr(mmap, "MADV_DONTNEED"):
        leaf._mmap.madvise(mmap.MADV_DONTNEED)  # pyright: ignore[reportAttributeAccessIssue]
