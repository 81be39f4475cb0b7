"""Small federations that several tests share."""

from __future__ import annotations

import itertools
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_admm as fa
from fedjax_admm.core import randomness
from fedjax_admm.engine import shuffle

GAMMA = 0.1


def init_zeros(dimension, key):
    return jnp.zeros(dimension)


@lru_cache
def initializer(dimension):
    """One function per dimension, so that problems of one shape share compiled code."""
    return partial(init_zeros, dimension)


def squared_error(w, batch):
    return 0.5 * (batch["x"] @ w - batch["y"]) ** 2


def ridge(w):
    return 0.5 * GAMMA * jnp.sum(w**2)


def least_squares(sizes, dimension=5, seed=0, dtype=np.float64, heterogeneity=1.0, **kwargs):
    """A least-squares federation: (problem, xs, ys), with each client's optimum its own."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=dimension)
    xs = [rng.normal(size=(n, dimension)) for n in sizes]
    ys = [x @ (shared + heterogeneity * rng.normal(size=dimension)) + 0.1 * rng.normal(size=len(x)) for x in xs]
    return make_problem(xs, ys, dtype=dtype, **kwargs), xs, ys


def make_problem(xs, ys, dtype=np.float64, **kwargs):
    offsets = np.cumsum([0, *map(len, xs)])
    parts = [np.arange(a, b) for a, b in itertools.pairwise(offsets)]
    fields = {"x": np.concatenate(xs).astype(dtype), "y": np.concatenate(ys).astype(dtype)}
    data = fa.FederatedData.from_arrays(fields, parts, **kwargs)
    return fa.Problem(init=initializer(xs[0].shape[1]), loss=squared_error, data=data, regularizer=ridge)


def steep_beyond_a_half(w, batch):
    """A squared error whose gradient is finite everywhere, but too large above one half for its norm to be."""
    return 0.5 * (w[0] - batch["y"]) ** 2 * jnp.where(w[0] > 0.5, 1e300, 1.0)


def two_sides_of_a_cliff():
    """Two clients, the first at home on a cliff: a step of 0.7 from zero leads it there, and the server away from it."""
    data = fa.FederatedData.from_arrays({"y": np.array([1.0, -3.0])}, [[0], [1]])
    return fa.Problem(init=initializer(2), loss=steep_beyond_a_half, data=data)


def optimum(xs, ys, alpha):
    """The minimiser of sum_i alpha_i f_i, solved directly."""
    hessian = sum(a * x.T @ x / len(x) for a, x in zip(alpha, xs, strict=True)) + GAMMA * np.eye(xs[0].shape[1])
    return np.linalg.solve(hessian, sum(a * x.T @ y / len(x) for a, x, y in zip(alpha, xs, ys, strict=True)))


def epoch_order(seed, sizes):
    """The rows' order of (round, client, epoch) in a run with this seed."""
    key = jax.random.split(randomness.root_key(seed))[1]

    def order(round, client, epoch):
        return np.asarray(rows_in_order(key, round, client, epoch, sizes[client]))

    return order


@partial(jax.jit, static_argnames="size")
def rows_in_order(key, round, client, epoch, size):
    words = jax.random.key_data(randomness.client_key(key, round, jnp.int32(client)))
    return shuffle.permute(
        shuffle.epoch_order(words, epoch), jnp.arange(size, dtype=jnp.int32), jnp.int32(0), jnp.int32(size)
    )
