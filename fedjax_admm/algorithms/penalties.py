"""How a client's penalty changes after its solve: (penalty, consensus gap, movement) -> penalty.

A new rule is a `record` with `__call__`; its numbers may be one per client.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp
from jax import Array

from ..core import checks
from ..core.record import record


class PenaltyRule(Protocol):
    """What an algorithm asks of a rule. All arguments are [cohort]."""

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array: ...


@record
class Constant:
    """The penalty stays as it was."""

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        return penalty


@record
class ResidualBalancing:
    """Keep the consensus gap and beta * movement within a factor mu of each other (3.15)."""

    mu: Any
    tau: Any

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        weighted = penalty * movement  # the paper's p; its d is the consensus gap
        grown = jnp.where(consensus_gap > self.mu * weighted, penalty * self.tau, penalty)
        return jnp.where(weighted > self.mu * consensus_gap, penalty / self.tau, grown)


def constant() -> Constant:
    """A penalty that never changes: Algorithms 1 and 2.

    >>> constant()
    Constant()
    """
    return Constant()


def residual_balancing(mu: Any = 5.0, tau: Any = 2.0) -> ResidualBalancing:
    """beta * tau if ||u+ - z|| > mu beta ||u+ - u||, beta / tau if beta ||u+ - u|| > mu ||u+ - z|| (3.15).

    `mu` and `tau` are above 1. The rule compares a quantity that has a beta in it with one that has none, so
    unlike the criterion it is not invariant under a change of the loss's scale.

    >>> rule = residual_balancing(mu=5, tau=2)
    >>> float(rule(jnp.float32(1.0), jnp.float32(10.0), jnp.float32(1.0)))
    2.0

    Reference: He, Yang and Wang, "Alternating direction method with self-adaptive penalty parameters for
    monotone variational inequalities", J. Optimization Theory and Applications 106, 2000.
    """
    return ResidualBalancing(mu=checks.number("mu", mu, above=1), tau=checks.number("tau", tau, above=1))
