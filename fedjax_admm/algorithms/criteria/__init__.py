"""When a client's local solve is accurate enough. Each criterion is one module of this folder.

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

from typing import TYPE_CHECKING, Any

from ...core.discovery import find_names
from .arguments import checked as checked
from .criterion import RESIDUALS as RESIDUALS
from .criterion import Criterion as Criterion

_CRITERIA = find_names(__name__, __path__)
__all__ = ["Criterion", *sorted(_CRITERIA)]  # pyright: ignore[reportUnsupportedDunderAll]
globals().update(_CRITERIA)

if TYPE_CHECKING:  # what editors complete; a criterion that is missing here works all the same
    from .decaying_tolerance import constant_tolerance as constant_tolerance
    from .decaying_tolerance import decaying_squared_tolerance as decaying_squared_tolerance
    from .decaying_tolerance import decaying_tolerance as decaying_tolerance
    from .relative_residual import relative_residual as relative_residual
    from .run_to_maximum import run_to_maximum as run_to_maximum
    from .sampling_noise import sampling_noise as sampling_noise
    from .summable_tolerance import summable_tolerance as summable_tolerance

    def __getattr__(name: str) -> Any: ...
