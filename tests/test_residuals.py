"""What the three residuals cost, counted in passes over a client's rows, and where the epoch mean misleads."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from federations import initializer, least_squares

import fedjax_admm as fa

SIZES = [24, 36, 12, 48]
LOCAL = fa.LocalSolver(learning_rate=0.02, batch_size=6, max_epochs=200)


@functools.cache
def first_round(residual):
    """Epochs, passes of all kinds and passes of the criterion of each client's first solve."""
    problem, *_ = least_squares(SIZES, heterogeneity=0.3)
    algorithm = fa.fedadmm_in(LOCAL, penalty=0.5, c=0.1, residual=residual)
    result = fa.simulate(problem, algorithm, rounds=1, initial_params=np.full(5, 2.0), progress=False)
    assert (result.solves.stop_reason == "criterion").all()
    rows = np.array(SIZES)
    return result.epochs[0], result.solves.gradient_samples[0] / rows, result.solves.criterion_samples[0] / rows


def test_passes_of_a_solve_of_n_epochs():
    n, passes, own = first_round("epoch_mean")
    assert n.min() > 1
    np.testing.assert_array_equal(own, np.ones(4))  # the reference
    np.testing.assert_array_equal(passes, n + 1)

    n, passes, own = first_round("exact")
    np.testing.assert_array_equal(own, n + 1)  # the reference, and a look after each epoch
    np.testing.assert_array_equal(passes, 2 * n + 1)


def test_verified_pays_for_the_look_that_agrees_and_for_those_that_refuse():
    proposed, *_ = first_round("epoch_mean")  # from this epoch on, the mean of so smooth a solve says stop every time
    n, passes, own = first_round("verified")
    refused = n - proposed
    assert (refused >= 0).all()
    np.testing.assert_array_equal(own, 2 + refused)
    np.testing.assert_array_equal(passes, n + 2 + refused)


def test_the_exact_criterion_does_not_look_at_the_maximum():
    problem, *_ = least_squares(SIZES, heterogeneity=0.3)
    local = fa.LocalSolver(learning_rate=0.02, batch_size=6, max_epochs=3)
    algorithm = fa.fedadmm_in(local, penalty=0.5, c=1e-9)  # a sigma that is not reached
    result = fa.simulate(problem, algorithm, rounds=1, initial_params=np.full(5, 2.0), progress=False)
    np.testing.assert_array_equal(result.solves.gradient_samples[0] / np.array(SIZES), 2 * 3)


def half_squared_distance(w, batch):
    return 0.5 * jnp.sum((w - batch["y"]) ** 2, axis=-1)


def quadratic(targets):
    """One client with f(w) = mean over rows of 1/2 ||w - y||^2: curvature 1 in every direction."""
    data = fa.FederatedData.from_arrays({"y": targets}, [np.arange(len(targets))])
    return fa.Problem(init=initializer(targets.shape[1]), loss=half_squared_distance, data=data)


def epochs_one_by_one(targets, rate, batches, rounds, start):
    """(epoch mean, exact residual at the epoch's end) after each of several epochs of SGD, as rounds of one epoch."""
    local = fa.LocalSolver(learning_rate=rate, batch_size=len(targets) // batches, max_epochs=2)
    criterion = fa.criteria.constant_tolerance(1e9, residual="epoch_mean")  # content with anything, after an epoch
    sim = fa.Simulation(quadratic(targets), fa.fedavg(local, criterion=criterion), initial_params=start)
    state, found = sim.init(), []
    for _ in range(rounds):
        state, info = sim.round(state)
        found.append((float(info.final_residual[0]), np.linalg.norm(state.params - targets.mean(axis=0))))
    return np.array(found)


@pytest.mark.parametrize("batches", [1, 4, 5])
def test_without_noise_the_epoch_mean_overestimates_unless_steps_overshoot(batches):
    """With curvature h, S steps of rate eta scale the residual by q = 1 - eta h each; its mean is (1 - q^S) / (S eta h)."""
    targets, start = np.zeros((20, 1)), np.ones(1)
    for rate in (0.1, 0.5, 1.5, 1.9):
        ((mean, end),) = epochs_one_by_one(targets, rate, batches, 1, start)
        q = 1 - rate
        assert mean == pytest.approx(abs(1 - q**batches) / (batches * rate), rel=1e-9)
        assert end == pytest.approx(abs(q) ** batches, rel=1e-9)
        if batches == 1:
            assert mean == pytest.approx(1.0)  # the residual at the start: a stop comes one epoch late
        elif rate < 1:
            assert mean > end
    assert batches == 1 or mean < 0.6 * end  # eta h near 2: it cancels, and a solve stops too soon


def test_at_the_noise_floor_the_epoch_mean_is_too_small_by_the_epochs_length():
    """Where an epoch's steps forget its start (S eta h >> 1), it is about sqrt2 / (S eta h) of the exact residual."""
    targets = np.random.default_rng(0).normal(size=(200, 400))
    for batches, rate in ((20, 0.5), (50, 0.4)):
        found = epochs_one_by_one(targets, rate, batches, 12, targets.mean(axis=0))[2:]
        ratio = np.mean(found[:, 0]) / np.mean(found[:, 1])
        assert ratio == pytest.approx(np.sqrt(2) / (batches * rate), rel=0.1)
