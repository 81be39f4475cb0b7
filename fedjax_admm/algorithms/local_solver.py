"""How one client trains: its subproblem's value and gradient on some rows, and one optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core import checks
from ..core.record import record, static
from ..core.types import Params

# Rows of one piece of a full gradient. At most so many: enough for matrix products, few enough for a CNN's
# activations. Fewer where clients are small, so that nine tenths of the rows in all their pieces exist.
FULL_GRADIENT_PIECES = (256, 128, 64, 32, 16, 8)
LEAST_FILLED = 0.9


@record
class LocalSolver:
    """How a client trains: steps of any optax optimizer on its local problem. The optimizer starts afresh in every
    solve.

    Attributes:
        learning_rate: A number, or one per client [clients].
        batch_size: Rows per step. An epoch visits each row once, in an order that depends only on (seed, round,
            client, epoch); the last batch may be smaller. None: one step per epoch, with the full gradient.
        max_epochs: The most epochs of a solve: a whole number, or one per client [clients].
        optimizer: A factory, called with the learning rate: `optax.sgd`, `optax.adam`, `optax.lbfgs` or your own
            function, defined once (a new lambda or `functools.partial` for each run compiles anew). A line search
            evaluates the objective on the rows of the step. Each evaluation counts as a gradient of those rows.
        options: Other numbers for the factory, by name, such as `{"momentum": 0.9}`. Like the learning rate they can
            change without recompiling, and may be one per client. None keeps the factory's defaults.

    >>> LocalSolver(learning_rate=0.01, batch_size=50, max_epochs=20).max_epochs
    20
    """

    learning_rate: Any
    batch_size: int | None = static(default=None)
    max_epochs: Any = 1
    optimizer: Callable[..., optax.GradientTransformation] = static(default=optax.sgd)
    options: Any = None

    def __post_init__(self) -> None:
        rate = checks.number("learning_rate", self.learning_rate, above=0, per_client=True)
        object.__setattr__(self, "learning_rate", rate)
        maximum = checks.integer("max_epochs", self.max_epochs, at_least=1, per_client=True)
        object.__setattr__(self, "max_epochs", maximum)
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", checks.integer("batch_size", self.batch_size, at_least=1))
        if not callable(self.optimizer):
            raise ValueError(
                f"optimizer must be a factory that is called with the learning rate, such as optax.sgd, "
                f"got {self.optimizer!r}"
            )
        object.__setattr__(self, "options", checks.numbers_by_name("options", self.options, per_client=True))

    @property
    def full_gradient(self) -> bool:
        return self.batch_size is None

    def steps_per_epoch(self, sizes: Array) -> Array:
        """Steps of an epoch for clients of these sizes."""
        return jnp.ones_like(sizes) if self.batch_size is None else -(-sizes // self.batch_size)

    def rows_per_trip(self, sizes: np.ndarray) -> int:
        """Rows of one gradient evaluation, for clients of these sizes: a batch, or a piece of the full gradient."""
        largest = int(sizes.max())
        if self.batch_size is not None:
            return min(self.batch_size, largest)
        pieces = sorted({min(piece, largest) for piece in FULL_GRADIENT_PIECES}, reverse=True)
        filled = [sizes.sum() / (-(-sizes // piece) * piece).sum() for piece in pieces]
        return next((p for p, share in zip(pieces, filled, strict=True) if share >= LEAST_FILLED), pieces[-1])

    def init(self, params: Params) -> Any:
        """The optimizer's state at the start of a solve."""
        return self._make_optimizer().init(params)

    def _make_optimizer(self) -> optax.GradientTransformation:
        try:
            made = self.optimizer(self.learning_rate, **(self.options or {}))
        except TypeError as error:
            raise ValueError(f"optimizer must be a function of the learning rate and of options: {error}") from error
        if not (hasattr(made, "init") and hasattr(made, "update")):
            raise ValueError(f"optimizer must make an optax optimizer from a learning rate, but it made {made!r}")
        return made

    def step(
        self, params: Params, state: Any, gradient: Params, value: Array, value_fn: Callable
    ) -> tuple[Params, Any, Array]:
        """One step of one client (scalar learning rate): (params, state, evaluations of its line search)."""
        optimizer = optax.with_extra_args_support(self._make_optimizer())
        updates, state = optimizer.update(gradient, state, params, value=value, grad=gradient, value_fn=value_fn)
        searched = optax.tree.get_all_with_path(state, "num_linesearch_steps")
        none: Array = jnp.int32(0)
        evaluations = sum((steps for _, steps in searched), none).astype(jnp.int32)
        return optax.apply_updates(params, updates), state, evaluations
