"""Where the rows of data are changes nothing but that: on the device, on the host, in files, from a source."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from compilations import compilations
from federations import least_squares
from test_devices import in_a_process
from test_engine import ALGORITHMS
from test_population import assert_identical
from test_runs import Crash, crash_in

import fedjax_admm as fa
from fedjax_admm.data.rows import Rows
from fedjax_admm.engine.population import blocks
from fedjax_admm.engine.population.blocks import Homes, Room
from fedjax_admm.engine.population.feed import Feed
from fedjax_admm.problems import streaming
from fedjax_admm.problems.evaluation import evaluate
from fedjax_admm.storage import checkpoints

SIZES = [6, 11, 3, 8, 5, 9, 4, 7, 3, 3]
ROW = 8 * 6  # bytes: five features and a target
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=4)
INSA = fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5, unselected_penalty="sent")


def residual(w, batch):
    return batch["y"] - batch["x"] @ w


class Source:
    """What may be a field besides an array; its rows must not all be asked for at once."""

    def __init__(self, array, most=None):
        self._array, self._most = array, most
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, numbers):
        assert isinstance(numbers, np.ndarray) and (self._most is None or len(numbers) <= self._most)
        return self._array[numbers]


def arrays(problem):
    return {name: np.asarray(leaf) for name, leaf in problem.data.fields.items()}


def shuffled(problem, seed=0):
    """The rows in another order, and the parts that undo it."""
    order = np.random.default_rng(seed).permutation(problem.data.num_positions)
    ends = np.cumsum(problem.data.sizes)
    back = np.argsort(order)
    parts = [back[end - size : end] for end, size in zip(ends, np.asarray(problem.data.sizes), strict=True)]
    return {name: leaf[order] for name, leaf in arrays(problem).items()}, parts


def in_files(folder, fields):
    for name, leaf in fields.items():
        np.save(folder / f"{name}.npy", leaf)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in fields}


def federations(problem, folder):
    """The same rows in every place that they can be in."""
    fields, parts = shuffled(problem)
    return {
        "memory": problem.data,
        "directory": fa.FederatedData.open(problem.data.save(folder / "federation")),
        "mapped": fa.FederatedData.from_arrays(in_files(folder, fields), parts),
        "source": fa.FederatedData.from_arrays({k: Source(v) for k, v in fields.items()}, parts),
    }


@pytest.fixture(scope="module")
def problem():
    return least_squares(SIZES)[0]


@pytest.fixture(scope="module")
def mapped(problem, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation") / "one"
    return replace(problem, data=fa.FederatedData.open(problem.data.save(folder)))


def run(problem, algorithm=INSA, rounds=4, run_dir=None, **options):
    settings = dict(participation=6, evaluate_every=2, checkpoint_seconds=0, progress=False, run_dir=run_dir)
    if "execution" not in options:
        settings["execution"] = fa.Execution(**{k: options.pop(k) for k in set(options) & set(vars(fa.Execution()))})
    return fa.simulate(problem, algorithm, rounds, **settings | options)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_every_algorithm_does_the_same_on_mapped_rows(problem, mapped, algorithm):
    cohort = len(SIZES) if getattr(algorithm, "needs_everyone", False) else 6
    one, other = (run(there, algorithm, 2, lanes=4, participation=cohort) for there in (mapped, problem))
    assert_identical(one, other)


def test_the_same_bits_wherever_the_rows_are(problem, tmp_path, monkeypatch):
    """Evaluation too, whose rows come in chunks of a piece each."""
    monkeypatch.setattr(streaming, "CHUNK_BYTES", 1)
    rng = np.random.default_rng(0)
    (tmp_path / "eval").mkdir()
    rows = {"x": rng.normal(size=(1300, 5)), "y": rng.normal(size=1300)}
    evaluated = replace(problem, eval_data=rows, metrics=(("residual", residual),))
    expected = run(evaluated)
    for place, data in federations(problem, tmp_path).items():
        kept = rows if place == "memory" else in_files(tmp_path / "eval", rows)
        there = replace(evaluated, data=data, eval_data=kept)
        for asked in ("auto", "device", "host"):
            found = run(there, data=asked)
            assert_identical(found, expected)
            np.testing.assert_array_equal(found.history["residual"], expected.history["residual"])
        for i in (0, 7):
            for name, leaf in data.client(i).items():
                np.testing.assert_array_equal(leaf, problem.data.client(i)[name])


@pytest.mark.parametrize("population, lanes", [("device", 4), ("host", 1), ("disk", 4)])
def test_blocks_of_every_population_and_resume(problem, mapped, tmp_path, population, lanes, monkeypatch):
    """A cohort in one block to the bit, in several with the same epochs; a run that crashed goes on in either."""
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)
    expected = run(problem, rounds=6, lanes=lanes)
    options = dict(rounds=6, lanes=lanes, population=population)
    assert_identical(run(mapped, **options), expected)
    options["block_bytes"] = 13 * ROW
    parts = run(mapped, **options)
    np.testing.assert_array_equal(parts.epochs, expected.epochs)
    np.testing.assert_allclose(parts.params, expected.params, rtol=1e-9)
    with pytest.raises(Crash):
        run(mapped, run_dir=tmp_path / "run", on_round=crash_in(3), **options)
    assert_identical(run(mapped, run_dir=tmp_path / "run", **options), parts)


def test_on_two_devices():
    """At home, dealt, and with populations off the device; one block to the bit, several to rounding."""
    in_a_process("""
        from test_population import assert_identical
        problem = least_squares([6, 11, 3, 8, 5, 9, 4, 7, 3, 3])[0]
        def run(**execution):
            return fa.simulate(problem, INSA, 3, participation=6, progress=False,
                               execution=fa.Execution(mesh=2, lanes=2, **execution))
        for placing in ({"placement": "home"}, {"placement": "dealt"}, {"population": "disk"}):
            expected = run(**placing)
            assert_identical(run(data="host", **placing), expected)
            parts = run(data="host", block_bytes=11 * 48, **placing)
            np.testing.assert_array_equal(parts.epochs, expected.epochs)
            np.testing.assert_allclose(parts.params, expected.params, rtol=1e-9)
    """)


def test_nothing_is_compiled_anew_for_another_block(mapped):
    sim = fa.Simulation(mapped, INSA, participation=6, execution=fa.Execution(block_bytes=13 * ROW))
    state, _ = sim.round(sim.init())
    sim.evaluate(state)
    with compilations() as compiled:
        for _ in range(5):
            state, _ = sim.round(state)
            sim.evaluate(state)
    assert compiled == []


def test_rows_are_read_ahead_and_no_more_than_once(mapped, monkeypatch):
    """By another thread than the one that waits for the device; what was foreseen is not read again."""
    read, main = [], []

    def told(rows, start, stop, *arguments):
        read.append((start, stop))
        main.append(threading_name())
        return original(rows, start, stop, *arguments)

    original = Rows.read
    sim = fa.Simulation(mapped, INSA, participation=len(SIZES))
    state = sim.init()
    monkeypatch.setattr(Rows, "read", told)
    for _ in range(3):
        state, _ = sim.round(state)
    sim.population._feed._ahead.result()
    assert len(read) == 4 * len(SIZES) and len(set(read)) == len(SIZES)
    assert main.count("MainThread") == len(SIZES)  # of the first round


def threading_name():
    import threading

    return threading.current_thread().name


def test_what_was_foreseen_wrongly_is_copied_from_where_it_was_read(mapped):
    """Blocks with other clients than those that were read ahead, as far as they are in it."""
    room, sizes = Room(share=4, rows=40), np.array(SIZES)

    def block(ids):
        ids = np.array(ids, np.int32)
        return blocks.divide(ids, np.arange(len(ids)), sizes[ids], Homes.anywhere(10, 1), room, np.zeros(1, int))[0]

    feed = Feed(mapped.data, 40, None)
    for ahead, taken in (([1, 5, 2], [2, 5, 1]), ([1, 5, 2], [5, 0]), ([3], [9, 3, 8])):
        feed.begin(block(ahead))
        given = block(taken)
        fields = feed.take(given)
        for place, i in enumerate(given.queue.ids[0][: len(taken)]):
            first = given.queue.offsets[0, place]
            rows = np.asarray(fields["x"][first : first + SIZES[i]])
            np.testing.assert_array_equal(rows, mapped.data.client(int(i))["x"])
        feed.done()
    assert len(feed._free) == 2  # buffers are used again


def test_blocks_hold_what_a_device_has_room_for_and_everyone_once():
    rng = np.random.default_rng(0)
    for trial in range(60):
        clients, devices = 24, int(rng.integers(1, 5))
        sizes = rng.integers(1, 30, clients)
        room = Room(int(rng.integers(1, 6)), int(rng.integers(30, 60)))
        homes = Homes.anywhere(clients, devices) if trial % 2 else Homes.on_devices(clients, 4)
        devices = sum(map(len, homes.devices))
        ids = np.sort(rng.choice(clients, 12, replace=False)).astype(np.int32)
        found = blocks.divide(ids, rng.permutation(12), sizes[ids], homes, room, np.arange(devices))
        slots = np.concatenate([block.queue.slots[block.exists] for block in found])
        assert sorted(slots.tolist()) == list(range(12))
        for block in found:
            np.testing.assert_array_equal(block.queue.ids, ids[block.queue.slots])
            for device, exists in enumerate(block.exists):
                mine = block.queue.ids[device][exists]
                assert sizes[mine].sum() <= room.rows and exists[: len(mine)].all()
                assert sorted(mine) == block.data[device].tolist()
                if not trial % 2:
                    assert set(mine // 6) <= {device}
                ends = np.sort(block.queue.offsets[device][exists] + sizes[mine])
                starts = np.sort(block.queue.offsets[device][exists])
                assert (starts[1:] == ends[:-1]).all() and (starts[:1] == 0).all()  # one after the other, no gap


def test_a_run_that_is_killed_goes_on(mapped, tmp_path):
    child = f"""
import sys, time
sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]}
import numpy as np
import test_host_data as t
t.checkpoints.SHARE = np.inf
problem = t.replace(t.least_squares(t.SIZES)[0], data=t.fa.FederatedData.open(sys.argv[1]))
t.run(problem, rounds=12, population="disk", run_dir=sys.argv[2], on_round=lambda row: time.sleep(0.2))
"""
    folder = tmp_path / "run"
    command = [sys.executable, "-c", child, str(mapped.data.directory.folder), str(folder)]
    with subprocess.Popen(command, env=os.environ | {"JAX_ENABLE_X64": "1"}) as process:
        while not (folder / "history.csv").exists() or (folder / "history.csv").read_text().count("\n") < 6:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert 4 <= len(fa.read_run(folder).history["loss"]) < 13
    expected = run(mapped, rounds=12, population="disk")
    assert_identical(run(mapped, rounds=12, population="disk", run_dir=folder), expected)


def test_evaluation_holds_a_few_chunks_whatever_there_is_to_evaluate(problem, monkeypatch):
    """A source is never asked for more rows than a chunk has; the sums are those of rows in memory."""
    monkeypatch.setattr(streaming, "CHUNK_BYTES", 600 * ROW)
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(5021, 5)), "y": rng.normal(size=5021)}
    parts = np.array_split(np.arange(5021), 7)
    params = rng.normal(size=5)
    found = []
    for fields in (rows, {name: Source(leaf, most=5021) for name, leaf in rows.items()}):
        data = fa.FederatedData.from_arrays(fields, parts)
        found.append(replace(problem, data=data))
    for leaf in found[1].data.fields.values():
        leaf._most = 600
    assert evaluate(found[0], params) == evaluate(found[1], params)


BAD = [
    (dict(data="disk"), "data must be 'auto' or 'device' or 'host'"),
    (dict(block_bytes=0), "block_bytes must be"),
]


@pytest.mark.parametrize("options, message", BAD)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        fa.Execution(**options)


def test_a_client_that_no_block_holds_is_named(mapped):
    with pytest.raises(ValueError, match=r"client 1 has 11 rows of 48 bytes, .* give Execution\(block_bytes=528\)"):
        run(mapped, block_bytes=10 * ROW)
    run(mapped, rounds=1, block_bytes=11 * ROW)


def test_many_runs_at_once_say_that_their_data_is_on_the_device(problem):
    with pytest.raises(ValueError, match="data must be 'auto' or 'device' for runs at once"):
        fa.simulate_many(problem, [(INSA, 0)], 1, execution=fa.Execution(data="host"))


def test_a_file_that_was_cut_short_ends_the_run_in_one_line(problem, tmp_path):
    mapped = fa.FederatedData.open(problem.data.save(tmp_path / "federation"))
    path = tmp_path / "federation" / "field.x.npy"
    os.truncate(path, path.stat().st_size - 5 * 8 * 30)
    with pytest.raises(OSError, match=r"field\.x\.npy ends before row .*: it was cut short"):
        run(replace(problem, data=mapped), rounds=1, participation=len(SIZES))


def test_a_source_that_gives_something_else_is_told_so(problem):
    class Short(Source):
        def __getitem__(self, numbers):
            return super().__getitem__(numbers)[:, :2]

    fields = arrays(problem)
    with pytest.raises(ValueError, match=r"gave \[.*, 2\] for .* rows, and its shape says \[.*, 5\]"):
        fa.FederatedData.from_arrays({"x": Short(fields["x"]), "y": fields["y"]}, [np.arange(3)])


def test_rows_that_a_device_cannot_hold_are_told(problem):
    """Integers of 64 bits become 32 without x64: what does not fit is an error, not another number."""
    script = """
        jax.config.update("jax_enable_x64", False)
        from fedjax_admm.data.rows import Rows, kinds, empty
        rows = Rows({"y": np.array([1, 2, 2**40])})
        out = [empty(leaf) for leaf in jax.tree.leaves(kinds({"y": np.array([1, 2])}))]
        rows.read(0, 2, out)
        assert out[0].tolist() == [1, 2] and out[0].dtype == np.int32
        try:
            rows.read(1, 3, out)
        except ValueError as error:
            assert "data['y'] is not finite in row 2 as int32" in str(error), error
        else:
            raise AssertionError
    """
    in_a_process(script)


def test_which_was_chosen_is_recorded(problem, mapped, tmp_path):
    for name, one in (("device", problem), ("host", mapped)):
        run(one, rounds=1, run_dir=tmp_path / name)
        assert fa.read_run(tmp_path / name).execution["data"] == name
        assert name in repr(fa.estimate(one, INSA, participation=6))
    assert jax.tree.leaves(mapped.data.fields)[0].flags.writeable is False
