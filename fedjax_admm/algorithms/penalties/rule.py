"""What a penalty rule is, and one client's penalty after its solve."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax import Array

from ...core import trees
from ...core.record import record
from ...core.types import Params
from ...core.vocabulary import Round, Solution
from .bounds import bounds_of


@record
class Evidence:
    """What a rule with a memory sees of one client's solve."""

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
    start_residual: Any = (
        np.nan
    )  # ||e(z)||, the subproblem's gradient at z; NaN where the criterion does not look there

    @classmethod
    def of(
        cls, solution: Solution, previous: Any, previous_duals: Any, duals: Any, center: Any, round: Round
    ) -> Evidence:
        """Of a client that solved for `solution`."""
        return cls(
            solution.consensus_gap, solution.movement, solution.measured, solution.epochs, solution.params, previous,
            duals, previous_duals, center, round.number, solution.start_residual,
        )  # fmt: skip


class PenaltyRule(Protocol):
    """What an algorithm asks of a rule, for one client.

    Whenever the rule's answer is used, gap and movement are finite and measured; a client whose update was clipped
    keeps its penalty and the rule's memory. A rule may also have

    * `start(params)`, its initial memory of each client; it is then called as (penalty, seen, memory) and returns
      (penalty, memory);
    * `bounds`, the (lowest, highest) penalty, each a number or one per client; by default `BOUNDS`, and None for a
      rule that changes nothing;
    * `judge_idle`, whether solves that did no epoch change the penalty too; by default they do;
    * `until`, the number of a client's solves after which its penalty no longer changes; by default, or if None, it
    always may;
    * `propose(penalty, seen)`, for rules in which all clients share one level of penalties: it returns the logarithm
      of the factor by which this client would change the level, and whether it has a proposal. `Level` combines the
      proposals; see `stiffness`.
    """

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array: ...


def start_memory(rule: Any, params: Params) -> dict[str, Any]:
    """The memory of a rule at the start.

    Args:
        rule: How a penalty changes, with its numbers of one client.
        params: The server's parameters z^0.

    Returns:
        What the rule remembers of the client at first, with the number of solves that were `judged` where its
        adaptation ends; {} if nothing.
    """
    memory = rule.start(params) if hasattr(rule, "start") else {}
    return memory if _end_of(rule) is None else memory | {"judged": jnp.int32(0)}


def adapt(rule: Any, penalty: Array, seen: Evidence, memory: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
    """One client's penalty after its solve.

    Args:
        rule: How a penalty changes, with its numbers of this client.
        penalty: beta_i of the solve.
        seen: What is known of the solve.
        memory: What the rule remembers of this client.

    Returns:
        (penalty, memory): the rule's, the penalty within its bounds; the former ones where nothing was measured or the
        rule does not judge, or not any more.
    """
    bounds = bounds_of(rule)
    if bounds is None:
        return penalty, memory
    judged = seen.measured if getattr(rule, "judge_idle", True) else seen.measured & (seen.epochs > 0)
    until, counted = _end_of(rule), {}
    if until is not None:
        judged &= memory["judged"] < until
        counted = {"judged": memory["judged"] + 1}
    own = {name: value for name, value in memory.items() if name not in counted}
    # The lengths of what is not judged are handed to the rule as those of a solve that stood still: it never sees NaN.
    # Its answer is not used then.
    gap, moved = jnp.where(judged, seen.consensus_gap, 0), jnp.where(judged, seen.movement, 0)
    if hasattr(rule, "start"):
        new, remembered = rule(penalty, dataclasses.replace(seen, consensus_gap=gap, movement=moved), own)
    else:
        new, remembered = rule(penalty, gap, moved), own
    lowest, highest = (jnp.asarray(bound, penalty.dtype) for bound in bounds)
    return jnp.where(judged, jnp.clip(new, lowest, highest), penalty), trees.where(judged, remembered | counted, memory)


def _end_of(rule: Any) -> Any:
    """After how many solves the rule's adaptation ends; None if never."""
    return getattr(rule, "until", None)
