"""The paper's rule for relative residuals, so that the scale of the loss does not matter."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from ...core import checks
from ...core.record import record, static
from ...core.types import Params
from .arguments import check_bounds, check_judge_idle, check_until
from .arithmetic import balance, or_one
from .bounds import BOUNDS, Bounded
from .rule import Evidence

__all__ = ["RelativeBalancing", "relative_balancing"]


@record
class RelativeBalancing(Bounded):
    """The same for gap and beta * movement as shares of the vectors that they are differences of."""

    mu: Any
    tau: Any
    lowest: Any = BOUNDS[0]
    highest: Any = BOUNDS[1]
    judge_idle: bool = static(default=False)
    until: Any = None

    def start(self, params: Params) -> dict[str, Any]:
        """Nothing is remembered: it is the vectors that the rule asks for."""
        return {}

    def __call__(self, penalty: Array, seen: Evidence, memory: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
        sizes = [optax.tree.norm(tree).astype(penalty.dtype) for tree in (seen.params, seen.center, seen.duals)]
        gap = seen.consensus_gap / or_one(jnp.maximum(*sizes[:2]))
        force = penalty * seen.movement / or_one(sizes[2])
        return balance(penalty, gap, force, self.mu, self.tau), memory


def relative_balancing(
    mu: Any = 5.0,
    tau: Any = 2.0,
    *,
    bounds: tuple[Any, Any] = BOUNDS,
    until: Any = None,
    judge_idle: bool = False,
) -> RelativeBalancing:
    """`residual_balancing` with relative quantities, so that the scale of the loss does not matter.

    With gap = ||u+ - z|| / max(||u+||, ||z||) and force = beta ||u+ - u|| / ||lambda+||, where a denominator of 0 is 1,
    the penalty is beta * tau if gap > mu force and beta / tau if force > mu gap. If losses and penalties are both
    multiplied by s, all iterates stay the same.

    Args:
        mu: The penalty changes if the two quantities differ by more than this factor, above 1.
        tau: The factor by which the penalty changes, above 1.
        bounds: The lowest and the highest penalty, each above 0, a number or one per client [clients].
        until: After how many of its own solves a client's penalty stays, a number or one per client [clients]; None is
            never.
        judge_idle: Whether solves that did no epoch, whose gap is 0, divide the penalty.

    Returns:
        The rule, for `fedadmm(penalty_rule=...)`.

    Raises:
        ValueError: If an argument is not as said here.

    >>> relative_balancing(until=20).until
    20

    Reference: Wohlberg, "ADMM penalty parameter selection by residual balancing", arXiv:1704.06209, 2017.
    """
    mu, tau = checks.number("mu", mu, above=1), checks.number("tau", tau, above=1)
    return RelativeBalancing(mu, tau, *check_bounds(bounds), check_judge_idle(judge_idle), check_until(until))
