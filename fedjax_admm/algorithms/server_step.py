"""What the server does with an averaged update: a step of any optax optimizer, by default the update itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from ..core import checks
from ..core.record import record, static
from ..core.types import Params


@record
class ServerStep:
    """The server's step along the clients' averaged update (Reddi et al., "Adaptive Federated Optimization").

    The optimizer gets the negative update as its gradient. With the default, `optax.sgd` and a learning rate of 1, the
    new parameters are the old ones plus the update. The optimizer's state is part of the run's state.

    Attributes:
        optimizer: A factory, called with the learning rate: `optax.sgd`, `optax.adam` or your own function, defined
            once. `fa.server_optimizers` has those of Reddi et al.
        learning_rate: Above 0.
        options: Other numbers for the factory, by name, such as `{"momentum": 0.9}`. Like the learning rate they can
            change without recompiling. None keeps the factory's defaults.

    >>> ServerStep(optimizer=optax.adam, learning_rate=0.1).learning_rate
    0.1
    """

    optimizer: Callable[..., optax.GradientTransformation] = static(default=optax.sgd)
    learning_rate: Any = 1.0
    options: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", checks.number("learning_rate", self.learning_rate, above=0))
        if not callable(self.optimizer):
            raise ValueError(
                "optimizer must be a factory that is called with the learning rate, such as optax.adam, "
                f"got {self.optimizer!r}"
            )
        object.__setattr__(self, "options", checks.numbers_by_name("options", self.options))

    def init(self, params: Params) -> Any:
        """The optimizer's state at the start."""
        return self._make_optimizer().init(params)

    def apply(self, params: Params, update: Params, state: Any) -> tuple[Params, Any]:
        """(params, state) after a step along `update`, a tree like the parameters."""
        gradient = jax.tree.map(lambda change, like: -change.astype(like.dtype), update, params)
        try:
            step, state = self._make_optimizer().update(gradient, state, params)
        except TypeError as error:
            raise ValueError(f"optimizer must step with a gradient alone, as optax.adam does: {error}") from error
        return optax.apply_updates(params, step), state

    def _make_optimizer(self) -> optax.GradientTransformation:
        try:
            made = self.optimizer(self.learning_rate, **(self.options or {}))
        except TypeError as error:
            raise ValueError(f"optimizer must be a function of the learning rate and of options: {error}") from error
        if not (hasattr(made, "init") and hasattr(made, "update")):
            raise ValueError(f"optimizer must make an optax optimizer from a learning rate, but it made {made!r}")
        return made


def checked(server: Any) -> ServerStep:
    """A server's step that was given; by default a plain one."""
    if hasattr(server, "update") and not hasattr(server, "apply"):
        raise ValueError("server is an optimizer: give fa.ServerStep(optax.adam, learning_rate=...), its factory apart")
    return checks.part("server", ServerStep() if server is None else server, ("init", "apply"), "fa.ServerStep(...)")
