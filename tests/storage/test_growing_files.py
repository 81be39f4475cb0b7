"""The files that grow: what is written is what is read, and checksums are of those bytes."""

from __future__ import annotations

import zlib
from dataclasses import fields

import numpy as np
import pytest

from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.core.vocabulary import Solves
from fedjax_admm.storage.growing_files import HistoryFile, SolvesFile, read_solves, solve_dtype

COHORT, ROUNDS = 3, 5


def some_solves(rounds, seed=0):
    dtype, rng = solve_dtype(np.float32), np.random.default_rng(seed)
    columns = {f.name: rng.integers(1, 5, (rounds, COHORT)).astype(dtype[f.name]) for f in fields(Solves)}
    return rng.integers(0, 9, (rounds, COHORT)).astype(np.int32), Solves(**columns)


def check_blocks(path, start, blocks):
    """Checks that blocks follow each other and have the CRC of the file's bytes; returns where the last one ends."""
    for end, crc32 in blocks:
        assert zlib.crc32(path.read_bytes()[start:end]) == crc32
        start = end
    return start


def test_blocks_of_the_history_are_its_bytes(tmp_path):
    file = HistoryFile(tmp_path / "history.csv")
    rows = [{"round": k, "loss": 1 / (k + 3), "accuracy": float("nan")} for k in range(6)]
    end = check_blocks(file.path, 0, file.append(rows[:1]))
    end = check_blocks(file.path, end, file.append(rows[1:4]))
    end = check_blocks(file.path, end, file.append(rows[4:]))
    assert end == file.path.stat().st_size
    assert [row["loss"] for row in file.rows()] == [row["loss"] for row in rows]


def test_blocks_of_the_solves_are_their_bytes(tmp_path):
    file = SolvesFile(tmp_path / "solves.npy", ROUNDS, COHORT, np.float32)
    end = check_blocks(file.path, 0, [file.begin()])
    cohorts, solves = some_solves(ROUNDS)
    for start, stop in ((0, 2), (2, 5)):
        part = Solves(**{f.name: getattr(solves, f.name)[start:stop] for f in fields(Solves)})
        end = check_blocks(file.path, end, file.write(start, cohorts[start:stop], part))
    assert end == file.path.stat().st_size
    np.testing.assert_array_equal(np.load(file.path)["client"], cohorts)
    np.testing.assert_array_equal(read_solves(file.path, 4)[1].epochs, solves.epochs[:4])


@pytest.mark.parametrize("rounds, cohort, real", [(6, 3, np.float32), (5, 4, np.float32), (5, 3, np.float64)])
def test_solves_of_another_shape_are_refused_and_made_anew(tmp_path, rounds, cohort, real):
    SolvesFile(tmp_path / "solves.npy", rounds, cohort, real).begin()
    file = SolvesFile(tmp_path / "solves.npy", ROUNDS, COHORT, np.float32)
    with pytest.raises(DamagedFileError, match="header and length"):
        file.check()
    file.begin()
    file.check()


def test_solves_that_were_cut_off_are_refused(tmp_path):
    file = SolvesFile(tmp_path / "solves.npy", ROUNDS, COHORT, np.float32)
    file.begin()
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match="header and length"):
        file.check()


def test_lines_are_not_added_through_a_link(tmp_path):
    (tmp_path / "precious").write_text("mine\n")
    (tmp_path / "history.csv").symlink_to(tmp_path / "precious")
    with pytest.raises(DamagedFileError, match="symbolic link"):
        HistoryFile(tmp_path / "history.csv").append([{"round": 0}])
    assert (tmp_path / "precious").read_text() == "mine\n"
