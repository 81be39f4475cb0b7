"""The programs that evaluate clients on the devices: at the server's parameters, and at their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from ..core import trees
from ..data.federated import FederatedData
from ..problems.measures import Measures
from .devices import AXIS

measure_penalty = jax.jit(Measures.penalty)


class Static:
    """A tree of specs as a static argument: equal where its leaves are."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        leaves, structure = jax.tree.flatten(tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
        self._key = (tuple(leaves), structure)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key


def data_specs(data: FederatedData, fields: PartitionSpec) -> Any:
    """How data lies on a mesh whose devices have `fields`, and everything else everywhere."""
    specs = jax.tree.map(lambda _: PartitionSpec(), data)
    object.__setattr__(specs, "fields", jax.tree.map(lambda _: fields, data.fields))
    return specs


@partial(jax.jit, static_argnames=("pieces", "rows", "consecutive", "mesh", "specs"))
def measure_rows(
    measures: Measures,
    data: FederatedData,
    params: Any,
    places: Array,
    *,
    pieces: int,
    rows: int,
    consecutive: bool,
    mesh: Mesh | None,
    specs: Any,
) -> dict[str, Array]:
    """The values [devices * pieces, rows] at the server's parameters.

    `places` are all positions [devices * pieces * rows], or, where they are consecutive, the first of each device.
    """

    def on_a_device(data: FederatedData, params: Any, places: Array) -> dict[str, Array]:
        if consecutive:
            return _measure_slices(measures, data.fields, params, places[0], pieces, rows)
        positions = places.reshape(pieces, rows)
        return lax.map(lambda chosen: measures.on_rows(params, data.take(chosen)), positions)

    if mesh is None:
        return on_a_device(data, params, places)
    same, over = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(on_a_device, mesh=mesh, in_specs=(specs.tree, same, over), out_specs=over, check_vma=False)(
        data, params, places
    )


def _measure_slices(
    measures: Measures, fields: Any, params: Any, start: Array, pieces: int, rows: int
) -> dict[str, Array]:
    """The values [pieces, rows] of consecutive rows; slices, no gather."""
    last = jax.tree.leaves(fields)[0].shape[0] - rows

    def piece(begin: Array) -> dict[str, Array]:
        inside = jnp.minimum(begin, last)
        batch = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, inside, rows), fields)
        # A slice beyond the end begins earlier: its rows go to their places.
        return jax.tree.map(lambda value: jnp.roll(value, inside - begin), measures.on_rows(params, batch))

    return lax.map(piece, start + rows * jnp.arange(pieces, dtype=jnp.int32))


@partial(jax.jit, static_argnames=("piece", "mesh", "specs"))
def measure_groups(
    measures: Measures,
    data: FederatedData,
    own: Any,
    addresses: Array,
    offsets: Array,
    sizes: Array,
    *,
    piece: int,
    mesh: Any,
    specs: Any,
) -> dict[str, Array]:
    """The values [devices * groups, width] of clients at their own parameters, among `own` at their addresses."""

    def on_a_device(data: FederatedData, own: Any, *tables: Array) -> dict[str, Array]:
        return lax.map(lambda group: _measure_group(measures, data, own, *group, piece=piece), tables)

    tables = (addresses, offsets, sizes)
    if mesh is None:
        return on_a_device(data, own, *tables)
    data_spec, own_spec = specs.tree
    over = PartitionSpec(AXIS)
    in_specs = (data_spec, jax.tree.map(lambda _: own_spec, own), over, over, over)
    return jax.shard_map(on_a_device, mesh=mesh, in_specs=in_specs, out_specs=over, check_vma=False)(data, own, *tables)


def _measure_group(
    measures: Measures, data: FederatedData, own: Any, addresses: Array, offsets: Array, sizes: Array, *, piece: int
) -> dict[str, Array]:
    """The values [width] of clients that are evaluated together."""
    params, columns = trees.take(own, addresses), jnp.arange(piece, dtype=jnp.int32)

    def values(k: Array) -> tuple[Array, dict[str, Array]]:
        places = k * piece + columns
        exists = places < sizes[:, None]
        batch = data.take(jnp.where(exists, offsets[:, None] + places, offsets[:, None]))
        return exists, jax.vmap(measures.on_rows)(params, batch)

    def add(k: Array, sums: dict[str, Array]) -> dict[str, Array]:
        exists, found = values(k)
        return jax.tree.map(lambda total, new: total + jnp.sum(jnp.where(exists, new, 0), axis=1), sums, found)

    shapes = jax.eval_shape(values, jnp.int32(0))[1]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[:1], leaf.dtype), shapes)
    sums = lax.fori_loop(0, jnp.max(-(-sizes // piece)), add, zeros)
    means = {name: total / sizes.astype(total.dtype) for name, total in sums.items()}
    penalties = jax.vmap(measures.penalty)(params)
    return means | {"loss": means["loss"] + penalties.astype(means["loss"].dtype)}
