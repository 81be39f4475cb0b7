"""A server's sums over all clients, formed anew from the clients' rows before rounding has worn them out.

One client is counted after the other, in the same order wherever the rows live, so no second copy of them is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..algorithms.base import Algorithm, RenewableSums
from ..core import trees
from ..core.sums import RunningSum
from ..problems.problem import Problem
from .devices import AXIS
from .rounds import clients_of

BLOCK_BYTES, BLOCK_ROWS = 1 << 24, 256  # that are read at once of rows off the device


def renew(
    problem: Problem, algorithm: Algorithm, server: Any, rows: dict[str, Any], worn: Array, *, split: bool = False
) -> Any:
    """The server's record, formed anew from all clients' rows [clients, ...] on the device where it is worn.

    Args:
        problem: whose clients they are.
        algorithm: whose record it is; nothing is done for one without `RenewableSums`.
        server: the record.
        rows: all clients' rows, or with `split` those that are on this device.
        worn: whether it is to be formed anew.
        split: whether the rows are split over the devices, in order.
    """
    if not isinstance(algorithm, RenewableSums):
        return server
    return lax.cond(worn, partial(_renewed, problem, algorithm, split=split), lambda server, _: server, server, rows)


def renew_many(problem: Problem, algorithms: Algorithm, servers: Any, rows: dict[str, Any], worn: Array) -> Any:
    """`renew` for several runs, all with a leading axis [runs, ...]; nothing is computed unless it is due for one."""
    if not isinstance(algorithms, RenewableSums):
        return servers

    def some(servers: Any, rows: dict[str, Any]) -> Any:
        return trees.where(worn, jax.vmap(partial(_renewed, problem, split=False))(algorithms, servers, rows), servers)

    return lax.cond(jnp.any(worn), some, lambda servers, _: servers, servers, rows)


def renew_by_blocks(problem: Problem, algorithm: Algorithm, server: Any, blocks: Iterable[tuple[Any, Any]]) -> Any:
    """The server's record, formed anew from all clients, whose (ids, rows [ids, ...]) come in `blocks`."""
    anew = jax.tree.map(jnp.zeros_like, server)
    for ids, rows in blocks:
        anew = _count_block(problem, algorithm, anew, rows, ids)
    return anew


def block_ids(like: dict[str, Any]) -> list[np.ndarray]:
    """The numbers of all clients whose rows are like these, leaves [clients, ...], in blocks of a moderate size."""
    leaves = jax.tree.leaves(like)
    number, size = leaves[0].shape[0], sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    most = max(1, min(BLOCK_ROWS, BLOCK_BYTES * number // size))
    return np.split(np.arange(number, dtype=np.int32), range(most, number, most))


def _renewed(problem: Problem, algorithm: Any, server: Any, rows: dict[str, Any], *, split: bool) -> Any:
    nothing = jax.tree.map(jnp.zeros_like, server)
    if not split:
        return _count(problem, algorithm, nothing, rows, 0)
    number = jax.tree.leaves(rows)[0].shape[0]
    part = _count(problem, algorithm, nothing, rows, lax.axis_index(AXIS) * number)
    # Not by psum, which would round each part to its own size: the parts may cancel each other.
    parts = lax.all_gather(part, AXIS)
    return lax.fori_loop(0, lax.axis_size(AXIS), lambda k, all: _merged(all, trees.take(parts, k)), nothing)


@partial(jax.jit, donate_argnames=("server",))
def _count_block(problem: Problem, algorithm: Any, server: Any, rows: dict[str, Any], ids: Array) -> Any:
    return _count(problem, algorithm, server, rows, ids[0])


def _count(problem: Problem, algorithm: Any, server: Any, rows: dict[str, Any], first: Any) -> Any:
    """The record with clients `first`, `first` + 1 ..., of whom these are the rows."""
    dtype = trees.scalar_dtype(rows)

    def count(k: Array, server: Any) -> Any:
        new = algorithm.count(server, trees.take(rows, k), clients_of(problem, first + k, dtype))
        return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), new, server)

    return lax.fori_loop(0, jax.tree.leaves(rows)[0].shape[0], count, server)


def _merged(one: Any, other: Any) -> Any:
    def merge(a: Any, b: Any) -> Any:
        return a.merge(b) if isinstance(a, RunningSum) else a + b

    return jax.tree.map(merge, one, other, is_leaf=lambda part: isinstance(part, RunningSum))
