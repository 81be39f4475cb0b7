"""What tests of methods against their papers' pseudocode share: local steps in NumPy, and quadratics solved exactly."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from federations import GAMMA, epoch_order, initializer

import fedjax_admm as fa

SIZES = [7, 3, 12, 1, 9, 5]
M, ROUNDS, SEED, BATCH = len(SIZES), 6, 5, 4
RNG = np.random.default_rng(2)
COHORTS = np.stack([np.sort(RNG.choice(M, 4, replace=False)) for _ in range(ROUNDS)])
EVERYONE = np.tile(np.arange(M), (ROUNDS, 1))
RATE = RNG.uniform(0.02, 0.08, M)
EPOCHS = RNG.integers(2, 7, M)
START = RNG.normal(size=5)
EQUAL = np.full(M, 1 / M)
UNEQUAL = np.array([1.0, 5, 2, 2, 1, 3]) / 14
LOCAL = fa.LocalSolver(learning_rate=RATE, batch_size=BATCH, max_epochs=EPOCHS)
_ORDER = epoch_order(SEED, SIZES)


def run(problem, algorithm, participation=COHORTS, **options):
    options = dict(seed=SEED, initial_params=START, progress=False) | options
    return fa.simulate(
        problem, algorithm, options.pop("rounds", len(participation)), participation=participation, **options
    )


def close(value, truth, tolerance=1e-11):
    np.testing.assert_allclose(value, truth, rtol=tolerance, atol=tolerance)


def batches(round, client, epochs=None, first=0):
    """The minibatches of a client's epochs in a round, in the package's order of rows."""
    epochs = EPOCHS[client] if epochs is None else epochs
    cuts = range(BATCH, SIZES[client], BATCH)
    return [rows for e in range(first, first + epochs) for rows in np.split(_ORDER(round, client, e), cuts)]


def descend(x, y, start, parts, rate, linear=0.0, penalty=0.0, center=0.0, momentum=0.0):
    """SGD on least squares, f(w) - <linear, w> + penalty / 2 ||w - center||^2, one step for each of `parts`' rows."""
    w, velocity = start, np.zeros_like(start)
    for rows in parts:
        gradient = x[rows].T @ (x[rows] @ w - y[rows]) / len(rows) + GAMMA * w
        velocity = momentum * velocity + gradient - linear + penalty * (w - center)
        w = w - rate * velocity
    return w


def bowl(w, batch):
    return 0.5 * batch["h"] * jnp.sum((w - batch["e"]) ** 2, axis=-1)


def bowls(curvatures, optima):
    """Clients with f_i(w) = h_i / 2 ||w - e_i||^2 and equal weights, and the minimiser of their mean."""
    h, e = np.asarray(curvatures, float), np.asarray(optima, float)
    data = fa.FederatedData.from_arrays({"h": h, "e": e}, [[i] for i in range(len(h))])
    return fa.Problem(init=initializer(e.shape[1]), loss=bowl, data=data), h @ e / h.sum()


def exact(curvatures, penalty, epochs=1):
    """A solver whose one step ends at the minimiser of h_i / 2 ||u - e_i||^2 + penalty / 2 ||u - center||^2 + linear."""
    return fa.LocalSolver(learning_rate=1 / (np.asarray(curvatures) + penalty), max_epochs=epochs)
