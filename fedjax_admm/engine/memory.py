"""How much memory a round takes: one model of it, for the choice of lanes and for what `estimate` tells.

By the shapes of what is kept; XLA shares some of the buffers, so it is rather too much (`benchmarks/cohort.py` has what
compiled rounds really take).
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..data.rows import kinds
from ..problems.problem import Problem


def size_of(tree: Any) -> int:
    """Bytes of a tree of arrays or shapes.

    >>> size_of({"w": np.zeros((2, 3), np.float32)})
    24
    """
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def lane_bytes(problem: Problem, rows: int, row: int, optimizer: int, message: int) -> int:
    """What a lane holds.

    Args:
        problem: whose parameters and loss they are.
        rows: of a gradient.
        row: bytes of what a client keeps: the lane's copy, and the terms of the subproblem made of it.
        optimizer: bytes of the optimizer's state.
        message: bytes of what a client sends.

    Returns:
        Bytes: those, the parameters four times (where the solve is, its residual's sum, the gradient, the next
        parameters), and what a gradient on so many rows keeps, twice.
    """

    def kept(params: Any, batch: Any) -> Any:
        return jax.vjp(lambda params: problem.loss(params, batch), params)[1]

    activations = jax.eval_shape(kept, problem.params_shape, kinds(problem.data.fields, rows))
    return 2 * row + optimizer + message + 4 * size_of(problem.params_shape) + 2 * size_of(activations)


def shared_bytes(problem: Problem, message: int) -> int:
    """What a device holds besides its lanes: the sum of messages with its compensation, and parameters old and new."""
    return 3 * message + 2 * size_of(problem.params_shape)


def device_memory() -> int | None:
    """Bytes of a device's memory; None where that is the host's, or not told."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
