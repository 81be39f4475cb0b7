"""Any method with the average over rounds as its result."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from federations import least_squares
from test_devices import in_a_process

import fedjax_admm as fa

SIZES = [6, 11, 3, 8, 5, 7]
WEIGHTS = np.array([1.0, 3, 2, 2, 1, 3])
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
ROUNDS = 9
NOBODY = np.zeros((ROUNDS, len(SIZES)))
NOBODY[3] = 1  # a round without any message
PROBLEM = least_squares(SIZES, weights=WEIGHTS)[0]
OPTIONS = dict(rounds=ROUNDS, participation=3, progress=False, faults=fa.Faults(dropout=NOBODY))
METHODS = {
    "fedavg": fa.fedavg(LOCAL),
    "fedadam": fa.fedadam(LOCAL),
    "scaffold": fa.scaffold(LOCAL),
    "fedadmm": fa.fedadmm_insa(LOCAL, 0.5, heard="only", forgetting="auto"),
    "pooled": fa.fedadmm(
        LOCAL,
        0.5,
        criterion=fa.criteria.relative_residual(sigma=0.5),
        penalty_rule=fa.penalties.stiffness(0.5),
    ),
}


def simulate(algorithm, **options):
    return fa.simulate(PROBLEM, algorithm, **OPTIONS | options)


def every_round(algorithm, **options):
    """The run, and the server's parameters after each round."""
    found = []
    result = simulate(algorithm, on_round=lambda record, state: found.append(np.asarray(state.params)), **options)
    return result, np.array(found[1:])  # the first is the start


def average(iterates, answered, power):
    """The k-th that anybody answered has the share (p + 1) / (k + p + 1), and leaves the others their rest."""
    means, mean, k = [], None, 0
    for z, new in zip(iterates, answered, strict=True):
        if new:
            mean = z if mean is None else mean + (power + 1) / (power + 1 + k) * (z - mean)
            k += 1
        means.append(mean)
    return np.array(means)


@pytest.mark.parametrize("name", METHODS)
def test_clients_see_the_method_itself_and_the_result_is_its_average(name):
    same, iterates = every_round(METHODS[name])
    last, ours = every_round(fa.averaged(METHODS[name]))
    np.testing.assert_allclose(ours, average(iterates, NOBODY[:, 0] == 0, 2), rtol=1e-12)
    np.testing.assert_array_equal(last.epochs, same.epochs)
    jax.tree.map(np.testing.assert_array_equal, last.state.clients, same.state.clients)
    np.testing.assert_array_equal(last.history["communicated_floats"], same.history["communicated_floats"])
    assert not np.allclose(last.params, same.params, rtol=1e-3)


def test_the_same_bits_wherever_rows_live_and_after_a_resume(tmp_path):
    algorithm = fa.averaged(METHODS["fedadmm"])
    whole = simulate(algorithm)

    def crash(record):
        if record["round"] == 6:
            raise RuntimeError("crash")

    other = simulate(algorithm, execution=fa.Execution(population="host"))
    np.testing.assert_array_equal(other.params, whole.params)
    options = dict(run_dir=tmp_path / "run", evaluate_every=2, checkpoint_seconds=0)
    with pytest.raises(RuntimeError, match="crash"):
        simulate(algorithm, on_round=crash, **options)
    np.testing.assert_array_equal(simulate(algorithm, **options).params, whole.params)


def test_devices_agree():
    in_a_process("""
        from test_averaged import *
        for name in ("fedavg", "pooled"):
            whole = simulate(fa.averaged(METHODS[name]))
            for placement in ("home", "dealt"):
                other = simulate(fa.averaged(METHODS[name]), execution=fa.Execution(mesh=2, placement=placement))
                np.testing.assert_allclose(other.params, whole.params, rtol=1e-9)
    """)


def test_runs_at_once_may_average_differently():
    problem = least_squares(SIZES)[0]
    runs = [(fa.averaged(METHODS["fedadmm"], power), 0) for power in (0.0, 3.0)]
    options = dict(rounds=5, participation=3, progress=False)
    many = fa.simulate_many(problem, runs, **options)
    for result, (algorithm, seed) in zip(many, runs, strict=True):
        alone = fa.simulate(problem, algorithm, seed=seed, **options)
        np.testing.assert_allclose(result.params, alone.params, rtol=1e-10)
    assert not np.allclose(many[0].params, many[1].params)


def test_the_more_clients_return_the_shorter_is_the_average():
    """The power is between the two, as the share of clients that were heard before is, the k-th round weighing k."""
    method = fa.fedadmm(LOCAL, 0.5, heard="only", forgetting="returning")
    own, iterates = every_round(method, faults=None)
    _, ours = every_round(fa.averaged(method, 0.5, returning_power=5), faults=None)
    known, r, mean, means = set(), 0.0, None, []
    for k, (cohort, z) in enumerate(zip(own.cohorts, iterates, strict=True)):
        r += 2 / (k + 2) * (np.average([i in known for i in cohort], weights=WEIGHTS[cohort]) - r)
        power = 0.5 + 4.5 * r
        mean = z if mean is None else mean + (power + 1) / (power + 1 + k) * (z - mean)
        known |= set(cohort)
        means.append(mean)
    assert 0 < r < 1
    np.testing.assert_allclose(ours, means, rtol=1e-9)


def test_worn_sums_are_formed_anew_and_the_average_stays():
    """Penalties that fall by orders of magnitude wear the server's sums out."""
    rule = fa.penalties.residual_balancing(1.01, 30.0, bounds=(1e-9, 1e9))
    algorithm = fa.fedadmm(fa.LocalSolver(learning_rate=1e-9, max_epochs=1), 1e8, penalty_rule=rule)
    iterates, ours = (every_round(each, faults=None)[1] for each in (algorithm, fa.averaged(algorithm, 0)))
    np.testing.assert_allclose(ours[-1], iterates.mean(axis=0), rtol=1e-9)


def test_what_can_not_be_averaged():
    with pytest.raises(ValueError, match="FedPD has rounds without a server"):
        fa.averaged(fa.fedpd(LOCAL, 0.5))
    with pytest.raises(ValueError, match="algorithm must be an object made by"):
        fa.averaged(fa.fedavg)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="returning_power needs a method whose server knows who returns"):
        fa.averaged(METHODS["fedadmm"], returning_power=2)
    with pytest.raises(ValueError, match="power must be at least 0, got -1"):
        fa.averaged(METHODS["fedavg"], -1)
