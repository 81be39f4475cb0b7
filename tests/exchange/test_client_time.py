"""Simulated seconds against a plain loop, deadlines, and where the seconds are shown."""

from __future__ import annotations

import numpy as np
import pytest
from compilations import compilations
from federations import least_squares
from test_engine import LOCAL, SIZES

import fedjax_admm as fa
from fedjax_admm.results.comparison import key_figures
from fedjax_admm.show.report import page

INSA = fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5)
SPEEDS, BANDWIDTHS = np.array([10.0, 40, 25, 5]), np.array([7.0, 3, 11, 2])


def run(problem, algorithm=INSA, rounds=6, **options):
    return fa.simulate(problem, algorithm, rounds, progress=False, participation=3, **options)


def seconds_of(result, speeds=SPEEDS, bandwidths=BANDWIDTHS, floats=5 + 11):
    """[rounds, cohort], one solve after another."""
    table = np.zeros(result.cohorts.shape)
    for k, cohort in enumerate(result.cohorts):
        for j, client in enumerate(cohort):
            table[k, j] = result.solves.gradient_samples[k, j] / speeds[client] + floats / bandwidths[client]
    return table


def test_a_round_takes_as_long_as_its_slowest_client():
    problem, *_ = least_squares(SIZES)
    plain = run(problem)
    with compilations() as compiled:
        timed = run(problem, client_time=fa.ClientTime(SPEEDS, BANDWIDTHS))
    assert not compiled  # without a deadline it is the same program
    np.testing.assert_array_equal(timed.params, plain.params)
    assert (timed.solves.criterion_samples > 0).any()  # which the gradients include
    np.testing.assert_allclose(timed.history["simulated_seconds"], [0, *seconds_of(timed).max(axis=1)], rtol=1e-12)
    assert "simulated_seconds" not in plain.history and "late_clients" not in timed.history
    computing = run(problem, client_time=fa.ClientTime(4))
    np.testing.assert_allclose(
        computing.history["simulated_seconds"][1:], computing.solves.gradient_samples.max(axis=1) / 4
    )


@pytest.mark.parametrize("kind", ["device", "host"])
def test_who_misses_the_deadline_keeps_its_rows_but_its_work_counts(kind):
    """The first late round by hand: it is the round of the others alone."""
    problem, *_ = least_squares(SIZES)
    plain = run(problem, rounds=1)
    each = seconds_of(plain)[0]
    deadline = float(np.sort(each)[-1] * 0.99)
    sim = fa.Simulation(
        problem, INSA, participation=3, execution=fa.Execution(population=kind),
        client_time=fa.ClientTime(SPEEDS, BANDWIDTHS, deadline=deadline),
    )  # fmt: skip
    state, info = sim.round(sim.init())
    late = each > deadline
    assert late.sum() == 1
    np.testing.assert_array_equal(info.stop_reason == "late", late)
    np.testing.assert_array_equal(info.gradient_samples, plain.solves.gradient_samples[0])
    others = fa.Simulation(problem, INSA, participation=3)
    alone, _ = others.round(others.init(), plain.cohorts[0][~late])
    np.testing.assert_allclose(state.params, alone.params, rtol=1e-12)
    for name in alone.clients:
        np.testing.assert_allclose(np.asarray(state.clients[name]), np.asarray(alone.clients[name]), rtol=1e-12)


def test_the_history_of_deadlines_and_faults():
    problem, *_ = least_squares(SIZES)
    schedule = np.zeros((6, 4))
    schedule[1], schedule[2, :3] = 1, 1
    time = fa.ClientTime(SPEEDS, BANDWIDTHS, deadline=9.0)
    result = run(problem, client_time=time, faults=fa.Faults(dropout=schedule))
    reasons, each = result.solves.stop_reason, seconds_of(result)
    away = reasons == "dropped"
    np.testing.assert_array_equal(reasons == "late", ~away & (each > 9))
    expected = np.minimum(np.where(away, 0, each).max(axis=1), 9)
    np.testing.assert_allclose(result.history["simulated_seconds"][1:], expected, rtol=1e-12)
    assert result.history["simulated_seconds"][2] == 0 and 9.0 in result.history["simulated_seconds"]
    np.testing.assert_array_equal(result.history["late_clients"][1:], np.sum(reasons == "late", axis=1))
    received, sent = np.sum(~away, axis=1), np.sum(~away & (reasons != "late"), axis=1)
    np.testing.assert_array_equal(result.history["communicated_floats"][1:], 5 * received + 11 * sent)


def test_if_all_are_late_nothing_happens():
    problem, *_ = least_squares(SIZES)
    result = run(problem, client_time=fa.ClientTime(SPEEDS, deadline=1e-3), rounds=2)
    np.testing.assert_array_equal(result.params, np.zeros(5))
    assert (result.solves.stop_reason == "late").all() and (result.history["gradient_samples"][1:] > 0).all()


def test_log_normal_speeds():
    speeds = fa.client_time.log_normal(100.0, 0.7, 20_000, seed=3)
    assert abs(np.median(speeds) / 100 - 1) < 0.03 and abs(np.std(np.log(speeds)) - 0.7) < 0.02
    np.testing.assert_array_equal(fa.client_time.log_normal(100.0, 0.7, 20_000, seed=3), speeds)
    assert not np.array_equal(fa.client_time.log_normal(100.0, 0.7, 20_000, seed=4), speeds)
    assert (fa.client_time.log_normal(100.0, 0.0, 3) == 100).all()


def test_seconds_in_pictures_reports_and_tables():
    import matplotlib

    matplotlib.use("Agg")
    problem, *_ = least_squares(SIZES)
    time = fa.ClientTime(SPEEDS, BANDWIDTHS, deadline=9.0)
    plain, timed = run(problem), run(problem, client_time=time)
    line = fa.plots.plot_loss({"InSa": timed}, against="time").lines[0]
    np.testing.assert_allclose(line.get_xdata(), np.cumsum(timed.history["simulated_seconds"]))
    with pytest.raises(ValueError, match="against='time' needs the column simulated_seconds.*client_time="):
        fa.plots.plot_loss({"plain": plain}, against="time")
    figures = dict(key_figures(timed).rows)
    assert float(figures["simulated seconds"]) == pytest.approx(timed.history["simulated_seconds"].sum(), rel=1e-4)
    assert int(figures["late solves"]) == timed.history["late_clients"].sum() > 0
    timed_page, plain_page, mixed = (
        page("t", runs, table=key_figures(timed))
        for runs in ({"a": [timed]}, {"a": [plain]}, {"a": [timed], "b": [plain]})
    )
    assert '"simulated_seconds":"simulated seconds"' in timed_page and 'class="key late"' in timed_page
    for other in (plain_page, mixed):
        assert '"simulated_seconds":"simulated seconds"' not in other
    assert 'class="key late"' not in plain_page
    both = fa.compare(problem, {"InSa": INSA, "again": INSA}, rounds=3, client_time=time, progress=False)
    assert both.table().header[-1] == "time" and both.table().rows[1][-1] == "1.00 x"
    assert fa.compare(problem, {"InSa": INSA}, rounds=3, progress=False).table().header[-1] == "floats"


BAD = {
    "no speed": (lambda: fa.ClientTime(None), "gradients_per_second must be a number, or one per client, got None"),
    "speed zero": (lambda: fa.ClientTime([1.0, 0]), "gradients_per_second must be above 0, got 0 for client 1"),
    "bandwidth": (lambda: fa.ClientTime(1.0, -2), "floats_per_second must be above 0, got -2"),
    "deadline": (lambda: fa.ClientTime(1.0, deadline=0), "deadline must be above 0, got 0"),
    "deadline per client": (lambda: fa.ClientTime(1.0, deadline=[1, 2]), "deadline must be a number, got an array"),
    "sigma": (lambda: fa.client_time.log_normal(1.0, -1, 3), "sigma must be at least 0, got -1"),
    "wrong number": (lambda: run(least_squares(SIZES)[0], client_time=fa.ClientTime([1.0, 2])), "gradients_per_second has 2 entries for 4 clients"),
    "wrong kind": (lambda: run(least_squares(SIZES)[0], client_time=3.0), "client_time must be a fedjax_admm.ClientTime, got 3.0"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_times(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()
