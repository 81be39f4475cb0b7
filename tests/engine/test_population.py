"""Where the clients' rows live changes nothing but that: device, host and disk agree to the bit, resumed ones too."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from federations import least_squares
from test_runs import Crash, crash_in, newest

import fedjax_admm as fa
from fedjax_admm.engine import placement
from fedjax_admm.engine.population import block_rounds, stored
from fedjax_admm.engine.population.rows import FileBytes, HostBytes, LazyLeaf, MirroredBytes, StoredClients
from fedjax_admm.storage import checkpoints

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=4)
ALGORITHMS = {
    "fedavg": fa.fedavg(LOCAL),
    "insa": fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5, unselected_penalty="sent"),
}
KINDS = ("host", "disk")


def problem():
    return least_squares([6, 11, 3, 8, 5, 9, 4, 7, 3, 3])[0]


def run(kind, algorithm=ALGORITHMS["insa"], run_dir=None, **options):
    # Six of ten: most clients are in two rounds in a row.
    settings = dict(rounds=14, participation=6, evaluate_every=3, checkpoint_seconds=0, progress=False)
    settings["execution"] = fa.Execution(population=kind)
    return fa.simulate(problem(), algorithm, run_dir=run_dir, **settings | options)


def assert_identical(one, other):
    assert set(one.state.clients) == set(other.state.clients)
    for name in ("params", "solves", "cohorts"):
        for a, b in zip(jax.tree.leaves(getattr(one, name)), jax.tree.leaves(getattr(other, name)), strict=True):
            np.testing.assert_array_equal(a, b)
    for name in one.state.clients:
        for a, b in zip(*(jax.tree.leaves(result.state.clients[name]) for result in (one, other)), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    np.testing.assert_array_equal(one.history["loss"], other.history["loss"])


@pytest.fixture(autouse=True)
def save_often(monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_same_bits_wherever_the_rows_are(tmp_path, kind, algorithm):
    on_device = run("device", algorithm)
    assert_identical(run(kind, algorithm), on_device)
    with pytest.raises(Crash):
        run(kind, algorithm, tmp_path / "run", on_round=crash_in(8))
    assert_identical(run(kind, algorithm, tmp_path / "run"), on_device)


@pytest.mark.parametrize("round", [4, 12])
def test_rows_on_disk_go_back_to_the_checkpoint_that_is_good(tmp_path, round):
    """Resumed from the older checkpoint, and that again: no row of either was overwritten."""
    for _ in range(2):
        with pytest.raises(Crash):
            run("disk", run_dir=tmp_path, on_round=crash_in(round))
    for path in newest(tmp_path).rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert_identical(run("disk", run_dir=tmp_path), run("device"))


def test_clients_that_were_never_selected_take_no_disk(tmp_path):
    cohorts = np.tile([1, 4], (14, 1))
    run("disk", run_dir=tmp_path, participation=cohorts)
    row = 4 * 8 * 5  # parameters, duals and two penalties
    # Versions for two checkpoints and the rounds between.
    assert (tmp_path / "rows.bin").stat().st_size < 10 * row


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_a_lazy_view(kind):
    result, whole = run(kind), run("device")
    duals = result.state.duals
    assert duals.shape == (10, 5) and len(duals) == 10 and "float64[10, 5]" in repr(duals)
    expected = np.asarray(whole.state.duals)
    np.testing.assert_array_equal(duals[3], expected[3])
    np.testing.assert_array_equal(duals[[7, 2]], expected[[7, 2]])
    np.testing.assert_array_equal(duals[2:5, 1], expected[2:5, 1])
    np.testing.assert_array_equal(duals[-1, 2], expected[-1, 2])
    np.testing.assert_array_equal(np.asarray(duals), expected)
    np.testing.assert_array_equal(np.asarray(result.state.penalties), whole.state.penalties)
    with pytest.raises(AttributeError, match="keeps client_params, duals"):
        result.state.momentum  # noqa: B018


FIRST = [2, -1, slice(1, 3), slice(None, None, -2), [3, 3, 0], np.array([[0, 1], [4, 4]]), np.arange(5) % 2 == 0]
REST = [(), (0,), (slice(1, 3),), (0, 1), ([0, 1],), (slice(None), [0, 2]), (..., 1), (None,), ([0, 2], [1, 1])]


def test_a_lazy_view_is_indexed_as_an_array():
    """And reads no more than it is asked for."""
    whole, asked = np.arange(60).reshape(5, 3, 4), []

    class Clients:
        def take(self, ids):
            asked.extend(ids)
            return {"leaf": whole[ids]}

    lazy = LazyLeaf(Clients(), 0, whole.shape, whole.dtype)

    def found(array, index):
        try:
            return array[index]
        except IndexError:
            return None

    for index in [(first, *rest) if rest else first for first in FIRST for rest in REST] + [(), ..., None, 7, (..., 0)]:
        expected, got = found(whole, index), found(lazy, index)
        assert (got is None) == (expected is None), index
        if expected is not None:
            np.testing.assert_array_equal(got, expected, err_msg=str(index), strict=True)
    asked.clear()
    np.testing.assert_array_equal(lazy[[3, 1, 3], 2], whole[[3, 1, 3], 2])
    assert asked == [1, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_read_ahead_is_of_one_state(kind):
    """All clients take part, so that the next cohort of any state is the one that was read for another."""
    sim = fa.Simulation(problem(), ALGORITHMS["insa"], execution=fa.Execution(population=kind))
    first, solves = sim.round(sim.init())
    first, _ = sim.round(first)
    _, again = sim.round(sim.init())
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(solves), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_newcomers_are_started(monkeypatch):
    """And before the round: on one device the computation would wait for the round's end, and the reading with it."""
    events = []

    def told(name, function):
        return lambda *arguments, **options: [events.append(name), function(*arguments, **options)][1]

    for module, name in ((stored, "start_rows"), (block_rounds, "_work_off_block")):
        monkeypatch.setattr(module, name, told(name, getattr(module, name)))
    run("host", participation=np.array([[0, 1]] * 2 + [[1, 2]] * 12))
    start, round = "start_rows", "_work_off_block"
    # The next round's rows are asked for before this one's newcomers are known.
    assert events == [start] + [start, round] * 3 + [round] * 11


def test_a_round_at_a_time():
    algorithm = ALGORITHMS["insa"]
    device = fa.Simulation(problem(), algorithm, participation=6)
    host = fa.Simulation(problem(), algorithm, participation=6, execution=fa.Execution(population="host"))
    one, other = device.init(), host.init()
    for cohort in (None, [0, 1, 2, 3, 4, 9], None):  # not the cohort that was read ahead
        one, first = device.round(one, cohort)
        other, second = host.round(other, cohort)
        np.testing.assert_array_equal(first.epochs, second.epochs)
        np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(np.asarray(one.duals), np.asarray(other.duals))


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_a_run_that_was_read_back_goes_on(tmp_path, kind):
    """A finished run is read and not run again; a round from its state is the round after it."""
    whole = run("device", rounds=15)
    run(kind, run_dir=tmp_path)
    read = run(kind, run_dir=tmp_path)
    sim = fa.Simulation(problem(), ALGORITHMS["insa"], participation=6, execution=fa.Execution(population=kind))
    state, info = sim.round(read.state)
    np.testing.assert_array_equal(state.params, whole.params)
    np.testing.assert_array_equal(info.epochs, whole.epochs[-1])


def test_a_damaged_row_is_an_error_that_names_the_file(tmp_path):
    store = FileBytes(tmp_path / "rows.bin", 8)
    store.write(np.arange(3), np.arange(24, dtype=np.uint8).reshape(3, 8))
    np.testing.assert_array_equal(store.read(np.array([2, 0])), [np.arange(16, 24), np.arange(8)])
    data = bytearray((tmp_path / "rows.bin").read_bytes())
    data[15] ^= 1
    (tmp_path / "rows.bin").write_bytes(data)
    with pytest.raises(OSError, match=r"rows\.bin is damaged: row 1"):
        store.read(np.array([1]))


@pytest.mark.parametrize("kind", ["file", "mirrored", "memory"])
def test_rows_against_a_plain_dictionary(tmp_path, kind):
    """Random writes, checkpoints and returns to one of the last two, as a run may do them."""
    rng = np.random.default_rng(0)
    like = {"a": jax.ShapeDtypeStruct((20, 3), np.float32), "b": jax.ShapeDtypeStruct((20,), np.float64)}

    def start(ids):
        return {"a": np.zeros((len(ids), 3), np.float32), "b": np.asarray(ids, np.float64)}

    def made():
        if kind == "memory":
            return StoredClients(like, 20, start, HostBytes(20), versions=False)
        file = FileBytes(tmp_path / "rows.bin", 20)
        return StoredClients(like, 20, start, MirroredBytes(file) if kind == "mirrored" else file, versions=True)

    clients = made()
    known: dict[int, float] = {}
    kept = [(clients.saved(), {})] * 2
    for _ in range(300):
        ids = rng.choice(20, 4, replace=False)
        values = rng.normal(size=4)
        clients.put(ids, {"a": np.repeat(values[:, None], 3, axis=1).astype(np.float32), "b": values})
        known.update(zip(ids.tolist(), values, strict=True))
        if rng.random() < 0.2:
            kept = [kept[1], (clients.saved(), dict(known))]
            clients.was_saved()
        if rng.random() < 0.05:
            saved, known = kept[rng.integers(2)]
            kept, known = [(saved, dict(known))] * 2, dict(known)
            clients = made()
            clients.restore(saved)
        found = clients.take(np.arange(20))
        expected = [known.get(i, float(i)) for i in range(20)]
        np.testing.assert_array_equal(found["b"], expected)
    if kind != "memory":
        assert (tmp_path / "rows.bin").stat().st_size < 24 * 600  # of the 1200 rows written: places are used again


def test_an_estimate_says_what_a_run_will_take():
    small, large = (fa.estimate(problem(), ALGORITHMS["insa"], participation=6, execution=fa.Execution(population=kind))
                    for kind in ("device", "disk"))  # fmt: skip
    row = 8 * (5 + 5 + 1 + 1)
    assert small.device_state == 10 * row
    assert large.device_state == 2 * 6 * row  # the cohort at work, and a copy that is written or read ahead
    assert large.disk == 10 * (row + 4) and small.disk == 0
    assert small.most_gradients >= run("device").history["gradient_samples"].max()
    assert "on disk" in repr(large)
    full = fa.LocalSolver(learning_rate=0.01, batch_size=None, max_epochs=2)
    own = fa.fedadmm_in(full, penalty=1.0, c=1e-9, reference="client")  # nothing stops it
    most = fa.simulate(problem(), own, rounds=2, progress=False).history["gradient_samples"].max()
    assert fa.estimate(problem(), own).most_gradients == most


def test_one_of_a_kind_is_not_many():
    execution = fa.Execution(lanes=1, mesh=1)
    text = repr(fa.estimate(problem(), ALGORITHMS["insa"], participation=2, execution=execution))
    assert text.endswith("1 lane on 1 device")


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_cohort_in_several_blocks(kind, algorithm, monkeypatch):
    """Two clients at a time, and one in the last block: the same epochs, and parameters but for rounding."""
    whole = run("device", algorithm, participation=7, execution=fa.Execution(lanes=2))
    monkeypatch.setattr(placement, "BLOCK_BYTES", 0)  # as few clients as there are lanes
    blocks = run(kind, algorithm, participation=7, execution=fa.Execution(lanes=2, population=kind))
    np.testing.assert_array_equal(blocks.epochs, whole.epochs)
    np.testing.assert_allclose(blocks.params, whole.params, rtol=1e-9)
    for field in whole.state.clients:
        one, other = (np.asarray(result.state.clients[field]) for result in (blocks, whole))
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_that_was_interrupted_is_not_repeated_on_half_of_its_rows(kind, monkeypatch):
    sim = fa.Simulation(problem(), ALGORITHMS["insa"], participation=6, execution=fa.Execution(population=kind))
    state = sim.init()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(StoredClients, "put", _interrupt)
        sim.round(state)
    with pytest.raises(ValueError, match="state was used before"):
        sim.round(state)


def _interrupt(*arguments):
    raise KeyboardInterrupt
