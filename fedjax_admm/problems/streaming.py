"""The sums of an evaluation over rows that are not on the device: chunk after chunk, the next one read meanwhile.

The pieces are those of `evaluation`, so the sums are too. No more than two chunks are on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core.types import Params
from ..data.rows import Rows, empty, kinds, row_bytes
from .problem import Problem

CHUNK_BYTES = 1 << 26


class Share(NamedTuple):
    """Which part of the rows this process reads, where several of them evaluate together."""

    number: int  # of this process
    processes: int
    of_all: Callable[[Any], list[Any]]  # every process's tree of arrays
    data: tuple[int, int] | None = None  # the positions of its clients' rows, the first and the one after the last

    def of(self, rows: int) -> tuple[int, int]:
        """The first of so many rows, and the one after the last."""
        return rows * self.number // self.processes, rows * (self.number + 1) // self.processes


ALONE = Share(0, 1, lambda tree: [tree])


class Chunk(NamedTuple):
    """Some pieces of the rows."""

    fields: Any  # [pieces, rows, ...]
    positions: np.ndarray  # [pieces, rows]
    mask: np.ndarray  # [pieces, rows] whether a row counts: the last piece overlaps the one before


def chunks(fields: Any, index: Any, first: int, stop: int, rows: int) -> Iterator[Chunk]:
    """The rows at positions `first` to `stop`, in pieces of `rows`; a chunk is good until the next is asked for.

    Args:
        fields: A pytree of arrays or sources.
        index: The row at each position, or None.
        first: The first position.
        stop: The one after the last.
        rows: Of a piece; no more than there are.

    Yields:
        Chunks, all of one shape.
    """
    starts = np.arange(first, stop, rows)
    size = max(1, min(len(starts), CHUNK_BYTES // max(1, rows * row_bytes(fields))))
    reader, structure = Rows(fields, index), jax.tree.structure(fields)
    like = [jax.ShapeDtypeStruct((size * rows, *leaf.shape[1:]), leaf.dtype) for leaf in jax.tree.leaves(kinds(fields))]
    rooms = [[empty(kind) for kind in like] for _ in range(2)]

    def fill(k: int) -> Chunk:
        room, mine = rooms[k % 2], starts[k * size : (k + 1) * size]
        positions, mask = np.zeros((2, size, rows), np.int64)
        for piece, start in enumerate(mine):
            begin = max(first, min(start, stop - rows))
            reader.read(begin, min(begin + rows, stop), room, piece * rows)
            positions[piece] = np.minimum(begin + np.arange(rows), stop - 1)
            mask[piece] = (begin + np.arange(rows) >= start) & (begin + np.arange(rows) < stop)
        leaves = [leaf.reshape(size, rows, *leaf.shape[1:]) for leaf in room]
        on_device = [jax.device_put(leaf, may_alias=True) for leaf in leaves]
        return Chunk(jax.tree.unflatten(structure, on_device), positions, mask.astype(bool))

    number = -(-len(starts) // size)
    with ThreadPoolExecutor(1) as thread:
        ahead = thread.submit(fill, 0)
        for k in range(number):
            chunk = ahead.result()
            if k + 1 < number:
                ahead = thread.submit(fill, k + 1)
            yield chunk


def streamed_sums(
    problem: Problem,
    params: Params,
    rows: int,
    eval_rows: int,
    piece: Callable[..., Array],
    part: Share,
    with_loss: bool = True,
) -> dict[str, np.ndarray]:
    """The sums [runs, pieces] of `evaluation`, of rows wherever they are.

    Args:
        problem: Whose loss and metrics they are.
        params: Leaves [runs, ...].
        rows: Of a piece of the clients' data.
        eval_rows: Of a piece of `eval_data`.
        piece: (values, mask, share) -> the sum of one piece, traced.
        part: Of the rows, that this process reads.
        with_loss: Whether the clients' rows are looked at.

    Returns:
        The sums, by name.
    """
    data, bare = problem.data, problem.without_rows()
    weights = np.asarray(data.weights)
    share = weights / np.asarray(data.sizes).astype(weights.dtype)  # of each row of a client
    offsets = np.asarray(data.offsets)
    nothing = np.zeros((jax.tree.leaves(params)[0].shape[0], 0))
    found = {name: [nothing] for name, _ in problem.metrics} | ({"loss": [nothing]} if with_loss else {})
    first, stop = part.data or part.of(data.num_positions)
    for chunk in chunks(data.fields, data.index, first, stop if with_loss else first, rows):
        client = np.searchsorted(offsets, chunk.positions, side="right") - 1
        found["loss"].append(np.asarray(_losses(bare, params, chunk.fields, share[client], chunk.mask, piece)))
    if with_loss and problem.regularizer is not None:
        found["regularizer"] = [np.asarray(_regularizers(bare, params)) * (part.number == 0)]
    if problem.metrics:
        number = jax.tree.leaves(problem.eval_data)[0].shape[0]
        for chunk in chunks(problem.eval_data, None, *part.of(number), eval_rows):
            values = _metrics(bare, params, chunk.fields, chunk.mask, piece)
            for name, value in values.items():
                found[name].append(np.asarray(value) / number)
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}


@partial(jax.jit, static_argnames="piece")
def _losses(
    problem: Problem, params: Params, fields: Any, share: Array, mask: Array, piece: Callable[..., Array]
) -> Array:
    def of_run(params: Params) -> Array:
        return lax.map(lambda one: piece(problem.loss(params, one[0]), one[2], one[1]), (fields, share, mask))

    return lax.map(of_run, params)


@partial(jax.jit, static_argnames="piece")
def _metrics(
    problem: Problem, params: Params, fields: Any, mask: Array, piece: Callable[..., Array]
) -> dict[str, Array]:
    def of_run(params: Params) -> dict[str, Array]:
        def of_piece(one: Any) -> dict[str, Array]:
            batch, mask = one
            return {name: piece(metric(params, batch), mask) for name, metric in problem.metrics}

        return lax.map(of_piece, (fields, mask))

    return lax.map(of_run, params)


@jax.jit
def _regularizers(problem: Problem, params: Params) -> Array:
    assert problem.regularizer is not None
    regularizer = problem.regularizer
    return lax.map(lambda one: jnp.reshape(regularizer(one), (1,)), params)
