"""What is told of a run's progress."""

from __future__ import annotations

import pytest

from fedjax_admm.runs import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for what a test adds to it."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.time, "time", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    return now


def test_the_time_left_does_not_count_the_compiling(clock, capsys):
    with progress.Progress(30, show=True) as shown:
        assert capsys.readouterr().err == "compiling, then round 1 of 30\n"
        clock[0] += 18
        shown.update(1, "loss 3")
        assert capsys.readouterr().err == "round 1/30, 18 s: loss 3\n"  # nothing is known yet
        clock[0] += 11
        shown.update(11, "loss 2")
        assert capsys.readouterr().err == "round 12/30, 29 s, 18 s left: loss 2\n"
        clock[0] += 18
        shown.update(18, "loss 1")
        assert capsys.readouterr().err == "round 30/30, 47 s: loss 1\n"


def test_a_bar_s_rate_does_not_count_the_compiling(clock, capsys, monkeypatch):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    with progress.Progress(30, show=True, done=4) as shown:
        assert "compiling" in capsys.readouterr().err
        clock[0] += 20
        shown.update(1, "loss 3")
        first = capsys.readouterr().err
        assert "5/30" in first and "loss 3" in first and "<?" in first  # the time left is not known
        clock[0] += 5
        shown.update(5, "loss 2")
        assert "10/30" in (last := capsys.readouterr().err) and "<00:20" in last


def test_a_run_that_is_done_compiles_nothing(capsys):
    with progress.Progress(30, show=True, done=30):
        pass
    assert capsys.readouterr().err == ""
