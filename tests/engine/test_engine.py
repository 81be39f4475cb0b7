"""What holds for every algorithm: dtypes, structures, optimizers, failures, counting, compiling once."""

from __future__ import annotations

import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import GAMMA, least_squares, make_problem, ridge, squared_error, two_sides_of_a_cliff

import fedjax_admm as fa
from fedjax_admm.core import sums
from fedjax_admm.core.columns import COLUMNS

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)


def made(name, **options):
    """An algorithm by its constructor's name, with a penalty where it takes one."""
    maker = getattr(fa.algorithms, name)
    penalty = {"penalty": 0.7} if "penalty" in inspect.signature(maker).parameters else {}
    return maker(LOCAL, **penalty, **options)


# Whatever `fedjax_admm.algorithms` has is held to the contracts below, and a few variants.
ALGORITHMS = {name: made(name) for name in fa.algorithms.__all__} | {
    "fedavg_all": made("fedavg", average="all"),
    "fedadmm_insa_sent": made("fedadmm_insa", mu=1.5, unselected_penalty="sent"),
}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())
# One that keeps nothing, one that keeps parameters, one that keeps everything.
each_kind = pytest.mark.parametrize("algorithm", [ALGORITHMS[k] for k in ("fedavg", "fedavg_all", "fedadmm_insa_sent")])
SIZES = [6, 11, 3, 8]


def run(problem, algorithm, rounds=3, **kwargs):
    return fa.simulate(problem, algorithm, rounds=rounds, progress=False, **kwargs)


@every_algorithm
def test_learns_and_keeps_dtype(algorithm):
    problem, *_ = least_squares(SIZES, heterogeneity=0.1)
    for dtype in (jnp.float32, jnp.float64):
        result = run(problem, algorithm, rounds=12, initial_params=jnp.zeros(5, dtype))
        floats = [leaf for leaf in jax.tree.leaves(result.state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert {leaf.dtype for leaf in floats} == {jnp.dtype(dtype)}
        assert result.history["loss"][-1] < 0.5 * result.history["loss"][0]


@each_kind
def test_single_precision_without_x64(algorithm):
    with jax.enable_x64(False):
        problem, *_ = least_squares(SIZES, dtype=np.float32)
        result = run(problem, algorithm)
        assert all(leaf.dtype != jnp.float64 for leaf in jax.tree.leaves(result.state))


def deep_init(key):
    return {"first": {"w": jnp.full((5, 3), 0.1), "b": jnp.zeros(3)}, "last": [jnp.full(3, 0.2)]}


def deep_loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["first"]["w"] + params["first"]["b"])
    return (hidden @ params["last"][0] - batch["y"]) ** 2


@each_kind
def test_nested_parameters(algorithm):
    problem, *_ = least_squares(SIZES)
    nested = fa.Problem(init=deep_init, loss=deep_loss, data=problem.data)
    assert nested.num_params == 21
    result = run(nested, algorithm, rounds=5)
    assert jax.tree.structure(result.params) == jax.tree.structure(deep_init(None))
    assert result.history["loss"][-1] < result.history["loss"][0]


@each_kind
@pytest.mark.parametrize("sizes", [[9], [1, 20]], ids=["one client", "one row and many"])
def test_small_federations(algorithm, sizes):
    problem, *_ = least_squares(sizes)
    result = run(problem, algorithm, rounds=2, participation=1.0)
    assert result.cohorts.shape == (2, len(sizes))
    assert np.isfinite(result.history["loss"]).all()


def test_one_client_alone_minimises_its_own_loss():
    problem, xs, ys = least_squares([12])
    local = fa.LocalSolver(learning_rate=0.2, max_epochs=400)
    result = run(problem, fa.fedadmm(local, penalty=0.1), rounds=30)
    x, y = xs[0], ys[0]
    exact = np.linalg.solve(x.T @ x / 12 + GAMMA * np.eye(5), x.T @ y / 12)
    np.testing.assert_allclose(result.params, exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "batch_size"), [(optax.adam, None), (optax.adam, 4), (optax.lbfgs, None), (optax.lbfgs, 4)]
)
def test_any_optimizer(optimizer, batch_size):
    """One client's solve against the same optimizer driven by hand on the same batches."""
    from federations import epoch_order

    problem, xs, ys = least_squares([10])
    local = fa.LocalSolver(learning_rate=0.1, batch_size=batch_size, max_epochs=4, optimizer=optimizer)
    result = run(problem, fa.fedprox(local, penalty=0.3), rounds=2)

    order, center, evaluations = epoch_order(0, [10]), jnp.zeros(5), []
    for k in range(2):
        w, method, evaluated = center, optax.with_extra_args_support(optimizer(0.1)), 0
        state = method.init(w)
        for epoch in range(4):
            rows = order(k, 0, epoch)
            for start in range(0, 10, batch_size or 10):
                part = rows[start : start + (batch_size or 10)]

                def objective(w, part=part, center=center):
                    batch = {"x": jnp.asarray(xs[0][part]), "y": jnp.asarray(ys[0][part])}
                    return jnp.mean(squared_error(w, batch)) + ridge(w) + 0.15 * jnp.sum((w - center) ** 2)

                value, grad = jax.value_and_grad(objective)(w)
                updates, state = method.update(grad, state, w, value=value, grad=grad, value_fn=objective)
                w = optax.apply_updates(w, updates)
                searched = optax.tree.get_all_with_path(state, "num_linesearch_steps")
                evaluated += len(part) * (1 + sum(int(steps) for _, steps in searched))
        evaluations.append(evaluated)
        center = w
    np.testing.assert_allclose(result.params, center, rtol=1e-7)
    np.testing.assert_array_equal(result.solves.gradient_samples[:, 0], evaluations)


def test_a_full_gradient_in_several_pieces(monkeypatch):
    """Clients larger than a piece: the same steps, line search included."""
    problem, *_ = least_squares([23, 7, 40])
    for optimizer in (optax.sgd, optax.lbfgs):
        local = fa.LocalSolver(learning_rate=0.1, max_epochs=4, optimizer=optimizer)
        whole = run(problem, fa.fedadmm_in(local, penalty=0.5, reference="client"))
        monkeypatch.setattr("fedjax_admm.algorithms.local_solver.FULL_GRADIENT_PIECES", (6,))
        pieces = run(problem, fa.fedadmm_in(local, penalty=0.5, reference="client"))
        monkeypatch.undo()
        np.testing.assert_allclose(pieces.params, whole.params, rtol=1e-9)
        np.testing.assert_array_equal(pieces.solves.gradient_samples, whole.solves.gradient_samples)


@every_algorithm
def test_communicated_floats_and_history(algorithm):
    problem, *_ = least_squares(SIZES)
    cohort = len(SIZES) if getattr(algorithm, "needs_everyone", False) else 2
    history = run(problem, algorithm, participation=cohort).history
    told = fa.estimate(problem, algorithm)
    traffic = told.floats_down + told.floats_up
    np.testing.assert_array_equal(history["communicated_floats"], [0, *[cohort * traffic] * 3])
    names = ("round loss epochs_mean gradient_samples criterion_samples communicated_floats penalty_mean "
             "lane_efficiency seconds eval_seconds failed_clients").split()  # fmt: skip
    bounded = ["penalties_at_bound"]
    names += bounded if getattr(algorithm, "penalty_rule", fa.penalties.constant()) != fa.penalties.constant() else []
    names += ["device_efficiency"]
    assert list(history) == names
    # What no metric may be called; some columns are only there with faults, a client time or cohorts that vary.
    others = [f"{reason}_clients" for reason in ("dropped", "quarantined", "corrupted", "rejected", "late")]
    others += ["simulated_seconds", "excess_loss", "client_eval_seconds", "clients_available", "clients_selected"]
    assert {*names, *others, *bounded} == set(COLUMNS)
    assert list(history.to_pandas().columns) == names
    np.testing.assert_array_equal(history["round"], range(4))


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("fedavg", 5, 5),
        ("fedavg_all", 5, 5),
        ("fedprox", 5, 5),
        ("feddyn", 5, 5),
        ("scaffold", 10, 10),
        ("fedadmm", 5, 6),
        ("fedadmm_in", 5, 6),
        ("fedadmm_insa", 5, 11),
        ("fedadmm_insa_sent", 5, 6),
    ],
)
def test_what_each_method_must_send(name, down, up):
    problem, *_ = least_squares(SIZES)
    told = fa.estimate(problem, ALGORITHMS[name])
    assert (told.floats_down, told.floats_up) == (down, up)


def test_loss_and_metrics_are_those_of_the_data():
    rng = np.random.default_rng(0)
    xs, ys = [rng.normal(size=(n, 4)) for n in (700, 3, 401)], [rng.normal(size=n) for n in (700, 3, 401)]
    test = {"x": rng.normal(size=(1203, 4)), "y": rng.normal(size=1203)}
    alpha = np.array([0.2, 0.5, 0.3])
    problem = make_problem(xs, ys, weights=alpha)
    problem = fa.Problem(problem.init, squared_error, problem.data, ridge, test, {"test_loss": squared_error})
    w = rng.normal(size=4)
    result = run(problem, ALGORITHMS["fedavg"], rounds=1, initial_params=w)
    loss = sum(a * np.mean((x @ w - y) ** 2) / 2 for a, x, y in zip(alpha, xs, ys, strict=True)) + GAMMA / 2 * w @ w
    np.testing.assert_allclose(result.history["loss"][0], loss, rtol=1e-12)
    np.testing.assert_allclose(
        result.history["test_loss"][0], np.mean((test["x"] @ w - test["y"]) ** 2) / 2, rtol=1e-12
    )


def test_rows_that_no_client_has_are_not_evaluated():
    x = np.random.default_rng(0).normal(size=(600, 4))
    data = fa.FederatedData.from_arrays({"x": x, "y": np.zeros(600)}, [[0, 1], [1, 2]], allow_overlap=True)
    problem = fa.Problem(lambda key: jnp.ones(4), squared_error, data)
    result = run(problem, ALGORITHMS["fedavg"], rounds=1)
    losses = x[:3].sum(axis=1) ** 2 / 2
    np.testing.assert_allclose(result.history["loss"][0], losses @ [0.25, 0.5, 0.25], rtol=1e-12)


def test_what_a_model_computes_in_half_precision_is_summed_in_single():
    def loss(params, batch):
        return jnp.full(batch["x"].shape[0], 1.5, jnp.bfloat16) + 0 * params.sum().astype(jnp.bfloat16)

    def correct(params, batch):
        return (batch["x"] < 301).astype(jnp.bfloat16)

    rows = {"x": np.arange(500)}
    data = fa.FederatedData.from_arrays(rows, [range(499), [499]])
    problem = fa.Problem(lambda key: jnp.ones(4), loss, data, eval_data=rows, metrics={"accuracy": correct})
    history = run(problem, ALGORITHMS["fedavg"], rounds=1).history
    assert history["loss"][0] == pytest.approx(1.5, rel=1e-6)
    assert history["accuracy"][0] == pytest.approx(301 / 500, rel=1e-6)


@pytest.mark.parametrize("unselected", ["current", "sent"])
def test_the_servers_sums_do_not_drift(unselected):
    """After many rounds in single precision the sums are those of the clients' rows, summed exactly."""
    problem, *_ = least_squares([4] * 30, dtype=np.float32)
    local = fa.LocalSolver(learning_rate=0.05, batch_size=2, max_epochs=2)
    algorithm = fa.fedadmm_insa(local, penalty=0.3, mu=1.2, unselected_penalty=unselected)
    state = run(problem, algorithm, rounds=600, participation=3, evaluate_every=64,
                initial_params=np.full(5, 100, np.float32)).state  # fmt: skip
    weights = problem.data.weights
    counted = state.penalties if unselected == "current" else state.sent_penalties
    message = np.float64(counted)[:, None] * np.float64(state.client_params) - np.float64(state.duals)
    exact = sums.exact(weights, message)
    largest = np.abs(message).max()
    np.testing.assert_allclose(np.float64(state.server.total.value), exact, atol=2e-6 * largest)
    np.testing.assert_allclose(state.server.weight.value, sums.exact(weights, counted), rtol=2e-6)
    np.testing.assert_allclose(state.penalty_mean.value, np.mean(state.penalties), rtol=2e-6)


def steep_for_some(w, batch):
    return squared_error(w, batch) * jnp.where(batch["y"] > 50, 1e30, 1.0)


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(a, id=n) for n, a in ALGORITHMS.items() if not getattr(a, "needs_everyone", False)],
)
def test_a_client_that_fails_keeps_its_state(algorithm):
    """Client 1's solve overflows: it is counted, keeps its rows and does not touch the server."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(6, 5)).astype(np.float32) for _ in range(3)]
    ys = [rng.normal(size=6) for _ in range(3)]
    bad = [ys[0], np.full(6, 100.0), ys[2]]
    problem = make_problem(xs, bad, dtype=np.float32)
    problem = fa.Problem(problem.init, steep_for_some, problem.data)
    sim = fa.Simulation(problem, algorithm, participation=1.0, initial_params=np.zeros(5, np.float32))
    state, info = sim.round(sim.init())
    assert info.stop_reason.tolist()[1] == "failed" and "failed" not in info.stop_reason[[0, 2]]
    without = fa.Simulation(problem, algorithm, participation=1.0, initial_params=np.zeros(5, np.float32))
    alone, _ = without.round(without.init(), [0, 2])
    np.testing.assert_allclose(state.params, alone.params, rtol=1e-6)
    assert np.isnan(info.consensus_gap[1]) and np.isnan(info.movement[1])  # nothing was measured
    for now, start in zip(jax.tree.leaves(state.clients), jax.tree.leaves(sim.init().clients), strict=True):
        np.testing.assert_array_equal(now[1], start[1])


@pytest.mark.parametrize("batch_size", [None, 1], ids=["full gradient", "batches"])
def test_a_residual_beside_infinity_is_no_small_one(batch_size):
    """Client 0's own parameters lie where the norm of its gradient overflows: its next solve is not met, but failed."""
    local = fa.LocalSolver(learning_rate=0.7, batch_size=batch_size, max_epochs=1)
    result = run(two_sides_of_a_cliff(), fa.fedadmm_in(local, penalty=1.0, reference="client"), rounds=2)
    assert np.isfinite(result.solves.reference_residual[0]).all()
    assert np.isinf(result.solves.reference_residual[1, 0]) and np.isfinite(result.solves.final_residual[1, 0])
    assert result.solves.stop_reason.tolist() == [["maximum", "maximum"], ["failed", "maximum"]]


# Adaptive servers do steps of bounded length, whatever the clients do.
bounded = [n for n, a in ALGORITHMS.items() if "tau" in (getattr(getattr(a, "server", None), "options", None) or ())]


@pytest.mark.parametrize("algorithm", [pytest.param(a, id=n) for n, a in ALGORITHMS.items() if n not in bounded])
def test_divergence_names_the_round_and_keeps_the_history(algorithm):
    problem, *_ = least_squares(SIZES, dtype=np.float32)
    wild = fa.LocalSolver(learning_rate=3.0, batch_size=4, max_epochs=2)
    method = jax.tree.map(lambda x: x, algorithm)
    object.__setattr__(getattr(method, "algorithm", method), "local", wild)  # an averaged method has its own
    start = np.ones(5, np.float32)
    with pytest.raises(fa.DivergenceError, match=r"^round \d+: .* not finite") as caught:
        run(problem, method, rounds=300, initial_params=start, evaluate_every=5)
    error = caught.value
    assert 1 <= error.round <= 300 and error.quantity
    assert len(error.history["round"]) == error.round
    assert np.isfinite(error.history["loss"][0])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def weak_init(key):
    return jnp.full(5, 0.1)  # weakly typed


def infinite_loss(w, batch):
    return squared_error(w, batch) + jnp.inf


def test_a_loss_that_is_not_finite_at_the_start_is_not_blamed_on_the_rate():
    problem = fa.Problem(init=weak_init, loss=infinite_loss, data=least_squares(SIZES)[0].data)
    with pytest.raises(
        fa.DivergenceError, match="^round 0: the loss .*before any training; look at the data"
    ) as caught:
        run(problem, ALGORITHMS["fedavg"])
    assert caught.value.round == 0 and "learning rate" not in str(caught.value)


def test_the_parts_of_insa_are_insa():
    problem, *_ = least_squares(SIZES)
    parts = fa.fedadmm(
        LOCAL,
        penalty=0.7,
        delta=0.01,
        criterion=fa.criteria.relative_residual(c=0.01),
        penalty_rule=fa.penalties.residual_balancing(5.0, 2.0),
    )
    whole, mixed = (run(problem, a, participation=2) for a in (made("fedadmm_insa"), parts))
    np.testing.assert_array_equal(mixed.params, whole.params)
    np.testing.assert_array_equal(mixed.history["communicated_floats"], whole.history["communicated_floats"])


def test_solves_are_a_mapping():
    problem, *_ = least_squares(SIZES)
    solves = run(problem, ALGORITHMS["fedadmm_in"]).solves
    assert "epochs" in solves and "stop_reason" in list(solves) and "stop_code" not in solves
    assert {np.shape(values) for values in dict(solves).values()} == {(3, 4)}


def test_half_precision_sums_do_not_drift():
    problem, *_ = least_squares([4] * 20, dtype=np.float32)
    algorithm = fa.fedavg(fa.LocalSolver(learning_rate=0.05, batch_size=2), average="all")
    state = run(problem, algorithm, rounds=200, participation=3, evaluate_every=64,
                initial_params=jnp.ones(5, jnp.bfloat16)).state  # fmt: skip
    assert state.params.dtype == jnp.bfloat16
    mean = np.mean(np.asarray(state.client_params, np.float64), axis=0)
    np.testing.assert_allclose(np.asarray(state.params, np.float64), mean, rtol=2**-7)


def test_progress_in_a_file_is_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr("fedjax_admm.runs.progress.SECONDS_BETWEEN_LINES", 0.0)
    problem, *_ = least_squares(SIZES)
    fa.simulate(problem, ALGORITHMS["fedadmm"], rounds=2)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3 and lines[0] == "compiling, then round 1 of 2"
    assert lines[2].startswith("round 2/2, ") and "loss" in lines[2]
    fa.simulate(problem, ALGORITHMS["fedadmm"], rounds=2, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("batch_size", [None, 4])
def test_under_strict_promotion(batch_size):
    """A user's strict settings, and no dtype or rank widened by accident."""
    problem, *_ = least_squares(SIZES)
    local = fa.LocalSolver(learning_rate=0.05, batch_size=batch_size, max_epochs=3)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        run(problem, fa.fedadmm_insa(local, reference="client"), rounds=2)
        run(problem, fa.fedavg(local, average="all"), rounds=2)


def test_a_column_as_a_picture():
    import matplotlib

    matplotlib.use("Agg")
    problem, *_ = least_squares(SIZES)
    result = run(problem, ALGORITHMS["fedadmm"], rounds=5, evaluate_every=2)
    axes = result.plot("loss", label="FedADMM")
    line = axes.lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [0, 2, 4, 5])  # where it was measured
    assert axes.get_xlabel() == "round" and axes.get_legend() is not None


def test_client_penalties_are_rebuilt_from_the_solves():
    problem, *_ = least_squares(SIZES)
    algorithm = fa.fedadmm_insa(fa.LocalSolver(learning_rate=0.05, batch_size=3, max_epochs=4), penalty=0.05)
    result = fa.simulate(problem, algorithm, rounds=12, participation=2, progress=False)
    penalties = result.client_penalties()
    np.testing.assert_array_equal(penalties[-1], result.state.penalties)
    np.testing.assert_allclose(penalties.mean(axis=1), result.history["penalty_mean"], rtol=1e-6)
    assert penalties[0].std() < 1e-9 and penalties[-1].std() > 0
    epochs = result.client_epochs()
    assert np.nansum(epochs) == result.epochs.sum() and np.isfinite(epochs).sum() == result.cohorts.size
    assert result.epoch_reduction == 1 - result.epochs.sum() / (4 * result.epochs.size)
