"""What a criterion is."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
from jax import Array

from ...core.vocabulary import LocalProgress

RESIDUALS = ("exact", "epoch_mean", "verified")
REFERENCES = ("server", "client")
MEMBERS = ("tolerance", "sigma", "residual", "reference", "floor")


class Criterion(Protocol):
    """The members of a criterion. If it uses `progress.residual_noise` it also has `needs_noise = True`."""

    @property
    def residual(self) -> str | None: ...
    @property
    def reference(self) -> str | None: ...
    @property
    def floor(self) -> Any: ...
    def tolerance(self, progress: LocalProgress) -> Array: ...
    def sigma(self, progress: LocalProgress) -> Array: ...


class Absolute:
    """A tolerance that is not relative to anything."""

    reference: ClassVar[None] = None
    floor: ClassVar[float] = 0.0

    def sigma(self, progress: LocalProgress) -> Array:
        return jnp.full_like(progress.residual, jnp.nan)
