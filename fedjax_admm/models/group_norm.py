"""Group normalisation of images with its gradient written out.

XLA's CPU backend sums over a whole image, channels included, one number after the other; sums over height and width
alone go over whole vectors of channels. So all sums here are [N, C] first, and few: two passes over the image forward,
one backward, besides the pass that writes the result.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
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
    return _forward(x, scale, bias, groups, epsilon)[0]


def _forward(x, scale, bias, groups, epsilon):
    mean = _spread(_group_mean(x.mean((1, 2)), groups))
    variance = _group_mean(jnp.square(x - mean).mean((1, 2)), groups)
    inverse = _spread(jax.lax.rsqrt(variance + epsilon))
    return (x - mean) * (inverse * scale) + bias, (x, scale, mean, inverse)


def _backward(groups, epsilon, residuals, g):
    x, scale, mean, inverse = residuals
    normal = (x - mean) * inverse
    sums, products = g.sum((1, 2)), (g * normal).sum((1, 2))  # [N, C]
    size = x.shape[1] * x.shape[2]
    one = _spread(_group_mean(sums * scale / size, groups))
    other = _spread(_group_mean(products * scale / size, groups))
    return (g * scale - one - normal * other) * inverse, products.sum(0), sums.sum(0)


group_norm.defvjp(_forward, _backward)


def _group_mean(values: jax.Array, groups: int) -> jax.Array:
    """The mean of each group's channels in the place of each of them: [N, C] -> [N, C]."""
    grouped = values.reshape(len(values), groups, -1).mean(-1, keepdims=True)
    return jnp.broadcast_to(grouped, (len(values), groups, values.shape[1] // groups)).reshape(values.shape)


def _spread(values: jax.Array) -> jax.Array:
    """[N, C] -> [N, 1, 1, C]"""
    return values[:, None, None, :]
