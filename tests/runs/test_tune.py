"""`tune` against plain loops over `simulate`."""

from __future__ import annotations

import os
import signal

import jax
import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.runs import search
from fedjax_admm.runs import tune as tune_module

GRID = {"penalty": [0.1, 1.0], "learning_rate": [0.005, 0.02, 0.05]}
ROUNDS, SEEDS = 8, [0, 3]
SETTINGS = dict(rounds=ROUNDS, seeds=SEEDS, participation=3, evaluate_every=2, progress=False)


def make(penalty, learning_rate, batch_size=4):
    local = fa.LocalSolver(learning_rate=learning_rate, batch_size=batch_size, max_epochs=3)
    return fa.fedadmm(local, penalty=penalty)


@pytest.fixture(scope="module")
def problem():
    return least_squares([6, 11, 3, 8, 5])[0]


def run_plainly(problem, setting, seed, rounds=ROUNDS):
    """The losses [rounds + 1] of one setting, by `simulate`; infinity from where it diverged."""
    try:
        result = fa.simulate(
            problem, make(**setting), rounds, seed=seed, participation=3, evaluate_every=2, progress=False
        )
        return result.history["loss"]
    except fa.DivergenceError:
        return np.full(rounds + 1, np.inf)


@pytest.fixture(scope="module")
def losses(problem):
    """[settings, seeds, rounds + 1], one run after the other."""
    settings = [{"penalty": p, "learning_rate": rate} for p in GRID["penalty"] for rate in GRID["learning_rate"]]
    return np.array([[run_plainly(problem, setting, seed) for seed in SEEDS] for setting in settings])


@pytest.fixture(scope="module")
def halved(problem):
    return fa.tune(problem, make, GRID, halving=2, **SETTINGS)


@pytest.mark.parametrize("at_once", ["auto", 1])
def test_scores_and_the_best_are_those_of_a_plain_loop(problem, losses, at_once):
    tuning = fa.tune(problem, make, GRID, at_once=at_once, **SETTINGS)
    expected = losses[:, :, -1]
    np.testing.assert_allclose(tuning.scores[:, :, 0], expected, rtol=1e-9)
    best = int(np.argmin(expected.mean(axis=1)))
    assert tuning.best == tuning.settings[best] == {"penalty": GRID["penalty"][best // 3], **{
        "learning_rate": GRID["learning_rate"][best % 3]}}  # fmt: skip
    assert tuning.best_algorithm == make(**tuning.best)
    assert tuning.ranking() == np.argsort(expected.mean(axis=1)).tolist()
    assert tuning.best_score == pytest.approx(expected.mean(axis=1).min(), rel=1e-9)


def test_the_score_is_the_mean_of_the_last_evaluations(problem, losses):
    tuning = fa.tune(problem, make, {"penalty": [0.1], "learning_rate": [0.005, 0.02, 0.05]}, last=3, **SETTINGS)
    np.testing.assert_allclose(tuning.scores[:, :, 0], losses[:3, :, [4, 6, 8]].mean(axis=2), rtol=1e-9)


def test_runs_start_where_they_are_told(problem):
    """From an array, as another run left one."""
    start = fa.simulate(problem, make(0.1, 0.02), 2, participation=3, progress=False).params
    setting = {"penalty": 0.1, "learning_rate": 0.02}
    tuning = fa.tune(problem, make, [setting], initial_params=start, **SETTINGS)
    for seed, score in zip(SEEDS, tuning.scores[0, :, 0], strict=True):
        settings = dict(participation=3, evaluate_every=2, initial_params=start, progress=False)
        alone = fa.simulate(problem, make(**setting), ROUNDS, seed=seed, **settings)
        np.testing.assert_allclose(score, alone.history["loss"][-1], rtol=1e-9)


def halve_plainly(losses, rungs, eta):
    """Successive halving, from all runs' whole histories."""
    alive, scores = list(range(len(losses))), np.full((*losses.shape[:2], len(rungs)), np.nan)
    for rung, rounds in enumerate(rungs):
        for k in alive:
            scores[k, :, rung] = losses[k, :, rounds]
        order = sorted(alive, key=lambda k, rung=rung: scores[k, :, rung].mean())
        alive = sorted(order[: -(-len(alive) // eta)])
    return scores


def test_halving_keeps_the_best(halved, losses):
    assert halved.rungs == [2, 4, 8]
    expected = halve_plainly(losses, halved.rungs, 2)
    np.testing.assert_allclose(halved.scores, expected, rtol=1e-9)  # NaN in the same places
    assert [int(np.sum(~np.isnan(expected[:, 0, rung]))) for rung in range(3)] == [6, 3, 2]
    assert halved.best == halved.settings[int(np.nanargmin(expected[:, :, -1].mean(axis=1)))]
    longest = halved.runs[halved.labels[halved.ranking()[0]]][3]
    assert len(longest.cohorts) == ROUNDS  # one history, though it was made rung by rung


def test_a_rung_goes_on_from_where_the_last_one_ended(problem):
    """No round is run twice: the first rung's runs are told their rounds from 0, the others' only later ones."""
    seen, grid = [], {"penalty": [0.1], "learning_rate": [0.02, 0.05]}
    settings = SETTINGS | {"seeds": [0], "halving": 2, "on_round": lambda row: seen.append(row["round"])}
    assert fa.tune(problem, make, grid, **settings).rungs == [4, 8]
    assert seen == [*range(5), *range(5), *range(5, 9)]


@pytest.mark.parametrize("at_once", [3, 1])
def test_an_interrupted_tuning_goes_on_to_the_same_bits(problem, tmp_path, monkeypatch, at_once):
    """Stopped before each of its programs or runs in turn; none that was done is done again."""
    settings = SETTINGS | {"seeds": [0], "halving": 2, "at_once": at_once}
    grid = GRID | {"penalty": [0.1]} if at_once == 1 else GRID
    whole = fa.tune(problem, make, grid, run_dir=tmp_path / "whole", **settings)
    name = "_run_alone" if at_once == 1 else "_run_at_once"
    done, stop_at, original = [], [None], getattr(tune_module._Runner, name)

    def counted(self, *arguments):
        if len(done) == stop_at[0]:
            raise KeyboardInterrupt
        done.append(arguments[0])
        return original(self, *arguments)

    monkeypatch.setattr(tune_module._Runner, name, counted)
    stop_at[0], number = 0, 0
    while True:  # one more piece of work each time
        try:
            tuning = fa.tune(problem, make, grid, run_dir=tmp_path / "stopped", **settings)
            break
        except KeyboardInterrupt:
            stop_at[0] += 1
            number += 1
    np.testing.assert_array_equal(tuning.scores, whole.scores)
    assert len(done) == number == (4 if at_once == 3 else 5)  # programs for 6, 3 and 2 runs; or 3 runs and 2
    again = fa.read_tuning(tmp_path / "whole")
    np.testing.assert_array_equal(again.scores, whole.scores)
    assert (again.settings, again.labels, again.best) == (whole.settings, whole.labels, whole.best)


def test_ctrl_c_in_a_run_leaves_what_was_done(problem, tmp_path):
    """Within a run: what there is is told, and the run goes on where it was."""
    seen = []

    def interrupt_once(row):
        seen.append(row["round"])
        if len(seen) == 14:  # in the second run
            os.kill(os.getpid(), signal.SIGINT)

    settings = SETTINGS | {"seeds": [0], "run_dir": tmp_path / "run", "on_round": interrupt_once}
    grid = {"penalty": [0.1, 1.0], "learning_rate": [0.02]}
    with pytest.raises(fa.Interrupted) as stopped:
        fa.tune(problem, make, grid, **settings)
    assert np.isnan(stopped.value.result.scores[:, 0, 0]).tolist() == [False, True]
    assert any("not done: 1 of 2 runs to round 8" in note for note in stopped.value.result.notes())
    tuning = fa.tune(problem, make, grid, **settings)
    assert len(seen) == 2 * (ROUNDS + 1)
    plain = [run_plainly(problem, setting, 0)[-1] for setting in tuning.settings]
    np.testing.assert_allclose(tuning.scores[:, 0, 0], plain, rtol=1e-12)


def test_another_tuning_in_the_same_directory_is_refused(problem, tmp_path):
    grid, settings = {"penalty": [0.1]}, SETTINGS | {"seeds": [0], "rounds": 2, "run_dir": tmp_path / "one"}
    fa.tune(problem, lambda penalty: make(penalty, 0.01), grid, **settings)
    for change, grid_now, rate, message in (
        ({}, {"penalty": [0.1, 1.0]}, 0.01, r"grid penalty: \[0.1\] there, \[0.1, 1.0\] now"),
        ({"rounds": 1}, grid, 0.01, "rounds: 2 there, 1 now"),
        ({"rounds": 4, "seeds": [1]}, grid, 0.01, r"\(seeds: \[0\] there, \[1\] now\)"),
        ({"seeds": [1]}, grid, 0.01, r"seeds: \[0\] there, \[1\] now"),
        ({"last": 2}, grid, 0.01, "objective.last: 1 there, 2 now"),
        ({}, grid, 0.02, "algorithm of penalty 0.1.local.learning_rate: 0.01 there, 0.02 now"),
    ):
        with pytest.raises(ValueError, match=message):
            fa.tune(problem, lambda penalty, rate=rate: make(penalty, rate), grid_now, **settings | change)


@pytest.mark.parametrize("at_once", ["auto", 1])
def test_a_tuning_without_halving_with_more_rounds_is_one_that_had_them_from_the_start(problem, tmp_path, at_once):
    settings = SETTINGS | {"at_once": at_once, "run_dir": tmp_path / "longer"}
    fa.tune(problem, make, GRID, **settings)
    longer = fa.tune(problem, make, GRID, **settings | {"rounds": 14})
    once = fa.tune(problem, make, GRID, **SETTINGS | {"at_once": at_once, "rounds": 14})
    np.testing.assert_array_equal(longer.scores, once.scores)
    for label, runs in once.runs.items():
        for seed, run in runs.items():
            twin = longer.runs[label][seed]
            jax.tree.map(np.testing.assert_array_equal, (run.cohorts, run.solves), (twin.cohorts, twin.solves))
            np.testing.assert_array_equal(run.history["loss"], twin.history["loss"])
    assert longer.best == once.best == fa.read_tuning(tmp_path / "longer").best


def test_a_tuning_with_halving_or_an_end_out_of_turn_cannot_be_made_longer(problem, tmp_path):
    grid, settings = {"penalty": [0.1, 1.0], "learning_rate": [0.01]}, SETTINGS | {"seeds": [0], "run_dir": tmp_path}
    for name, options, message in (
        ("halved", {"halving": 2, "rounds": 4}, "has a tuning with halving over 4 rounds, and cannot be made longer"),
        ("uneven", {"rounds": 3}, "round 3 was evaluated only because it was the last"),
    ):
        options = settings | options | {"run_dir": tmp_path / name}
        before = fa.tune(problem, make, grid, **options)
        with pytest.raises(ValueError, match=message):
            fa.tune(problem, make, grid, **options | {"rounds": 8})
        np.testing.assert_array_equal(fa.tune(problem, make, grid, **options).scores, before.scores)


def test_settings_that_differ_in_more_than_numbers(problem):
    """Two programs, and the same scores."""
    settings = SETTINGS | {"seeds": [0]}
    grid = {"penalty": [0.1, 1.0], "learning_rate": [0.02], "batch_size": [4, None]}
    tuning = fa.tune(problem, make, grid, **settings)
    plain = [run_plainly(problem, setting, 0)[-1] for setting in tuning.settings]
    np.testing.assert_allclose(tuning.scores[:, 0, 0], plain, rtol=1e-9)


@pytest.mark.parametrize("at_once, halving", [("auto", 2), (1, None)])
def test_a_setting_that_diverges_is_in_the_table(problem, at_once, halving):
    settings = SETTINGS | {"seeds": [0], "at_once": at_once, "halving": halving}
    tuning = fa.tune(problem, make, {"penalty": [1.0], "learning_rate": [1e30, 0.02, 0.01]}, **settings)
    assert tuning.scores[0, 0, 0] == np.inf and tuning.ranking()[-1] == 0
    assert tuning.best["learning_rate"] == 0.02
    assert tuning.table().rows[-1][4] == "diverged (1 of 1 seeds)"
    assert any("learning_rate 1e+30, seed 0: round" in note for note in tuning.notes())
    hopeless = fa.tune(problem, make, {"penalty": [1.0], "learning_rate": [1e30]}, **settings)
    with pytest.raises(ValueError, match="there is no best setting, every setting diverged"):
        _ = hopeless.best


def test_a_metric_is_maximised(problem):
    """Two settings whose metric and loss disagree in sign: more of a metric is better unless the user says less."""
    data = problem.data.fields
    measured = fa.Problem(
        init=problem.init, loss=problem.loss, data=problem.data, regularizer=problem.regularizer,
        eval_data=jax.tree.map(np.asarray, data), metrics={"error": problem.loss},
    )  # fmt: skip
    grid, settings = {"penalty": [1.0], "learning_rate": [0.001, 0.05]}, SETTINGS | {"seeds": [0]}
    assert fa.tune(measured, make, grid, objective="error", **settings).best["learning_rate"] == 0.001
    less = fa.tune(measured, make, grid, objective="error", direction="minimize", **settings)
    assert less.best["learning_rate"] == 0.05


def failing(penalty):
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    "make_algorithm, grid, settings, message",
    [
        (
            make,
            {"penalty": [0.1], "rate": [1]},
            {},
            "grid has 'rate', which make_algorithm does not take: it takes pen",
        ),
        (make, {"penalty": [0.1]}, {}, "make_algorithm needs learning_rate, which grid does not have"),
        (make, {"penalty": []}, {}, "grid's penalty has no values"),
        (make, {}, {}, "grid must have one name at least"),
        (make, [], {}, "grid must be name -> values"),
        (make, {"penalty": 0.1}, {}, "grid's penalty must be a list of values"),
        (make, {"penalty": fa.ranges.log(0.1, 1)}, {}, "grid's penalty is a range: say how many settings to draw"),
        (make, [{"penalty": 0.1}], {"draws": 3}, "draws must be None where grid is a list"),
        (make, {"penalty": [1.0, 1.0], "learning_rate": [0.1]}, {}, "different settings, got penalty=1, learning_"),
        (make, {"penalty": [-1.0], "learning_rate": [0.1]}, {}, "with penalty=-1, learning_rate=0.1: penalty must be"),
        (failing, {"penalty": [2.0]}, {}, "make_algorithm with penalty=2: RuntimeError: no such thing"),
        (lambda penalty: None, {"penalty": [2.0]}, {}, "make_algorithm with penalty=2: "),
        (None, {"penalty": [2.0]}, {}, "make_algorithm must be a function"),
        (make, GRID, {"objective": "accuracy"}, "objective must be 'loss', got 'accuracy'"),
        (make, GRID, {"direction": "down"}, "direction must be 'minimize' or 'maximize'"),
        (make, GRID, {"last": 0}, "last must be at least 1"),
        (make, GRID, {"halving": 1}, "halving must be at least 2"),
        (make, GRID, {"at_once": "all"}, "at_once must be 'auto'"),
        (make, GRID, {"seeds": [0, 0]}, "seeds must be different numbers"),
        (make, GRID, {"participation": 9}, "participation"),
        (make, GRID, {"halving": 2, "execution": fa.Execution(population="disk")}, "needs a run_dir"),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(problem, monkeypatch, make_algorithm, grid, settings, message):
    monkeypatch.setattr(tune_module._Runner, "run", lambda *_: pytest.fail("it began to run"))
    with pytest.raises(ValueError, match=message) as refused:
        fa.tune(problem, make_algorithm, grid, **SETTINGS | settings)
    assert "\n" not in str(refused.value)


def test_an_unknown_argument(problem):
    with pytest.raises(TypeError, match="tune has no argument 'round_dir': there are seeds"):
        fa.tune(problem, make, GRID, round_dir="x", **SETTINGS)


def test_draws_are_even():
    """Every eighth of a range has one of eight draws, whatever the seed; a list's values come equally often."""
    grid = {"penalty": fa.ranges.log(1e-3, 1e5), "rule": ["a", "b"], "epochs": fa.ranges.whole(1, 4)}
    for seed in range(5):
        settings = search.make_settings(grid, draws=8, draws_seed=seed)
        eighths = np.floor(np.log10([setting["penalty"] for setting in settings])).astype(int)
        assert sorted(eighths) == list(range(-3, 5))
        assert sorted(setting["rule"] for setting in settings) == ["a"] * 4 + ["b"] * 4
        assert sorted(setting["epochs"] for setting in settings) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert search.make_settings(grid, draws=8) == search.make_settings(grid, draws=8, draws_seed=0)


@pytest.mark.parametrize("halving", [2, 3, 4])
@pytest.mark.parametrize("number", [1, 2, 5, 9, 24, 100])
def test_rungs(number, halving):
    rungs = search.make_rungs(300, number, halving, min_rounds=7, every=5)
    assert rungs[-1] == 300 and rungs == sorted(set(rungs))
    assert all(rung % 5 == 0 and rung >= 7 for rung in rungs)
    left = number
    for _ in rungs[1:]:
        left = -(-left // halving)
    assert left >= 1 and len(rungs) <= 1 + np.log(number) / np.log(halving) + 1e-9


def test_tables_and_the_picture(halved):
    table = halved.table()
    assert table.header == ("place", "penalty", "learning_rate", "rounds", "loss", "gradients", "floats")
    assert len(table.rows) == 6 and len(halved.table(2).rows) == 2
    assert [row[3] for row in table.rows] == ["8", "8", "4", "2", "2", "2"]
    rows = halved.csv().splitlines()
    assert rows[0] == "setting,penalty,learning_rate,seed,rounds,score"
    assert len(rows) == 1 + 2 * (6 + 3 + 2) == 1 + len(halved.to_pandas())
    best = [row for row in halved.rows() if row["setting"] == halved.ranking()[0] and row["rounds"] == 8]
    assert np.mean([row["score"] for row in best]) == halved.best_score
    for names in ((), ("penalty",), ("learning_rate", "penalty")):
        axes = halved.plot(*names)
        assert axes.get_xlabel() == (names or ("penalty",))[0].replace("_", " ")
    with pytest.raises(ValueError, match="x must be 'penalty' or 'learning_rate', got 'rate'"):
        halved.plot("rate")


def test_on_disk_there_is_a_report_and_a_command(tmp_path, capsys):
    """The command tunes; what is on disk is shown, resumed without running anything, and reported."""
    from fedjax_admm.cli.commands import main

    small = "--clients 4 --rows-per-client 6 --dimension 3 --batch-size 2 --rounds 4 --max-epochs 2 --no-progress"
    grid = "--grid penalty=0.1,1 --grid learning-rate=0.001,0.01 --algorithm fedadmm --halving 2"
    folder = tmp_path / "tuned"
    assert main(f"tune linear {small} {grid} --out {folder}".split()) == 0
    printed = capsys.readouterr().out
    tuning = fa.read_tuning(folder)
    best = ", ".join(f"{name} {value:g}" for name, value in tuning.best.items())
    assert f"best: {best}" in printed and "4 to round 1, 2 to round 2, 1 to round 4" in printed
    assert (folder / "scores.csv").read_text() == tuning.csv()
    for again in (["resume", str(folder), "--no-progress"], f"tune linear {small} {grid} --out {folder}".split()):
        assert main(again) == 0
        assert f"best: {best}" in capsys.readouterr().out
    assert main(["resume", str(folder), "--rounds", "8"]) == 2
    assert "has a tuning with halving over 4 rounds, and cannot be made longer" in capsys.readouterr().err
    assert main(["report", str(folder)]) == 0
    page = (folder / "report.html").read_text()
    assert "data:image/png" in page and f"the best setting: {tuning.labels[tuning.ranking()[0]]}" in page
    assert all(f"{score:.6g}" in page for score in tuning.final_scores)
    for words, message in (
        ("--grid penalty", "--grid must be NAME=VALUES"),
        ("--grid rate=1", "--grid: a name must be one of 'learning-rate', 'max-epochs'"),
        ("--grid penalty=log(1)", "a range must be log(LOW,HIGH)"),
        ("", "--grid is missing: give what to try, NAME=VALUES"),
    ):
        assert main(f"tune linear {small} {words}".split()) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("population", ["host", "disk"])
def test_rows_off_the_device_go_on_from_a_rung_too(problem, losses, tmp_path, population):
    """Between rungs such a run is kept in memory, or in its directory if its rows are in a file."""
    where = {"run_dir": tmp_path / "run"} if population == "disk" else {}
    settings = SETTINGS | {"halving": 2, "execution": fa.Execution(population=population)} | where
    tuning = fa.tune(problem, make, {"penalty": [0.1], "learning_rate": [0.02, 0.05]}, **settings)
    np.testing.assert_allclose(tuning.scores, halve_plainly(losses[1:3], tuning.rungs, 2), rtol=1e-9)
    assert tuning.rungs == [4, 8]
