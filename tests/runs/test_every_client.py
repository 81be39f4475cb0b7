"""Every client's evaluation against a plain loop over clients; in the history, on disk, and what evaluation costs."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import initializer, least_squares
from test_devices import in_a_process

import fedjax_admm as fa
from fedjax_admm.core.client_statistics import STATISTICS, split_name
from fedjax_admm.core.columns import look_up
from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.engine import every_client
from fedjax_admm.engine.every_client import EveryClient

SIZES = [6, 61, 3, 8, 1, 17, 4]
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
INSA = fa.fedadmm_insa(LOCAL, penalty=0.5)
COMMON = {"participation": 3, "evaluate_every": 2, "evaluate_clients_every": 3, "progress": False}


def near(w, batch):
    """A metric of booleans."""
    return jnp.abs(batch["x"] @ w - batch["y"]) < 1


def problem_with(client_eval_data=None, sizes=SIZES):
    problem, xs, ys = least_squares(sizes, heterogeneity=0.4)
    eval_data = {"x": np.concatenate(xs), "y": np.concatenate(ys)}
    return dataclasses.replace(
        problem, eval_data=eval_data, metrics={"near": near}, client_eval_data=client_eval_data
    )  # fmt: skip


def loop(problem, params):
    """Every client's loss and metric at its params, one client after the other, in NumPy."""
    losses, metrics = [], []
    for i, w in enumerate(params):
        rows = jax.tree.map(np.asarray, problem.evaluated_data.client(i))
        error = rows["x"] @ w - rows["y"]
        losses.append(np.mean(0.5 * error**2) + 0.05 * np.sum(w**2))
        metrics.append(np.mean(np.abs(error) < 1))
    return {"loss": np.array(losses), "near": np.array(metrics)}


def held_out():
    return least_squares([2, 1, 9, 1, 4, 3, 2], seed=1)[0].data


def check(sim, state, problem, clients="all"):
    """A simulation's values against the loop."""
    z, u = np.asarray(state.params), np.asarray(state.client_params)
    found, chosen = sim.evaluate_clients(state, clients), sim.every_client(clients).clients
    server, own = loop(problem, [z] * len(u)), loop(problem, u)
    for name in ("loss", "near"):
        np.testing.assert_allclose(found[name], server[name][chosen], rtol=1e-9)
        np.testing.assert_allclose(found[f"personal_{name}"], own[name][chosen], rtol=1e-9)


@pytest.mark.parametrize("population", ["device", "host", "disk", "data on the host"])
def test_values_are_a_loop_over_clients(population):
    where = {"data": "host"} if population == "data on the host" else {"population": population}
    for data in (None, held_out()):
        problem = problem_with(data)
        sim = fa.Simulation(problem, INSA, participation=3, execution=fa.Execution(**where))
        state = sim.init()
        for _ in range(2):
            state, _ = sim.round(state)
        check(sim, state, problem)
        check(sim, state, problem, 4)
    assert len(np.unique(np.asarray(state.client_params)[:, 0])) > 3  # clients' own models are their own


def test_values_with_rows_that_clients_share():
    problem = problem_with()
    x, y = np.asarray(problem.data.fields["x"]), np.asarray(problem.data.fields["y"])
    parts = [np.arange(i, i + 3 * i + 2) for i in range(7)]
    data = fa.FederatedData.from_arrays({"x": x, "y": y}, parts, allow_overlap=True)
    problem = dataclasses.replace(problem, data=data, client_eval_data=None)
    sim = fa.Simulation(problem, INSA, participation=3)
    state, _ = sim.round(sim.init())
    check(sim, state, problem)
    check(sim, state, problem, 3)


@pytest.mark.parametrize("block", [1 << 26, 700])
def test_values_of_rows_in_a_file(tmp_path, monkeypatch, block):
    """All at once, and in blocks of few rows."""
    monkeypatch.setattr(every_client, "_BLOCK_BYTES", block)
    problem = problem_with()
    sim = fa.Simulation(problem, INSA, participation=3)
    state, _ = sim.round(sim.init())
    mapped = problem.replaced(data=fa.FederatedData.open(problem.data.save(tmp_path / "data")))
    z, u = np.asarray(state.params), np.asarray(state.client_params)
    for chosen in (np.arange(7), np.array([1, 4, 5])):
        every = EveryClient(mapped, chosen)
        for name, expected in loop(problem, [z] * 7).items():
            np.testing.assert_allclose(every.at_server(state.params)[name], expected[chosen], rtol=1e-9)
        for name, expected in loop(problem, u).items():
            np.testing.assert_allclose(every.at_own(state.clients)[f"personal_{name}"], expected[chosen], rtol=1e-9)


def test_values_on_several_devices():
    """Clients that devices divide and clients that they do not; at home, dealt, in host memory, a sample of them."""
    in_a_process("""
        from test_every_client import INSA, check, problem_with
        for sizes, mesh, placement, population in (
            ([6, 61, 3, 8, 1, 17, 4, 9], 4, "home", "device"), ([6, 61, 3, 8, 1, 17, 4, 9], 4, "dealt", "device"),
            ([6, 61, 3, 8, 1], 3, "dealt", "device"), ([6, 61, 3, 8, 1], 3, "auto", "host"),
        ):
            problem = problem_with(sizes=sizes)
            execution = fa.Execution(mesh=mesh, placement=placement, population=population)
            sim = fa.Simulation(problem, INSA, participation=3, execution=execution)
            state, _ = sim.round(sim.init())
            check(sim, state, problem)
            check(sim, state, problem, 4)
    """)


def test_the_mean_by_size_is_the_global_loss_and_metric():
    result = fa.simulate(problem_with(), INSA, 4, **COMMON)
    weights = np.array(SIZES) / sum(SIZES)
    metrics = result.client_metrics
    assert metrics.rounds.tolist() == [0, 3, 4]
    for name in ("loss", "near"):
        both = [k for k, round in enumerate(metrics.rounds) if np.isfinite(result.history[name][round])]
        assert len(both) == 2
        for k in both:
            np.testing.assert_allclose(metrics[name][k] @ weights, result.history[name][metrics.rounds[k]], rtol=1e-9)


def test_history_has_statistics_over_clients():
    result = fa.simulate(problem_with(), INSA, 4, **COMMON)
    history, metrics = result.history, result.client_metrics
    assert set(metrics) == {"loss", "near", "personal_loss", "personal_near"}
    assert set(history.over_clients) == {f"{name}_{statistic}" for name in metrics for statistic in STATISTICS}
    assert history.metrics == ("near",)
    assert np.flatnonzero(np.isfinite(history["loss_std"])).tolist() == [0, 3, 4]
    assert (history["client_eval_seconds"] > 0).tolist() == [True, False, False, True, True]
    for k, round in enumerate(metrics.rounds):
        loss, near = metrics["personal_loss"][k], metrics["near"][k]
        assert history["personal_loss_worst"][round] == loss.max()
        assert history["near_worst"][round] == near.min()
        np.testing.assert_allclose(history["personal_loss_worst_decile"][round], np.quantile(loss, 0.9))
        np.testing.assert_allclose(history["personal_loss_best_decile"][round], np.quantile(loss, 0.1))
        np.testing.assert_allclose(history["near_worst_decile"][round], np.quantile(near, 0.1))
        np.testing.assert_allclose(history["near_std"][round], near.std())
        np.testing.assert_allclose(history["near_mean"][round], near.mean())


def test_a_method_without_own_models_has_none_and_its_run_no_other_bits():
    with_clients = fa.simulate(problem_with(), fa.fedavg(LOCAL), 4, **COMMON)
    assert set(with_clients.client_metrics) == {"loss", "near"}
    plain = fa.simulate(problem_with(), fa.fedavg(LOCAL), 4, participation=3, evaluate_every=2, progress=False)
    assert plain.client_metrics is None and not plain.history.over_clients
    np.testing.assert_array_equal(plain.params, with_clients.params)
    np.testing.assert_array_equal(plain.history["loss"], with_clients.history["loss"])


def test_directions_and_names_of_statistics():
    assert look_up("loss_worst_decile").less_is_better and look_up("near_std").less_is_better
    assert not look_up("personal_near_worst").less_is_better
    assert split_name("epochs_mean") and look_up("epochs_mean").label == "epochs, mean of active clients"
    for name in ("loss_std", "near_worst", "personal_near"):
        with pytest.raises(ValueError, match="a column of its own"):
            dataclasses.replace(problem_with(), metrics={name: near})


class Killed(Exception):
    pass


def test_an_interrupted_run_goes_on_to_the_bit(tmp_path):
    whole = fa.simulate(problem_with(), INSA, 7, run_dir=tmp_path / "whole", **COMMON)

    def kill(row):
        if row["round"] == 5:
            raise Killed

    for _ in range(2):  # it gets no further the second time, from a checkpoint of round 0 or 4
        with pytest.raises(Killed):
            run_dir = tmp_path / "cut"
            fa.simulate(problem_with(), INSA, 7, run_dir=run_dir, on_round=kill, checkpoint_seconds=0, **COMMON)
    cut = fa.simulate(problem_with(), INSA, 7, run_dir=tmp_path / "cut", **COMMON)
    stored = fa.read_run(tmp_path / "cut")
    assert cut.client_metrics.rounds.tolist() == [0, 3, 6, 7]
    for other in (cut, stored, fa.read_run(tmp_path / "whole")):
        np.testing.assert_array_equal(other.client_metrics.sizes, SIZES)
        for name, values in whole.client_metrics.items():
            np.testing.assert_array_equal(other.client_metrics[name], values)
        np.testing.assert_array_equal(other.history["near_worst_decile"], whole.history["near_worst_decile"])
    for name in ("client_metrics.npy", "clients.npy"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(ValueError, match="evaluate_clients_every: 3 there, None now"):
        fa.simulate(problem_with(), INSA, 7, run_dir=tmp_path / "cut", **COMMON | {"evaluate_clients_every": None})


def test_damage_to_the_files_of_clients_is_told_and_computed_again(tmp_path):
    whole = fa.simulate(problem_with(), INSA, 4, run_dir=tmp_path / "run", **COMMON)
    file = tmp_path / "run" / "client_metrics.npy"
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match=r"client_metrics\.npy is damaged in round 4"):
        fa.read_run(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match="computing it again"):
        fa.simulate(problem_with(), INSA, 4, run_dir=tmp_path / "run", rebuild=True, **COMMON)
    assert file.read_bytes() == sound
    (tmp_path / "run" / "clients.npy").write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match=r"clients\.npy is damaged in round"):
        fa.read_run(tmp_path / "run")
    (tmp_path / "run" / "checksums.csv").unlink()
    with pytest.raises(DamagedFileError, match=r"clients\.npy is damaged: it does not hold 3 evaluations"):
        fa.read_run(tmp_path / "run")
    np.testing.assert_array_equal(whole.client_metrics["loss"].shape, [3, 7])


def test_the_table_of_clients_is_written_again_without_computing_a_round(tmp_path):
    """A bit of its header flips: it is told once, other runs of a comparison are shown, and nothing is lost."""
    algorithms = {"FedAvg": fa.fedavg(LOCAL), "InSa": INSA}
    fa.compare(problem_with(), algorithms, 4, run_dir=tmp_path, **COMMON)
    place = tmp_path / "InSa" / "seed-0"
    file, before = place / "clients.npy", (place / "solves.npy").stat().st_mtime_ns
    sound = file.read_bytes()
    for k in range(0, 128, 9):
        file.write_bytes(sound[:k] + bytes([sound[k] ^ (1 << k % 8)]) + sound[k + 1 :])
        with pytest.raises(DamagedFileError, match=r"clients\.npy is damaged in round 0: to write it again, without"):
            fa.read_run(place)
    comparison = fa.read_comparison(tmp_path)
    assert len(comparison.runs["FedAvg"]) == 1 and "clients.npy is damaged" in comparison.missing["InSa"][0]
    assert len([line for line in comparison.text().splitlines() if "clients.npy" in line]) == 1
    with pytest.warns(RuntimeWarning, match=r"clients\.npy was damaged or lost, and is written again") as warned:
        fa.compare(problem_with(), algorithms, 4, run_dir=tmp_path, **COMMON)
    assert len(warned) == 1 and file.read_bytes() == sound
    assert (place / "solves.npy").stat().st_mtime_ns == before
    assert len(fa.read_comparison(tmp_path).runs["InSa"]) == 1


def test_a_flipped_bit_without_checksums_is_one_line_or_a_run(tmp_path):
    """Whatever NumPy's parser raises for a header."""
    fa.simulate(problem_with(), INSA, 4, run_dir=tmp_path, **COMMON)
    (tmp_path / "checksums.csv").unlink()
    for name in ("clients.npy", "client_metrics.npy", "solves.npy"):
        sound = (tmp_path / name).read_bytes()
        for bit in range(0, 8 * 128, 5):
            flipped = sound[: bit // 8] + bytes([sound[bit // 8] ^ (1 << bit % 8)]) + sound[bit // 8 + 1 :]
            (tmp_path / name).write_bytes(flipped)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a header that looks like one of Python 2
                with contextlib.suppress(DamagedFileError):
                    fa.read_run(tmp_path)
        (tmp_path / name).write_bytes(sound)


def test_targets_and_the_table_of_clients():
    algorithms = {"FedAvg": fa.fedavg(LOCAL), "InSa": INSA}
    comparison = fa.compare(problem_with(), algorithms, 4, targets=[("loss_worst_decile", 1e9)], **COMMON)
    assert "until loss worst decile is 1e+09" in comparison.target_tables()
    assert comparison.to_target("personal_loss_mean", 1e9).rows[0][1:3] == ("0 of 1", "-")
    table = comparison.table(clients=True)
    assert table.header[2:4] == ("loss mean", "loss std") and table.rows[0][-1] == "-" and table.rows[1][-1] != "-"
    worst = float(table.rows[1][table.header.index("near worst")])
    history = comparison.runs["InSa"][0].history["near_worst"]
    np.testing.assert_allclose(worst, history[[3, 4]].mean(), atol=1e-4)
    with pytest.raises(ValueError, match="evaluate_clients_every"):
        fa.compare(problem_with(), algorithms, 1, progress=False).table(clients=True)


def test_evaluation_on_a_sample_is_the_mean_of_the_same_rows():
    problem = problem_with()
    runs = [fa.simulate(problem, INSA, 2, participation=3, seed=s, evaluate=20, progress=False) for s in (0, 1)]
    assert runs[0].history["loss"][0] == runs[1].history["loss"][0]  # zeros at the start, and the same rows
    chosen = np.sort(np.random.default_rng(0).choice(100, 20, replace=False))
    for run in runs:
        w = np.asarray(run.params)
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], problem.data.fields)
        expected = np.mean(0.5 * (rows["x"] @ w - rows["y"]) ** 2) + 0.05 * np.sum(w**2)
        np.testing.assert_allclose(run.history["loss"][-1], expected, rtol=1e-9)
    full = fa.simulate(problem, INSA, 2, participation=3, evaluate=100, progress=False)
    usual = fa.simulate(problem, INSA, 2, participation=3, progress=False)
    np.testing.assert_allclose(full.history["loss"], usual.history["loss"], rtol=1e-9)


def test_a_sample_weighs_rows_as_the_loss_does():
    problem, *_ = least_squares([2, 6], weights=[9.0, 1.0])
    every, some = (fa.Simulation(problem, fa.fedavg(LOCAL)) for _ in range(2))
    state = every.init()
    np.testing.assert_allclose(some.evaluate(state, 8)["loss"], every.evaluate(state)["loss"], rtol=1e-12)


def test_evaluation_of_test_rows_alone_or_of_nothing(tmp_path):
    usual = fa.simulate(problem_with(), INSA, 3, participation=3, progress=False)
    for evaluate in ("test", None):
        settings = {"participation": 3, "evaluate": evaluate, "progress": False, "run_dir": tmp_path / str(evaluate)}
        result = fa.simulate(problem_with(), INSA, 3, **settings)
        assert np.isnan(result.history["loss"]).all()
        np.testing.assert_array_equal(result.params, usual.params)
        expected = usual.history["near"] if evaluate == "test" else np.full(4, np.nan)
        np.testing.assert_array_equal(result.history["near"], expected)
        again = fa.simulate(problem_with(), INSA, 3, **settings)  # which is read
        np.testing.assert_array_equal(again.params, usual.params)
        assert fa.read_run(tmp_path / str(evaluate)).evaluated == evaluate
        assert re.search("loss evaluated on.*nothing", result._repr_html_())


def test_bad_choices_are_refused_in_one_line():
    problem = problem_with()
    for settings, message in (
        ({"evaluate": "some"}, "evaluate must be 'all', a number of rows, 'test' or None, got 'some'"),
        ({"evaluate": 101}, "evaluate must be at most the number of rows, 100, got 101"),
        ({"evaluate_clients_every": 0}, "evaluate_clients_every must be"),
        ({"evaluate_clients": 3}, "needs evaluate_clients_every"),
        ({"evaluate_clients": 8, "evaluate_clients_every": 1}, "at most the number of clients, 7, got 8"),
        ({"evaluate_clients": [0, 1], "evaluate_clients_every": 1}, "evaluate_clients must be a whole number"),
        ({"on_round": "print"}, "on_round must be a function, (row) or (row, state), got 'print'"),
        ({"on_round": lambda: None}, "on_round must be a function, (row) or (row, state), got one of ()"),
        ({"on_round": lambda a, b, c: None}, "got one of (a, b, c)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            fa.simulate(problem, INSA, 2, progress=False, **settings)
    with pytest.raises(ValueError, match="needs a problem with metrics"):
        fa.simulate(least_squares(SIZES)[0], INSA, 2, progress=False, evaluate="test")
    with pytest.raises(ValueError, match="one entry for each of data's 7 clients"):
        problem_with(least_squares([2, 2])[0].data)
    with pytest.raises(ValueError, match="must be a fa.FederatedData"):
        problem_with({"x": np.ones((7, 5))})
    other = fa.FederatedData.from_arrays({"z": np.ones((7, 5))}, np.arange(7)[:, None])
    with pytest.raises(ValueError, match=r"client_eval_data has the fields"):
        problem_with(other)
    label = fa.Problem(
        init=initializer(5), loss=problem.loss, data=problem.data,
        eval_data={"z": np.ones(3)}, metrics={"one": lambda w, batch: batch["z"]},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"metrics\['one'\] asks for 'z'"):
        fa.simulate(label, INSA, 2, progress=False, evaluate_clients_every=1)


def test_on_round_may_have_the_state():
    seen, plain = {}, []

    def with_state(row, state):
        seen[int(row["round"])] = (np.array(state.params), np.array(state.client_params), int(state.round))

    settings = {"participation": 3, "evaluate_every": 4, "progress": False}
    result = fa.simulate(problem_with(), INSA, 4, on_round=with_state, **settings)
    usual = fa.simulate(problem_with(), INSA, 4, on_round=plain.append, **settings)
    assert list(seen) == [0, 1, 2, 3, 4] == [row["round"] for row in plain]
    assert [number for *_, number in seen.values()] == [0, 1, 2, 3, 4]
    sim = fa.Simulation(problem_with(), INSA, participation=3)
    state = sim.init()
    for k in range(5):
        np.testing.assert_array_equal(seen[k][0], state.params)
        np.testing.assert_array_equal(seen[k][1], state.client_params)
        state, _ = sim.round(state)
    np.testing.assert_array_equal(result.params, usual.params)

    def optional(row, step=None):
        assert step is None

    fa.simulate(problem_with(), INSA, 1, participation=3, on_round=optional, progress=False)
