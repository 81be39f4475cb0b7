"""How a client's penalty changes after its solve.

A simple rule is a `fa.record` with `__call__(penalty, consensus_gap, movement) -> penalty`, written for one client. A
rule that needs a memory of each client, or more than these two norms, also has `start(params) -> memory`, a dict of
arrays, and is called as `rule(penalty, seen, memory) -> (penalty, memory)` with an `Evidence`. Its numbers may be one
per client; the call sees those of its client. The engine keeps every penalty within the rule's bounds. It leaves
penalty and memory unchanged if the solve failed, was lost or was clipped, or if the adaptation has ended.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.types import Params
from ..core.vocabulary import Round, Solution

# Of rules that say nothing else. A sound run's penalties are some powers of ten around the loss's curvature; at these a
# penalty times parameters, times a client's weight, still has all its digits in single precision.
BOUNDS = (1e-12, 1e12)
FASTEST = float(np.log(10))  # that a pooled level changes in a round: one corrupted message must not move it far
FLAT = 1e-2  # of a subproblem's stiffness, the least that is the loss's: the rest is rounding beside the penalty
NOISE = 1e3  # times the rounding error of a vector: differences of this length say nothing


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


@record
class Constant:
    """The penalty stays as it was."""

    bounds = None

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        return penalty


class _Bounded:
    """A rule with a lowest and a highest penalty."""

    lowest: Any
    highest: Any

    @property
    def bounds(self) -> tuple[Any, Any]:
        """Between what its penalties stay."""
        return self.lowest, self.highest


@record
class ResidualBalancing(_Bounded):
    """Keep the consensus gap and beta * movement within a factor mu of each other (3.15)."""

    mu: Any
    tau: Any
    lowest: Any = BOUNDS[0]
    highest: Any = BOUNDS[1]
    judge_idle: bool = static(default=True)
    until: Any = None

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        # The paper's d is the consensus gap, and its p beta * movement.
        return _balance(penalty, consensus_gap, penalty * movement, self.mu, self.tau)


@record
class RelativeBalancing(_Bounded):
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
        gap = seen.consensus_gap / _or_one(jnp.maximum(*sizes[:2]))
        force = penalty * seen.movement / _or_one(sizes[2])
        return _balance(penalty, gap, force, self.mu, self.tau), memory


@record
class Spectral(_Bounded):
    """The curvature of a client's loss between its last two solves, where it can be trusted.

    It remembers the last judged solve's `params` u and `duals` lambda, and how many `solves` it judged.
    """

    correlation: Any
    slack: Any
    lowest: Any = BOUNDS[0]
    highest: Any = BOUNDS[1]
    until: Any = None

    judge_idle = False

    def start(self, params: Params) -> dict[str, Any]:
        """The first solve is compared with nothing: lambda^0 = 0 is no gradient."""
        return {"params": params, "duals": optax.tree.zeros_like(params), "solves": jnp.int32(0)}

    def __call__(self, penalty: Array, seen: Evidence, memory: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
        dtype = penalty.dtype
        now, last = (_cast(pair, dtype) for pair in ((seen.params, seen.duals), (memory["params"], memory["duals"])))
        du, dl = optax.tree.sub(now, last)
        product, moved, turned = optax.tree.vdot(du, dl), optax.tree.norm(du), optax.tree.norm(dl)
        steep, flat = turned**2 / _or_one(product), product / _or_one(moved**2)
        curvature = jnp.where(2 * flat > steep, flat, steep - flat / 2)

        rounding = [NOISE * jnp.finfo(dtype).eps * optax.tree.norm(vector) for vector in now]
        measurable = (moved > rounding[0]) & (turned > rounding[1])
        trusted = (memory["solves"] > 0) & measurable & (product > self.correlation * moved * turned)
        most = 1 + self.slack / jnp.maximum(memory["solves"], 1).astype(dtype) ** 2
        new = jnp.where(trusted, jnp.clip(curvature, penalty / most, penalty * most), penalty)
        return new, {"params": seen.params, "duals": seen.duals, "solves": memory["solves"] + 1}


@record
class Stiffness(_Bounded):
    """One level for all clients' penalties, a share of how stiff their subproblems have shown themselves.

    Clients do not change their own penalties: each proposes a factor, and the server sends the level that follows.
    """

    share: Any
    lowest: Any = BOUNDS[0]
    highest: Any = BOUNDS[1]

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        return penalty

    def propose(self, penalty: Array, seen: Evidence) -> tuple[Array, Array]:
        """(proposal, whether there is one): the logarithm of the factor by which this client would change the level."""
        whole = seen.start_residual / _or_one(seen.consensus_gap)  # of the subproblem, the penalty's own included
        loss = jnp.maximum(whole - penalty, FLAT * whole)
        known = seen.measured & (seen.epochs > 0) & (seen.consensus_gap > 0) & jnp.isfinite(whole) & (whole > 0)
        proposal = jnp.log(jnp.where(known, self.share * loss / penalty, 1))
        return jnp.clip(proposal, -FASTEST, FASTEST), known


@record
class Level:
    """What the server knows of a pooled rule's level."""

    log: Array  # of the factor by which it differs from the first penalties
    rounds: Array  # int32, in which anybody proposed anything

    @classmethod
    def start(cls, dtype: Any) -> Level:
        """The first penalties' own."""
        return cls(jnp.zeros((), dtype), jnp.int32(0))

    def moved(self, proposals: Array, clients: Array) -> Level:
        """After the sum of a round's proposals and of who made one: their mean over rounds, the k-th with weight k."""
        step = 2 / (self.rounds + 2).astype(self.log.dtype)
        log = self.log + step * jnp.clip(proposals / _or_one(clients), -FASTEST, FASTEST).astype(self.log.dtype)
        return trees.where(clients > 0, Level(log, self.rounds + 1), self)


def pools(rule: Any) -> bool:
    """Whether a rule's clients share one level that the server finds.

    Args:
        rule: How a penalty changes.

    Returns:
        Whether it proposes instead of changing.

    >>> pools(constant())
    False
    """
    return hasattr(rule, "propose")


def constant() -> Constant:
    """A penalty that never changes: Algorithms 1 and 2.

    >>> constant()
    Constant()
    """
    return Constant()


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
    return ResidualBalancing(mu, tau, *_limits(bounds), _flag(judge_idle), _ending(until))


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
    return RelativeBalancing(mu, tau, *_limits(bounds), _flag(judge_idle), _ending(until))


def spectral(
    *, correlation: Any = 0.2, slack: Any = 1e10, bounds: tuple[Any, Any] = BOUNDS, until: Any = None
) -> Spectral:
    """A client's penalty is the curvature of its loss, measured between its last two solves.

    After an exact solve lambda+ is the gradient of f_i at u+. With du and dl, the differences of u+ and lambda+ to
    those of the client's solve before,

        steep = ||dl||^2 / <du, dl>,
        flat = <du, dl> / ||du||^2,
        beta+ = flat    if 2 flat > steep, else steep - flat / 2,

    if <du, dl> > correlation ||du|| ||dl||. Otherwise beta stays as it is. It also stays after a client's first solve,
    after solves that did no epoch, and if du or dl is only rounding. A solve that ends early or uses minibatches gives
    no exact gradient, so fewer measurements pass this test. The k-th change of a penalty is by at most a factor of 1 +
    slack / k^2, for which ACADMM is proven to converge. If losses are multiplied by s, so are the penalties. The rule
    keeps two more vectors for each client.

    Args:
        correlation: The cosine of du and dl above which they are trusted, at least 0 and below 1.
        slack: How fast a penalty may change, above 0. The default is the paper's C_cg, which is so large that it
            rarely limits a change.
        bounds: The lowest and the highest penalty, each above 0, a number or one per client [clients].
        until: After how many of its own solves a client's penalty stays, a number or one per client [clients]; None is
            never.

    Returns:
        The rule, for `fedadmm(penalty_rule=...)`.

    Raises:
        ValueError: If an argument is not as said here.

    >>> spectral(bounds=(0.01, 100)).bounds
    (0.01, 100.0)

    Reference: Xu, Taylor, Li, Figueiredo, Yuan and Goldstein, "Adaptive consensus ADMM for distributed optimization",
    ICML 2017 (ACADMM), of whose two terms this is the clients'.
    """
    correlation = checks.number("correlation", correlation, at_least=0, below=1)
    return Spectral(correlation, checks.number("slack", slack, above=0), *_limits(bounds), _ending(until))


def stiffness(share: Any = 0.1, *, bounds: tuple[Any, Any] = BOUNDS) -> Stiffness:
    """All clients' penalties are a share of the stiffness that the clients' solves have shown, pooled by the server.

    A solve that ends at u+ has bent the subproblem's gradient from e(z) to about 0 over ||u+ - z||, so

        stiffness_i = ||e_i(z)|| / ||u_i+ - z|| - beta_i

    is the curvature of the client's loss along its way, or, where the local work ended first, what that work was as
    good as. One solve shows it, so a client that is heard once in a run, as in large populations, has its say. Each
    proposes to change the level by the factor share * stiffness_i / beta_i, at most tenfold; the server averages the
    proposals' logarithms over clients, and over rounds with weights that grow by one a round, and sends the new level
    with its parameters. beta_i = level * the client's first penalty. Losses times s make penalties times s.

    It needs a criterion that looks at z, `relative_residual` with reference="server", and counts clients with the
    penalty last "sent". A client sends two floats more and receives one more.

    Args:
        share: The penalty as a share of the stiffness, above 0. Near-exact solves of quadratics like about 1,
            classification with few local epochs 0.1 or less.
        bounds: The lowest and the highest penalty, each above 0, a number or one per client [clients].

    Returns:
        The rule, for `fedadmm(penalty_rule=...)`.

    Raises:
        ValueError: If an argument is not as said here.

    >>> stiffness(0.5).share
    0.5
    """
    return Stiffness(checks.number("share", share, above=0), *_limits(bounds))


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


def _end_of(rule: Any) -> Any:
    """After how many solves the rule's adaptation ends; None if never."""
    return getattr(rule, "until", None)


def _balance(penalty: Array, gap: Array, force: Array, mu: Any, tau: Any) -> Array:
    """The penalty times or by tau where gap and force differ by more than mu."""
    grown = jnp.where(gap > mu * force, penalty * tau, penalty)
    return jnp.where(force > mu * gap, penalty / tau, grown)


def _or_one(value: Any) -> Array:
    """A denominator."""
    return jnp.where(value == 0, 1, value)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def _limits(bounds: Any) -> tuple[Any, Any]:
    """A pair of penalties, checked."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ValueError(f"bounds must be a pair, (lowest, highest) penalty, got {bounds!r}")
    lowest, highest = (checks.number("bounds", bound, above=0, per_client=True) for bound in bounds)
    if not np.all(np.less(lowest, highest)):
        raise ValueError(f"bounds must be (lowest, highest) with the lowest below the highest, got {bounds!r}")
    return lowest, highest


def _flag(judge_idle: Any) -> bool:
    if not isinstance(judge_idle, bool):
        raise ValueError(f"judge_idle must be True or False, got {judge_idle!r}")
    return judge_idle


def _ending(until: Any) -> Any:
    return None if until is None else checks.integer("until", until, at_least=1, per_client=True)
