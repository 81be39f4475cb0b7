"""What all solves of a round have in common: which phases there are, and what is summed in them.

These are facts that are known before anything is traced; what a phase does is in `solves`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from ..algorithms.base import Algorithm
from ..core.vocabulary import Subproblem

REFERENCE, MEASURE, TRAIN, FINISHED, GRADIENT = range(5)


@dataclass(frozen=True)
class Plan:
    """What every solve of a round has in common, known before it is traced."""

    rows: int  # of a trip's batch
    dtype: Any  # of norms and hyperparameters
    full: bool  # steps are with the full gradient
    looks: str | None  # how the criterion's residual is obtained: "exact", "epoch_mean", "verified"; None: no looks
    reference: str | None  # where the criterion's reference residual is taken: "server", "client"; None: nowhere
    starts_at_server: bool  # solves begin at the server's parameters
    wants_noise: bool  # the criterion asks for the residual's standard error
    wants_gradient: bool  # the algorithm asks for the gradient at the start
    repeats: bool  # a job is several solves

    @classmethod
    def of(cls, algorithm: Algorithm, subproblem: Subproblem, rows: int, dtype: Any) -> Plan:
        """From an algorithm, and what it says of a subproblem."""
        solver, criterion = algorithm.local, algorithm.criterion
        return cls(
            rows=rows,
            dtype=dtype,
            full=solver.full_gradient,
            looks=criterion.residual,
            reference=criterion.reference,
            starts_at_server=subproblem.start is None,
            wants_noise=getattr(criterion, "needs_noise", False),
            wants_gradient=getattr(algorithm, "needs_gradient", False),
            repeats=subproblem.local_rounds is not None,
        )

    @property
    def exact_looks(self) -> bool:
        """Every look is at the residual itself, not at an estimate."""
        return self.looks is not None and (self.full or self.looks == "exact")

    @property
    def start_is_reference(self) -> bool:
        """The first look is at the start, so it is the server's reference too, unless the solve starts elsewhere."""
        return self.reference == "server" and self.starts_at_server

    @property
    def reference_pass(self) -> bool:
        """The reference residual needs a pass of its own."""
        return self.reference is not None and not self.start_is_reference

    @property
    def measures(self) -> bool:
        """There are passes that only measure."""
        return self.looks is not None and not self.full

    @property
    def sums(self) -> bool:
        """Some pass sums the residual."""
        return self.looks is not None or self.full or self.wants_gradient

    @property
    def sums_in_training(self) -> bool:
        """Training passes sum it too: as the full gradient, or as an estimate of the residual."""
        return self.full or (self.looks is not None and not self.exact_looks)

    @property
    def with_noise(self) -> bool:
        """The pieces of a full gradient are no random batches: there is no noise to be had from them."""
        return self.measures and self.wants_noise

    @property
    def first_phase(self) -> int:
        """In which a solve begins."""
        return REFERENCE if self.reference_pass else self.phase_at_start

    @property
    def phase_at_start(self) -> int:
        """In which it is when it comes to its start."""
        if self.measures and (self.exact_looks or self.start_is_reference):
            return MEASURE
        return GRADIENT if self.wants_gradient and not self.full else TRAIN

    @property
    def nan(self) -> Array:
        return jnp.full((), jnp.nan, self.dtype)
