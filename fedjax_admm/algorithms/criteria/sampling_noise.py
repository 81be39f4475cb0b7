"""A residual that cannot be told from sampling noise."""

from __future__ import annotations

from typing import Any, ClassVar

from jax import Array

from ...core import checks
from ...core.record import record, static
from ...core.vocabulary import LocalProgress
from .criterion import RESIDUALS, Absolute

__all__ = ["SamplingNoise", "sampling_noise"]


@record
class SamplingNoise(Absolute):
    """Stop when ||e|| <= factor * its standard error; NaN, which stops nothing, where there is no estimate."""

    factor: Any = 1.0
    residual: str = static(default="epoch_mean")
    needs_noise: ClassVar[bool] = True

    def tolerance(self, progress: LocalProgress) -> Array:
        return self.factor * progress.residual_noise


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
