"""One level for all clients' penalties, from how stiff their subproblems are."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from ...core import checks
from ...core.record import record
from .arguments import check_bounds
from .arithmetic import or_one
from .bounds import BOUNDS, Bounded
from .level import FASTEST
from .rule import Evidence

__all__ = ["Stiffness", "stiffness"]

FLAT = 1e-2  # of a subproblem's stiffness, the least that is the loss's: the rest is rounding beside the penalty


@record
class Stiffness(Bounded):
    """One level for all clients' penalties, a share of how stiff their subproblems have shown themselves.

    Clients do not change their own penalties: each proposes a factor, and the server sends the level that follows.
    """

    share: Any
    newcomers: Any = 0.2
    lowest: Any = BOUNDS[0]
    highest: Any = BOUNDS[1]

    def __call__(self, penalty: Array, consensus_gap: Array, movement: Array) -> Array:
        return penalty

    def propose(self, penalty: Array, seen: Evidence) -> tuple[Array, Array]:
        """(proposal, whether there is one): the logarithm of the factor by which this client would change the level."""
        whole = seen.start_residual / or_one(seen.consensus_gap)  # of the subproblem, the penalty's own included
        loss = jnp.maximum(whole - penalty, FLAT * whole)
        known = seen.measured & (seen.epochs > 0) & (seen.consensus_gap > 0) & jnp.isfinite(whole) & (whole > 0)
        new = optax.tree.norm(seen.previous_duals, squared=True) == 0
        share = jnp.where(new, self.share * self.newcomers, self.share)
        proposal = jnp.log(jnp.where(known, share * loss / penalty, 1))
        return jnp.clip(proposal, -FASTEST, FASTEST), known


def stiffness(share: Any = 0.5, *, newcomers: Any = 0.2, bounds: tuple[Any, Any] = BOUNDS) -> Stiffness:
    """All clients' penalties are a given fraction of the stiffness that their solves have shown, which the server
    averages.

    A solve that ends at u+ has bent the subproblem's gradient from e(z) to about 0 over ||u+ - z||, so

        stiffness_i = ||e_i(z)|| / ||u_i+ - z|| - beta_i

    is the curvature of the client's loss along its path or, if the local work ended earlier, the curvature for which
    that much work would have sufficed. One solve is enough to measure it, so clients that take part only once, as in
    large populations, contribute too. Each client proposes to multiply the level by share * stiffness_i / beta_i,
    limited to a factor of ten. The server averages the logarithms of the proposals over clients and, with weights that
    grow by one per round, over rounds, and sends the new level with its parameters. Then beta_i = level * the client's
    initial penalty. If losses are multiplied by s, so are the penalties.

    Clients without a dual yet propose less, share * newcomers. A client that never returns has no dual to correct, so
    a penalty only shortens its step. The level is therefore lower in a population in which nobody returns than in one
    whose clients are selected often.

    The rule needs a criterion that measures the residual at z, `relative_residual` with reference="server", and counts
    clients with the penalty last "sent". A client sends two more floats and receives one more.

    Args:
        share: The penalty as a fraction of the stiffness, above 0. About 1 is good for nearly exact solves of
            quadratics, less for classification with few local epochs.
        newcomers: By what clients without a dual multiply the share, above 0.
        bounds: The lowest and the highest penalty, each above 0, a number or one per client [clients].

    Returns:
        The rule, for `fedadmm(penalty_rule=...)`.

    Raises:
        ValueError: If an argument is not as said here.

    >>> stiffness(0.5).share
    0.5
    """
    newcomers = checks.number("newcomers", newcomers, above=0)
    return Stiffness(checks.number("share", share, above=0), newcomers, *check_bounds(bounds))
