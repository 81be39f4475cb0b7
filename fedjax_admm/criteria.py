"""When a client's local solve is accurate enough.

A criterion compares the norm of the subproblem's residual e (3.6) with a tolerance. It has

* `residual`: None (never looks), "exact" (a gradient over all of the client's rows), "epoch_mean" (the mean of
  the epoch's stochastic residuals, free but an average along the way) or "verified" (an exact look only when
  the epoch mean says stop);
* `reference`: None, "server" (||e|| at z^k) or "client" (||e|| at u_i^k), for `progress.reference_residual`;
* `tolerance(progress)` and `sigma(progress)`, pure functions of one solve's `LocalProgress`;
* `floor`: an absolute residual below which a solve stops whatever the tolerance says.

With a full gradient the residual at each iterate is at hand and all three residuals are the exact one.
A new criterion is a `record` with these five; its numbers may be one per client.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
from jax import Array

from . import checks
from .records import LocalProgress
from .trees import record, static

RESIDUALS = ("exact", "epoch_mean", "verified")
REFERENCES = ("server", "client")


class Criterion(Protocol):
    """What the engine asks of a criterion."""

    @property
    def residual(self) -> str | None: ...
    @property
    def reference(self) -> str | None: ...
    @property
    def floor(self) -> Any: ...
    def tolerance(self, progress: LocalProgress) -> Array: ...
    def sigma(self, progress: LocalProgress) -> Array: ...


class _Absolute:
    """A tolerance that is not relative to anything."""

    reference: ClassVar[None] = None
    floor: ClassVar[float] = 0.0

    def sigma(self, progress: LocalProgress) -> Array:
        return jnp.full_like(progress.residual, jnp.nan)


@record
class RunToMaximum(_Absolute):
    """Every solve does its maximum of epochs; no residual is ever computed."""

    residual: ClassVar[None] = None

    def tolerance(self, progress: LocalProgress) -> Array:
        return jnp.full_like(progress.residual, -jnp.inf)


@record
class DecayingTolerance(_Absolute):
    """Stop when ||e|| <= eps * factor^k in round k = 0, 1, ..."""

    eps: Any
    factor: Any = 1.0
    residual: str = static(default="exact")

    def tolerance(self, progress: LocalProgress) -> Array:
        return self.eps * self.factor ** progress.round.astype(progress.residual.dtype)


@record
class RelativeResidual:
    """Stop when ||e(u)|| <= sigma ||e(reference)||, criterion (3.7)."""

    c: Any = None  # one of c and fixed_sigma is None
    fixed_sigma: Any = None
    sigma_factor: Any = 0.999
    floor: Any = 0.0
    reference: str = static(default="server")
    residual: str = static(default="exact")

    def sigma(self, progress: LocalProgress) -> Array:
        if self.fixed_sigma is not None:
            return self.fixed_sigma
        # (3.9) and (3.18): sigma < sqrt2 / (sqrt2 + sqrt(beta / c)); the factor keeps it strictly inside.
        root = math.sqrt(2.0)
        return self.sigma_factor * root / (root + jnp.sqrt(progress.penalty / self.c))

    def tolerance(self, progress: LocalProgress) -> Array:
        return self.sigma(progress) * progress.reference_residual


def checked(criterion: Criterion | None) -> Criterion:
    """A criterion as an algorithm's argument; None runs to the maximum."""
    return checks.part("criterion", criterion or run_to_maximum(), "tolerance", "fa.criteria")


def run_to_maximum() -> RunToMaximum:
    """Every solve does `max_epochs` epochs: Algorithm 1, FedAvg and FedProx as usually run.

    >>> run_to_maximum()
    RunToMaximum()
    """
    return RunToMaximum()


def constant_tolerance(eps: Any, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)|| <= eps: the preset accuracy that the paper argues against.

    `eps` is a number, or one per client [clients]. The residual is looked at before each epoch, so a client
    that is accurate enough already does none.

    >>> constant_tolerance(1e-3).eps
    0.001

    Reference: Zhang et al., "FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data", IEEE
    Trans. Signal Processing 69, 2021 (its oracle I solves each subproblem to a given accuracy).
    """
    return decaying_tolerance(eps, factor=1.0, residual=residual)


def decaying_tolerance(eps: Any, factor: Any = 0.9, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)|| <= eps * factor^k in round k = 0, 1, ...

    With factor < 1 the tolerances are summable, the condition under which an inexact ADMM converges for convex
    functions. Both numbers may be one per client [clients].

    >>> decaying_tolerance(0.1, factor=0.5).factor
    0.5

    Reference: Eckstein and Bertsekas, "On the Douglas-Rachford splitting method and the proximal point
    algorithm for maximal monotone operators", Mathematical Programming 55, 1992, Theorem 8.
    """
    return DecayingTolerance(
        eps=checks.number("eps", eps, above=0, per_client=True),
        factor=checks.number("factor", factor, above=0, per_client=True),
        residual=checks.choice("residual", residual, RESIDUALS),
    )


def relative_residual(
    *,
    c: Any = None,
    sigma: Any = None,
    reference: str = "server",
    residual: str = "exact",
    sigma_factor: Any = 0.999,
    floor: Any = 0.0,
) -> RelativeResidual:
    """Stop when ||e(u)|| <= sigma ||e(reference)||, the paper's inexactness criterion (3.7).

    Give either `c`, the modulus of strong convexity, for sigma = sigma_factor * sqrt2 / (sqrt2 + sqrt(beta /
    c)) with the client's current penalty beta (3.18), or `sigma` itself in (0, 1), as in FedProx's
    gamma-inexactness. Each may be one per client [clients].

    reference: "server" compares with ||e(z^k)|| (Remark 3.4, what the paper's experiments do), "client" with
    ||e(u_i^k)|| (3.7), which Theorem 3.3 covers; then a solve may hold at its start and do no epoch.
    floor: stop too when ||e(u)|| <= floor; in single precision a relative criterion cannot be met near the
    optimum, and without a floor each later solve runs to its maximum.

    >>> relative_residual(c=0.01).reference
    'server'
    """
    if (c is None) == (sigma is None):
        raise ValueError(f"give one of c and sigma to relative_residual, got c={c!r} and sigma={sigma!r}")
    if c is not None:
        c = checks.number("c", c, above=0, per_client=True)
    if sigma is not None:
        sigma = checks.number("sigma", sigma, above=0, below=1, per_client=True)
    return RelativeResidual(
        c=c,
        fixed_sigma=sigma,
        sigma_factor=checks.number("sigma_factor", sigma_factor, above=0, below=1),
        floor=checks.number("floor", floor, at_least=0, per_client=True),
        reference=checks.choice("reference", reference, REFERENCES),
        residual=checks.choice("residual", residual, RESIDUALS),
    )
