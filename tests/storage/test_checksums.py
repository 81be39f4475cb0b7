"""Bytes that changed on disk: found with their round, and computed again where that is asked for."""

from __future__ import annotations

import numpy as np
import pytest
import test_run_directory
from test_run_directory import (
    IN_MEMORY,
    ON_DISK,
    assert_identical_params,
    assert_identical_records,
    flip,
    one_line,
    resume,
)
from test_runs import assert_identical, crashed, newest, run

import fedjax_admm as fa
from fedjax_admm.cli.commands import main

save_often, place = test_run_directory.save_often, test_run_directory.place
killed, sound = test_run_directory.killed, test_run_directory.sound


def line_of(path, round):
    """The place of a byte of the round's last number in a history: never a comma or a newline."""
    return sum(map(len, path.read_bytes().splitlines(keepends=True)[: round + 2])) - 2


def solve_of(path, round):
    """The place of a byte of the round's solves."""
    table = np.load(path)
    return path.stat().st_size - table.nbytes + (round - 1) * table[0].nbytes + table[0].nbytes // 2


FLIPS = {"history.csv": line_of, "solves.npy": solve_of}


@pytest.mark.parametrize("execution", [IN_MEMORY, ON_DISK], ids=["memory", "disk"])
@pytest.mark.parametrize("round", [2, 8])
@pytest.mark.parametrize("name", FLIPS)
def test_a_flipped_bit_is_found_with_its_round_and_computed_again(tmp_path, capsys, name, round, execution):
    """The checkpoints are of rounds 6 and 8: damage in round 2 leads back to the beginning, in round 8 to round 6."""
    crashed(tmp_path, 9, execution=execution, evaluate_every=2)
    assert newest(tmp_path).name == "8"
    fa.read_run(tmp_path)
    flip(tmp_path / name, FLIPS[name](tmp_path / name, round))
    found = f"{name} is damaged in round {round}: .*rebuild=True"
    with pytest.raises(OSError, match=found):
        fa.read_run(tmp_path)
    assert f"{name} is damaged in round {round}: " in one_line(capsys, "report", tmp_path)
    with pytest.raises(fa.RunDirectoryError, match=found):
        run(tmp_path, execution=execution)
    again = f"is damaged from round {round} on: computing it again from round {0 if round == 2 else 6}$"
    with pytest.warns(RuntimeWarning, match=again):
        result = run(tmp_path, execution=execution, rebuild=True)
    other = run(None)
    assert_identical_params(result, other)  # which depend on every client's state in every round
    assert_identical_records(fa.read_run(tmp_path), other)


def test_damage_after_the_last_checkpoint_is_computed_again_unasked(tmp_path):
    crashed(tmp_path, 6)
    crashed(tmp_path, 10, checkpoint_seconds=1e9)
    flip(tmp_path / "history.csv", line_of(tmp_path / "history.csv", 8))
    flip(tmp_path / "solves.npy", solve_of(tmp_path / "solves.npy", 9))
    with pytest.raises(OSError, match=r"history\.csv is damaged in round 8, .*solves\.npy is damaged in round 9: "):
        fa.read_run(tmp_path)
    assert_identical(run(tmp_path), run(None))
    fa.read_run(tmp_path)


def test_a_bit_of_a_finished_run_is_found_by_the_commands(place, sound, capsys):
    resume(place)
    flip(place / "solves.npy", solve_of(place / "solves.npy", 4))
    assert "solves.npy is damaged in round 4: " in one_line(capsys, "resume", place, "--no-progress")
    with pytest.warns(RuntimeWarning, match="computing it again from round 3"):
        assert main(["resume", str(place), "--no-progress", "--rebuild"]) == 0
    assert_identical_records(fa.read_run(place), sound)


def test_a_finished_run_with_a_shorter_history_is_damaged(place):
    resume(place)
    lines = (place / "history.csv").read_bytes().splitlines(keepends=True)
    (place / "history.csv").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(OSError, match=r"history\.csv is damaged: round 4 of the finished run"):
        fa.read_run(place)


def test_a_run_without_checksums_is_read_and_goes_on_unchecked(place, sound):
    """As those of version 0.1.0."""
    (place / "checksums.csv").unlink()
    assert len(fa.read_run(place).cohorts) == 3
    assert_identical(resume(place), sound)
    assert not (place / "checksums.csv").exists()


@pytest.mark.parametrize("content", [b"", b"round\n", b"\xff" * 100])
def test_damaged_checksums_get_one_line(place, sound, content):
    (place / "checksums.csv").write_bytes(content)
    for read in (fa.read_run, resume):
        with pytest.raises(OSError, match=r"checksums\.csv is damaged.*: remove it to go on without checks"):
            read(place)
