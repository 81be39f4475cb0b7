"""Checks of data: fields are arrays of numbers with as many rows each, finite also on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .rows import Rows, stays, survives

CHECK_BYTES = 1 << 26  # rows are checked for NaN in pieces, so that a large field needs no second copy
_SHOWN = 3  # fields that a message shows


def as_arrays(fields: Any, name: str, where_they_are: bool = False) -> Any:
    """The fields as NumPy arrays of numbers; with `where_they_are`, memory-mapped arrays and sources as they are."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(fields, is_leaf=lambda leaf: leaf is None):
        if leaf is None:
            raise ValueError(f"{name}{jax.tree_util.keystr(path)} is None: give an array, or leave the field out")
    host = jax.tree.map(lambda leaf: leaf if where_they_are and stays(leaf) else np.asarray(leaf), fields)
    for path, leaf in jax.tree_util.tree_leaves_with_path(host):
        if not (jnp.issubdtype(leaf.dtype, np.number) or jnp.issubdtype(leaf.dtype, np.bool_)):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} must be numbers, got dtype {leaf.dtype}: give words as numbers, "
                "such as np.unique(words, return_inverse=True)[1]"
            )
    return host


def count_rows(fields: Any, name: str) -> int:
    """The number of rows, which all fields share."""
    leaves = jax.tree_util.tree_leaves_with_path(fields)
    lengths: set[Any] = {leaf.shape[0] if leaf.shape else None for _, leaf in leaves}
    if len(lengths) == 1 and None not in lengths:
        return lengths.pop()
    shapes = ", ".join(f"{name}{jax.tree_util.keystr(path)} {leaf.shape}" for path, leaf in leaves[:_SHOWN])
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    listed = any(isinstance(key, jax.tree_util.SequenceKey) for path, _ in leaves for key in path)
    advice = (
        ": a list counts as a field for each of its items; give one array for each field (np.asarray, np.concatenate), "
        "or use FederatedData.from_clients for arrays of each client"
        if listed
        else ": give as many rows in each"
    )
    raise ValueError(f"{name} must be arrays with the same number of rows, got {shapes or 'none'}{more}{advice}")


def check_rows(fields: Any, name: str) -> None:
    """Arrays with as many rows each, at least one, that are finite and stay so on the device."""
    host = as_arrays(fields, name, where_they_are=True)
    if count_rows(host, name) == 0:
        raise ValueError(f"{name} has no rows: give at least one, or leave it out")
    check_finite(host, name)


def sample(fields: Any) -> Any:
    """The fields for checks of their values: of what is not in memory at most the first 64 MiB."""

    def some(leaf: Any) -> Any:
        if not stays(leaf):
            return leaf
        row = max(1, leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])))
        number = min(leaf.shape[0], max(1, CHECK_BYTES // row))
        return leaf[:number] if isinstance(leaf, np.ndarray) else Rows(leaf).take(0, number)

    return jax.tree.map(some, fields)


def one_by_one(clients: Any) -> Iterator[Any]:
    """Each client's fields as arrays, alike in all but their rows; of a generator one at a time."""
    listed = isinstance(clients, (Sequence, np.ndarray, jax.Array)) and not isinstance(clients, str) and len(clients)
    if not listed and not isinstance(clients, Iterator):
        kind = "none" if isinstance(clients, Sequence) else f"a {type(clients).__name__}"
        raise ValueError(f"clients must be a list with a pytree of arrays for each client, got {kind}")
    return _checked_clients(clients)


def _checked_clients(clients: Any) -> Iterator[Any]:
    first, i = None, -1
    for i, client in enumerate(clients):
        name = f"clients[{i}]"
        host = as_arrays(client, name)
        if count_rows(host, name) == 0:
            raise ValueError(f"{name} has no rows: give client {i} at least one, or leave the client out")
        if first is None:
            first = jax.tree.map(lambda leaf: np.empty((0, *leaf.shape[1:]), leaf.dtype), host)
        _check_alike(host, first, i)
        check_finite(host, name)
        yield host
    if i < 0:
        raise ValueError("clients must be a list with a pytree of arrays for each client, got none")


def field_names(fields: Any) -> str:
    """The places of a pytree's arrays, for a message.

    >>> field_names({"x": 1, "y": 2})
    "['x'] and ['y']"
    """
    names = [jax.tree_util.keystr(path) or "one array" for path, _ in jax.tree_util.tree_leaves_with_path(fields)]
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    return " and ".join(names[:_SHOWN] + more) or "none"


def field_kinds(fields: Any) -> dict[str, str]:
    """The dtype and the shape of each of a pytree's arrays, by its place.

    >>> field_kinds({"x": np.zeros((3, 2)), "y": np.arange(3, dtype=np.int8)})
    {'x': 'float64 [3, 2]', 'y': 'int8 [3]'}
    """
    leaves = jax.tree_util.tree_leaves_with_path(fields)
    places = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    return {place: f"{leaf.dtype} {list(leaf.shape)}" for place, (_, leaf) in zip(places, leaves, strict=True)}


def _check_alike(client: Any, first: Any, i: int) -> None:
    """Client i's fields have the names, the rows' shapes and the dtypes of client 0's."""
    if jax.tree.structure(client) != jax.tree.structure(first):
        raise ValueError(
            f"clients[{i}] must have the fields of clients[0], {field_names(first)}, got {field_names(client)}: "
            "give every client the same"
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(client), jax.tree.leaves(first), strict=True)
    for (path, leaf), other in pairs:
        for what, got, wanted in (
            ("rows of shape", leaf.shape[1:], other.shape[1:]),
            ("dtype", leaf.dtype, other.dtype),
        ):
            if got != wanted:
                raise ValueError(
                    f"clients[{i}]{jax.tree_util.keystr(path)} has {what} {got}, but clients[0] {wanted}: "
                    "give every client the same"
                )


def check_finite(fields: Any, name: str, first: int = 0) -> None:
    """Every number must be one on the device too, where 64 bits may become 32.

    The first row has the number `first`.
    Of a field that is not in memory at most 64 MiB are looked at: a client whose rows hold NaN later counts as failed.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(sample(fields)):
        dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
        step = max(1, CHECK_BYTES // max(1, leaf[:1].nbytes))
        for start in range(0, len(leaf), step):
            fine = survives(leaf[start : start + step], dtype)
            if not fine.all():
                row = first + start + int(np.argwhere(~fine)[0][0])
                place = f"{name}{jax.tree_util.keystr(path)}"
                raise ValueError(f"{place} is not finite in row {row} as {dtype}: remove or fill NaN, inf and the like")
