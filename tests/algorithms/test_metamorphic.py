"""Changes of the problem that must not change the run, or change it in a known way."""

from __future__ import annotations

import numpy as np
import pytest
from federations import GAMMA, least_squares, make_problem

import fedjax_admm as fa

SIZES = [6, 10, 4]
LOCAL = fa.LocalSolver(learning_rate=0.05, max_epochs=8)
ALGORITHMS = {
    "fedavg": fa.fedavg(LOCAL),
    "fedprox": fa.fedprox(LOCAL, penalty=0.5),
    "fedadmm": fa.fedadmm(LOCAL, penalty=0.7),
    "fedadmm_in": fa.fedadmm_in(LOCAL, penalty=0.7, c=0.1),
    "fedadmm_insa": fa.fedadmm_insa(LOCAL, penalty=0.7, c=0.1, mu=1.5),
}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def run(problem, algorithm, **kwargs):
    return fa.simulate(problem, algorithm, rounds=8, progress=False, **kwargs)


@every_algorithm
def test_client_numbers_permuted(algorithm):
    problem, xs, ys = least_squares(SIZES)
    order = [2, 0, 1]
    permuted = run(make_problem([xs[i] for i in order], [ys[i] for i in order]), algorithm)
    straight = run(problem, algorithm)
    np.testing.assert_allclose(permuted.params, straight.params, rtol=1e-12)
    np.testing.assert_array_equal(permuted.epochs, straight.epochs[:, order])


@every_algorithm
def test_a_client_split_into_two_with_the_same_rows(algorithm):
    """Two clients with the same rows and half the weight each are the one client."""
    problem, xs, ys = least_squares(SIZES)
    alpha = np.array(SIZES) / sum(SIZES)
    split = make_problem([*xs, xs[1]], [*ys, ys[1]], weights=[alpha[0], alpha[1] / 2, alpha[2], alpha[1] / 2])
    result, straight = run(split, algorithm), run(problem, algorithm)
    np.testing.assert_allclose(result.params, straight.params, rtol=1e-12)
    np.testing.assert_array_equal(result.epochs[:, :3], straight.epochs)


@every_algorithm
def test_all_rows_duplicated(algorithm):
    problem, xs, ys = least_squares(SIZES)
    double = make_problem([np.concatenate([x, x]) for x in xs], [np.concatenate([y, y]) for y in ys])
    result, straight = run(double, algorithm), run(problem, algorithm)
    np.testing.assert_allclose(result.params, straight.params, rtol=1e-12)
    np.testing.assert_array_equal(result.solves.gradient_samples, 2 * straight.solves.gradient_samples)


def test_overlapping_clients_are_those_with_copied_rows():
    problem, xs, ys = least_squares(SIZES)
    offsets = np.cumsum([0, *SIZES])
    parts = [np.arange(offsets[i], offsets[i + 1]) for i in (0, 1, 2, 1)]
    fields = {"x": np.concatenate(xs), "y": np.concatenate(ys)}
    shared = fa.FederatedData.from_arrays(fields, parts, allow_overlap=True)
    result = run(fa.Problem(problem.init, problem.loss, shared, problem.regularizer), ALGORITHMS["fedadmm_in"])
    copied = run(make_problem([*xs, xs[1]], [*ys, ys[1]]), ALGORITHMS["fedadmm_in"])
    np.testing.assert_allclose(result.params, copied.params, rtol=1e-12)
    np.testing.assert_allclose(result.history["loss"], copied.history["loss"], rtol=1e-12)


@pytest.mark.parametrize("scale", [8.0, 0.25])
def test_fedadmm_in_does_not_depend_on_the_units_of_the_loss(scale):
    """f -> s f, beta -> s beta, c -> s c, eta -> eta / s leaves every iterate as it is; lambda -> s lambda."""
    problem, _xs, _ys = least_squares(SIZES)
    scaled_problem = fa.Problem(
        problem.init,
        lambda w, batch: scale * problem.loss(w, batch),
        problem.data,
        lambda w: scale * problem.regularizer(w),
    )

    def algorithm(s):
        local = fa.LocalSolver(learning_rate=0.05 / s, batch_size=3, max_epochs=20)
        return fa.fedadmm_in(local, penalty=0.7 * s, c=GAMMA * s)

    straight, scaled = run(problem, algorithm(1.0)), run(scaled_problem, algorithm(scale))
    assert len(set(straight.epochs.ravel())) > 1
    np.testing.assert_array_equal(scaled.epochs, straight.epochs)
    np.testing.assert_allclose(scaled.params, straight.params, rtol=1e-9)
    np.testing.assert_allclose(scaled.state.duals, scale * straight.state.duals, rtol=1e-9, atol=1e-12)


RULES = {
    "relative_balancing": fa.penalties.relative_balancing(mu=1.5),
    "spectral": fa.penalties.spectral(),
    "residual_balancing": fa.penalties.residual_balancing(mu=1.5),
}


@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.parametrize("rule", RULES)
def test_scale_free_penalty_rules_do_not_depend_on_the_units_of_the_loss(rule, scale):
    """With losses and the first penalty times s every iterate stays, and every later penalty is s times as large."""
    problem, _xs, _ys = least_squares(SIZES)
    scaled_problem = fa.Problem(
        problem.init,
        lambda w, batch: scale * problem.loss(w, batch),
        problem.data,
        lambda w: scale * problem.regularizer(w),
    )

    def algorithm(s):
        local = fa.LocalSolver(learning_rate=0.05 / s, batch_size=3, max_epochs=20)
        criterion = fa.criteria.relative_residual(c=GAMMA * s)
        return fa.fedadmm(local, penalty=0.7 * s, criterion=criterion, penalty_rule=RULES[rule])

    straight, scaled = run(problem, algorithm(1.0)), run(scaled_problem, algorithm(scale))
    assert len(np.unique(straight.solves.new_penalty)) > 2
    if rule == "residual_balancing":
        assert not np.allclose(scaled.state.penalties, scale * straight.state.penalties, rtol=0.1)
        return
    np.testing.assert_array_equal(scaled.epochs, straight.epochs)
    np.testing.assert_allclose(scaled.params, straight.params, rtol=1e-9)
    np.testing.assert_allclose(scaled.solves.new_penalty, scale * straight.solves.new_penalty, rtol=1e-9)
