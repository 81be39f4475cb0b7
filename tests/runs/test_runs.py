"""Runs on disk: resumed to the bit, whatever happened to the process or to the files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from federations import least_squares, make_problem, two_sides_of_a_cliff

import fedjax_admm as fa
from fedjax_admm.core import environment
from fedjax_admm.storage import checkpoints, run_directory
from fedjax_admm.storage.description import describe, recreate
from fedjax_admm.storage.growing_files import HistoryFile

ROOT = Path(__file__).parents[2]
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
ALGORITHMS = {
    "keeps nothing": fa.fedavg(LOCAL),
    "keeps everything": fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5, unselected_penalty="sent"),
}


class Crash(Exception):
    pass


def problem_of(**options):
    return least_squares([6, 11, 3, 8, 5], dtype=np.float32, **options)[0]


def run(run_dir, algorithm=ALGORITHMS["keeps everything"], problem=None, **options):
    settings = dict(rounds=12, participation=2, seed=1, evaluate_every=2, progress=False, checkpoint_seconds=0)
    return fa.simulate(problem or problem_of(), algorithm, run_dir=run_dir, **settings | options)


def crash_in(round):
    def on_round(row):
        if row["round"] == round:
            raise Crash

    return on_round


def crashed(run_dir, round, **options):
    with pytest.raises(Crash):
        run(run_dir, on_round=crash_in(round), **options)


def assert_identical(one, other):
    for part in ("params", "state", "solves", "cohorts"):
        pairs = zip(jax.tree.leaves(getattr(one, part)), jax.tree.leaves(getattr(other, part)), strict=True)
        for a, b in pairs:
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
    assert list(one.history) == list(other.history)
    for name in one.history:
        if "seconds" not in name:
            np.testing.assert_array_equal(one.history[name], other.history[name], err_msg=name)
            assert one.history[name].dtype == other.history[name].dtype


@pytest.fixture(autouse=True)
def save_often(monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_a_run_that_was_cut_off_twice_ends_like_one_that_was_not(tmp_path, algorithm):
    undisturbed = run(None, algorithm)
    crashed(tmp_path / "run", 4, algorithm=algorithm)
    crashed(tmp_path / "run", 9, algorithm=algorithm)
    assert_identical(run(tmp_path / "run", algorithm), undisturbed)
    seen = []
    again = run(tmp_path / "run", algorithm, on_round=seen.append)  # finished: read, not computed
    assert_identical(again, undisturbed)
    assert not seen


def test_what_a_directory_has(tmp_path):
    result = run(tmp_path)
    stored = fa.read_run(tmp_path)
    assert stored.status == "finished" and stored.rounds == 12
    assert stored.execution["cohort"] == 2 and stored.execution["lanes"] == min(2, environment.cores())
    assert stored.environment[0]["versions"]["jax"] == jax.__version__
    for name in result.history:  # the seconds too
        np.testing.assert_array_equal(stored.history[name], result.history[name])
    for field in result.solves.names():
        np.testing.assert_array_equal(stored.solves[field], result.solves[field])
    table = np.load(tmp_path / "solves.npy")
    assert table.shape == (12, 2)
    np.testing.assert_array_equal(table["epochs"], result.epochs)
    np.testing.assert_allclose(stored.client_penalties()[-1], result.state.penalties, rtol=1e-6)
    assert len(list((tmp_path / "checkpoints").glob("[0-9]*"))) == 2


def test_the_history_can_be_read_while_it_grows(tmp_path):
    import pandas

    lengths = []

    def look(row):
        frame = pandas.read_csv(tmp_path / "history.csv")
        assert frame["round"].tolist() == list(range(len(frame)))
        assert frame["round"].iloc[-1] >= row["round"]
        lengths.append(len(frame))
        if row["round"] > 0:
            assert len(fa.read_run(tmp_path).cohorts) == len(frame) - 1

    run(tmp_path, on_round=look, evaluate_every=1)
    assert lengths == list(range(1, 14))


def test_settings_recreate_algorithms_and_examples(tmp_path):
    for algorithm in [*ALGORITHMS.values(), fa.fedprox(LOCAL, penalty=np.array([0.1, 0.2]))]:
        again = recreate(json.loads(json.dumps(describe(algorithm))))
        assert jax.tree.structure(again) == jax.tree.structure(algorithm)
        for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(algorithm), strict=True):
            np.testing.assert_array_equal(a, b)
    example = fa.examples.linear_regression(num_clients=4, rows_per_client=5, dimension=3, rounds=3, batch_size=2)
    whole = fa.simulate(example.problem, example.algorithm("fedadmm_in"), progress=False, **example.run_settings)
    with pytest.raises(Crash):
        fa.simulate(
            example.problem, example.algorithm("fedadmm_in"), progress=False, run_dir=tmp_path,
            on_round=crash_in(2), checkpoint_seconds=0, **example.run_settings,
        )  # fmt: skip
    assert_identical(fa.resume(tmp_path, progress=False), whole)


def test_a_problem_made_in_python_cannot_be_resumed_by_its_settings(tmp_path):
    crashed(tmp_path, 5)
    with pytest.raises(ValueError, match="call simulate or compare as before"):
        fa.resume(tmp_path)


def newest(run_dir):
    return max((run_dir / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))


@pytest.mark.parametrize("damage", ["truncated", "flipped", "removed"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    crashed(tmp_path, 8)
    files = [path for path in newest(tmp_path).rglob("*") if path.is_file()]
    for path in files:
        data = path.read_bytes()
        if damage == "removed":
            path.unlink()
        elif damage == "truncated":
            path.write_bytes(data[: len(data) // 2])
        elif len(data) > 40:  # one bit in each file that holds numbers
            middle = len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.warns(RuntimeWarning, match="is damaged"):
        result = run(tmp_path)
    assert_identical(result, run(None))


def test_without_a_good_checkpoint_it_starts_again(tmp_path):
    crashed(tmp_path, 8)
    shutil.rmtree(tmp_path / "checkpoints")
    assert_identical(run(tmp_path), run(None))


def test_half_a_line_of_the_history_is_dropped(tmp_path):
    crashed(tmp_path, 8)
    with open(tmp_path / "history.csv", "ab") as file:
        file.write(b"9,1.23")
    assert len(fa.read_run(tmp_path).cohorts) == 8
    assert_identical(run(tmp_path), run(None))


def test_a_history_that_was_edited_is_an_error_that_names_it(tmp_path):
    crashed(tmp_path, 8)
    lines = (tmp_path / "history.csv").read_text().splitlines()
    lines[3] = "what"
    (tmp_path / "history.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(fa.RunDirectoryError, match=r"history\.csv is damaged"):
        run(tmp_path)


def test_nothing_is_deleted_where_nothing_can_be_read(tmp_path):
    crashed(tmp_path, 8)
    (tmp_path / "history.csv").unlink()
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(fa.RunDirectoryError, match="fits the history's 0 rounds"):
        run(tmp_path)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before


def test_a_run_without_its_settings_is_not_taken_for_a_new_one(tmp_path):
    run(tmp_path)
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"has other files .* and no settings\.json"):
        run(tmp_path, seed=5)


def test_a_loss_that_is_not_finite_keeps_the_rounds_before(tmp_path):
    wild = fa.fedavg(fa.LocalSolver(learning_rate=3.0, batch_size=4, max_epochs=3))
    with pytest.raises(fa.DivergenceError) as told:
        run(tmp_path, wild, evaluate_every=50, rounds=200)
    assert len(HistoryFile(tmp_path / "history.csv").rows()) == len(told.value.history["round"])
    with pytest.raises(fa.DivergenceError, match=f"round {told.value.round}"):  # known, not tried again
        run(tmp_path, wild, evaluate_every=50, rounds=200)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("run_dir must be a path, got 123", {"run_dir": 123}),
        ("run_dir must be a path, got ''", {"run_dir": ""}),
        ("execution must be a fedjax_admm.Execution, got 4", {"execution": 4}),
        ("on_round must be a function", {"on_round": 4}),
        ("algorithm must be an object made by", {"algorithm": "fedavg"}),
    ],
)
def test_arguments_of_a_wrong_kind(named, options):
    with pytest.raises(ValueError, match=re.escape(named)):
        run(**{"run_dir": None} | options)


def test_a_history_shorter_than_the_checkpoint_goes_back_to_an_older_one(tmp_path):
    crashed(tmp_path, 8)
    rows = HistoryFile(tmp_path / "history.csv")
    rows.keep(8)
    assert_identical(run(tmp_path), run(None))


def test_a_file_that_cannot_grow_ends_the_run_and_it_can_go_on(tmp_path):
    """As on a full disk: the limit on file sizes stops a write in its middle."""
    script = f"""
        import resource, signal, sys, jax
        jax.config.update("jax_enable_x64", True)
        sys.path.insert(0, {str(ROOT / "tests")!r})
        from test_runs import run, checkpoints
        import numpy as np
        checkpoints.SHARE = np.inf
        def limit(row):
            if row["round"] == 6:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                size = __import__("os").path.getsize("history.csv") + 20
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        run(".", on_round=limit, evaluate_every=1)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1 and "RunDirectoryError" in done.stderr, done.stderr
    assert "and the run can be resumed" in done.stderr
    assert fa.read_run(tmp_path).status == "failed"
    assert_identical(run(tmp_path, evaluate_every=1), run(None, evaluate_every=1))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a megabyte; needs the right to mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_ends_the_run_and_it_can_go_on(small_disk):
    filler = small_disk / "filler"

    def fill(row):
        if row["round"] == 6:
            with open(filler, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass

    with pytest.raises(fa.RunDirectoryError, match="No space left|can be resumed") as full:
        run(small_disk / "run", on_round=fill)
    assert "can be resumed" in str(full.value) and "\n" not in str(full.value)
    assert fa.read_run(small_disk / "run").status == "failed"
    filler.unlink()
    assert_identical(run(small_disk / "run"), run(None))


def test_directories_that_cannot_be_used(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file"):
        run(tmp_path / "file")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match=r"has other files \(file\)"):
        run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "thesis.tex"]
    with pytest.raises(ValueError, match="run_dir '/proc/nothing' cannot be used"):
        run("/proc/nothing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(ValueError, match="cannot be used .Permission denied"):
        run(tmp_path / "run")


def test_two_processes_cannot_write_to_one_directory(tmp_path):
    def also(row):
        if row["round"] == 3:
            with pytest.raises(ValueError, match=f"in use by process {os.getpid()}"):
                run(tmp_path)

    assert_identical(run(tmp_path, on_round=also), run(None))


def test_a_run_that_diverges_keeps_its_history(tmp_path):
    wild = fa.fedavg(fa.LocalSolver(learning_rate=300.0, batch_size=4, max_epochs=3))
    with pytest.raises(fa.DivergenceError) as told:
        run(tmp_path, wild, evaluate_every=1)
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "diverged"
    assert len(HistoryFile(tmp_path / "history.csv").rows()) == told.value.round


def test_saving_takes_its_share_of_the_time_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", 0.03)
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    kept = checkpoints.Checkpoints(tmp_path, seconds=1.0)
    save = ocp.CheckpointManager.save

    def slow(*args, **kwargs):
        now[0] += 0.6
        return save(*args, **kwargs)

    monkeypatch.setattr(ocp.CheckpointManager, "save", slow)
    saved, round = 0, 0
    while now[0] < 1000:
        now[0] += 0.5
        round += 1
        if kept.due():
            kept.save(round, {"x": jnp.ones(3)})
            saved += 1
    assert 0.025 < saved * 0.6 / now[0] < 0.03
    kept.close()


def test_a_run_whose_end_cannot_be_written_is_not_called_finished(tmp_path, monkeypatch):
    write = run_directory.write_json

    def full(path, value):
        if isinstance(value, dict) and value.get("status") == "finished":
            raise OSError(28, "No space left on device")
        write(path, value)

    monkeypatch.setattr(run_directory, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path)
    assert fa.read_run(tmp_path).status == "failed"


def test_problems_of_the_same_shape_compile_nothing(tmp_path):
    xs, ys = [np.ones((4, 3), np.float32)] * 3, [np.ones(4, np.float32)] * 3
    problem = make_problem(xs, ys, dtype=np.float32)
    noted = problem.with_recipe({"example": "somewhere", "arguments": {}})
    assert jax.tree.structure(noted) == jax.tree.structure(problem)
    assert noted.recipe and jax.tree.map(lambda x: x, noted).recipe is None


def test_a_failed_solve_receives_but_sends_nothing():
    """Client 0 fails in the second round: two models go down and one client's message up."""
    local = fa.LocalSolver(learning_rate=0.7, max_epochs=1)
    algorithm = fa.fedadmm_in(local, penalty=1.0, reference="client")  # which sends beta u - lambda, beta
    result = fa.simulate(two_sides_of_a_cliff(), algorithm, rounds=2, progress=False)
    assert result.history["failed_clients"].tolist() == [0, 0, 1]
    assert result.history["communicated_floats"].tolist() == [0, 2 * 2 + 2 * 3, 2 * 2 + 3]
