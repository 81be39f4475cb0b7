"""One level of penalties for all clients, from how stiff their solves have shown themselves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from federations import least_squares
from test_devices import in_a_process

import fedjax_admm as fa
from fedjax_admm.algorithms.penalties.level import Level

SIZES = [6, 11, 3, 8, 5, 7]
WEIGHTS = np.array([1.0, 3, 2, 2, 1, 3])
PENALTY = np.array([0.1, 0.2, 0.4, 0.1, 0.3, 0.2])
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
SHARE, NEWCOMERS = 0.5, 0.2
RULE = fa.penalties.stiffness(SHARE)
OPTIONS = dict(rounds=8, participation=3, progress=False)


def algorithm_of(penalty=PENALTY, local=LOCAL, **options):
    return fa.fedadmm_large(local, penalty, share=SHARE, **options)


def simulate(algorithm=None, problem=None, **options):
    problem = least_squares(SIZES, weights=WEIGHTS)[0] if problem is None else problem
    return fa.simulate(problem, algorithm_of() if algorithm is None else algorithm, **OPTIONS | options)


def levels(result, alpha):
    """The factor on all first penalties in each round, in full from what each solve has shown."""
    log, found, known = 0.0, [], set()
    for k, cohort in enumerate(result.cohorts):
        found.append(np.exp(log))
        solves = {
            name: np.asarray(result.solves[name])[k] for name in ("reference_residual", "consensus_gap", "penalty")
        }
        stiff = solves["reference_residual"] / solves["consensus_gap"]
        loss = np.maximum(stiff - solves["penalty"], 0.01 * stiff)
        share = np.array([SHARE if client in known else SHARE * NEWCOMERS for client in cohort])
        known |= set(cohort)
        proposals = np.clip(np.log(share * loss / solves["penalty"]), -np.log(10), np.log(10))
        log += 2 / (k + 2) * np.average(proposals, weights=alpha[cohort])
    return np.array(found)


def test_penalties_are_those_of_the_level():
    result = simulate()
    expected = levels(result, WEIGHTS / WEIGHTS.sum())
    assert np.ptp(np.log(expected)) > 0.5
    np.testing.assert_allclose(result.solves.penalty, expected[:, None] * PENALTY[result.cohorts], rtol=1e-9)
    np.testing.assert_array_equal(result.solves.new_penalty, result.solves.penalty)


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_it_has_no_unit(factor):
    problem = least_squares(SIZES, weights=WEIGHTS)[0]
    scaled = fa.Problem(
        init=problem.init,
        loss=lambda w, batch: factor * problem.loss(w, batch),
        data=problem.data,
        regularizer=lambda w: factor * problem.regularizer(w),
    )
    local = dataclasses.replace(LOCAL, learning_rate=LOCAL.learning_rate / factor)
    ours = simulate(algorithm_of(factor * PENALTY, local), scaled)
    np.testing.assert_allclose(ours.params, simulate().params, rtol=1e-9)


def test_the_first_penalty_is_forgotten():
    problem = least_squares(SIZES)[0]
    last = [
        simulate(algorithm_of(first), problem, rounds=60).history["penalty_mean"][-1] for first in (0.01, 1.0, 30.0)
    ]
    assert max(last) < 2 * min(last)


def test_a_huge_message_moves_the_level_tenfold_at_most():
    level = Level.start(np.float64)
    for proposal in (np.inf, -np.inf, 1e30, -4.0):
        assert abs(level.moved(np.float64(proposal), np.float64(1.0)).log) <= np.log(10) + 1e-12


def test_the_same_bits_wherever_rows_live_and_after_a_resume(tmp_path):
    whole = simulate()

    def crash(record):
        if record["round"] == 5:
            raise RuntimeError("crash")

    other = simulate(execution=fa.Execution(population="host"))
    np.testing.assert_array_equal(other.params, whole.params)
    options = dict(run_dir=tmp_path / "run", evaluate_every=2, checkpoint_seconds=0)
    with pytest.raises(RuntimeError, match="crash"):
        simulate(on_round=crash, **options)
    np.testing.assert_array_equal(simulate(**options).params, whole.params)


def test_devices_agree():
    in_a_process("""
        from test_stiffness import *
        whole = simulate()
        for mesh, placement in ((2, "home"), (2, "dealt")):
            other = simulate(execution=fa.Execution(mesh=mesh, placement=placement))
            np.testing.assert_allclose(other.params, whole.params, rtol=1e-9)
    """)


def test_what_does_not_go_together():
    look = fa.criteria.relative_residual(sigma=0.5)
    with pytest.raises(ValueError, match="penalty_rule stiffness measures at z"):
        fa.fedadmm(LOCAL, penalty_rule=RULE)
    with pytest.raises(ValueError, match='it needs unselected_penalty="sent"'):
        fa.fedadmm(LOCAL, penalty_rule=RULE, criterion=look, unselected_penalty="current")
    with pytest.raises(ValueError, match="leave penalty_rule stiffness out"):
        fa.fedadmm(LOCAL, penalty_rule=RULE, criterion=look, server_step=1.0)
    with pytest.raises(ValueError, match="share must be above 0, got 0"):
        fa.penalties.stiffness(0)
