"""A server's sums over all clients, formed anew from the clients' rows before rounding has worn them out.

One client is counted after the other, in the same order wherever the rows live, so no second copy of them is made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from ..algorithms.base import RenewableSums
from ..core import trees
from ..core.sums import Apart, RunningSum
from ..exchange.stage import MEMORIES
from . import processes
from .devices import AXIS
from .placement import specs
from .rounds import ServerState, Setup, client_of

BLOCK_BYTES, BLOCK_ROWS = 1 << 24, 256  # that are read at once of rows off the device


@partial(jax.jit, static_argnames=("mesh", "placement", "split"), donate_argnames=("after",))
def renew(
    setup: Setup,
    after: ServerState,
    rows: dict[str, Any],
    *,
    mesh: Mesh | None = None,
    placement: str | None = None,
    split: bool = False,
) -> ServerState:
    """The server with sums formed anew from all clients' rows [clients, ...] on the devices.

    Args:
        setup: of the run, whose algorithm has `RenewableSums`.
        after: the server after a round.
        rows: all clients' rows.
        mesh: the devices, None for one.
        placement: where the setup's data is on them.
        split: whether the rows are split over them, in order.

    Returns:
        The server with sums that are exact to rounding.
    """
    if mesh is None:
        return _renewed(setup, after, rows, split=False)
    same, kept = PartitionSpec(), PartitionSpec(AXIS) if split else PartitionSpec()
    parts = (specs(setup, placement), same, kept)
    run = jax.shard_map(partial(_renewed, split=split), mesh=mesh, in_specs=parts, out_specs=same, check_vma=False)
    return run(setup, after, rows)


def renew_many(setup: Setup, after: ServerState, rows: dict[str, Any], worn: Array) -> ServerState:
    """`renew` for several runs, all with a leading axis [runs, ...]; nothing is computed unless it is due for one."""
    if not isinstance(setup.algorithm, RenewableSums):
        return after

    def of_run(algorithm: Any, exchange: Any, key: Array, after: ServerState, rows: dict[str, Any]) -> ServerState:
        return _renewed(Setup(setup.problem, algorithm, exchange, key), after, rows, split=False)

    def some(after: ServerState, rows: dict[str, Any]) -> ServerState:
        return trees.where(worn, jax.vmap(of_run)(setup.algorithm, setup.exchange, setup.key, after, rows), after)

    return lax.cond(jnp.any(worn), some, lambda after, _: after, after, rows)


def renew_by_blocks(
    setup: Setup, after: ServerState, like: dict[str, Any], blocks: Iterable[tuple[Any, Any]]
) -> ServerState:
    """The server's sums, formed anew from all clients, whose (ids, rows [ids, ...]) come in `blocks`, in each process
    its own; `like` has the rows' shapes."""
    nothing = _nothing(after)
    anew, keeps_penalties = nothing, "penalties" in like
    for ids, rows in blocks:
        anew = _count_block(setup, anew, rows, ids)
    if processes.several():
        parts = processes.of_all(jax.device_get(anew))
        anew = functools.reduce(lambda all, part: _merged(all, jax.tree.map(jnp.asarray, part)), parts, nothing)
    return _completed(anew, after, keeps_penalties)


def block_ids(like: dict[str, Any], ids: np.ndarray) -> list[np.ndarray]:
    """Clients `ids` whose rows are like these, leaves [clients, ...], in blocks of a moderate size."""
    leaves = jax.tree.leaves(like)
    number, size = leaves[0].shape[0], sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    most = max(1, min(BLOCK_ROWS, BLOCK_BYTES * number // size))
    return np.split(ids, range(most, len(ids), most))


def _nothing(after: ServerState) -> ServerState:
    """The sums over nobody, with no parameters; whole numbers and what stands apart are no sums, and stay."""

    def empty(leaf: Any) -> Any:
        if isinstance(leaf, Apart) or not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        return jnp.zeros_like(leaf)

    sums = (after.server, after.penalty_mean)
    return ServerState(None, *jax.tree.map(empty, sums, is_leaf=lambda part: isinstance(part, Apart)))


def _renewed(setup: Setup, after: ServerState, rows: dict[str, Any], *, split: bool) -> ServerState:
    nothing = _nothing(after)
    if not split:
        return _completed(_count(setup, nothing, rows, 0), after, "penalties" in rows)
    number = jax.tree.leaves(rows)[0].shape[0]
    part = _count(setup, nothing, rows, lax.axis_index(AXIS) * number)
    # Not by psum, which would round each part to its own size: the parts may cancel each other.
    parts = lax.all_gather(part, AXIS)
    anew = lax.fori_loop(0, lax.axis_size(AXIS), lambda k, all: _merged(all, trees.take(parts, k)), nothing)
    return _completed(anew, after, "penalties" in rows)


def _completed(anew: ServerState, after: ServerState, keeps_penalties: bool) -> ServerState:
    """With what is no sum over the clients' rows."""
    mean = anew.penalty_mean if keeps_penalties else after.penalty_mean
    return ServerState(after.params, anew.server, mean)


@partial(jax.jit, donate_argnames=("anew",))
def _count_block(setup: Setup, anew: ServerState, rows: dict[str, Any], ids: Array) -> ServerState:
    return _count(setup, anew, rows, ids[0])


def _count(setup: Setup, anew: ServerState, rows: dict[str, Any], first: Any) -> ServerState:
    """The sums with clients `first`, `first` + 1 ..., of whom these are the rows."""
    algorithm: Any = setup.algorithm
    rows = {name: value for name, value in rows.items() if name != MEMORIES}
    dtype = trees.scalar_dtype(rows)

    def count(k: Array, anew: ServerState) -> ServerState:
        row, client = trees.take(rows, k), client_of(setup.problem, first + k, dtype)
        server, mean = trees.per_client(algorithm, first + k).count(anew.server, row, client), anew.penalty_mean
        if "penalties" in row:
            mean = mean.add(row["penalties"] / client.population)
        new = ServerState(None, server, mean)
        return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), new, anew)

    return lax.fori_loop(0, jax.tree.leaves(rows)[0].shape[0], count, anew)


def _merged(one: Any, other: Any) -> Any:
    def merge(a: Any, b: Any) -> Any:
        if isinstance(a, RunningSum):
            return a.merge(b)
        is_sum = not isinstance(a, Apart) and jnp.issubdtype(a.dtype, jnp.inexact)
        return a + b if is_sum else a

    return jax.tree.map(merge, one, other, is_leaf=lambda part: isinstance(part, RunningSum | Apart))
