"""The clients' data: flat rows and a compressed index, never padded."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import checks
from ..core.notebook import html
from ..core.record import note, record
from .directory import Federation, read_federation, write_federation
from .fields import as_arrays, check_finite, count_rows, one_by_one
from .rows import Rows, in_memory, kept, kinds, on_device


@record
class FederatedData:
    """The rows of all clients: one flat array per field, and the position where each client's rows start.

    Client i has the `sizes[i]` rows from position `offsets[i]` on: rows of the fields themselves where clients
    are disjoint (the fields are then in client order), else entries of `index`.

    >>> import numpy as np
    >>> data = FederatedData.from_arrays({"x": np.arange(5.0)}, [[3, 0], [1, 2, 4]])
    >>> data.num_clients, data.sizes.tolist(), data.client(0)["x"].tolist()
    (2, [2, 3], [3.0, 0.0])
    """

    fields: Any  # pytree of [rows, ...]
    index: Array | None  # [positions] int32 rows of the fields, or None: position = row
    offsets: Array  # [clients] int32
    sizes: Array  # [clients] int32
    weights: Array  # [clients] alpha_i, summing to 1
    names: Any = note(default=None)  # [clients] the keys of `partition.by_key`, or None
    directory: Federation | None = note(default=None)  # where the rows are, of a federation on disk

    @classmethod
    def from_arrays(
        cls, fields: Any, parts: Sequence[Any], *, weights: Any = None, allow_overlap: bool = False
    ) -> FederatedData:
        """Deals the rows of arrays to clients; where each client has arrays of its own, use `from_clients`.

        Integer images stay integers: let the model's first operation scale them. Memory-mapped arrays, and objects
        with `shape`, `dtype` and rows that an integer array picks, are never read whole (`Execution(data="host")`).

        Args:
            fields: A pytree of arrays [rows, ...].
            parts: The rows of each client; names that `partition.by_key` gave them are kept.
            weights: alpha_i, positive, scaled to sum to 1; by default N_i / N.
            allow_overlap: Let clients share rows. Rows in no client's part are left out.
        """
        host = as_arrays(fields, "fields", where_they_are=True)
        num_rows = count_rows(host, "fields")
        if num_rows == 0:
            raise ValueError("fields has no rows: give at least one")
        names = getattr(parts, "names", None)
        parts = checked_parts(parts, num_rows)
        index = np.concatenate(parts)
        overlap = _shared_row(index, num_rows)
        if overlap is not None and not allow_overlap:
            raise ValueError(f"{_overlap(parts, overlap)}; if clients may share rows, pass allow_overlap=True")
        check_finite(host, "fields")
        sizes = np.array([len(part) for part in parts])
        in_order = len(index) == num_rows and np.array_equal(index, np.arange(num_rows))
        if overlap is None and not in_order and in_memory(host):
            host, in_order = jax.tree.map(lambda leaf: leaf[index], host), True
        return cls._of(host, None if in_order else index, sizes, weights, names)

    @classmethod
    def from_clients(cls, clients: Iterable[Any], *, weights: Any = None, min_size: int = 1) -> FederatedData:
        """Puts the arrays of clients together.

        A generator's clients are never all in memory: each is written to a temporary directory as it comes, which lasts
        as long as the data does, and is memory-mapped. `save` keeps them.

        Args:
            clients: For each client a pytree of its own arrays [rows, ...], alike but for the number of rows; a list,
                or a generator.
            weights: As in `from_arrays`, of the clients that are kept.
            min_size: Clients with fewer rows are left out.

        >>> data = FederatedData.from_clients([{"x": np.ones((2, 3))}, {"x": np.ones((5, 3))}])
        >>> data.sizes.tolist(), data.fields["x"].shape
        ([2, 5], (7, 3))
        """
        min_size = checks.integer("min_size", min_size, at_least=1)
        large = (host for host in one_by_one(clients) if len(jax.tree.leaves(host)[0]) >= min_size)
        if isinstance(clients, Iterator):
            return cls._in_temporary_directory(_some(large, min_size), weights)
        hosts = list(_some(large, min_size))
        sizes = np.array([len(jax.tree.leaves(host)[0]) for host in hosts])
        return cls._of(jax.tree.map(lambda *leaves: np.concatenate(leaves), *hosts), None, sizes, weights)

    @classmethod
    def _in_temporary_directory(cls, clients: Iterable[Any], weights: Any) -> FederatedData:
        folder = Path(tempfile.mkdtemp())
        try:
            data = cls.open(write_federation(folder / "federation", clients))
            scaled = jnp.asarray(_weights(weights, np.asarray(data.sizes)))
            data = cls(data.fields, data.index, data.offsets, data.sizes, scaled, data.names, data.directory)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(jax.tree.leaves(data.fields)[0], shutil.rmtree, folder, ignore_errors=True)
        return data

    def save(self, path: Any) -> Path:
        """Writes the federation as plain `.npy` files in client order, with an index and checksums.

        Args:
            path: The directory, new or empty. It appears only when it is complete.

        Returns:
            The directory, which `FederatedData.open` opens.

        >>> data = FederatedData.from_arrays({"x": np.arange(5.0)}, [[3, 0], [1, 2, 4]])
        >>> with tempfile.TemporaryDirectory() as place:
        ...     FederatedData.open(data.save(f"{place}/five")).client(1)["x"].tolist()
        [1.0, 2.0, 4.0]
        """
        offsets, sizes = np.asarray(self.offsets, np.int64), np.asarray(self.sizes, np.int64)
        rows = Rows(self.fields, self.index)
        clients = (rows.take(offsets[i], offsets[i] + sizes[i], as_they_are=True) for i in range(self.num_clients))
        return write_federation(path, clients, weights=np.asarray(self.weights), names=self.names)

    @classmethod
    def open(cls, path: Any) -> FederatedData:
        """Maps a federation that `save` wrote: its rows are read when they are needed.

        Nothing in the directory is executed. A federation of at most 64 MiB is compared with its checksums at once, and
        `data.directory.check()` compares any.

        Args:
            path: The directory.

        Raises:
            ValueError: There is none, or a file of it is damaged.
        """
        kept = read_federation(path)
        small = int(kept.sizes.sum()) <= np.iinfo(np.int32).max
        offsets = np.cumsum(kept.sizes) - kept.sizes
        return cls(
            fields=kept.fields,
            index=None,
            offsets=jnp.asarray(offsets, jnp.int32) if small else offsets,  # pyright: ignore[reportArgumentType]
            sizes=jnp.asarray(kept.sizes, jnp.int32),
            weights=jnp.asarray(kept.weights),
            names=kept.names,
            directory=kept,
        )

    def on_device(self) -> FederatedData:
        """The same with all rows on the device; itself if they are there. Made once while somebody has it."""
        if on_device(self.fields):
            return self
        made = self.__dict__.get("_made", lambda: None)()
        if made is None:
            order = None if self.index is None or in_memory(self.fields) else np.asarray(self.index)
            rows = Rows(self.fields, order)
            number = self.num_positions if order is not None else jax.tree.leaves(self.fields)[0].shape[0]
            fields = jax.tree.map(jnp.asarray, rows.take(0, number))
            index = None if self.index is None or order is not None else jnp.asarray(self.index, jnp.int32)
            made = type(self)(fields, index, self.offsets, self.sizes, self.weights, self.names, self.directory)
            self.__dict__["_made"] = weakref.ref(made)  # no field: a copy of a record need not have it
        return made

    def without_rows(self) -> FederatedData:
        """What is known of the clients, without their rows and where those are."""
        fields = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds(self.fields, rows=0))
        return type(self)(fields, None, jnp.zeros_like(self.sizes), self.sizes, self.weights)

    @classmethod
    def _of(
        cls, fields: Any, index: np.ndarray | None, sizes: np.ndarray, weights: Any, names: Any = None
    ) -> FederatedData:
        """From rows in client order, or an index of the rows in that order."""
        held = in_memory(fields)
        offsets = np.cumsum(sizes) - sizes
        small = int(sizes.sum()) <= np.iinfo(np.int32).max
        return cls(
            fields=kept(fields) if held else fields,
            index=jnp.asarray(index, jnp.int32) if held and index is not None else index,  # pyright: ignore[reportArgumentType]
            offsets=jnp.asarray(offsets, jnp.int32) if small else offsets,  # pyright: ignore[reportArgumentType]
            sizes=jnp.asarray(sizes, jnp.int32),
            weights=jnp.asarray(_weights(weights, sizes)),
            names=names,
        )

    @property
    def num_clients(self) -> int:
        return self.sizes.shape[0]

    @property
    def num_positions(self) -> int:
        """The number of rows of all clients together; a row that several clients share counts for each."""
        return (self.index if self.index is not None else jax.tree.leaves(self.fields)[0]).shape[0]

    def take(self, positions: Array) -> Any:
        """The rows at these positions, any shape, all of them in [0, num_positions).

        The caller promises that they are; it is not checked, since that would take some percent of every small step.
        """

        def rows(leaf: Array, numbers: Array) -> Array:
            return leaf.at[numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)

        here = self.on_device()  # for a look at some of them; a run asks for those that it needs
        numbers = positions if here.index is None else rows(here.index, positions)
        return jax.tree.map(lambda leaf: rows(leaf, numbers), here.fields)

    def client(self, i: int) -> Any:
        """Client i's rows, to inspect them."""
        if not 0 <= i < self.num_clients:
            raise IndexError(f"client {i} of {self.num_clients}")
        start, size = int(self.offsets[i]), int(self.sizes[i])
        if not on_device(self.fields):
            return Rows(self.fields, self.index).take(start, start + size)
        return self.take(jnp.arange(start, start + size))

    def __repr__(self) -> str:
        sizes = np.asarray(self.sizes)
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", self.fields)
        return (
            f"FederatedData({self.num_clients} clients, {self.num_positions} rows, "
            f"{sizes.min()} to {sizes.max()} per client, fields={shapes})"
        )

    def _repr_html_(self) -> str:
        return html(self)


def _some(clients: Iterator[Any], min_size: int) -> Iterator[Any]:
    """The clients, of which there must be one."""
    number = 0
    for client in clients:
        number += 1
        yield client
    if number == 0:
        raise ValueError(f"min_size={min_size} leaves no client: lower it")


def checked_parts(parts: Any, num_rows: int) -> list[np.ndarray]:
    """Each client's row numbers, which are among `num_rows`."""
    if not np.iterable(parts) or isinstance(parts, str):
        raise ValueError(f"parts must be a list of row numbers for each client, got {parts!r}")
    parts = [_rows_of_client(i, part, num_rows) for i, part in enumerate(parts)]
    if not parts:
        raise ValueError("parts is empty: give the rows of at least one client")
    return parts


def check_disjoint(parts: list[np.ndarray], num_rows: int) -> None:
    """No row may be in two of the parts."""
    overlap = _shared_row(np.concatenate(parts), num_rows)
    if overlap is not None:
        raise ValueError(f"{_overlap(parts, overlap)}: give each row to one client")


def _overlap(parts: list[np.ndarray], row: int) -> str:
    first, second = [i for i, part in enumerate(parts) if row in part][:2]
    return f"parts: row {row} belongs to clients {first} and {second}"


def _rows_of_client(i: int, part: Any, num_rows: int) -> np.ndarray:
    try:
        rows = np.asarray(part)
    except ValueError:
        raise ValueError(f"parts[{i}] must be row numbers, integers [rows], got {part!r}") from None
    if rows.size == 0:
        raise ValueError(f"parts[{i}]: client {i} has no rows; give it at least one or leave the client out")
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"parts[{i}] must be row numbers, integers [rows], got {rows.dtype} of shape {rows.shape}")
    rows = rows.astype(np.int64)
    outside = (rows < 0) | (rows >= num_rows)
    if outside.any():
        raise ValueError(f"parts[{i}] names row {rows[outside][0]}, but the rows are 0 to {num_rows - 1}")
    ordered = np.sort(rows)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.size:
        raise ValueError(f"parts[{i}] gives row {twice[0]} twice to client {i}; give each row once")
    return rows


def _shared_row(index: np.ndarray, num_rows: int) -> int | None:
    shared = np.flatnonzero(np.bincount(index, minlength=num_rows) > 1)
    return int(shared[0]) if shared.size else None


def _weights(weights: Any, sizes: np.ndarray) -> np.ndarray:
    if weights is None:
        return sizes / sizes.sum()
    weights = np.asarray(checks.number("weights", weights, above=0, per_client=True))
    if weights.shape != sizes.shape:
        raise ValueError(f"weights has shape {weights.shape} for {len(sizes)} clients: give one number per client")
    return weights / weights.sum()
