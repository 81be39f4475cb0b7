"""How a client's penalty changes after its solve.

A simple rule is a `record` with `__call__(penalty, consensus_gap, movement) -> penalty`, for one client. A rule that
remembers something of each client, or wants more than these two lengths, has `start(params) -> memory` besides, a dict
of arrays, and is called as `rule(penalty, seen, memory) -> (penalty, memory)` with an `Evidence`. Its numbers may be
one per client; in the call they are this client's. `adapt` keeps every penalty within the rule's bounds and leaves it,
and the memory, alone where there was nothing to judge, so a rule needs to think of neither.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.types import Params
from ..core.vocabulary import Round, Solution

# Of rules that say nothing else. A sound run's penalties are some powers of ten around the loss's curvature; at these a
# penalty times parameters, times a client's weight, still has all its digits in single precision.
BOUNDS = (1e-12, 1e12)


@record
class Evidence:
    """What a rule with memory is shown of one client's solve."""

    consensus_gap: Array  # ||u+ - z||
    movement: Array  # ||u+ - u||
    measured: Array  # bool: whether both are the solve's own; not where the update was clipped
    epochs: Array  # int32, epochs done
    params: Params  # u+
    previous: Any  # u, the client's former parameters
    duals: Any  # lambda+
    previous_duals: Any  # lambda
    center: Any  # z
    round: Array  # int32, k, from 0

    @classmethod
    def of(
        cls, solution: Solution, previous: Any, previous_duals: Any, duals: Any, center: Any, round: Round
    ) -> Evidence:
        """Of a client that solved for `solution`."""
        return cls(
            solution.consensus_gap, solution.movement, solution.measured, solution.epochs, solution.params, previous,
            duals, previous_duals, center, round.number,
        )  # fmt: skip


class PenaltyRule(Protocol):
    """What an algorithm asks of a rule, for one client.

    Gap and movement are finite and were measured wherever the rule's answer is used: a client whose update was clipped,
    so that their lengths say nothing, keeps its penalty and the rule's memory. A rule may say besides

    * `start(params)`, what it remembers of each client at first: then it is called as (penalty, seen, memory) and
      returns (penalty, memory);
    * `bounds`, (lowest, highest) penalty, each a number or one per client; without it they are `BOUNDS`, and None is
      for a rule that changes nothing;
    * `judge_idle`, whether solves that did no epoch change the penalty too; without it they do.
    """

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array: ...


@record
class Constant:
    """The penalty stays as it was."""

    bounds = None

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        return penalty


@record
class ResidualBalancing:
    """Keep the consensus gap and beta * movement within a factor mu of each other (3.15)."""

    mu: Any
    tau: Any
    lowest: Any = BOUNDS[0]
    highest: Any = BOUNDS[1]
    judge_idle: bool = static(default=True)

    @property
    def bounds(self) -> tuple[Any, Any]:
        """Between what its penalties stay."""
        return self.lowest, self.highest

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


def residual_balancing(
    mu: Any = 5.0, tau: Any = 2.0, *, bounds: tuple[Any, Any] = BOUNDS, judge_idle: bool = True
) -> ResidualBalancing:
    """beta * tau if ||u+ - z|| > mu beta ||u+ - u||, beta / tau if beta ||u+ - u|| > mu ||u+ - z|| (3.15).

    The rule compares a quantity that has a beta in it with one that has none, so unlike the criterion it is not
    invariant under a change of the loss's scale.

    A solve whose criterion holds at once does no epoch: it returns z, so its gap is 0 and (3.15) read literally divides
    the penalty each time, without end where the criterion is a fixed tolerance. The bounds end that, and the history's
    column `penalties_at_bound` tells of it; with `judge_idle=False` it does not happen.

    Args:
        mu: The penalty changes if gap and penalty * movement differ by more than this factor, above 1.
        tau: The factor by which the penalty changes, above 1.
        bounds: The lowest and the highest penalty, each above 0, a number or one per client [clients]. A penalty that
            would leave them, or was outside from the start, is the nearer one after its next solve. The default is so
            wide that no sound run meets it.
        judge_idle: Whether solves that did no epoch change the penalty, as (3.15) says; otherwise it stays.

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
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ValueError(f"bounds must be a pair, (lowest, highest) penalty, got {bounds!r}")
    if not isinstance(judge_idle, bool):
        raise ValueError(f"judge_idle must be True or False, got {judge_idle!r}")
    lowest, highest = (checks.number("bounds", bound, above=0, per_client=True) for bound in bounds)
    if not np.all(np.less(lowest, highest)):
        raise ValueError(f"bounds must be (lowest, highest) with the lowest below the highest, got {bounds!r}")
    mu, tau = checks.number("mu", mu, above=1), checks.number("tau", tau, above=1)
    return ResidualBalancing(mu, tau, lowest, highest, judge_idle)


def bounds_of(rule: PenaltyRule) -> tuple[Any, Any] | None:
    """The bounds of a rule.

    Args:
        rule: How a penalty changes.

    Returns:
        (lowest, highest) penalty; None if the rule changes nothing.

    >>> bounds_of(residual_balancing(bounds=(0.1, 10)))
    (0.1, 10.0)
    """
    return getattr(rule, "bounds", BOUNDS)


def start(rule: Any, params: Params) -> dict[str, Any]:
    """The memory of a rule at the start.

    Args:
        rule: How a penalty changes, with its numbers of one client.
        params: The server's parameters z^0.

    Returns:
        What the rule remembers of the client at first; {} if nothing.
    """
    return rule.start(params) if hasattr(rule, "start") else {}


def adapt(rule: Any, penalty: Array, seen: Evidence, memory: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
    """One client's penalty after its solve.

    Args:
        rule: How a penalty changes, with its numbers of this client.
        penalty: beta_i of the solve.
        seen: What is known of the solve.
        memory: What the rule remembers of this client.

    Returns:
        (penalty, memory): the rule's, the penalty within its bounds; the former ones where nothing was measured or the
        rule does not judge.
    """
    bounds = bounds_of(rule)
    if bounds is None:
        return penalty, memory
    judged = seen.measured if getattr(rule, "judge_idle", True) else seen.measured & (seen.epochs > 0)
    # The lengths of what is not judged are handed to the rule as those of a solve that stood still: it never sees NaN.
    # Its answer is not used then.
    gap, moved = jnp.where(judged, seen.consensus_gap, 0), jnp.where(judged, seen.movement, 0)
    if hasattr(rule, "start"):
        new, remembered = rule(penalty, dataclasses.replace(seen, consensus_gap=gap, movement=moved), memory)
    else:
        new, remembered = rule(penalty, gap, moved), memory
    lowest, highest = (jnp.asarray(bound, penalty.dtype) for bound in bounds)
    return jnp.where(judged, jnp.clip(new, lowest, highest), penalty), trees.where(judged, remembered, memory)


def count_at_bound(rule: PenaltyRule, penalties: np.ndarray, ids: np.ndarray) -> int:
    """Counts the penalties that are at a bound.

    Args:
        rule: How a penalty changes.
        penalties: Clients' penalties [ids].
        ids: The clients' numbers [ids].

    Returns:
        How many are at a bound of the rule; 0 if it has none.

    >>> count_at_bound(residual_balancing(bounds=(0.1, 10)), np.float32([0.1, 1, 10]), np.arange(3))
    2
    """
    bounds = bounds_of(rule)
    if bounds is None:
        return 0
    # In the penalties' own precision, in which they were cut.
    lowest, highest = (np.asarray(bound, penalties.dtype) for bound in bounds)
    lowest, highest = (bound[ids] if bound.ndim else bound for bound in (lowest, highest))
    return int(np.sum((penalties <= lowest) | (penalties >= highest)))
