"""When a client's local solve is accurate enough.

A criterion compares the norm of the residual e, the gradient of the client's local problem (3.6), with a tolerance. It
has

* `residual`: how e is measured: None (never), "exact" (a gradient over all of the client's rows), "epoch_mean" (the
  mean of the epoch's stochastic residuals, which is free but an average over the epoch) or "verified" (an exact check
  only when the epoch mean says stop);
* `reference`: None, "server" (||e|| at z^k) or "client" (||e|| at u_i^k), for `progress.reference_residual`;
* `tolerance(progress)` and `sigma(progress)`, pure functions of one solve's `LocalProgress`;
* `floor`: an absolute residual below which a solve stops in any case;
* optionally `needs_noise = True`, if it uses `progress.residual_noise`, which is otherwise not computed.

Cost of a solve of n epochs with a relative criterion, in passes over the client's rows: "epoch_mean" n + 1 (one for
the reference), "verified" n + 2 and one for each exact check that refuses, "exact" 2 n + 1. The last two cost one less
if the solve runs to its maximum, after which nothing is checked. With the client's reference "exact" costs one more,
since it is also checked at z.

When can the epoch mean be trusted? Consider a direction of curvature h (including the penalty) and S steps of rate eta
per epoch. If eta h < 1, the epoch mean averages a decreasing residual, so it is larger than the residual at the end of
the epoch, and the solve may do more epochs than needed. With one batch per epoch it is the residual at the start of
the epoch, and the solve stops one epoch late. It is too small, so that a solve may stop too soon, in two cases. First,
if steps overshoot and the terms cancel (eta h near 2: for 1.9 and S = 5 it is 0.28 times the residual at the end).
Second, at the noise floor, where S eta h is well above 1: there it is about sqrt2 / (S eta h) times the exact
residual, which more epochs would not lower. "verified" is safe in both cases. The second is the usual one:
`benchmarks/refusals.py` counts checks that refuse, with and without noise.

If each step uses the full gradient, the residual is known at each step and all three kinds are exact. Your own
criterion is a `fa.record` with these members. Its numbers may be one per client; declare strings with `fa.static()`.
If something is missing, making the simulation fails and says what. Here is one that is strict at first and loose
later:

>>> @fa.record
... class Loosening:
...     eps: float = 0.01
...     residual: str = fa.static(default="epoch_mean")
...     reference = None  # without an annotation: the same for all objects
...     floor = 0.0
...
...     def tolerance(self, progress):
...         return self.eps * (progress.round + 1)
...
...     def sigma(self, progress):
...         return jnp.nan  # it has no factor to tell of
>>> local = fa.LocalSolver(learning_rate=0.1, max_epochs=5)
>>> problem = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5).problem
>>> sim = fa.Simulation(problem, fa.fedadmm(local, criterion=Loosening()))
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Protocol

import jax.numpy as jnp
from jax import Array

from ..core import checks
from ..core.record import record, static
from ..core.vocabulary import LocalProgress

RESIDUALS = ("exact", "epoch_mean", "verified")
REFERENCES = ("server", "client")
MAKERS = "fa.criteria, such as fa.criteria.relative_residual(c=0.01), or None"
MEMBERS = ("tolerance", "sigma", "residual", "reference", "floor")


class Criterion(Protocol):
    """The members of a criterion. If it uses `progress.residual_noise` it also has `needs_noise = True`."""

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
class SummableTolerance(_Absolute):
    """Stop when ||e|| <= eps / (k + 1)^power in round k = 0, 1, ..."""

    eps: Any
    power: Any = 2.0
    residual: str = static(default="exact")

    def tolerance(self, progress: LocalProgress) -> Array:
        return self.eps / (progress.round + 1).astype(progress.residual.dtype) ** self.power


@record
class SamplingNoise(_Absolute):
    """Stop when ||e|| <= factor * its standard error; NaN, which stops nothing, where there is no estimate."""

    factor: Any = 1.0
    residual: str = static(default="epoch_mean")
    needs_noise: ClassVar[bool] = True

    def tolerance(self, progress: LocalProgress) -> Array:
        return self.factor * progress.residual_noise


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


def checked(criterion: Criterion | None, *, unless_kept: str | None = None) -> Criterion:
    """A criterion as an algorithm's argument; None runs to the maximum.

    Args:
        criterion: The criterion.
        unless_kept: Of an algorithm whose clients do not keep their former parameters, what to use instead.
    """
    chosen = run_to_maximum() if criterion is None else criterion
    part = checks.part("criterion", chosen, MEMBERS, MAKERS)
    for name, words in (("residual", RESIDUALS), ("reference", REFERENCES)):
        checks.choice(f"{type(part).__name__}.{name}", getattr(part, name), (None, *words))
    if not isinstance(getattr(part, "needs_noise", False), bool):
        raise ValueError(f"{type(part).__name__}.needs_noise must be True or False, got {part.needs_noise!r}")  # pyright: ignore[reportAttributeAccessIssue]
    if unless_kept is not None and part.reference == "client":
        raise ValueError(f"reference='client' needs clients that keep their former parameters: use {unless_kept}")
    return part


def run_to_maximum() -> RunToMaximum:
    """Every solve does `max_epochs` epochs: Algorithm 1, FedAvg and FedProx as usually run.

    >>> run_to_maximum()
    RunToMaximum()
    """
    return RunToMaximum()


def constant_tolerance(eps: Any, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)|| <= eps: the preset accuracy that the paper argues against.

    An exact residual is checked before each epoch, so a client that is already accurate enough does none. The other
    two are only known after an epoch.

    Args:
        eps: The tolerance, above 0; a number, or one per client [clients].
        residual: "exact", "epoch_mean" or "verified".

    >>> constant_tolerance(1e-3).eps
    0.001

    Reference: Zhang et al., "FedPD: A Federated Learning Framework With Adaptivity to Non-IID Data", IEEE
    Trans. Signal Processing 69, 2021 (its oracle I solves each subproblem to a given accuracy).
    """
    return decaying_tolerance(eps, factor=1.0, residual=residual)


def decaying_tolerance(eps: Any, factor: Any = 0.9, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)|| <= eps * factor^k in round k = 0, 1, ...

    With factor < 1 the tolerances are summable, the condition under which an inexact ADMM converges for convex
    functions.

    Args:
        eps: The tolerance of the first round, above 0; a number, or one per client [clients].
        factor: Above 0 and at most 1, which gives a constant tolerance; a number, or one per client [clients].
        residual: "exact", "epoch_mean" or "verified".

    >>> decaying_tolerance(0.1, factor=0.5).factor
    0.5

    Reference: Eckstein and Bertsekas, "On the Douglas-Rachford splitting method and the proximal point
    algorithm for maximal monotone operators", Mathematical Programming 55, 1992, Theorem 8.
    """
    return DecayingTolerance(
        eps=checks.number("eps", eps, above=0, per_client=True),
        factor=checks.number("factor", factor, above=0, at_most=1, per_client=True),
        residual=checks.choice("residual", residual, RESIDUALS),
    )


def decaying_squared_tolerance(eps: Any, factor: Any = 0.95, *, residual: str = "exact") -> DecayingTolerance:
    """Stop when ||e(u)||^2 <= eps * factor^k in round k = 0, 1, ..., the condition of Zhou and Li's FedADMM.

    Theirs is ||e||^2 <= eps_i^{k+1} <= factor_i eps_i^k with factor_i < 1: `decaying_tolerance` with both roots.

    The decay is counted in rounds. The authors' program lowers eps_i only when client i is selected. A decay by
    rounds keeps their inequality from each solve of a client to its next and needs no count for each client, but
    where a fraction p of the clients is selected, eps_i falls by factor^(1 / p) a solve: give factor^p for theirs.
    Their residual has the client's weight alpha_i in it, and their program's bound is eps_i times the number n of
    parameters: its eps_i is our eps * alpha_i^2 / n.

    Args:
        eps: The bound on the squared norm in the first round, above 0; a number, or one per client [clients].
        factor: In (0, 1); a number, or one per client [clients]. The authors' program uses 0.95.
        residual: "exact", "epoch_mean" or "verified".

    >>> decaying_squared_tolerance(4.0, factor=0.25)
    DecayingTolerance(eps=2.0, factor=0.5, residual='exact')

    Reference: Zhou and Li, "Federated Learning via Inexact ADMM", IEEE Trans. Pattern Analysis and Machine
    Intelligence 45, 2023, and its program, github.com/ShenglongZhou/FedADMM.
    """
    eps = checks.number("eps", eps, above=0, per_client=True)
    factor = checks.number("factor", factor, above=0, below=1, per_client=True)
    return decaying_tolerance(eps**0.5, factor**0.5, residual=residual)


def summable_tolerance(eps: Any, power: Any = 2.0, *, residual: str = "exact") -> SummableTolerance:
    """Stop when ||e(u)|| <= eps / (k + 1)^power in round k = 0, 1, ..., tolerances with a finite sum.

    With convex f_i and a constant penalty beta the local problem is strongly convex, so the distance to its solution
    is at most ||e|| / beta. The errors then have a finite sum, and ADMM converges as with exact solves. The theorem
    requires all clients in every round, exact residuals, and that no solve ends at its maximum of epochs.

    Args:
        eps: The tolerance of the first round, above 0; a number, or one per client [clients].
        power: Above 1, since otherwise the sum is infinite; a number, or one per client [clients].
        residual: "exact", "epoch_mean" or "verified".

    >>> summable_tolerance(0.1, power=1.5).power
    1.5

    Reference: Eckstein and Bertsekas, "On the Douglas-Rachford splitting method and the proximal point
    algorithm for maximal monotone operators", Mathematical Programming 55, 1992, Theorem 8.
    """
    return SummableTolerance(
        eps=checks.number("eps", eps, above=0, per_client=True),
        power=checks.number("power", power, above=1, per_client=True),
        residual=checks.choice("residual", residual, RESIDUALS),
    )


def sampling_noise(factor: Any = 1.0, *, residual: str = "epoch_mean") -> SamplingNoise:
    """Stop when the residual cannot be told from sampling noise: ||e|| <= factor * its standard error.

    An epoch's S batches, of shares s_j of the client's N rows, give e = sum_j s_j e_j and

        noise^2 = (sum_j s_j ||e_j||^2 - ||e||^2) / (S - 1)

    With batches drawn at random and parameters that stand still, its expectation is tr(V) / N with V the covariance
    of one row's residual, whatever the batches' sizes: the squared standard error of e, the client's rows taken as a
    sample. Below it, further steps fit these rows rather than what they were drawn from.

    Limits. One batch gives no estimate: with `batch_size=None`, and for clients with no more rows than a batch, every
    solve runs to its maximum. With few batches the estimate is rough. The noise is summed over all parameters. If
    there are more parameters than rows, ||e|| may be about as large as its noise at any point (on least squares with
    50 rows and 500 parameters, far from the optimum, a factor of 1 stopped within ten epochs, and 0.7 not within
    fifty). The tolerance does not go to zero, so no theorem on inexact ADMM covers it.

    Args:
        factor: Above 0; a number, or one per client [clients].
        residual: "epoch_mean" costs no extra gradients, but the parameters move during the epoch and this drift counts
            as noise, so it stops sooner. "exact" and "verified" measure both numbers at the same parameters, with a
            full gradient each time.

    >>> sampling_noise(0.5).residual
    'epoch_mean'

    References: this is the norm test of Byrd, Chin, Nocedal and Wu, "Sample size selection in optimization methods
    for machine learning", Mathematical Programming 134, 2012, failing for all of a client's rows (they, and
    Bollapragada, Byrd and Nocedal, "Adaptive sampling strategies for stochastic optimization", SIAM J. Optimization
    28, 2018, then take more rows); as a rule to stop, for each parameter by itself: Mahsereci, Balles, Lassner and
    Hennig, "Early stopping without a validation set", arXiv:1703.09580, 2017.
    """
    return SamplingNoise(
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

    Give either `c`, for sigma = sigma_factor * sqrt2 / (sqrt2 + sqrt(beta / c)) with the client's current penalty beta
    (3.18), or `sigma` itself. FedProx's gamma-inexactness (Li et al., "Federated optimization in heterogeneous
    networks", MLSys 2020, Definition 2) is sigma = gamma with the server's reference: at z^k the proximal term has no
    gradient.

    Args:
        c: The modulus of strong convexity, above 0; a number, or one per client [clients].
        sigma: In (0, 1); a number, or one per client [clients].
        reference: "server" compares with ||e(z^k)|| (Remark 3.4, as in the paper's experiments), "client" with
            ||e(u_i^k)|| (3.7), which Theorem 3.3 covers. With the latter the criterion may hold at the start, so that
            a solve does no epoch.
        residual: "exact", "epoch_mean" or "verified".
        sigma_factor: With `c`, the share of sigma's bound that is used, below 1.
        floor: Also stop when ||e(u)|| <= floor. In single precision a relative criterion cannot be met near the
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
