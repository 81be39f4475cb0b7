"""Runs at once against the same runs one by one."""

from __future__ import annotations

import inspect
import os
import signal

import jax
import numpy as np
import pytest
from compilations import compilations
from federations import least_squares
from test_devices import in_a_process

import fedjax_admm as fa

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=5)
SETTINGS = dict(participation=3, evaluate_every=2, progress=False)
SAME = dict(rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def problem():
    return least_squares([6, 11, 3, 8, 5])[0]


def assert_same(one, other):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **SAME), one.params, other.params)
    for name in one.state.clients:
        np.testing.assert_allclose(one.state.clients[name], other.state.clients[name], **SAME)
    np.testing.assert_array_equal(one.cohorts, other.cohorts)
    np.testing.assert_array_equal(one.epochs, other.epochs)
    for name in set(one.history) - {"seconds", "eval_seconds", "lane_efficiency", "device_efficiency"}:
        np.testing.assert_allclose(one.history[name], other.history[name], **SAME)
    for name in one.solves:
        same = np.testing.assert_array_equal if name == "stop_reason" else np.testing.assert_allclose
        same(one.solves[name], other.solves[name])


@pytest.mark.parametrize("name", fa.algorithms.__all__)
def test_runs_at_once_are_the_runs_one_by_one(problem, name):
    make = getattr(fa, name)

    def algorithm(rate, penalty):
        numbers = {"penalty": penalty} if "penalty" in inspect.signature(make).parameters else {}
        return make(fa.LocalSolver(learning_rate=rate, batch_size=4, max_epochs=5), **numbers)

    first, second = algorithm(0.05, 1.0), algorithm(0.02, 0.3)
    settings = SETTINGS | ({"participation": 1.0} if getattr(first, "needs_everyone", False) else {})
    runs = [(first, 0), (second, 0), (second, 7)]
    for (algorithm, seed), result in zip(runs, fa.simulate_many(problem, runs, 5, **settings), strict=True):
        assert_same(fa.simulate(problem, algorithm, 5, seed=seed, **settings), result)


def test_on_several_devices():
    in_a_process("""
        problem, *_ = least_squares([6, 11, 3, 8, 5])
        runs = [(fa.fedadmm_insa(LOCAL, penalty=penalty, mu=1.5), 3) for penalty in (0.1, 1.0, 3.0)]
        settings = dict(participation=3, evaluate_every=4, progress=False)
        from fedjax_admm.runs.sweeps import sweep_until

        one, many = (  # two places are empty: their jobs are nobody's
            sweep_until(6, problem, runs, 6, places=5, execution=fa.Execution(mesh=n), **settings) for n in (1, 4)
        )
        for a, b in zip(one, many, strict=True):
            np.testing.assert_allclose(a.params, b.params, rtol=1e-9)
            np.testing.assert_array_equal(a.epochs, b.epochs)
    """)


def test_at_home_they_cannot_be(problem):
    with pytest.raises(ValueError, match="placement must be 'auto' or 'dealt' for runs at once, got 'home'"):
        fa.simulate_many(problem, [(fa.fedavg(LOCAL), 0)], 2, execution=fa.Execution(placement="home"), **SETTINGS)


def test_a_run_that_diverges_leaves_the_others_alone(problem):
    def algorithm(rate):
        return fa.fedavg(fa.LocalSolver(learning_rate=rate, batch_size=4, max_epochs=5))

    runs = [(algorithm(0.05), 0), (algorithm(1e30), 0), (algorithm(0.02), 1)]
    good, bad, other = fa.simulate_many(problem, runs, 6, **SETTINGS)
    with pytest.raises(fa.DivergenceError) as alone:
        fa.simulate(problem, runs[1][0], 6, **SETTINGS)
    assert isinstance(bad, fa.DivergenceError) and str(bad) == str(alone.value)
    assert_same(fa.simulate(problem, runs[0][0], 6, **SETTINGS), good)
    assert_same(fa.simulate(problem, runs[2][0], 6, seed=1, **SETTINGS), other)


def test_numbers_compile_nothing(problem):
    def run(*penalties):
        return fa.simulate_many(problem, [(fa.fedadmm(LOCAL, penalty=p), 0) for p in penalties], 3, **SETTINGS)

    run(0.1, 0.2)
    with compilations() as compiled:
        run(0.3, 0.4)
    assert not compiled


@pytest.mark.parametrize(
    "runs, message",
    [
        ([], "runs must be pairs"),
        ([fa.fedavg(LOCAL)], "runs must be pairs"),
        ([(fa.fedavg(LOCAL), 0), (fa.fedadmm(LOCAL), 0)], r"runs\[1\] differs from runs\[0\]"),
        ([(fa.fedavg(LOCAL), 0), (fa.fedavg(LOCAL), -1)], "seed must be"),
    ],
)
def test_runs_that_cannot_be_at_once(problem, runs, message):
    with pytest.raises(ValueError, match=message):
        fa.simulate_many(problem, runs, 2, **SETTINGS)


def test_only_on_the_device(problem):
    with pytest.raises(ValueError, match="population must be 'device'"):
        fa.simulate_many(problem, [(fa.fedavg(LOCAL), 0)], 2, execution=fa.Execution(population="host"), **SETTINGS)


def test_an_interrupt_leaves_what_was_done(problem, monkeypatch):
    from fedjax_admm.runs import sweeps

    runs = [(fa.fedadmm(LOCAL, penalty=penalty), 0) for penalty in (0.1, 0.2)]
    settings = SETTINGS | {"evaluate_every": 1}
    whole = fa.simulate_many(problem, runs, 2, **settings)
    evaluate, calls = sweeps.evaluate_many, []

    def interrupting(*arguments):
        calls.append(None)
        if len(calls) == 3:  # before the first round, and after two
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*arguments)

    monkeypatch.setattr(sweeps, "evaluate_many", interrupting)
    with pytest.raises(fa.Interrupted, match="stopped after round 2") as caught:
        fa.simulate_many(problem, runs, 6, **settings)
    for one, other in zip(caught.value.result, whole, strict=True):
        np.testing.assert_array_equal(one.params, other.params)
        np.testing.assert_array_equal(one.history["loss"], other.history["loss"])
        assert len(one.cohorts) == len(one.epochs) == 2


def test_a_run_that_ended_and_an_empty_place_cost_nothing(problem):
    """The lanes' trips are those of the live runs alone, and so are the bits of what they compute."""
    from fedjax_admm.runs.sweeps import sweep_until

    def algorithm(rate):
        return fa.fedavg(fa.LocalSolver(learning_rate=rate, batch_size=4, max_epochs=5))

    runs, settings = [(algorithm(0.05), 0), (algorithm(0.02), 1)], SETTINGS | {"execution": fa.Execution(lanes=3)}
    alone = sweep_until(6, problem, runs, 6, **settings)
    beside = sweep_until(6, problem, runs, 6, places=5, **settings)
    with_dead = sweep_until(6, problem, [*runs, (algorithm(1e30), 0)], 6, **settings)[:2]
    for one, other, third in zip(alone, beside, with_dead, strict=True):
        assert_same(one, other)
        np.testing.assert_array_equal(one.params, other.params)
        np.testing.assert_array_equal(one.history["lane_efficiency"], other.history["lane_efficiency"])
        np.testing.assert_array_equal(one.history["lane_efficiency"][-1], third.history["lane_efficiency"][-1])


@pytest.fixture
def pair():
    return [(fa.fedadmm(LOCAL, penalty=penalty), seed) for penalty, seed in ((0.1, 0), (0.2, 3))]


def test_on_disk_they_are_what_simulate_writes(problem, pair, tmp_path):
    folders = [tmp_path / str(k) for k in range(2)]
    many = fa.simulate_many(problem, pair, 4, run_dirs=folders, **SETTINGS)
    for (algorithm, seed), folder, result in zip(pair, folders, many, strict=True):
        stored = fa.read_run(folder)
        assert stored.status == "finished"
        single = fa.simulate(problem, algorithm, 4, seed=seed, run_dir=folder, **SETTINGS)  # the same settings: read
        np.testing.assert_array_equal(single.params, result.params)
        for name in result.history:
            np.testing.assert_array_equal(stored.history[name], result.history[name])
        np.testing.assert_array_equal(stored.epochs, result.epochs)
        assert_same(fa.simulate(problem, algorithm, 4, seed=seed, **SETTINGS), single)
    again = fa.simulate_many(problem, pair, 4, run_dirs=folders, **SETTINGS)
    np.testing.assert_array_equal(again[1].params, many[1].params)


@pytest.mark.parametrize("on_disk", [True, False])
def test_they_pause_and_go_on_to_the_bit(problem, pair, tmp_path, monkeypatch, on_disk):
    from fedjax_admm.runs import sweeps
    from fedjax_admm.runs.kept import KeptRun
    from fedjax_admm.runs.sweeps import sweep_until

    computed, sweep_rounds = [], sweeps.sweep_rounds

    def counting(setup, states, cohorts, count, **options):
        computed.append(int(count))
        return sweep_rounds(setup, states, cohorts, count, **options)

    whole = fa.simulate_many(problem, pair, 6, **SETTINGS)
    where = {"run_dirs": [tmp_path / "0", tmp_path / "1"]} if on_disk else {"kept": [KeptRun(), KeptRun()]}
    monkeypatch.setattr(sweeps, "sweep_rounds", counting)
    half = sweep_until(2, problem, pair, 6, **where, **SETTINGS)
    assert len(half[0].cohorts) == 2
    if on_disk:
        assert fa.read_run(tmp_path / "0").message == "paused after round 2 of 6"
    ended = sweep_until(6, problem, pair, 6, **where, **SETTINGS)
    assert sum(computed) == 6  # rounds, none of them twice
    for one, other in zip(whole, ended, strict=True):
        assert_same(one, other)
        np.testing.assert_array_equal(one.params, other.params)


def test_runs_at_different_rounds_go_back_to_a_common_one(problem, pair, tmp_path):
    from fedjax_admm.runs.simulate import simulate_until
    from fedjax_admm.runs.sweeps import sweep_until

    whole = fa.simulate_many(problem, pair, 6, **SETTINGS)
    folders = [tmp_path / "0", tmp_path / "1"]
    sweep_until(2, problem, pair, 6, run_dirs=folders, **SETTINGS)
    simulate_until(4, problem, pair[1][0], 6, seed=pair[1][1], run_dir=folders[1], **SETTINGS)
    ended = sweep_until(6, problem, pair, 6, run_dirs=folders, **SETTINGS)
    for one, other in zip(whole, ended, strict=True):
        np.testing.assert_array_equal(one.params, other.params)


def test_one_that_diverged_on_disk_stays_so(problem, tmp_path):
    runs = [(fa.fedavg(fa.LocalSolver(learning_rate=rate, batch_size=4, max_epochs=5)), 0) for rate in (0.05, 1e30)]
    folders = [tmp_path / "0", tmp_path / "1"]
    first = fa.simulate_many(problem, runs, 4, run_dirs=folders, **SETTINGS)
    again = fa.simulate_many(problem, runs, 4, run_dirs=folders, **SETTINGS)
    assert str(first[1]) == str(again[1]) and isinstance(again[1], fa.DivergenceError)
    np.testing.assert_array_equal(first[0].params, again[0].params)
    from fedjax_admm.storage.run_files import read_status

    assert read_status(folders[1])["status"] == "diverged"


@pytest.mark.parametrize("run_dirs", ["one", ["a"], ["a", "a"]])
def test_a_directory_for_each_run(problem, pair, run_dirs):
    with pytest.raises(ValueError, match="run_dirs must be 2 different directories"):
        fa.simulate_many(problem, pair, 2, run_dirs=run_dirs, **SETTINGS)
