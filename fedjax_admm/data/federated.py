"""The clients' data: flat rows and a compressed index, never padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import checks
from ..core.notebook import html
from ..core.record import record
from .fields import as_arrays, check_finite, count_rows, of_one_kind


@record
class FederatedData:
    """Rows of all clients, as one flat array per field, with where each client's rows begin.

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

    @classmethod
    def from_arrays(
        cls, fields: Any, parts: Sequence[Any], *, weights: Any = None, allow_overlap: bool = False
    ) -> FederatedData:
        """Deals the rows of arrays to clients; where each client has arrays of its own, use `from_clients`.

        Integer images stay integers: let the model's first operation scale them.

        Args:
            fields: A pytree of arrays [rows, ...].
            parts: The rows of each client.
            weights: alpha_i, positive, scaled to sum to 1; by default N_i / N.
            allow_overlap: Let clients share rows. Rows in no client's part are left out.
        """
        host = as_arrays(fields, "fields")
        num_rows = count_rows(host, "fields")
        if num_rows == 0:
            raise ValueError("fields has no rows: give at least one")
        if not np.iterable(parts) or isinstance(parts, str):
            raise ValueError(f"parts must be a list of row numbers for each client, got {parts!r}")
        parts = [_rows_of_client(i, part, num_rows) for i, part in enumerate(parts)]
        if not parts:
            raise ValueError("parts is empty: give the rows of at least one client")
        index = np.concatenate(parts)
        overlap = _shared_row(index, num_rows)
        if overlap is not None and not allow_overlap:
            first, second = [i for i, part in enumerate(parts) if overlap in part][:2]
            raise ValueError(
                f"parts: row {overlap} belongs to clients {first} and {second}; "
                "if clients may share rows, pass allow_overlap=True"
            )
        check_finite(host, "fields")
        sizes = np.array([len(part) for part in parts])
        if overlap is None:
            in_order = len(index) == num_rows and np.array_equal(index, np.arange(num_rows))
            host = host if in_order else jax.tree.map(lambda leaf: leaf[index], host)
        return cls._on_device(host, None if overlap is None else index, sizes, weights)

    @classmethod
    def from_clients(cls, clients: Sequence[Any], *, weights: Any = None) -> FederatedData:
        """Puts the arrays of clients together.

        Args:
            clients: For each client a pytree of its own arrays [rows, ...], alike but for the number of rows.
            weights: As in `from_arrays`.

        >>> data = FederatedData.from_clients([{"x": np.ones((2, 3))}, {"x": np.ones((5, 3))}])
        >>> data.sizes.tolist(), data.fields["x"].shape
        ([2, 5], (7, 3))
        """
        hosts, sizes = of_one_kind(clients)
        return cls._on_device(jax.tree.map(lambda *leaves: np.concatenate(leaves), *hosts), None, sizes, weights)

    @classmethod
    def _on_device(cls, fields: Any, index: np.ndarray | None, sizes: np.ndarray, weights: Any) -> FederatedData:
        """From rows in client order, or an index of the rows in that order."""
        return cls(
            fields=jax.tree.map(jnp.asarray, fields),
            index=None if index is None else jnp.asarray(index, jnp.int32),
            offsets=jnp.asarray(np.cumsum(sizes) - sizes, jnp.int32),
            sizes=jnp.asarray(sizes, jnp.int32),
            weights=jnp.asarray(_weights(weights, sizes)),
        )

    @property
    def num_clients(self) -> int:
        return self.sizes.shape[0]

    @property
    def num_positions(self) -> int:
        """Rows of all clients together, shared ones counted for each."""
        return (self.index if self.index is not None else jax.tree.leaves(self.fields)[0]).shape[0]

    def take(self, positions: Array) -> Any:
        """The rows at these positions, any shape, all of them in [0, num_positions).

        That is promised and not made sure of: it would be done again in every step, for some percent of a small one.
        """

        def rows(leaf: Array, numbers: Array) -> Array:
            return leaf.at[numbers].get(mode="promise_in_bounds", wrap_negative_indices=False)

        numbers = positions if self.index is None else rows(self.index, positions)
        return jax.tree.map(lambda leaf: rows(leaf, numbers), self.fields)

    def client(self, i: int) -> Any:
        """Client i's rows, for looking at them."""
        if not 0 <= i < self.num_clients:
            raise IndexError(f"client {i} of {self.num_clients}")
        start, size = int(self.offsets[i]), int(self.sizes[i])
        return self.take(jnp.arange(start, start + size))

    def __repr__(self) -> str:
        sizes = np.asarray(self.sizes)
        shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", self.fields)
        return (
            f"FederatedData({self.num_clients} clients, {self.num_positions} rows, "
            f"{sizes.min()} to {sizes.max()} a client, fields={shapes})"
        )

    def _repr_html_(self) -> str:
        return html(self)


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
