"""Two processes, on loopback with one CPU device each: the results of one, and nothing is lost when one dies."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.cli import commands as cli
from fedjax_admm.data.rows import Rows
from fedjax_admm.engine import processes
from fedjax_admm.storage import checkpoints

TESTS = Path(__file__).parents[1]
MINUTE = 60
CHILD = """
import sys, time
sys.path.insert(0, sys.argv[1])
import fedjax_admm as fa
process, port, job, folder = int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
assert fa.initialize_distributed(f"127.0.0.1:{port}", num_processes=2, process_id=process) == process
import test_hosts
test_hosts.JOBS[job](process, folder)
"""


class Crash(Exception):
    pass


def run(run_dir, problem=None, **options):
    algorithm = fa.fedadmm_insa(fa.LocalSolver(0.05, batch_size=4, max_epochs=4), penalty=0.1, mu=1.5)
    settings = dict(rounds=16, participation=3, evaluate_every=2, checkpoint_seconds=0, progress=False)
    checkpoints.SHARE = np.inf  # else the share of the time puts checkpoints off
    problem = problem or least_squares([6, 11, 3, 8])[0]
    return fa.simulate(problem, algorithm, run_dir=run_dir, **settings | options)


def slow_run(process, folder):
    """Slow enough to be killed on the way."""
    run(Path(folder) / "run", on_round=lambda row: time.sleep(0.3))


def whole_and_resumed_run(process, folder):
    """A run without a directory, then the one that is in the directory."""
    for name, run_dir in (("whole", None), ("resumed", Path(folder) / "run")):
        save(Path(folder) / f"{name}-{process}.npz", run(run_dir))


KINDS = ("device", "host", "disk")


def federation(folder):
    """The problem of `run`, whose rows are in files; more on the first clients than on the others."""
    problem = least_squares([6, 11, 3, 8, 2, 4])[0]
    path = Path(folder) / "federation"
    data = fa.FederatedData.open(path if path.exists() else problem.data.save(path))
    return dataclasses.replace(problem, data=data)


def run_on_files(folder, kind, run_dir, **options):
    return run(run_dir, federation(folder), execution=fa.Execution(population=kind), **options)


def whole_and_resumed_on_files(process, folder):
    """Each population's run from the start, then the one that is in its directory; with the rows that were read."""
    read, original = set(), Rows.read

    def told(rows, start, stop, *arguments):
        read.update(range(start, stop))
        return original(rows, start, stop, *arguments)

    Rows.read = told
    for kind in KINDS:
        read.clear()
        for name in ("whole", "resumed"):
            result = run_on_files(folder, kind, Path(folder) / f"{kind}-{name}")
            save(Path(folder) / f"{kind}-{name}-{process}.npz", result, read=sorted(read))


def slow_run_on_files(process, folder):
    run_on_files(folder, "disk", Path(folder) / "run", on_round=lambda row: time.sleep(0.3))


def save(path, result, **more):
    arrays = {"params": result.params, "duals": result.state.duals, "penalties": result.state.penalties}
    np.savez(path, epochs=result.epochs, loss=result.history["loss"], **arrays, **more)


JOBS = {
    function.__name__: function
    for function in (slow_run, whole_and_resumed_run, whole_and_resumed_on_files, slow_run_on_files)
}


def start(job, folder):
    """Both processes of a job."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = os.environ | {"JAX_ENABLE_X64": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(TESTS), str(process), port, job.__name__, str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for process in (0, 1)
    ]  # fmt: skip


def assert_close(one, found):
    np.testing.assert_array_equal(found["epochs"], one.epochs)
    expected = {"params": one.params, "duals": one.state.duals, "penalties": one.state.penalties}
    for name, value in (expected | {"loss": one.history["loss"]}).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.fixture(scope="module")
def one_process():
    return run(None)


def test_two_processes_do_as_one_and_go_on_with_its_run(tmp_path, one_process):
    def crash(row):
        if row["round"] == 7:
            raise Crash

    with pytest.raises(Crash):
        run(tmp_path / "run", on_round=crash)
    for process in start(whole_and_resumed_run, tmp_path):
        said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    for process in (0, 1):  # the state of every client in both
        for name in ("whole", "resumed"):
            assert_close(one_process, np.load(tmp_path / f"{name}-{process}.npz"))
    written = fa.read_run(tmp_path / "run")
    assert written.status == "finished" and len(written.environment) == 2
    np.testing.assert_array_equal(written.epochs, one_process.epochs)


def test_when_a_process_is_killed_the_other_ends_and_one_goes_on(tmp_path, one_process):
    first, second = start(slow_run, tmp_path)
    wait_for_round(4, tmp_path / "run" / "history.csv", (first, second))
    second.send_signal(signal.SIGKILL)
    second.communicate()
    _, said = first.communicate(timeout=MINUTE)
    assert first.returncode == 1
    assert "another process of the run ended" in said and "and the run is resumed" in said
    assert fa.read_run(tmp_path / "run").status == "failed"
    with pytest.warns(UserWarning, match="was begun on 2 devices"):
        result = run(tmp_path / "run")
    found = {"params": result.params, "duals": result.state.duals, "penalties": result.state.penalties}
    assert_close(one_process, found | {"epochs": result.epochs, "loss": result.history["loss"]})


def test_each_process_has_its_own_clients(tmp_path):
    """Every population gives the results of one process, also where one process began the run."""
    expected = run_on_files(tmp_path, "device", None)

    def crash(row):
        if row["round"] == 7:
            raise Crash

    for kind in KINDS:
        with pytest.raises(Crash):
            run_on_files(tmp_path, kind, tmp_path / f"{kind}-resumed", on_round=crash)
    for process in start(whole_and_resumed_on_files, tmp_path):
        said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    for kind in KINDS:
        rows = []
        for process in (0, 1):
            for name in ("whole", "resumed"):
                found = np.load(tmp_path / f"{kind}-{name}-{process}.npz")
                assert_close(expected, found)
            rows.append(set(found["read"].tolist()))
        # At home clients are split by their number, else by their rows.
        assert [len(mine) for mine in rows] == ([20, 14] if kind == "device" else [17, 17])
        assert not rows[0] & rows[1]


def test_when_a_process_with_clients_of_its_own_is_killed_one_goes_on(tmp_path):
    expected = run_on_files(tmp_path, "device", None)
    first, second = start(slow_run_on_files, tmp_path)
    wait_for_round(4, tmp_path / "run" / "history.csv", (first, second))
    second.send_signal(signal.SIGKILL)
    second.communicate()
    _, said = first.communicate(timeout=MINUTE)
    assert first.returncode == 1 and "another process of the run ended" in said
    with pytest.warns(UserWarning, match="was begun on 2 devices"):
        result = run_on_files(tmp_path, "disk", tmp_path / "run")
    found = {"params": result.params, "duals": result.state.duals, "penalties": result.state.penalties}
    assert_close(expected, found | {"epochs": result.epochs, "loss": result.history["loss"]})


def wait_for_round(number, path, processes):
    for _ in range(3000):
        if path.exists() and path.read_text().count("\n") > number + 1:
            return
        assert all(process.poll() is None for process in processes), [p.communicate() for p in processes]
        time.sleep(0.1)
    raise AssertionError(f"round {number} did not come")


def raising(error):
    def function(*_):
        raise error

    return function


def test_bad_input(monkeypatch, capsys):
    import jax

    jax.devices()
    with pytest.raises(RuntimeError, match="initialize_distributed came too late"):
        fa.initialize_distributed()
    monkeypatch.setattr(jax._src.xla_bridge, "backends_are_initialized", lambda: False)
    with pytest.raises(ValueError, match="found no cluster .* give coordinator_address, num_processes and process_id"):
        fa.initialize_distributed()
    with monkeypatch.context() as only_here:  # which would set JAX up for the rest of the process
        only_here.setattr(cli, "use_cpu_devices", raising(RuntimeError))
        assert cli.main(["--distributed", "auto", "run", "linear"]) == 2
    assert "--distributed auto found no cluster around it (" in capsys.readouterr().err
    monkeypatch.setattr(processes, "several", lambda: True)
    with pytest.raises(ValueError, match="population='disk' of 1 processes needs a run_dir"):
        run(None, execution=fa.Execution(population="disk"))
