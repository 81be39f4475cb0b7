"""Rows of data that go to the devices block by block; the next block's are read while this one computes."""

from __future__ import annotations

import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...data.federated import FederatedData
from ...data.rows import Rows, empty, kinds
from ..devices import AXIS
from .blocks import Block, devices_here

Buffers = list[list[np.ndarray]]  # of each device of this process, each field's


@dataclass(frozen=True)
class _Filled:
    """Buffers with clients' rows, and the same on the devices."""

    data: tuple[np.ndarray, ...]  # as a block's
    buffers: Buffers
    fields: Any


class Feed:
    """Copies rows of data to the devices.

    A block's arrays always have as many rows, so that one program works off all of them.

    Args:
        data: the federation, of which no more than two blocks are copied at a time.
        rows: that each device has room for in a block.
        mesh: of the devices, None for one.
    """

    def __init__(self, data: FederatedData, rows: int, mesh: Mesh | None) -> None:
        self._rows, self._mesh, self._devices = Rows(data.fields, data.index), mesh, devices_here(mesh)
        self._offsets, self._sizes = np.asarray(data.offsets, np.int64), np.asarray(data.sizes, np.int64)
        kind = kinds(data.fields, rows)
        self._kinds, self._structure = jax.tree.leaves(kind), jax.tree.structure(kind)
        self._free: list[Buffers] = []
        self._busy: _Filled | None = None  # what the devices compute on
        self._ahead: Future[_Filled] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rows of data")
        weakref.finalize(self, self._thread.shutdown, wait=False)

    def begin(self, block: Block) -> None:
        """Reads a block's rows, in another thread."""
        buffers = self._buffers()
        self._ahead = self._thread.submit(self._fill, block.data, buffers, None)

    def take(self, block: Block) -> Any:
        """A block's rows on the devices, leaves [devices * rows, ...]; what `begin` read, as far as it is of them."""
        ahead, self._ahead = self._ahead, None
        filled = None if ahead is None else ahead.result()
        if filled is None or not _same(filled.data, block.data):
            other = filled
            filled = self._fill(block.data, self._buffers(), other)
            if other is not None:
                jax.block_until_ready(other.fields)
                self._free.append(other.buffers)
        self._busy = filled
        return filled.fields

    def done(self) -> None:
        """The devices have done with what was last taken."""
        if self._busy is not None:
            self._free.append(self._busy.buffers)
        self._busy = None

    def _buffers(self) -> Buffers:
        return self._free.pop() if self._free else [[empty(kind) for kind in self._kinds] for _ in self._devices]

    def _fill(self, data: tuple[np.ndarray, ...], buffers: Buffers, known: _Filled | None) -> _Filled:
        """Buffers with the rows of these clients; those of `known` are not read again."""
        places = {} if known is None else self._places(known)
        for ids, room in zip(data, buffers, strict=True):
            at = 0
            for i in ids.tolist():
                size = int(self._sizes[i])
                if i in places:
                    device, first = places[i]
                    for leaf, old in zip(room, device, strict=True):
                        leaf[at : at + size] = old[first : first + size]
                else:
                    self._rows.read(int(self._offsets[i]), int(self._offsets[i]) + size, room, at)
                at += size
        leaves = [self._put(kind, [room[k] for room in buffers]) for k, kind in enumerate(self._kinds)]
        return _Filled(data, buffers, jax.tree.unflatten(self._structure, leaves))

    def _places(self, known: _Filled) -> dict[int, tuple[list[np.ndarray], int]]:
        places = {}
        for ids, room in zip(known.data, known.buffers, strict=True):
            firsts = np.cumsum(self._sizes[ids]) - self._sizes[ids]
            places |= {int(i): (room, int(first)) for i, first in zip(ids, firsts, strict=True)}
        return places

    def _put(self, kind: jax.ShapeDtypeStruct, parts: list[np.ndarray]) -> Any:
        """Each device's part; a CPU device computes on it where it is."""
        if self._mesh is None:
            return jax.device_put(parts[0], may_alias=True)
        devices = [self._mesh.devices.flat[place] for place in self._devices]
        arrays = [jax.device_put(part, device, may_alias=True) for part, device in zip(parts, devices, strict=True)]
        shape = (self._mesh.size * kind.shape[0], *kind.shape[1:])
        return jax.make_array_from_single_device_arrays(
            shape, NamedSharding(self._mesh, PartitionSpec(AXIS)), arrays, dtype=kind.dtype
        )


def _same(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
