"""Criteria beyond the comparisons with NumPy: the statistics of the noise, FedProx's definition, every algorithm."""

from __future__ import annotations

import inspect

import jax
import numpy as np
import pytest
from compilations import compilations
from federations import initializer, least_squares, squared_error
from scipy import stats

import fedjax_admm as fa

DIMENSION = 5
TRUTH = np.ones(DIMENSION)


def drawn_from_one_population(clients, rows, copies=1, seed=0):
    """Clients whose rows are y = x'1 + noise with unit normals: (problem, x, y); each client `copies` times."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(clients * rows, DIMENSION))
    y = x @ TRUTH + rng.normal(size=clients * rows)
    parts = list(np.arange(clients * rows).reshape(clients, rows)) * copies
    data = fa.FederatedData.from_arrays({"x": x, "y": y}, parts, allow_overlap=copies > 1)
    problem = fa.Problem(init=initializer(DIMENSION), loss=squared_error, data=data)
    return problem, x.reshape(clients, rows, DIMENSION), y.reshape(clients, rows)


def residual_and_error(x, y, w):
    """||e|| of a client without penalty, and the standard error of e, from the rows themselves."""
    by_row = x * (x @ w - y)[:, None]
    return np.linalg.norm(by_row.mean(axis=0)), np.sqrt(np.trace(np.cov(by_row.T)) / len(x))


def one_round(problem, criterion, local, start):
    algorithm = fa.fedavg(local, average="all", criterion=criterion)
    return fa.simulate(problem, algorithm, rounds=1, initial_params=start, progress=False)


def test_the_noise_is_the_standard_error():
    """At one point, in many orders: a solve stops where factor times the rows' own standard error passes ||e||."""
    orders = 61
    problem, x, y = drawn_from_one_population(1, 400, copies=orders)
    start = TRUTH + 0.3
    norm, error = residual_and_error(x[0], y[0], start)
    relative = np.linspace(0.7, 1.3, orders)
    # Batches of 9 and one of 4: the estimate's relative deviation is about 1 / sqrt(2 * 44 * 5), five percent.
    local = fa.LocalSolver(learning_rate=1e-9, batch_size=9, max_epochs=1)
    criterion = fa.criteria.sampling_noise(relative * norm / error, residual="exact")
    stopped = one_round(problem, criterion, local, start).epochs[0] == 0
    assert not stopped[relative < 0.8].any() and stopped[relative > 1.25].all()
    assert abs(stopped.mean() - 0.5) < 0.1


def test_at_the_populations_optimum_it_stops_as_often_as_it_should():
    """There ||e||^2 / error^2 is about chi-square / degrees of freedom: a row's residual has covariance 1."""
    clients = 300
    problem, *_ = drawn_from_one_population(clients, 100)
    local = fa.LocalSolver(learning_rate=1e-9, batch_size=5, max_epochs=1)
    result = one_round(problem, fa.criteria.sampling_noise(residual="exact"), local, TRUTH)
    expected = stats.chi2.cdf(DIMENSION, DIMENSION)
    assert abs(np.mean(result.epochs == 0) - expected) < 4 * np.sqrt(expected * (1 - expected) / clients)


@pytest.mark.parametrize("residual", ["epoch_mean", "verified"])
def test_noise_runs_on_far_from_the_optimum_and_stops_near_it(residual):
    norms = {}
    for rows in (100, 1600):
        problem, xs, ys = drawn_from_one_population(40, rows)
        local = fa.LocalSolver(learning_rate=2 / rows, batch_size=10, max_epochs=100)
        criterion = fa.criteria.sampling_noise(residual=residual)
        far, near = (one_round(problem, criterion, local, TRUTH + distance) for distance in (10.0, 0.0))
        assert (far.solves.stop_reason == "criterion").all() and (near.solves.stop_reason == "criterion").all()
        assert far.epochs.min() >= 10 and np.median(near.epochs) == 1
        ends = [residual_and_error(x, y, w) for x, y, w in zip(xs, ys, far.state.client_params, strict=True)]
        # They end with a residual of the size of its standard error, and not far below.
        assert all(0.5 < norm / error < 1.2 for norm, error in ends)
        norms[rows] = np.mean([norm for norm, _ in ends])
    # Sixteen times the rows, a quarter of the error.
    assert 3 < norms[100] / norms[1600] < 5


def made(name, local, criterion):
    maker = getattr(fa.algorithms, name)
    penalty = {"penalty": 0.7} if "penalty" in inspect.signature(maker).parameters else {}
    return maker(local, **penalty, criterion=criterion)


@pytest.mark.parametrize(
    ("name", "maker"),
    # Tolerances with two, the new phase of the loop with all.
    [("fedavg", fa.criteria.summable_tolerance), ("fedadmm_insa", fa.criteria.summable_tolerance)]
    + [(name, fa.criteria.sampling_noise) for name in fa.algorithms.__all__],
)
def test_with_every_algorithm_and_no_number_compiles(name, maker):
    """Generous to all but the last client, then the reverse, in single precision under strict promotion."""
    sizes = [9, 13, 4, 10]
    problem, *_ = least_squares(sizes, dtype=np.float32)
    local = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
    # An exact tolerance holds at the start, the noise after an epoch, and never for the client with one batch.
    least = np.array([0, 0, 0, 0] if maker is fa.criteria.summable_tolerance else [1, 1, 3, 1])
    for k, number in enumerate((np.array([1e9, 1e9, 1e9, 1e-9]), np.array([1e-9, 1e-9, 1e-9, 1e9]))):
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), compilations() as compiled:
            result = fa.simulate(problem, made(name, local, maker(number)), rounds=2, progress=False,
                                 initial_params=np.ones(5, np.float32))  # fmt: skip
        expected = np.where(number > 1, least, 3)
        np.testing.assert_array_equal(result.epochs, [expected, expected])
        np.testing.assert_array_equal(result.solves.stop_reason == "criterion", [expected < 3, expected < 3])
        assert "jit(device_rounds)" not in compiled or k == 0


def test_fedprox_gamma_inexactness():
    """Li et al. 2020, Definition 2: ||grad h(w; w^t)|| <= gamma ||grad h(w^t; w^t)||, h = F_i + mu / 2 ||. - w^t||^2."""
    sizes, gamma, mu, rate = [8, 20, 13], np.array([0.2, 0.5, 0.9]), 0.3, 0.05
    problem, xs, ys = least_squares(sizes)
    problem = fa.Problem(problem.init, squared_error, problem.data)
    local = fa.LocalSolver(learning_rate=rate, max_epochs=500)
    algorithm = fa.fedprox(local, penalty=mu, average="all", criterion=fa.criteria.relative_residual(sigma=gamma))
    start = np.full(5, 2.0)
    result = fa.simulate(problem, algorithm, rounds=1, initial_params=start, progress=False)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        w, epochs = start, 0
        bound = gamma[i] * np.linalg.norm(x.T @ (x @ start - y) / len(x))
        while np.linalg.norm(h := x.T @ (x @ w - y) / len(x) + mu * (w - start)) > bound:
            w, epochs = w - rate * h, epochs + 1
        assert epochs == result.epochs[0, i] > 0
        np.testing.assert_allclose(result.state.client_params[i], w, rtol=1e-9)


def test_criteria_in_words():
    example = fa.examples.linear_regression(num_clients=2, rows_per_client=4, dimension=3)
    algorithm = example.algorithm("fedadmm_in", c=0.5, criterion="epoch_mean")
    assert algorithm == example.algorithm("fedadmm_in", c=0.5, residual="epoch_mean")
    assert example.algorithm("fedadmm_in", criterion="exact-client") == example.algorithm(
        "fedadmm_in", reference="client"
    )
    assert example.algorithm("fedadmm_in", criterion="fixed").criterion == fa.criteria.run_to_maximum()
    gamma = fa.criteria.relative_residual(sigma=0.5, residual="verified")
    assert example.algorithm("fedprox", criterion="relative_residual(sigma=0.5, verified)").criterion == gamma
    with pytest.raises(ValueError, match="eps must be above 0, got -3"):
        example.algorithm("fedavg", criterion="constant_tolerance(-3)")
