"""One client's subproblem on some of its rows: the loss, the linear term and the penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from ..core import trees
from ..core.trees import add_scaled
from ..core.vocabulary import Subproblem
from ..problems.problem import Problem


class ClientObjective:
    """One client's subproblem, on any of its rows. `offset` and `size` say where they are."""

    def __init__(
        self, problem: Problem, server_params: Any, subproblem: Subproblem, offset: Array, size: Array
    ) -> None:
        self._problem, self._subproblem, self._offset, self.size = problem, subproblem, offset, size
        self._center = server_params if subproblem.center is None else subproblem.center
        self._dtype = trees.scalar_dtype(server_params)

    def on_rows(self, params: Any, rows: Array, count: Array) -> Array:
        """The subproblem's objective with f_i's mean taken over the first `count` of `rows`."""
        batch = self._problem.data.take(rows)
        losses = self._problem.loss(params, batch)
        losses = losses.astype(trees.at_least_single(losses.dtype, self._dtype))
        mask = jnp.arange(rows.shape[0], dtype=jnp.int32) < count
        value = jnp.sum(jnp.where(mask, losses, 0)) / jnp.maximum(count, 1).astype(losses.dtype)
        if self._problem.regularizer is not None:
            value += self._problem.regularizer(params)
        sub = self._subproblem
        if sub.linear is not None:
            value -= optax.tree.vdot(sub.linear, params)
        if sub.penalty is not None:
            distance = optax.tree.norm(optax.tree.sub(params, self._center), squared=True)
            value += 0.5 * sub.penalty * distance
        return value

    def on_all_rows(self, rows_per_piece: int) -> Callable[[Any], Array]:
        """The objective over all rows, piece by piece, differentiable whatever the client's size.

        Reverse mode cannot go back through a loop of traced length, so the forward pass sums the gradient as
        well; only line searches need this.
        """

        def value_and_gradient(params: Any) -> tuple[Array, Any]:
            def add(carry: tuple) -> tuple:
                start, total, gradient = carry
                rows, count, share = self.piece(start, rows_per_piece)
                value, part = jax.value_and_grad(self.on_rows)(params, rows, count)
                total += share.astype(total.dtype) * value
                return start + rows_per_piece, total, add_scaled(gradient, share, part)

            zero = jax.eval_shape(self.on_rows, params, *self.piece(0, rows_per_piece)[:2])
            start = (jnp.int32(0), jnp.zeros((), zero.dtype), optax.tree.zeros_like(params))
            return lax.while_loop(lambda carry: carry[0] < self.size, add, start)[1:]

        @jax.custom_vjp
        def objective(params: Any) -> Array:
            return value_and_gradient(params)[0]

        objective.defvjp(value_and_gradient, lambda gradient, weight: (optax.tree.scale(weight, gradient),))
        return objective

    def piece(self, start: Any, number: int) -> tuple[Array, Array, Array]:
        """Rows [number] from the client's `start`-th on, how many of them exist, and their share of all it has."""
        positions = start + jnp.arange(number, dtype=jnp.int32)
        count = jnp.clip(self.size - start, 0, number)
        share = count.astype(self._dtype) / self.size.astype(self._dtype)
        return self._offset + jnp.minimum(positions, self.size - 1), count, share
