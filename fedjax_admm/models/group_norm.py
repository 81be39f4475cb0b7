"""Group normalisation of images, alone or with the shortcut and the ReLU after it, with its gradient written out.

What counts on a CPU is how often an image is passed over, and in how long runs:

- Sums go over the height first, in runs of width times channels; channels and groups are summed up after that, [N, C].
- Normalisation, shortcut and ReLU are one pass, and so are their gradients; a ReLU's gradient needs only its result.
- Each direction is a computation of its own (`kept`), so that XLA writes its result once. Otherwise it computes it
  again in every operation that reads it, and in a residual network that is all blocks before.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from .computations import kept


def group_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, groups: int = 1, epsilon: float = 1e-5) -> jax.Array:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; equals flax's GroupNorm to rounding.

    Args:
        x: Images [N, H, W, C].
        scale: [C].
        bias: [C].
        groups: Into how many groups the channels are divided; mean and variance are an image's and a group's.
        epsilon: Added to the variance.

    Returns:
        [N, H, W, C].

    >>> group_norm(jnp.arange(8.0).reshape(1, 2, 2, 2), jnp.ones(2), jnp.zeros(2)).shape
    (1, 2, 2, 2)
    """
    return _norm(x, scale, bias, None, False, groups, epsilon)


def group_norm_relu(
    x: jax.Array,
    scale: jax.Array,
    bias: jax.Array,
    shortcut: jax.Array | None = None,
    groups: int = 1,
    epsilon: float = 1e-5,
) -> jax.Array:
    """`relu(group_norm(x, scale, bias) + shortcut)`; the arguments are those of `group_norm`.

    Args:
        x: Images [N, H, W, C].
        scale: [C].
        bias: [C].
        shortcut: [N, H, W, C], or None for no addition.
        groups: As above.
        epsilon: As above.
    """
    return _norm(x, scale, bias, shortcut, True, groups, epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5, 6))
def _norm(x, scale, bias, shortcut, relu: bool, groups: int, epsilon: float) -> jax.Array:
    return _forward(x, scale, bias, shortcut, relu, groups, epsilon)[0]


def _forward(x, scale, bias, shortcut, relu, groups, epsilon):
    y, mean, inverse = kept(_normalize)(x, scale, bias, shortcut, relu=relu, groups=groups, epsilon=epsilon)
    return y, (x, y if relu else None, scale, mean, inverse, shortcut is not None)


def _backward(relu, groups, epsilon, residuals, g):
    x, y, scale, mean, inverse, has_shortcut = residuals
    gradients = kept(_gradients)(g, x, y, scale, mean, inverse, groups=groups)
    return *gradients, (g if y is None else jnp.where(y > 0, g, 0)) if has_shortcut else None


_norm.defvjp(_forward, _backward)


def _normalize(x, scale, bias, shortcut, *, relu, groups, epsilon):
    """The result, and the mean and the inverse of the deviation of each image and channel, [N, C]."""
    n, height, width, channels = x.shape
    lines = x.reshape(n, height, -1)
    mean = _group_mean(_sum(lines, channels) / (height * width), groups)
    centered = lines - _line(mean, width)
    variance = _group_mean(_sum(jnp.square(centered), channels) / (height * width), groups)
    inverse = lax.rsqrt(variance + epsilon)
    y = centered * _line(inverse * scale, width) + _line(jnp.broadcast_to(bias, mean.shape), width)
    y = y if shortcut is None else y + shortcut.reshape(lines.shape)
    return (jnp.maximum(y, 0) if relu else y).reshape(x.shape), mean, inverse


def _gradients(g, x, y, scale, mean, inverse, *, groups):
    """By x, scale and bias."""
    n, height, width, channels = x.shape
    lines, g = x.reshape(n, height, -1), g.reshape(n, height, -1)
    g = g if y is None else lax.select(y.reshape(g.shape) > 0, g, jnp.zeros_like(g))
    centered = lines - _line(mean, width)
    sums, products = _sum(g, channels), _sum(g * centered, channels) * inverse
    one = _group_mean(sums * scale / (height * width), groups) * inverse
    other = _group_mean(products * scale / (height * width), groups) * jnp.square(inverse)
    gradient = g * _line(inverse * scale, width) - (centered * _line(other, width) + _line(one, width))
    return gradient.reshape(x.shape), products.sum(0), sums.sum(0)


def _sum(lines: jax.Array, channels: int) -> jax.Array:
    """Over height and width: [N, H, W * C] -> [N, C]."""
    return _halve(_halve(lines).reshape(len(lines), -1, channels))


def _halve(x: jax.Array) -> jax.Array:
    """The sum over axis 1, in pairs while there are pairs: element-wise operations, of which XLA makes one pass, where
    its reduction of products of several arrays takes three times as long."""
    while x.shape[1] % 2 == 0:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x.sum(1)


def _line(values: jax.Array, width: int) -> jax.Array:
    """[N, C] -> [N, 1, W * C]"""
    return jnp.tile(values, (1, width))[:, None]


def _group_mean(values: jax.Array, groups: int) -> jax.Array:
    """The mean of each group's channels in the place of each of them: [N, C] -> [N, C]."""
    grouped = values.reshape(len(values), groups, -1).mean(-1, keepdims=True)
    return jnp.broadcast_to(grouped, (len(values), groups, values.shape[1] // groups)).reshape(values.shape)
