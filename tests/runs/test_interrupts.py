"""Runs that are interrupted or killed: what was done is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import test_runs
from federations import least_squares
from test_runs import LOCAL, newest, problem_of, run

import fedjax_admm as fa

ROOT = Path(__file__).parents[2]
save_often = test_runs.save_often
CHILD = """
import sys
import time
sys.path.insert(0, sys.argv[1])
from test_runs import *
def tell(row):
    print(row["round"], flush=True)
    time.sleep(0.2)
run("run", on_round=tell, rounds=200, evaluate_every=1, checkpoint_seconds=1000)
"""


def started(tmp_path):
    """A run in a process of its own, in its second round at least."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(ROOT / "tests")], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.stdout.readline().strip() != "2":
        assert process.poll() is None, process.stderr.read()
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_round(tmp_path, number):
    process = started(tmp_path)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "stopping after this round" in said and "To go on: make the same call with the same run_dir" in said
    stored = fa.read_run(tmp_path / "run")
    assert stored.status == "interrupted" and newest(tmp_path / "run").name == str(len(stored.cohorts))


def interrupt_in(number):
    """For on_round: Ctrl-C in this round."""
    return lambda row: os.kill(os.getpid(), signal.SIGINT) if row["round"] == number else None


def test_an_interrupt_of_a_run_in_memory_leaves_what_was_done(capsys):
    whole, former = run(None, rounds=4, evaluate_every=1), signal.getsignal(signal.SIGINT)
    with pytest.raises(fa.Interrupted, match="stopped after round 4; what was done is this error's result") as caught:
        run(None, rounds=9, evaluate_every=1, on_round=interrupt_in(4))
    assert "stopping after this round" in capsys.readouterr().err
    result = caught.value.result
    assert len(result.cohorts) == len(result.epochs) == 4 and caught.value.run_dir is None
    np.testing.assert_array_equal(result.params, whole.params)
    np.testing.assert_array_equal(result.history["loss"], whole.history["loss"])
    assert signal.getsignal(signal.SIGINT) is former


def test_an_interrupt_of_a_comparison_in_memory_leaves_the_runs_that_are_done():
    problem = least_squares([6, 11, 3])[0]
    algorithms = {"first": fa.fedavg(LOCAL), "second": fa.fedprox(LOCAL, penalty=1.0), "third": fa.fedadmm(LOCAL)}
    calls = []

    def interrupt(row):
        calls.append(row["round"])
        if calls.count(2) == 2:  # in the second algorithm's round 2
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(fa.Interrupted) as caught:
        fa.compare(problem, algorithms, rounds=3, progress=False, on_round=interrupt)
    comparison = caught.value.result
    assert list(comparison.by_label()) == ["first"]
    assert comparison.notes() == ["second, seed 0: interrupted", "third, seed 0: not begun"]


@pytest.mark.parametrize("on_disk", [False, True])
def test_an_interrupt_in_the_last_round_leaves_the_whole_result(tmp_path, on_disk):
    with pytest.raises(fa.Interrupted) as caught:
        run(tmp_path / "run" if on_disk else None, rounds=4, evaluate_every=1, on_round=interrupt_in(4))
    assert len(caught.value.result.cohorts) == 4
    assert not on_disk or fa.read_run(tmp_path / "run").status == "finished"


def test_an_interrupt_after_the_last_round_leaves_the_run_finished(tmp_path, monkeypatch):
    """While the result is made, and while a finished run is read again."""
    made = fa.Result

    def interrupted(**parts):
        os.kill(os.getpid(), signal.SIGINT)
        return made(**parts)

    for name in ("fresh", "read again"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(sys.modules["fedjax_admm.runs.loop"], "Result", interrupted)
            run(tmp_path)
        assert fa.read_run(tmp_path).status == "finished", name


def test_an_interrupt_in_a_cells_last_round_keeps_the_cell(tmp_path):
    algorithms = {"first": fa.fedavg(LOCAL), "second": fa.fedadmm(LOCAL)}
    for place in (None, tmp_path):
        with pytest.raises(fa.Interrupted) as caught:
            fa.compare(problem_of(), algorithms, 3, run_dir=place, progress=False, on_round=interrupt_in(3))
        assert caught.value.result.notes() == ["second, seed 0: not begun"]
    assert fa.read_comparison(tmp_path).notes() == ["second, seed 0: not begun"]


def test_a_run_that_stopped_between_evaluations_shows_its_last_loss(monkeypatch):
    monkeypatch.setattr(sys.modules["fedjax_admm.runs.loop"], "SECONDS_A_DISPATCH", 0.0)  # a round at a time
    with pytest.raises(fa.Interrupted) as caught:
        run(None, rounds=9, evaluate_every=3, on_round=interrupt_in(4))
    loss = caught.value.result.history["loss"]
    assert repr(caught.value.result) == f"Result(4 rounds, loss {loss[0]:.6g} -> {loss[3]:.6g})"


def test_a_second_interrupt_ends_it_at_once(tmp_path):
    process = started(tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0 and "stopped at once" in said
    assert fa.read_run(tmp_path / "run").status == "interrupted"


def test_kills_at_random_moments():
    """The same with more kills: `benchmarks/kill_and_resume.py`."""
    script = ROOT / "benchmarks" / "kill_and_resume.py"
    done = subprocess.run([sys.executable, script, "--kills", "2"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill ") == 2 and "identical" in done.stdout
