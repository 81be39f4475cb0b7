"""The paper's criterion (3.7): a residual relative to the one at a reference."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from jax import Array

from ...core import checks
from ...core.record import record, static
from ...core.vocabulary import LocalProgress
from .criterion import REFERENCES, RESIDUALS

__all__ = ["RelativeResidual", "relative_residual"]


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
