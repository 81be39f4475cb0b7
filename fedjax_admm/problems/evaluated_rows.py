"""What the global loss is computed on: all rows, a fixed random sample of them, or none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core import checks
from ..data.federated import FederatedData
from .problem import Problem

SAMPLE_SEED = 0  # the sample is the same in every round and every run


def check_evaluate(evaluate: Any, problem: Problem | None = None) -> None:
    """Checks what is to be evaluated.

    Args:
        evaluate: "all", a number of rows, "test" or None.
        problem: The problem that must have so many, or metrics.

    Raises:
        ValueError: It is none of those, or the problem has no such rows.
    """
    if evaluate is None or evaluate == "all":
        return
    if evaluate != "test" and not isinstance(evaluate, (int, float, np.number)):
        raise ValueError(f"evaluate must be 'all', a number of rows, 'test' or None, got {evaluate!r}")
    if evaluate != "test":
        checks.integer("evaluate", evaluate, at_least=1)
    if problem is None:
        return
    if evaluate == "test":
        if not problem.metrics:
            raise ValueError("evaluate='test' needs a problem with metrics and eval_data: give those, or evaluate=None")
    elif evaluate > problem.data.num_positions:
        rows = problem.data.num_positions
        raise ValueError(f"evaluate must be at most the number of rows, {rows}, got {evaluate}: use 'all'")


def evaluated_on(problem: Problem, evaluate: Any) -> Problem:
    """The problem with the rows on which its loss is to be evaluated: itself, or one with a sample of its rows.

    A row of the sample weighs what it does in the loss, alpha_i / N_i, so a mean of the sample estimates the loss.
    """
    if not isinstance(evaluate, (int, np.integer)):
        return problem
    data = problem.data
    chosen = np.sort(np.random.default_rng(SAMPLE_SEED).choice(data.num_positions, int(evaluate), replace=False))
    client = np.searchsorted(np.asarray(data.offsets), chosen, side="right") - 1
    share = (np.asarray(data.weights, np.float64) / np.asarray(data.sizes))[client]
    numbers = chosen if data.index is None else np.asarray(data.index)[chosen]
    fields = jax.tree.map(lambda leaf: jnp.asarray(leaf[numbers]), data.fields)
    each = jnp.arange(len(chosen), dtype=jnp.int32)  # a client for each row, with its weight
    weights = jnp.asarray(share / share.sum(), data.weights.dtype)
    return problem.replaced(
        data=FederatedData(fields, None, each, jnp.ones_like(each), weights), client_eval_data=None, optimal_loss=None
    )
