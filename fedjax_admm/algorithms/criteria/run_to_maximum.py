"""Every solve does its maximum of epochs."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from ...core.record import record
from ...core.vocabulary import LocalProgress
from .criterion import Absolute

__all__ = ["RunToMaximum", "run_to_maximum"]


@record
class RunToMaximum(Absolute):
    """Every solve does its maximum of epochs; no residual is ever computed."""

    residual: ClassVar[None] = None

    def tolerance(self, progress: LocalProgress) -> Array:
        return jnp.full_like(progress.residual, -jnp.inf)


def run_to_maximum() -> RunToMaximum:
    """Every solve does `max_epochs` epochs: Algorithm 1, FedAvg and FedProx as usually run.

    >>> run_to_maximum()
    RunToMaximum()
    """
    return RunToMaximum()
