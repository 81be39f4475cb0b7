"""Zhou and Li's FedADMM with k0 local rounds against its pseudocode in NumPy, and the method that it becomes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from compilations import compilations
from federations import GAMMA, least_squares
from pseudocode import (
    COHORTS,
    EPOCHS,
    LOCAL,
    RATE,
    SEED,
    SIZES,
    START,
    UNEQUAL,
    M,
    batches,
    bowls,
    close,
    descend,
    exact,
    run,
)

import fedjax_admm as fa

K0 = 3
PENALTY = np.array([0.3, 1.0, 0.5, 2.0, 0.8, 1.4])
SIGMA = UNEQUAL * PENALTY


@functools.cache
def federation():
    return least_squares(SIZES, weights=UNEQUAL)


def zhou_li(solve, k0=K0, start="server", dual_step=1.0):
    """Their lines, pi_i = -alpha_i lambda_i and sigma_i = alpha_i beta_i; `solve` is one of alpha_i f_i and the rest."""
    w_i, pi, epochs = np.tile(START, (M, 1)), np.zeros((M, 5)), np.zeros((len(COHORTS), M), int)
    z_i = SIGMA[:, None] * w_i + pi
    for k, cohort in enumerate(COHORTS):  # a communication, and k0 iterations with its w and its cohort
        w = z_i.sum(axis=0) / SIGMA.sum()
        for i in cohort:
            for _ in range(k0):
                begin = w if start == "server" else w_i[i]
                w_i[i], done = solve(k, i, begin, w_i[i], pi[i], w, epochs[k, i])
                epochs[k, i] += done
                pi[i] = pi[i] + np.broadcast_to(dual_step, M)[i] * SIGMA[i] * (w_i[i] - w)
            z_i[i] = SIGMA[i] * w_i[i] + pi[i]
    return z_i.sum(axis=0) / SIGMA.sum(), w_i, pi, np.stack([e[c] for e, c in zip(epochs, COHORTS, strict=True)])


def by_batches(k, i, begin, former, pi, w, first):
    _, xs, ys = federation()
    parts = batches(k, i, first=first)
    return descend(xs[i], ys[i], begin, parts, RATE[i], -pi / UNEQUAL[i], PENALTY[i], w), EPOCHS[i]


@pytest.mark.parametrize("start", ["server", "client"])
def test_it_is_the_papers(start):
    result = run(federation()[0], fa.fedadmm(LOCAL, PENALTY, local_rounds=K0, start=start))
    z, w_i, pi, epochs = zhou_li(by_batches, start=start)
    close(result.params, z)
    close(result.state.client_params, w_i)
    close(result.state.duals, -pi / UNEQUAL[:, None])
    np.testing.assert_array_equal(result.epochs, epochs)
    np.testing.assert_array_equal(result.solves.max_epochs, K0 * EPOCHS[COHORTS])
    np.testing.assert_array_equal(result.solves.gradient_samples, epochs * np.array(SIZES)[COHORTS])
    np.testing.assert_array_equal(result.history["communicated_floats"][1:], 4 * (5 + 6))


def test_with_a_dual_step_of_another_length():
    """Every local round moves the dual by it."""
    steps = np.array([1.0, 0.5, 0.0, 1.5, 0.2, 0.9])
    result = run(federation()[0], fa.fedadmm(LOCAL, PENALTY, local_rounds=K0, dual_step=steps))
    z, w_i, pi, _ = zhou_li(by_batches, dual_step=steps)
    close(result.params, z)
    close(result.state.client_params, w_i)
    close(result.state.duals, -pi / UNEQUAL[:, None])


def until(reference, start):
    """Full gradient steps until ||e|| <= eps, or sigma times ||e|| at the reference point, or the 6th."""
    _, xs, ys = federation()

    def solve(k, i, begin, former, pi, w, first):
        x, y, u = xs[i], ys[i], begin

        def e(u):
            return x.T @ (x @ u - y) / len(x) + GAMMA * u + pi / UNEQUAL[i] + PENALTY[i] * (u - w)

        point = {"server": w, "client": former, None: None}[reference]
        tolerance = 0.5 if point is None else 0.4 * np.linalg.norm(e(point))
        for done in range(6):
            if np.linalg.norm(e(u)) <= tolerance:
                return u, done
            u = u - RATE[i] * e(u)
        return u, 6

    return solve


@pytest.mark.parametrize(
    ("reference", "start"), [(None, "server"), ("server", "server"), ("server", "client"), ("client", "server")]
)
def test_every_local_solve_has_its_own_criterion(reference, start):
    criterion = fa.criteria.constant_tolerance(0.5)
    if reference is not None:
        criterion = fa.criteria.relative_residual(sigma=0.4, reference=reference)
    local = fa.LocalSolver(RATE, max_epochs=6)
    algorithm = fa.fedadmm(local, PENALTY, local_rounds=K0, start=start, criterion=criterion)
    result = run(federation()[0], algorithm, execution=fa.Execution(lanes=3))
    z, _, pi, epochs = zhou_li(until(reference, start), start=start)
    np.testing.assert_array_equal(result.epochs, epochs)
    assert len(np.unique(epochs)) > 3, "the tolerance is between too easy and too hard"
    close(result.params, z)
    close(result.state.duals, -pi / UNEQUAL[:, None])


def test_many_local_rounds_are_gradient_descent():
    rng = np.random.default_rng(0)
    h, e = np.exp(rng.uniform(-1, 1, 5)), rng.normal(size=(5, 3))
    problem, _ = bowls(h, e)
    z = np.array([1.0, -1.0, 2.0])
    step = z - (h[:, None] * (z - e)).mean(axis=0) / 1.0
    away = []
    for k0 in (1, 5, 50, 500):
        algorithm = fa.fedadmm(exact(h, 1.0), 1.0, local_rounds=k0)
        after = fa.simulate(problem, algorithm, 1, initial_params=z, progress=False).params
        away.append(np.abs(after - step).max())
    assert away[0] > 10 * away[1] / 2 > 0 and away[1] > 10 * away[2] and away[3] < 1e-14


def test_one_local_round_is_fedadmm():
    problem = federation()[0]
    one, plain = (run(problem, fa.fedadmm(LOCAL, PENALTY, **options)) for options in ({"local_rounds": 1}, {}))
    np.testing.assert_array_equal(one.params, plain.params)


def test_it_converges_and_rows_may_live_anywhere():
    h, e = np.array([0.5, 1.0, 2.0, 1.5]), np.eye(4)
    problem, optimum = bowls(h, e)
    settings = dict(participation=2, seed=SEED, progress=False, evaluate_every=200)
    algorithm = fa.fedadmm(exact(h, 2.0), 2.0, local_rounds=4)
    result = fa.simulate(problem, algorithm, 200, **settings)
    np.testing.assert_allclose(result.params, optimum, atol=1e-9)
    for kind in ("host", "disk"):
        other = fa.simulate(problem, algorithm, 200, execution=fa.Execution(population=kind), **settings)
        np.testing.assert_array_equal(other.params, result.params)


def test_the_number_compiles_nothing_and_the_estimate_knows_it():
    problem = federation()[0]
    run(problem, fa.fedadmm(LOCAL, PENALTY, local_rounds=2))
    with compilations() as compiled:
        run(problem, fa.fedadmm(LOCAL, PENALTY, local_rounds=5))
    assert "jit(device_rounds)" not in compiled
    once, often = (fa.estimate(problem, fa.fedadmm(LOCAL, local_rounds=k)).most_gradients for k in (1, 5))
    assert often == 5 * once


@pytest.mark.parametrize("value", [0, 1.5, "many"])
def test_bad_input_is_one_clear_line(value):
    with pytest.raises(ValueError, match="local_rounds must be "):
        fa.fedadmm(LOCAL, local_rounds=value)


def test_the_contract_wants_both_or_none():
    @fa.record
    class Half(type(fa.fedprox(LOCAL, 1.0))):
        def subproblem(self, sent, row, client, round):
            return fa.Subproblem(local_rounds=2)

    half = Half(LOCAL, fa.criteria.run_to_maximum())
    with pytest.raises(ValueError, match="Half.subproblem: local_rounds and dual_step belong together"):
        fa.Simulation(federation()[0], half)
