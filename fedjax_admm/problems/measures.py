"""What a problem measures on rows, its loss and its metrics, and how rows are gone through in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import trees
from ..core.record import record, static
from ..core.types import Params
from .problem import Problem


@record
class Measures:
    """A problem's functions, without its data.

    >>> Measures.of(problem).names  # doctest: +SKIP
    ('loss', 'accuracy')
    """

    loss: Callable[[Any, Any], Array] = static()
    regularizer: Callable[[Any], Array] | None = static()
    metrics: tuple[tuple[str, Callable[[Any, Any], Array]], ...] = static()

    @classmethod
    def of(cls, problem: Problem) -> Measures:
        """Those of a problem."""
        return cls(problem.loss, problem.regularizer, problem.metrics)

    @property
    def names(self) -> tuple[str, ...]:
        """What is measured: the loss, then the metrics."""
        return ("loss", *(name for name, _ in self.metrics))

    def on_rows(self, params: Params, batch: Any) -> dict[str, Array]:
        """Every row's values [rows], of the loss without the regularizer, in the precision of the parameters' norms."""
        kind, functions = trees.scalar_dtype(params), (("loss", self.loss), *self.metrics)
        return {name: jnp.asarray(function(params, batch)).astype(kind) for name, function in functions}

    def penalty(self, params: Params) -> Array:
        """The regularizer, which every client's loss has besides its rows'."""
        dtype = trees.scalar_dtype(params)
        return jnp.zeros((), dtype) if self.regularizer is None else jnp.asarray(self.regularizer(params), dtype)


def row_bytes(fields: Any) -> int:
    """Bytes of one row."""
    leaves = jax.tree.leaves(fields)
    return sum(np.dtype(leaf.dtype).itemsize * int(np.prod(leaf.shape[1:])) for leaf in leaves)
