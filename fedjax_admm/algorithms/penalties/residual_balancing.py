"""The paper's rule (3.15): keep two residuals within a factor of each other."""

from __future__ import annotations

from typing import Any

from jax import Array

from ...core import checks
from ...core.record import record, static
from .arguments import check_bounds, check_judge_idle, check_until
from .arithmetic import balance
from .bounds import BOUNDS, Bounded

__all__ = ["ResidualBalancing", "residual_balancing"]


@record
class ResidualBalancing(Bounded):
    """Keep the consensus gap and beta * movement within a factor mu of each other (3.15)."""

    mu: Any
    tau: Any
    lowest: Any = BOUNDS[0]
    highest: Any = BOUNDS[1]
    judge_idle: bool = static(default=True)
    until: Any = None

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        # The paper's d is the consensus gap, and its p beta * movement.
        return balance(penalty, consensus_gap, penalty * movement, self.mu, self.tau)


def residual_balancing(
    mu: Any = 5.0,
    tau: Any = 2.0,
    *,
    bounds: tuple[Any, Any] = BOUNDS,
    until: Any = None,
    judge_idle: bool = True,
) -> ResidualBalancing:
    """beta * tau if ||u+ - z|| > mu beta ||u+ - u||, beta / tau if beta ||u+ - u|| > mu ||u+ - z|| (3.15).

    The rule compares a quantity that contains beta with one that does not, so it depends on the scale of the loss;
    `relative_balancing` does not.

    If the criterion holds at the start, a solve does no epoch and returns z. Its gap is then 0, so (3.15), taken
    literally, divides the penalty each time, with a fixed tolerance again and again. The bounds stop that, and the
    column `penalties_at_bound` of the history shows it. With `judge_idle=False` it does not happen.

    Args:
        mu: The penalty changes if gap and penalty * movement differ by more than this factor, above 1.
        tau: The factor by which the penalty changes, above 1.
        bounds: The lowest and the highest penalty, each above 0, a number or one per client [clients]. A penalty that
            would leave them is set to the nearer bound. The default bounds are so wide that a healthy run never
            reaches them.
        until: The number of its own solves after which a client's penalty no longer changes, a number or one per
            client [clients]; None: it always may change, as (3.15) says. The reference's proof of convergence needs an
            adaptation that ends.
        judge_idle: Whether solves that did no epoch change the penalty, as (3.15) says.

    Returns:
        The rule, for `fedadmm(penalty_rule=...)`.

    Raises:
        ValueError: If an argument is not as said here.

    >>> rule = residual_balancing(mu=5, tau=2)
    >>> float(rule(jnp.float32(1.0), jnp.float32(10.0), jnp.float32(1.0)))
    2.0

    Reference: He, Yang and Wang, "Alternating direction method with self-adaptive penalty parameters for
    monotone variational inequalities", J. Optimization Theory and Applications 106, 2000.
    """
    mu, tau = checks.number("mu", mu, above=1), checks.number("tau", tau, above=1)
    return ResidualBalancing(mu, tau, *check_bounds(bounds), check_judge_idle(judge_idle), check_until(until))
