"""The server optimizers of Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2, for `ServerStep`.

With Delta the clients' averaged update, which is the negative of what an optimizer takes for a gradient,

    m+ = beta1 m + (1 - beta1) Delta,    m = 0 and v = tau^2 at first,
    v+ = v + Delta^2                                            (adagrad)
    v+ = beta2 v + (1 - beta2) Delta^2                          (adam)
    v+ = v - (1 - beta2) Delta^2 sign(v - Delta^2)              (yogi)
    z+ = z + eta m+ / (sqrt(v+) + tau).

They differ from optax's optimizers of the same names, which correct the bias of m and v and start v at another value.
FedAvgM's optimizer, v+ = beta v + Delta and z+ = z + eta v+, is optax.sgd with momentum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ..core import trees


class Moments(NamedTuple):
    """What these optimizers remember."""

    mean: Any  # [...] m
    square: Any  # [...] v


def adagrad(learning_rate: Any, beta1: Any = 0.0, tau: Any = 1e-3) -> optax.GradientTransformation:
    """FedAdagrad's: the squares of all updates add up, so steps shrink.

    Args:
        learning_rate: eta.
        beta1: How much of m stays.
        tau: Updates smaller than this are treated alike; the smaller it is, the more adaptive the optimizer.

    >>> fa.ServerStep(fa.server_optimizers.adagrad, learning_rate=0.1).learning_rate
    0.1
    """
    return _adaptive(learning_rate, beta1, tau, lambda v, square: v + square)


def adam(learning_rate: Any, beta1: Any = 0.9, beta2: Any = 0.99, tau: Any = 1e-3) -> optax.GradientTransformation:
    """FedAdam's: a running mean of the squares.

    Args:
        beta2: How much of v stays.

    The other arguments are `adagrad`'s.

    >>> fa.ServerStep(fa.server_optimizers.adam, 0.1, options={"tau": 1e-2}).options
    {'tau': 0.01}
    """

    def follow(v: Array, square: Array) -> Array:
        keep = jnp.asarray(beta2).astype(v.dtype)
        return keep * v + (1 - keep) * square

    return _adaptive(learning_rate, beta1, tau, follow)


def yogi(learning_rate: Any, beta1: Any = 0.9, beta2: Any = 0.99, tau: Any = 1e-3) -> optax.GradientTransformation:
    """FedYogi's: like FedAdam's if v is below the square; otherwise v falls only in proportion to the square.

    Args:
        beta2: v moves by 1 - beta2 times the square.

    The other arguments are `adagrad`'s.

    >>> fa.ServerStep(fa.server_optimizers.yogi, learning_rate=0.1).learning_rate
    0.1
    """

    def follow(v: Array, square: Array) -> Array:
        return v - (1 - jnp.asarray(beta2).astype(v.dtype)) * square * jnp.sign(v - square)

    return _adaptive(learning_rate, beta1, tau, follow)


def _adaptive(rate: Any, beta1: Any, tau: Any, follow: Callable[[Array, Array], Array]) -> optax.GradientTransformation:
    """The lines that the three share; `follow` is v+, from v and the gradient's square."""

    def init(params: Any) -> Moments:
        first = jnp.square(jnp.asarray(tau))
        return Moments(optax.tree.zeros_like(params), jax.tree.map(lambda z: jnp.full_like(z, first), params))

    def update(gradient: Any, state: Moments, params: Any = None) -> tuple[Any, Moments]:
        mean = optax.tree.add(trees.scale(beta1, state.mean), trees.scale(1 - beta1, gradient))
        square = jax.tree.map(lambda v, g: follow(v, jnp.square(g)), state.square, gradient)

        def step(m: Array, v: Array) -> Array:
            eta, least = (jnp.asarray(number).astype(v.dtype) for number in (rate, tau))
            return -eta * m / (jnp.sqrt(v) + least)

        return jax.tree.map(step, mean, square), Moments(mean, square)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]
