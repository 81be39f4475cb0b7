"""Every client's loss and metrics, at the server's parameters and at its own, on all devices of a run.

At the server's parameters one pass goes over the flat rows in pieces, as if there were no clients, and leaves a value
for each row; clients' means are sums of consecutive values, in double precision on the host. So it costs what the pass
costs, however many clients there are. At clients' own parameters, groups of clients of about the same size are
evaluated together, each with its own, wherever those live. Rows may be on the devices or in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..core import trees
from ..core.client_statistics import PERSONAL
from ..data.federated import FederatedData
from ..problems.evaluation import piece_size
from ..problems.measures import Measures, row_bytes
from ..problems.problem import Problem
from . import processes
from .devices import AXIS, on_one_device, replicated
from .evaluation_programs import Static, data_specs, measure_groups, measure_penalty, measure_rows
from .placement import split_by_home
from .population.rows import StoredClients
from .population.rows import row_bytes as stacked_bytes

OWN = "client_params"  # what a method calls a client's own parameters, among what it keeps of it
_BLOCK_BYTES = 1 << 26  # of rows or parameters that travel at a time
_GROUP_BYTES = 1 << 25  # of the parameters that are evaluated together
_MOST_ROWS = 1 << 22  # whose values a device keeps at a time
_FILLED = 0.9  # of the rows of a group's pieces, this share exists at least, if pieces can be that small
_LEAST_PIECE = 8


class EveryClient:
    """The evaluation of a problem's clients.

    Args:
        problem: The problem, whose `client_eval_data` or `data` has the rows.
        clients: Whom to evaluate, ascending.
        mesh: The devices; None for one.
        at_home: Whether rows are to lie where clients live, split over the mesh, and else everywhere.
        placed: Returns the clients' own data where rounds have it, to be used again where it is what is evaluated.
    """

    def __init__(
        self,
        problem: Problem,
        clients: np.ndarray,
        mesh: Mesh | None = None,
        at_home: bool = False,
        placed: Callable[[], FederatedData] | None = None,
    ) -> None:
        self.measures, self.clients = Measures.of(problem), clients
        self._data, self._mesh = problem.evaluated_data, mesh
        self._on_host = not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self._data.fields))
        self._at_home = at_home and not self._on_host
        self._place = placed if placed is not None and problem.client_eval_data is None else None
        self._placed: FederatedData | None = None
        self._devices = 1 if mesh is None else mesh.size
        self._sizes = np.asarray(self._data.sizes)
        self.sizes = self._sizes[clients]
        number = self._data.num_clients
        self._each = number // self._devices if number % self._devices == 0 else None  # clients that live on a device
        self._shares = self._deal()

    def _deal(self) -> list[np.ndarray]:
        """The clients of each device: where each lives if they are split evenly, else as many on each."""
        if self._each is None:
            return np.array_split(self.clients, self._devices)
        bounds = np.searchsorted(self.clients, np.arange(1, self._devices) * self._each)
        return np.split(self.clients, bounds)

    def at_server(self, params: Any) -> dict[str, np.ndarray]:
        """Every client's values at the server's parameters.

        Args:
            params: The server's, on all devices of the mesh.

        Returns:
            "loss", which is f_i with the regularizer, and each metric -> [clients].
        """
        kind, rows = trees.scalar_dtype(params), self._values_of_rows(params)
        means = {name: mean_of_each(values, self.sizes) for name, values in rows.items()}
        means["loss"] = means["loss"] + float(measure_penalty(self.measures, on_one_device(params)))
        return {name: values.astype(kind) for name, values in means.items()}

    def at_own(self, clients: Mapping[str, Any], split: bool = False) -> dict[str, np.ndarray]:
        """Every client's values at its own parameters.

        Args:
            clients: What the method keeps of clients, with `client_params` [clients, ...], wherever it lives.
            split: Whether those are split over the devices.

        Returns:
            "personal_loss" and each metric likewise -> [clients]; {} for a method that does not keep them.
        """
        if OWN not in clients:
            return {}
        own = clients[OWN]
        like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), own)
        kind = trees.scalar_dtype(like)
        found = {name: np.full(self._data.num_clients, np.nan, kind) for name in self.measures.names}
        for ids, values in self._values_of_groups(clients, own, split):
            exists = ids >= 0
            for name, value in values.items():
                found[name][ids[exists]] = np.asarray(processes.whole(value)).reshape(-1)[exists]
        return {f"{PERSONAL}{name}": values[self.clients] for name, values in found.items()}

    def placed(self) -> FederatedData:
        """The evaluated rows where the devices have them; placed at the first use."""
        placed = self._placed
        if placed is None:
            if self._place is not None:
                placed = self._place()
            elif self._mesh is None:
                placed = self._data
            elif self._at_home:
                placed = split_by_home(self._data, self._mesh)
            else:
                placed = replicated(self._data, self._mesh)
            self._placed = placed
        return placed

    def _values_of_rows(self, params: Any) -> dict[str, np.ndarray]:
        """Every value of the evaluated clients' rows [rows], in clients' order."""
        own = [self._positions(ids) for ids in self._shares]
        counts = np.array([len(positions) for positions in own])
        rows = min(piece_size(self._data.fields), max(1, int(counts.max())))
        most = _MOST_ROWS
        if self._on_host:
            most = min(most, max(rows, _BLOCK_BYTES // max(1, row_bytes(self._data.fields))))
        pieces = max(1, min(-(-int(counts.max()) // rows), most // rows))
        parts: list[list[dict[str, np.ndarray]]] = [[] for _ in own]
        for start in range(0, int(counts.max()), pieces * rows):
            mine = [positions[start : start + pieces * rows] for positions in own]
            values = self._measure_rows(params, mine, pieces, rows)
            host = {name: processes.whole(value) for name, value in values.items()}
            for device, positions in enumerate(mine):
                chosen = {
                    name: np.asarray(v).reshape(self._devices, -1)[device, : len(positions)] for name, v in host.items()
                }
                parts[device].append(chosen)
        return {
            name: np.concatenate([part[name] for device in parts for part in device]) for name in self.measures.names
        }

    def _positions(self, ids: np.ndarray) -> Any:
        """Where the rows of clients are, one after the other: a range if they are consecutive, else an array."""
        data = self._data if self._on_host else self.placed()
        offsets, sizes = np.asarray(data.offsets), self._sizes[ids]
        if len(ids) and ids[-1] - ids[0] == len(ids) - 1:
            return range(int(offsets[ids[0]]), int(offsets[ids[-1]] + sizes[-1]))
        return np.repeat(offsets[ids] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())

    def _measure_rows(self, params: Any, mine: list[Any], pieces: int, rows: int) -> dict[str, Array]:
        """The values [devices * pieces, rows] of each device's positions, padded."""
        split, number = PartitionSpec(AXIS), pieces * rows
        if self._on_host:
            fields, starts = self._from_host(mine, number), np.zeros(self._devices, np.int32)
            data = FederatedData(fields, None, *(self._put(starts, PartitionSpec()),) * 3)  # pyright: ignore[reportArgumentType]
            specs, places, consecutive = data_specs(data, split), starts, True
        else:
            data = self.placed()
            specs = data_specs(data, split if self._at_home else PartitionSpec())
            consecutive = data.index is None and all(isinstance(positions, range) for positions in mine)
            if consecutive:
                places = np.array([positions.start if len(positions) else 0 for positions in mine], np.int32)
            else:
                places = np.concatenate([_padded(positions, number) for positions in mine]).astype(np.int32)
        return measure_rows(
            self.measures, data, params, self._put(places, split),
            pieces=pieces, rows=rows, consecutive=consecutive, mesh=self._mesh, specs=Static(specs),
        )  # fmt: skip

    def _from_host(self, mine: list[Any], number: int) -> Any:
        """The rows at each device's positions, from host memory [devices * number, ...]."""
        index = None if self._data.index is None else np.asarray(self._data.index)

        def rows(leaf: Any) -> Any:
            def one(device: int) -> np.ndarray:
                positions = mine[device]
                if isinstance(positions, range) and index is None:
                    found = np.asarray(leaf[positions.start : positions.stop])
                else:
                    positions = np.asarray(positions, np.int64)
                    found = np.asarray(leaf[positions if index is None else index[positions]])
                return np.concatenate([found, np.zeros((number - len(found), *leaf.shape[1:]), leaf.dtype)])

            return self._put_parts(one, (number, *leaf.shape[1:]))

        return jax.tree.map(rows, self._data.fields)

    def _values_of_groups(
        self, clients: Mapping[str, Any], own: Any, split: bool
    ) -> Iterator[tuple[np.ndarray, dict[str, Array]]]:
        """Blocks of clients, -1 for none, and their values at their own parameters, under way on the devices."""
        stored = clients if isinstance(clients, StoredClients) else None
        bytes_of_one = max(1, stacked_bytes(own))
        piece, width = self._group_shape(bytes_of_one)
        groups = np.stack([self._groups(ids, width) for ids in self._padded_shares()])  # [devices, groups, width]
        together = groups.shape[1]
        if stored is not None:
            together = min(together, max(1, _BLOCK_BYTES // (width * stacked_bytes(stored.like))))
        if self._on_host:
            most = width * int(self.sizes.max()) * row_bytes(self._data.fields)
            together = min(together, max(1, _BLOCK_BYTES // max(1, most)))
        pending = None
        for start in range(0, groups.shape[1], together):
            block = groups[:, start : start + together]
            missing = together - block.shape[1]
            block = np.pad(block, ((0, 0), (0, missing), (0, 0)), constant_values=-1)
            values = self._measure_groups(own, stored, split, block, piece)
            if pending is not None:
                yield pending  # while the devices are at the next one
            pending = block.reshape(-1), values
        if pending is not None:
            yield pending

    def _padded_shares(self) -> list[np.ndarray]:
        """The clients of each device, the largest first, -1 for none: as many for each."""
        most = max(1, *(len(ids) for ids in self._shares)) if self._shares else 1
        ordered = [ids[np.argsort(-self._sizes[ids], kind="stable")] for ids in self._shares]
        return [np.concatenate([ids, np.full(most - len(ids), -1, ids.dtype)]) for ids in ordered]

    @staticmethod
    def _groups(ids: np.ndarray, width: int) -> np.ndarray:
        """[groups, width], the last one padded."""
        number = -(-len(ids) // width)
        return np.concatenate([ids, np.full(number * width - len(ids), -1, ids.dtype)]).reshape(number, width)

    def _group_shape(self, bytes_of_one: int) -> tuple[int, int]:
        """Rows of a piece of one client, and how many clients go together."""
        most = piece_size(self._data.fields)
        piece = piece_for(self.sizes, most)
        largest = max(len(ids) for ids in self._shares)
        return piece, max(1, min(most // piece, _GROUP_BYTES // bytes_of_one, largest))

    def _measure_groups(
        self, own: Any, stored: StoredClients | None, split: bool, block: np.ndarray, piece: int
    ) -> dict[str, Array]:
        """The values [devices * groups, width] of a block of clients [devices, groups, width]."""
        everywhere, over = PartitionSpec(), PartitionSpec(AXIS)
        ids, exists = np.maximum(block, 0), block >= 0
        if stored is not None:
            rows = jax.tree.map(np.asarray, stored.take(ids.reshape(-1))[OWN])
            own = self._put(rows, over)
            own_spec, addresses = over, np.broadcast_to(np.arange(ids[0].size).reshape(ids[0].shape), ids.shape)
        elif split:
            assert self._each is not None
            first = np.arange(self._devices)[:, None, None] * self._each
            own_spec, addresses = over, np.where(exists, ids - first, 0)
        else:
            own_spec, addresses = everywhere, ids
        sizes = np.where(exists, self._sizes[ids], 0)
        if self._on_host:
            data, offsets = self._block_from_host(ids, sizes)
            specs = data_specs(data, over)
        else:
            data = self.placed()
            offsets = np.where(exists, np.asarray(data.offsets)[ids], 0)
            specs = data_specs(data, over if self._at_home else everywhere)
        tables = (a.reshape(-1, block.shape[-1]).astype(np.int32) for a in (addresses, offsets, sizes))
        return measure_groups(
            self.measures, data, own, *(self._put(table, over) for table in tables),
            piece=piece, mesh=self._mesh, specs=Static((specs, own_spec)),
        )  # fmt: skip

    def _block_from_host(self, ids: np.ndarray, sizes: np.ndarray) -> tuple[FederatedData, np.ndarray]:
        """The rows of a block of clients, device by device one after the other, and where each client's begin."""
        begins, positions = np.asarray(self._data.offsets)[ids], []
        offsets = np.zeros_like(sizes)
        for device in range(self._devices):
            own, first = sizes[device].reshape(-1), begins[device].reshape(-1)
            before = np.cumsum(own) - own
            offsets[device] = before.reshape(offsets[device].shape)
            positions.append(np.repeat(first - before, own) + np.arange(own.sum()))
        most = max(1, max(map(len, positions)))
        number = 1 << (most - 1).bit_length()  # few different shapes, so that few programs are compiled
        fields, none = self._from_host(positions, number), self._put(np.zeros(1, np.int32), PartitionSpec())
        return FederatedData(fields, None, none, none, none), offsets

    def _put(self, tree: Any, spec: PartitionSpec) -> Any:
        """Arrays of the host on the devices: split along the first axis, or everywhere."""
        if self._mesh is None:
            return jax.tree.map(jnp.asarray, tree)
        sharding = NamedSharding(self._mesh, spec)
        return jax.tree.map(
            lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, lambda part: leaf[part]), tree
        )

    def _put_parts(self, part: Callable[[int], np.ndarray], shape: tuple[int, ...]) -> Array:
        """An array of which each device of this process gets its part, made where it is needed."""
        if self._mesh is None:
            return jnp.asarray(part(0))
        sharding = NamedSharding(self._mesh, PartitionSpec(AXIS))

        def one(where: Any) -> np.ndarray:
            return part((where[0].start or 0) // shape[0])

        return jax.make_array_from_callback((self._devices * shape[0], *shape[1:]), sharding, one)


def mean_of_each(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The mean [clients] over each client's consecutive values, in double precision; NaN where there are none.

    >>> mean_of_each(np.array([1.0, 2.0, 6.0]), np.array([2, 0, 1])).tolist()
    [1.5, nan, 6.0]
    """
    known, starts = sizes > 0, np.cumsum(sizes) - sizes
    means = np.full(len(sizes), np.nan)
    if known.any():
        means[known] = np.add.reduceat(values, starts[known], dtype=np.float64) / sizes[known]
    return means


def piece_for(sizes: np.ndarray, most: int) -> int:
    """How many rows of a client to evaluate at once: so many that few rows of its last piece are none.

    >>> piece_for(np.array([20, 20]), 500), piece_for(np.array([1000, 3000]), 500), piece_for(np.array([9, 100]), 500)
    (20, 500, 13)
    """
    piece = min(int(sizes.max()), most)
    while piece > _LEAST_PIECE and sizes.sum() < _FILLED * np.sum(-(-sizes // piece) * piece):
        piece = max(_LEAST_PIECE, -(-piece // 2))
    return max(1, piece)


def _padded(positions: Any, number: int) -> np.ndarray:
    """Positions as an array of so many, the rest zeros."""
    found = np.asarray(positions)
    return np.concatenate([found, np.zeros(number - len(found), found.dtype)])
