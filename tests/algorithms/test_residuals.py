"""What the three residuals cost, counted in passes over a client's rows, and where the epoch mean misleads."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import initializer, least_squares

import fedjax_admm as fa
from fedjax_admm.core import randomness
from fedjax_admm.engine import shuffle

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


@pytest.mark.parametrize("maximum", [20, 5])
def test_verified_pays_for_the_look_that_agrees_and_for_those_that_refuse(maximum):
    """Five steps of -0.9 an epoch, without noise: after n epochs the residual is 0.9^(5 n), its mean over the last of
    them (1 + 0.9^5) / 9.5 of what it was before, so that from an epoch on the mean says stop and the residual does not.
    """
    sigma, end = 0.05, 0.9 ** (5 * np.arange(1, 21))
    mean = (1 + 0.9**5) / 9.5 * np.append(1.0, end[:-1])
    proposed, agreed = (1 + int(np.argmax(values <= sigma)) for values in (mean, end))
    assert (proposed, agreed) == (4, 6)
    local = fa.LocalSolver(learning_rate=1.9, batch_size=4, max_epochs=maximum)
    criterion = fa.criteria.relative_residual(sigma=sigma, residual="verified")
    result = fa.simulate(
        quadratic(np.zeros((20, 1))), fa.fedavg(local, criterion=criterion), rounds=1, initial_params=np.ones(1),
        progress=False,
    )  # fmt: skip
    n, refused = min(agreed, maximum), min(agreed, maximum) - proposed
    assert result.epochs[0, 0] == n
    assert result.solves.stop_reason[0, 0] == ("criterion" if maximum == 20 else "maximum")
    looks = refused + (maximum == 20)  # at the maximum nothing is looked at
    assert result.solves.criterion_samples[0, 0] == 20 * (1 + looks)
    assert result.solves.gradient_samples[0, 0] == 20 * (n + 1 + looks)


@pytest.mark.parametrize("optimizer", [optax.sgd, optax.adam])
def test_the_epoch_mean_weighs_batches_by_their_rows_whatever_the_optimizer(optimizer):
    """Batches of 3, 3 and 1 rows of the second of two clients, step by step by hand."""
    targets, rows = np.random.default_rng(1).normal(size=(12, 2)), np.arange(5, 12)
    data = fa.FederatedData.from_arrays({"y": targets}, [np.arange(5), rows])
    problem = fa.Problem(init=initializer(2), loss=half_squared_distance, data=data)
    local = fa.LocalSolver(learning_rate=0.3, batch_size=3, max_epochs=2, optimizer=optimizer)
    criterion = fa.criteria.constant_tolerance(1e9, residual="epoch_mean")
    sim = fa.Simulation(problem, fa.fedavg(local, criterion=criterion), participation=2, initial_params=np.ones(2))
    _, info = sim.round(sim.init(), [0, 1])

    words = shuffle.epoch_order(
        jax.random.key_data(randomness.client_key(sim.setup.key, jnp.int32(0), jnp.int32(1))), jnp.int32(0)
    )
    order = np.asarray(shuffle.permute(words, jnp.asarray(rows, jnp.int32), jnp.int32(5), jnp.int32(7)))
    w, mean, steps = jnp.ones(2), np.zeros(2), optimizer(0.3)
    state = steps.init(w)
    for batch in (order[:3], order[3:6], order[6:]):
        residual = w - targets[batch].mean(axis=0)
        mean += len(batch) / 7 * np.asarray(residual)
        update, state = steps.update(residual, state, w)
        w = optax.apply_updates(w, update)
    assert info.epochs[1] == 1
    np.testing.assert_allclose(info.final_residual[1], np.linalg.norm(mean), rtol=1e-12)


@pytest.mark.parametrize("residual", ["epoch_mean", "exact"])
def test_passes_relative_to_the_clients_own_residual(residual):
    """One more pass with exact looks: the one at z is not the reference."""
    problem, *_ = least_squares(SIZES, heterogeneity=0.3)
    criterion = fa.criteria.relative_residual(sigma=0.3, reference="client", residual=residual)
    algorithm = fa.fedadmm(LOCAL, penalty=0.5, criterion=criterion)
    result = fa.simulate(problem, algorithm, rounds=3, initial_params=np.full(5, 2.0), progress=False)
    n, passes = result.epochs, result.solves.gradient_samples / np.array(SIZES)[result.cohorts]
    assert (result.solves.stop_reason == "criterion").all() and n[1:].max() > 1
    np.testing.assert_array_equal(passes, n + 1 if residual == "epoch_mean" else 2 * n + 2)


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
