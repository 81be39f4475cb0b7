"""The clients' data: flat rows and a compressed index, never padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from .. import checks, display
from ..trees import record

_CHECK_BYTES = 1 << 26  # rows are checked for NaN in pieces, so that a large field needs no second copy


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
        """`fields`: a pytree of arrays [rows, ...]; `parts`: the rows of each client.

        weights: alpha_i, positive, scaled to sum to 1; by default N_i / N.
        allow_overlap: let clients share rows. Rows in no client's part are left out.
        Integer images stay integers: let the model's first operation scale them.
        """
        host = jax.tree.map(np.asarray, fields)
        num_rows = _num_rows(host, "fields")
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
        _check_finite(host, "fields")
        sizes = np.array([len(part) for part in parts])
        if overlap is None:
            in_order = len(index) == num_rows and np.array_equal(index, np.arange(num_rows))
            host = host if in_order else jax.tree.map(lambda leaf: leaf[index], host)
        return cls(
            fields=jax.tree.map(jnp.asarray, host),
            index=None if overlap is None else jnp.asarray(index, jnp.int32),
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

        That is promised and not made sure of: a twelfth of a small model's step would go into it.
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
        return display.data_html(self)


def check_rows(fields: Any, name: str) -> None:
    """Arrays with as many rows each, at least one, that are finite and stay so on the device."""
    host = jax.tree.map(np.asarray, fields)
    if _num_rows(host, name) == 0:
        raise ValueError(f"{name} has no rows: give at least one, or leave it out")
    _check_finite(host, name)


def _num_rows(fields: Any, name: str) -> int:
    leaves = jax.tree.leaves(fields)
    lengths: set[Any] = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = [leaf.shape for leaf in leaves]
        raise ValueError(f"{name} must be arrays with the same number of rows, got shapes {shapes}")
    return lengths.pop()


def _rows_of_client(i: int, part: Any, num_rows: int) -> np.ndarray:
    rows = np.asarray(part)
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


def _check_finite(fields: Any, name: str) -> None:
    """Every number must be one on the device too, where 64 bits may become 32."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(fields):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        step = max(1, _CHECK_BYTES // max(1, leaf[:1].nbytes))
        for start in range(0, len(leaf), step):
            kept = _kept(leaf[start : start + step], dtype)
            if not kept.all():
                row = start + int(np.argwhere(~kept)[0][0])
                place = f"{name}{jax.tree_util.keystr(path)}"
                raise ValueError(f"{place} is not finite in row {row} as {dtype}: remove or fill NaN, inf and the like")


def _kept(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if jnp.issubdtype(values.dtype, jnp.inexact):
        with np.errstate(over="ignore"):
            return np.isfinite(values.astype(dtype, copy=False))
    if dtype != values.dtype and jnp.issubdtype(values.dtype, jnp.integer):
        return (values >= jnp.iinfo(dtype).min) & (values <= jnp.iinfo(dtype).max)
    return np.ones(1, bool)


def _weights(weights: Any, sizes: np.ndarray) -> np.ndarray:
    if weights is None:
        return sizes / sizes.sum()
    weights = np.asarray(checks.number("weights", weights, above=0, per_client=True))
    if weights.shape != sizes.shape:
        raise ValueError(f"weights has shape {weights.shape} for {len(sizes)} clients: give one number per client")
    return weights / weights.sum()
