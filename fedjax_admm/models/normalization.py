"""Normalisation of images, the first operation of every image model, so that data can stay uint8."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["CIFAR10", "MNIST", "Normalization"]


class Normalization(NamedTuple):
    """Mean and standard deviation per channel, of pixels scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


MNIST = Normalization((0.1307,), (0.3081,))
CIFAR10 = Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def to_float(x: jax.Array, normalization: Normalization | None) -> jax.Array:
    """Pixels in [0, 255] become float32 in [0, 1], floats stay as they are; then normalise.

    Args:
        x: [..., channels], or any shape where the normalisation has one channel. uint8 are pixels, and with a
            normalisation all integers; else integers, and always booleans, are numbers like any other.
        normalization: None leaves out mean and standard deviation.

    >>> float(to_float(jnp.uint8([[255]]), Normalization((0.5,), (0.5,)))[0, 0])
    1.0
    """
    whole = jnp.issubdtype(x.dtype, jnp.integer)
    scale = 1.0 / 255.0 if x.dtype == jnp.uint8 or (whole and normalization is not None) else 1.0
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32)
    if normalization is None:
        return x * scale if scale != 1.0 else x
    channels = len(normalization.mean)
    if channels > 1 and x.shape[-1] != channels:
        raise ValueError(
            f"normalization has {channels} channels and the input's last axis {x.shape[-1]}: give normalization= the "
            "means and deviations of this input, or None"
        )
    # One multiplication and one subtraction, with constants that are rounded once.
    mean, std = np.asarray(normalization.mean), np.asarray(normalization.std)
    return x * (scale / std).astype(x.dtype) - (mean / std).astype(x.dtype)
