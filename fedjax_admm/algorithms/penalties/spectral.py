"""The penalty is the curvature of the client's loss between its last two solves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ...core import checks
from ...core.record import record
from ...core.types import Params
from .arguments import check_bounds, check_until
from .arithmetic import or_one
from .bounds import BOUNDS, Bounded
from .rule import Evidence

__all__ = ["Spectral", "spectral"]

NOISE = 1e3  # times the rounding error of a vector: differences of this length say nothing


@record
class Spectral(Bounded):
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
        steep, flat = turned**2 / or_one(product), product / or_one(moved**2)
        curvature = jnp.where(2 * flat > steep, flat, steep - flat / 2)

        rounding = [NOISE * jnp.finfo(dtype).eps * optax.tree.norm(vector) for vector in now]
        measurable = (moved > rounding[0]) & (turned > rounding[1])
        trusted = (memory["solves"] > 0) & measurable & (product > self.correlation * moved * turned)
        most = 1 + self.slack / jnp.maximum(memory["solves"], 1).astype(dtype) ** 2
        new = jnp.where(trusted, jnp.clip(curvature, penalty / most, penalty * most), penalty)
        return new, {"params": seen.params, "duals": seen.duals, "solves": memory["solves"] + 1}


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
    return Spectral(correlation, checks.number("slack", slack, above=0), *check_bounds(bounds), check_until(until))


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
