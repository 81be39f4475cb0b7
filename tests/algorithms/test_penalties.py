"""Penalties stay within their rule's bounds, and change only where there was something to judge."""

from __future__ import annotations

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.algorithms.penalties import Evidence
from fedjax_admm.storage import checkpoints

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=2)
PROBLEM = least_squares([6, 11, 3, 8])[0]


def run(rule, rounds=30, tolerance=2.0, penalty=1.0, **options):
    """A run in which many solves do no epoch."""
    algorithm = fa.fedadmm(LOCAL, penalty, criterion=fa.criteria.constant_tolerance(tolerance), penalty_rule=rule)
    return fa.simulate(PROBLEM, algorithm, rounds, participation=3, progress=False, **options)


def at_bound(result, low, high):
    return np.sum((result.solves.new_penalty == low) | (result.solves.new_penalty == high), axis=1)


def test_penalties_stay_within_their_bounds_and_are_counted():
    rule = fa.penalties.residual_balancing(bounds=(0.1, np.array([10.0, 10, 10, 11])))
    with pytest.warns(UserWarning, match="penalties are at their bound.*penalties_at_bound") as caught:
        result = run(rule)
    assert len(caught) == 1  # of a run, not of a round
    assert np.min(result.state.penalties) == 0.1 and 0.1 < np.max(result.state.penalties) <= 10
    counts = result.history["penalties_at_bound"]
    np.testing.assert_array_equal(counts, [0, *at_bound(result, 0.1, 10.0)])
    assert 0 < np.count_nonzero(counts) < 30


def test_a_resumed_run_warns_once(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)  # as often as is asked for

    def crash(row):
        if row["round"] == 20:
            raise RuntimeError("crash")

    rule = fa.penalties.residual_balancing(bounds=(0.5, 10))
    options = dict(run_dir=tmp_path / "run", evaluate_every=5, checkpoint_seconds=0)
    with pytest.warns(UserWarning, match="bound"), pytest.raises(RuntimeError, match="crash"):
        run(rule, on_round=crash, **options)
    seen = []
    result = run(rule, on_round=seen.append, **options)  # a warning would be an error here
    assert 15 <= seen[0]["round"] <= 21 and np.any(result.history["penalties_at_bound"][21:])


def test_within_wide_bounds_nothing_is_counted():
    """And a run without a rule has no such column."""
    result = run(fa.penalties.residual_balancing(), rounds=5)
    assert not np.any(result.history["penalties_at_bound"])
    assert "penalties_at_bound" not in run(None, rounds=2).history


@fa.record
class To:
    """A rule of one's own, without bounds."""

    value: Any

    def __call__(self, penalty, consensus_gap, movement):
        return jnp.full_like(penalty, self.value)


@pytest.mark.parametrize(("value", "bound"), [(0.0, 1e-12), (-1.0, 1e-12), (1e300, 1e12), (np.inf, 1e12)])
def test_no_rule_makes_a_penalty_zero_or_infinite(value, bound):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = run(To(np.float64(value)), rounds=1)
    assert np.all(result.solves.new_penalty == bound)
    assert result.history["penalties_at_bound"].tolist() == [0, 3]


def test_idle_solves_are_judged_or_not():
    """By (3.15) a solve without an epoch, whose gap is 0, divides the penalty unless its client stands still."""
    for judge in (True, False):
        result = run(fa.penalties.residual_balancing(judge_idle=judge), rounds=20, tolerance=0.5)
        solves, idle = result.solves, result.epochs == 0
        moved = idle & (solves.movement > 0)
        assert np.count_nonzero(moved) > 5 and np.count_nonzero(~idle) > 2
        assert np.all(solves.consensus_gap[idle] == 0)
        expected = solves.penalty / np.where(moved & judge, 2, 1)
        np.testing.assert_array_equal(solves.new_penalty[idle], expected[idle])
        assert np.any(solves.new_penalty[~idle] != solves.penalty[~idle])  # the others are judged


@fa.record
class Suspicious:
    """Triples the penalty; tells of anything that is not a number by a number of its own."""

    factor: Any = 3.0

    def __call__(self, penalty, consensus_gap, movement):
        sound = jnp.isfinite(consensus_gap) & jnp.isfinite(movement)
        return jnp.where(jnp.all(sound), self.factor * penalty, 777.0)


def test_a_rule_never_sees_what_was_not_measured():
    """Clipped updates leave the penalty as it was, and are not handed on as NaN, not even beside others."""
    norm = 0.3
    result = run(Suspicious(), rounds=3, tolerance=1e-6, penalty=0.01, faults=fa.Faults(clip_norm=norm))
    clipped = np.isclose(result.solves.consensus_gap, norm, rtol=1e-9)
    assert clipped.any() and not clipped.all()
    expected = result.solves.penalty * np.where(clipped, 1, 3)
    np.testing.assert_allclose(result.solves.new_penalty, expected, rtol=1e-12)


@fa.record
class Ratio:
    """0 / 0 where a client stands still at z."""

    def __call__(self, penalty, consensus_gap, movement):
        return penalty * movement / consensus_gap


def test_a_rule_is_not_asked_about_solves_that_failed():
    """Their gap is that of the start: what a rule makes of it must not reach the sums, not even times 0."""
    rates = fa.LocalSolver(learning_rate=np.array([0.05, 1e300, 0.05, 0.05]), batch_size=4, max_epochs=2)
    algorithm = fa.fedadmm(rates, 1.0, penalty_rule=Ratio())
    result = fa.simulate(PROBLEM, algorithm, 1, participation=4, progress=False)
    assert result.history["failed_clients"].tolist() == [0, 1]
    assert np.all(np.isfinite(result.history["penalty_mean"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bounds": 1.0}, r"bounds must be a pair, \(lowest, highest\) penalty, got 1.0"),
        ({"bounds": (0, 1)}, "bounds must be above 0, got 0"),
        ({"bounds": (2, 1)}, r"bounds must be \(lowest, highest\) with the lowest below .*got \(2, 1\)"),
        ({"bounds": (1e-3, np.inf)}, "bounds must be finite"),
        ({"until": 0}, "until must be at least 1, got 0"),
        ({"until": 2.5}, "until must be a whole number, or one per client, got 2.5"),
    ],
)
def test_what_is_no_rule(options, message):
    for make in (fa.penalties.residual_balancing, fa.penalties.relative_balancing, fa.penalties.spectral):
        with pytest.raises(ValueError, match=message):
            make(**options)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (fa.penalties.residual_balancing, {"judge_idle": "no"}, "judge_idle must be True or False, got 'no'"),
        (fa.penalties.relative_balancing, {"judge_idle": 1}, "judge_idle must be True or False, got 1"),
        (fa.penalties.relative_balancing, {"mu": 1}, "mu must be above 1, got 1"),
        (fa.penalties.spectral, {"correlation": 1}, "correlation must be below 1, got 1"),
        (fa.penalties.spectral, {"slack": 0}, "slack must be above 0, got 0"),
    ],
)
def test_what_is_not_this_rule(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(("eps", "measured"), [(1e-12, True), (1e-14, False)])
def test_spectral_penalties_stay_where_differences_are_rounding(eps, measured):
    """Otherwise they run off to quotients of rounding errors once a run has converged."""
    rule, u, lam = fa.penalties.spectral(), jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])
    memory = {"params": u, "duals": lam, "solves": jnp.int32(4)}
    after = (u + eps * 2, lam + eps * 14)
    seen = Evidence(*map(jnp.asarray, (eps, eps, True, 1)), after[0], u, after[1], lam, u, round=jnp.int32(9))
    new, _ = rule(jnp.float64(1.0), seen, memory)
    np.testing.assert_allclose(new, 7 if measured else 1, rtol=1e-2)
