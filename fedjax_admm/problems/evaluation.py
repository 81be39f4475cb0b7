"""The global loss and the metrics at the server's parameters, in pieces."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..core import trees
from ..core.types import Params
from ..data.federated import FederatedData
from ..data.rows import on_device, row_bytes
from .problem import Problem
from .streaming import ALONE, Share, streamed_sums

_PIECE_BYTES = 1 << 23  # of a piece's rows: a few MB stream through the cache
_MAX_PIECE = 500  # rows: bounds a CNN's activations


def piece_size(fields: Any) -> int:
    """How many rows are evaluated at once."""
    number = jax.tree.leaves(fields)[0].shape[0]
    return max(1, min(_MAX_PIECE, number, _PIECE_BYTES // max(row_bytes(fields), 1)))


def evaluate(problem: Problem, params: Params, with_loss: bool = True, share: Share | None = None) -> dict[str, float]:
    """`loss`, sum_i alpha_i f_i(params) with the regulariser, and each metric's mean over `eval_data`.

    Where the problem's optimum is known, `excess_loss` is the loss above it. Without the loss the clients' rows are not
    looked at. With a `share` each process reads its own of the rows that are not on its device.
    """
    return evaluate_many(problem, jax.tree.map(lambda leaf: leaf[None], params), with_loss, share)[0]


def evaluate_many(
    problem: Problem, params: Params, with_loss: bool = True, share: Share | None = None
) -> list[dict[str, float]]:
    """The same for each of several parameters, leaves [runs, ...]."""
    eval_rows = piece_size(problem.eval_data) if problem.metrics else 0
    rows = min(piece_size(problem.data.fields), problem.data.num_positions)  # clients may leave rows out
    here = on_device((problem.data.fields, problem.eval_data))
    if here:
        sums = _sums(problem, params, rows, eval_rows, with_loss)
    else:
        sums = streamed_sums(problem, params, rows, eval_rows, _sum_of_piece, share or ALONE, with_loss)
    # The pieces are added on the host in double precision: 100,000 rows summed in single lose three digits.
    parts = [{name: np.sum(np.asarray(pieces, np.float64), axis=-1) for name, pieces in sums.items()}]
    if share is not None and not here:
        parts = share.of_all(parts[0])
    totals = {name: np.sum([part[name] for part in parts], axis=0) for name in sums}
    if with_loss:
        totals["loss"] = totals["loss"] + totals.pop("regularizer", 0.0)
        if problem.optimal_loss is not None:
            totals["excess_loss"] = totals["loss"] - float(problem.optimal_loss)
    columns = [name for name in evaluated_columns(problem) if name in totals]
    runs = jax.tree.leaves(params)[0].shape[0]
    return [{name: float(totals[name][run]) for name in columns} for run in range(runs)]


def evaluated_columns(problem: Problem) -> tuple[str, ...]:
    """The names of what `evaluate` returns, in its order."""
    excess = () if problem.optimal_loss is None else ("excess_loss",)
    return ("loss", *excess, *(name for name, _ in problem.metrics))


@partial(jax.jit, static_argnames=("rows", "eval_rows", "with_loss"))
def _sums(problem: Problem, params: Params, rows: int, eval_rows: int, with_loss: bool = True) -> dict[str, Array]:
    """The sums [runs, pieces], one after the other: as much memory as one needs."""
    return lax.map(lambda one: _sums_of_one(problem, one, rows, eval_rows, with_loss), params)


def _sums_of_one(problem: Problem, params: Params, rows: int, eval_rows: int, with_loss: bool) -> dict[str, Array]:
    sums = {"loss": _weighted_losses(problem, params, problem.data, rows)} if with_loss else {}
    if with_loss and problem.regularizer is not None:
        sums["regularizer"] = jnp.reshape(problem.regularizer(params), (1,))
    if problem.metrics:
        number = jax.tree.leaves(problem.eval_data)[0].shape[0]
        pieces = _pieces(problem.eval_data, number, eval_rows)
        for name, metric in problem.metrics:
            sums[name] = pieces(
                lambda batch, _, mask, metric=metric: _sum_of_piece(metric(params, batch), mask) / number
            )
    return sums


def _weighted_losses(problem: Problem, params: Params, data: FederatedData, rows: int) -> Array:
    number = data.num_positions
    share = data.weights / data.sizes.astype(data.weights.dtype)  # of each row of a client
    client = jnp.cumsum(jnp.zeros(number, jnp.int32).at[data.offsets].add(1)) - 1
    fields = data.fields if data.index is None else (data.index,)

    def piece(batch: Any, positions: Array, mask: Array) -> Array:
        batch = batch if data.index is None else data.take(positions)
        return _sum_of_piece(problem.loss(params, batch), mask, share[client[positions]])

    return _pieces(fields, number, rows)(piece)


def _wide(values: Array) -> Array:
    """Values of a model that computes in half precision, as a sum of hundreds of them needs them."""
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    return values.astype(trees.at_least_single(values.dtype)) if floating else values


def _sum_of_piece(values: Array, mask: Array, share: Array | None = None) -> Array:
    """The sum of those values that count, each times its share."""
    values = _wide(values)
    if share is not None:
        values = values * share.astype(values.dtype)
    return jnp.sum(jnp.where(mask, values, 0))


def _pieces(fields: Any, number: int, rows: int) -> Any:
    """A function that maps over pieces of `rows` rows, slices where they are contiguous: no gather."""
    starts = jnp.arange(0, number, rows)

    def run(function: Any) -> Array:
        def one(start: Array) -> Array:
            begin = jnp.minimum(start, number - rows)  # the last piece overlaps the one before, masked
            positions = begin + jnp.arange(rows)
            batch = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, begin, rows), fields)
            return function(batch, positions, positions >= start)

        return lax.map(one, starts)

    return run
