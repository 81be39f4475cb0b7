"""A cohort in blocks of clients that are solved together, and which device solves which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from ..devices import dealt
from ..rounds import Queue


class Homes(NamedTuple):
    """Who may solve whom: group g's clients are `firsts[g]` to `firsts[g + 1]`, and its devices `devices[g]`."""

    firsts: np.ndarray  # [groups + 1]
    devices: tuple[np.ndarray, ...]  # their places on the mesh

    @classmethod
    def anywhere(cls, clients: int, devices: int) -> Homes:
        """Any device solves any client."""
        return cls(np.array([0, clients]), (np.arange(devices),))

    @classmethod
    def on_devices(cls, clients: int, devices: int) -> Homes:
        """As many clients live on each device."""
        return cls(np.arange(devices + 1) * (clients // devices), tuple(np.arange(devices)[:, None]))

    @classmethod
    def on_processes(cls, sizes: np.ndarray, mesh: Mesh) -> Homes:
        """Clients live in a process, which has about its devices' share of all rows."""
        process = np.array([device.process_index for device in mesh.devices.flat])
        devices = tuple(np.flatnonzero(process == number) for number in np.unique(process))
        share = np.cumsum([len(group) for group in devices]) / len(process)
        rows = np.cumsum(sizes, dtype=np.int64)
        inner = np.searchsorted(rows, share[:-1] * rows[-1], side="left") + 1
        return cls(np.array([0, *np.minimum(inner, len(sizes)), len(sizes)]), devices)

    def groups(self, ids: np.ndarray) -> np.ndarray:
        """Each client's group."""
        return np.searchsorted(self.firsts, ids, side="right") - 1

    def clients_of(self, devices: np.ndarray) -> tuple[int, int]:
        """The first of the clients that live on neighbouring devices, and the one after the last."""
        groups = [g for g, mine in enumerate(self.devices) if np.isin(mine, devices).any()]
        return int(self.firsts[groups[0]]), int(self.firsts[groups[-1] + 1])


class Room(NamedTuple):
    """What a device takes of a block."""

    share: int  # clients
    rows: int | None = None  # of data; None: the data is on the device


@dataclass(frozen=True)
class Block:
    """Some of a cohort's clients, and how the devices share them."""

    queue: Queue  # of all devices [devices, share], without addresses
    exists: np.ndarray  # [devices, share]
    ids: np.ndarray  # of those whom this process solves, in the cohort's order
    places: np.ndarray  # [devices of this process, share] which of them each is
    data: tuple[np.ndarray, ...]  # ids of each device of this process, in the order of their rows of data


def divide(
    ids: np.ndarray, order: np.ndarray, sizes: np.ndarray, homes: Homes, room: Room, mine: np.ndarray
) -> list[Block]:
    """A cohort in blocks, of clients whose work is alike.

    Within its group a block is dealt in snake order, so that each device gets as much work.

    Args:
        ids: The cohort.
        order: Its positions in the order of work.
        sizes: The clients' numbers of rows [cohort].
        homes: Who may solve whom.
        room: What a device takes of a block.
        mine: The devices of this process.

    Returns:
        The blocks, as many in every process.
    """
    group, number = homes.groups(ids[order]), sum(len(devices) for devices in homes.devices)
    shares = [_chunks(order[group == g], sizes, len(devices), room) for g, devices in enumerate(homes.devices)]
    blocks = []
    for k in range(max(map(len, shares))):
        table = np.full((number, room.share), len(ids))
        for devices, chunks in zip(homes.devices, shares, strict=True):
            if k < len(chunks):
                table[devices] = chunks[k]
        blocks.append(_block(table, ids, sizes, mine, with_data=room.rows is not None))
    return blocks


def _chunks(order: np.ndarray, sizes: np.ndarray, devices: int, room: Room) -> list[np.ndarray]:
    """Positions [devices, share] of one group's blocks; the cohort's size where there is none."""
    chunks, start, none = [], 0, len(sizes)
    while start < len(order):
        most = min(devices * room.share, len(order) - start)
        table = dealt(most, devices)
        if room.rows is not None:
            held = np.append(sizes[order[start : start + most]], 0)[np.minimum(table, most)]
            full = table[np.cumsum(held, axis=1, dtype=np.int64) > room.rows]
            most = min([most, *full])
            table = np.where(table < most, table, most)
        chunk = np.append(order[start : start + most], none)[np.minimum(table, most)]
        chunks.append(np.concatenate([chunk, np.full((devices, room.share - chunk.shape[1]), none)], axis=1))
        start += most
    return chunks


def _block(table: np.ndarray, ids: np.ndarray, sizes: np.ndarray, mine: np.ndarray, *, with_data: bool) -> Block:
    exists = table < len(ids)
    slots = np.minimum(table, len(ids) - 1).astype(np.int32)
    positions = np.sort(table[mine][exists[mine]])
    places = np.minimum(np.searchsorted(positions, table[mine]), max(0, len(positions) - 1))
    offsets, data = None, ()
    if with_data:
        # By number, not by work: what is read ahead stays right if the order of work turns out to be another.
        rank = np.argsort(np.where(exists, ids[slots], np.iinfo(np.int32).max), axis=1, kind="stable")
        held = np.take_along_axis(np.where(exists, sizes[slots], 0), rank, axis=1)
        offsets = np.empty(table.shape, np.int32)
        np.put_along_axis(offsets, rank, (np.cumsum(held, axis=1) - held).astype(np.int32), axis=1)
        offsets[~exists] = 0
        data = tuple(ids[slots[d, rank[d]]][: exists[d].sum()] for d in mine)
    queue = Queue(ids[slots], None, exists.sum(axis=1, dtype=np.int32), slots=slots, offsets=offsets)  # pyright: ignore[reportArgumentType]
    return Block(queue, exists, ids[positions], places, data)


def devices_here(mesh: Mesh | None) -> np.ndarray:
    """The places on the mesh of this process's devices."""
    if mesh is None:
        return np.zeros(1, int)
    return np.flatnonzero([device.process_index == jax.process_index() for device in mesh.devices.flat])
