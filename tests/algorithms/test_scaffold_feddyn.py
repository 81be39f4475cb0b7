"""SCAFFOLD and FedDyn against their papers' pseudocode as plain NumPy loops, and their fixed points."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compilations import compilations
from federations import GAMMA, epoch_order, least_squares, make_problem, optimum

import fedjax_admm as fa
from fedjax_admm.core import sums

SIZES = [7, 3, 12, 1, 9, 5]
M, ROUNDS, SEED = len(SIZES), 6, 5
TOLERANCE = 1e-9
RNG = np.random.default_rng(2)
COHORTS = np.stack([np.sort(RNG.choice(M, 4, replace=False)) for _ in range(ROUNDS)])
RATE = RNG.uniform(0.02, 0.08, M)
EPOCHS = RNG.integers(2, 7, M)
START = RNG.normal(size=5)
WEIGHTS = {"equal": np.full(M, 1 / M), "unequal": np.array([1.0, 5, 2, 2, 1, 3]) / 14}
weights_and_batches = pytest.mark.parametrize(
    ("weights", "batch_size", "eps"),
    [("equal", 4, None), ("equal", None, None), ("unequal", 4, None), ("unequal", 4, 1.5), ("unequal", None, 1.5)],
)


def local_steps(x, y, start, shift, pull, rate, batches, epochs, eps):
    """SGD on f_i(w) + <shift, w> + pull / 2 ||w - start||^2: (w, steps). `batches(epoch)` are an epoch's rows."""

    def direction(w, rows):
        return x[rows].T @ (x[rows] @ w - y[rows]) / len(rows) + GAMMA * w + shift + pull * (w - start)

    w, steps = start, 0
    for epoch in range(epochs):
        if eps is not None and np.linalg.norm(direction(w, np.arange(len(x)))) <= eps:
            break
        for rows in batches(epoch):
            w = w - rate * direction(w, rows)
            steps += 1
    return w, steps


def batches_of(round, client, batch_size):
    """epoch -> the minibatches of that epoch, in the package's order of rows."""
    order, n = epoch_order(SEED, SIZES), SIZES[client]
    if batch_size is None:
        return lambda epoch: [np.arange(n)]
    return lambda epoch: np.split(order(round, client, epoch), range(batch_size, n, batch_size))


def scaffold_loop(xs, ys, alpha, batch_size, eps, server_rate, option=2):
    """Algorithm 1 of Karimireddy et al.; (x, c, c_i, steps). `alpha` None: its equal weights."""
    x, c, c_i, all_steps = START, np.zeros(5), np.zeros((M, 5)), []
    for k, selected in enumerate(COHORTS):
        dy, dc = np.zeros((M, 5)), np.zeros((M, 5))
        for i in selected:
            batches = batches_of(k, i, batch_size)
            y_i, steps = local_steps(xs[i], ys[i], x, c - c_i[i], 0, RATE[i], batches, EPOCHS[i], eps)
            all_steps.append(steps)
            new = c_i[i] - c + (x - y_i) / (steps * RATE[i]) if steps else c_i[i]
            if option == 1:
                new = xs[i].T @ (xs[i] @ x - ys[i]) / len(xs[i]) + GAMMA * x
            dy[i], dc[i] = y_i - x, new - c_i[i]
        if alpha is None:
            x = x + server_rate / len(selected) * dy.sum(axis=0)
            c = c + len(selected) / M * (dc.sum(axis=0) / len(selected))
            c_i = c_i + dc
        else:
            x = x + server_rate * alpha @ dy / alpha[selected].sum()
            c_i = c_i + dc
            c = alpha @ c_i
    return x, c, c_i, all_steps


def feddyn_loop(xs, ys, alpha, a, batch_size, eps, scale=None):
    """Algorithm 1 of Acar et al.; (theta, h, gradients, steps).

    `alpha` None: its equal weights, and with `scale` [clients] the losses are scale_i f_i. A step on scale_i times an
    objective with rate / scale_i is a step on the objective itself.
    """
    theta, h, grad, all_steps = START, np.zeros(5), np.zeros((M, 5)), []
    scale = np.ones(M) if scale is None else scale
    for k, selected in enumerate(COHORTS):
        theta_i = np.zeros((M, 5))
        for i in selected:
            batches, shift, pull = batches_of(k, i, batch_size), -grad[i] / scale[i], a[i] / scale[i]
            theta_i[i], steps = local_steps(xs[i], ys[i], theta, shift, pull, RATE[i], batches, EPOCHS[i], eps)
            all_steps.append(steps)
        for i in selected:
            grad[i] = grad[i] - a[i] * (theta_i[i] - theta)
        if alpha is None:
            h = h - a[0] / M * sum(theta_i[i] - theta for i in selected)
            theta = sum(theta_i[i] for i in selected) / len(selected) - h / a[0]
        else:
            h = alpha @ grad
            share = alpha * a
            theta = share[selected] @ theta_i[selected] / share[selected].sum() - h / share.sum()
    return theta, h, grad, all_steps


def federation(weights):
    return least_squares(SIZES, weights=WEIGHTS[weights])


def solver(batch_size):
    return fa.LocalSolver(learning_rate=RATE, batch_size=batch_size, max_epochs=EPOCHS)


def criterion(eps):
    return None if eps is None else fa.criteria.constant_tolerance(eps)


def run(problem, algorithm, rounds=ROUNDS, participation=COHORTS, **kwargs):
    return fa.simulate(problem, algorithm, rounds, participation=participation, seed=SEED, progress=False, **kwargs)


def close(value, truth):
    np.testing.assert_allclose(value, truth, rtol=TOLERANCE, atol=TOLERANCE)


def assert_steps(result, steps, batch_size, eps):
    per_epoch = np.ones(M, int) if batch_size is None else -(-np.array(SIZES) // batch_size)
    np.testing.assert_array_equal((result.epochs * per_epoch[COHORTS]).ravel(), steps)
    if eps is not None:
        assert 0 in steps and (result.epochs == EPOCHS[COHORTS]).any(), "the tolerance is not between too easy and hard"


@pytest.mark.parametrize("server_rate", [1.0, 0.6])
@weights_and_batches
def test_scaffold_is_the_papers(weights, batch_size, eps, server_rate):
    problem, xs, ys = federation(weights)
    algorithm = fa.scaffold(solver(batch_size), server_learning_rate=server_rate, criterion=criterion(eps))
    result = run(problem, algorithm, initial_params=START, execution=fa.Execution(lanes=3))
    alpha = None if weights == "equal" else WEIGHTS[weights]
    x, c, c_i, steps = scaffold_loop(xs, ys, alpha, batch_size, eps, server_rate)
    assert_steps(result, steps, batch_size, eps)
    close(result.params, x)
    close(result.state.controls, c_i)
    close(result.state.server["control"].value, c)


@pytest.mark.parametrize(
    ("batch_size", "residual", "extra"),
    [(4, None, True), (None, None, False), (4, "exact", False), (4, "epoch_mean", True), (None, "exact", False)],
)
def test_scaffold_with_option_one(batch_size, residual, extra):
    """Gradients at z are counted where neither a full step nor the criterion's first look has them anyway."""
    problem, xs, ys = federation("unequal")
    eps = None if residual is None else 1.5 if residual == "exact" else 0.0  # an estimate at 0 stops nothing
    rule = None if eps is None else fa.criteria.constant_tolerance(max(eps, 1e-300), residual=residual)
    result = run(problem, fa.scaffold(solver(batch_size), control="gradient", criterion=rule), initial_params=START,
                 execution=fa.Execution(lanes=3))  # fmt: skip
    x, c, c_i, steps = scaffold_loop(xs, ys, WEIGHTS["unequal"], batch_size, eps or None, 1.0, option=1)
    assert_steps(result, steps, batch_size, eps or None)
    close(result.params, x)
    close(result.state.controls, c_i)
    close(result.state.server["control"].value, c)
    sizes = np.array(SIZES)[COHORTS]
    if residual != "exact":
        np.testing.assert_array_equal(result.solves.gradient_samples, sizes * (result.epochs + extra))
        np.testing.assert_array_equal(result.solves.criterion_samples, sizes * extra)
        most = fa.estimate(problem, fa.scaffold(solver(batch_size), control="gradient")).most_gradients
        assert most == sum(SIZES) * (EPOCHS.max() + (batch_size == 4))
    else:
        without = run(problem, fa.scaffold(solver(batch_size), criterion=rule), ROUNDS, COHORTS, initial_params=START)
        one = np.flatnonzero(COHORTS[0] >= 0)  # in the first round both start alike
        np.testing.assert_array_equal(result.solves.gradient_samples[0, one], without.solves.gradient_samples[0, one])


@weights_and_batches
def test_feddyn_is_the_papers(weights, batch_size, eps):
    problem, xs, ys = federation(weights)
    result = run(
        problem,
        fa.feddyn(solver(batch_size), penalty=0.4, criterion=criterion(eps)),
        initial_params=START,
        execution=fa.Execution(lanes=3),
    )
    alpha = None if weights == "equal" else WEIGHTS[weights]
    theta, h, grad, steps = feddyn_loop(xs, ys, alpha, np.full(M, 0.4), batch_size, eps)
    assert_steps(result, steps, batch_size, eps)
    close(result.params, theta)
    close(result.state.duals, grad)
    close(result.state.server.dual.value, h)


def test_feddyn_with_penalties_per_client_is_the_papers_on_weighted_losses():
    """Equal weights on the losses m alpha_i f_i are weights alpha_i on f_i, if a_i = a / (m alpha_i)."""
    problem, xs, ys = federation("unequal")
    scale = M * WEIGHTS["unequal"]
    result = run(problem, fa.feddyn(solver(4), penalty=0.4 / scale), initial_params=START)
    theta, h, grad, _ = feddyn_loop(xs, ys, None, np.full(M, 0.4), 4, None, scale)
    close(result.params, theta)
    close(result.state.duals, grad / scale[:, None])
    close(result.state.server.dual.value, h)


def test_feddyn_with_all_clients_is_fedadmm():
    problem, *_ = federation("unequal")
    penalty = np.linspace(0.2, 1.5, M)
    dyn, admm = (run(problem, make(solver(4), penalty), participation=1.0) for make in (fa.feddyn, fa.fedadmm))
    close(dyn.params, admm.params)
    close(dyn.state.duals, admm.state.duals)
    close(dyn.history["penalty_mean"], admm.history["penalty_mean"])


FULL = fa.LocalSolver(learning_rate=0.05, max_epochs=5)


@pytest.mark.parametrize("participation", [1.0, 3])
@pytest.mark.parametrize(
    "algorithm",
    [
        fa.scaffold(FULL),
        fa.scaffold(FULL, control="gradient"),
        fa.feddyn(FULL, penalty=1.0),
        fa.feddyn(FULL, penalty=np.linspace(0.5, 2.0, M)),
    ],
    ids=["scaffold", "option I", "feddyn", "feddyn, penalties per client"],
)
def test_the_fixed_point_is_the_weighted_optimum(algorithm, participation):
    problem, xs, ys = federation("unequal")
    exact = optimum(xs, ys, WEIGHTS["unequal"])
    settings = dict(rounds=600, participation=participation, evaluate_every=200)
    result = run(problem, algorithm, **settings)
    np.testing.assert_allclose(result.params, exact, rtol=1e-8)
    # Otherwise anything would: equal weights have another optimum, and FedAvg drifts.
    assert np.linalg.norm(optimum(xs, ys, WEIGHTS["equal"]) - exact) > 0.1
    assert np.linalg.norm(run(problem, fa.fedavg(FULL), **settings).params - exact) > 0.01
    # What each client kept is its gradient there.
    kept = result.state.clients["controls" if "controls" in result.state.clients else "duals"]
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        gradient = x.T @ (x @ exact - y) / len(x) + GAMMA * exact
        np.testing.assert_allclose(kept[i], gradient, atol=1e-7)


@pytest.mark.parametrize("algorithm", [fa.scaffold(solver(4)), fa.feddyn(solver(4), 0.3)], ids=["scaffold", "feddyn"])
def test_the_servers_sum_is_that_of_the_rows(algorithm):
    """In single precision, after many rounds, and under strict promotion of dtypes and ranks."""
    problem, *_ = least_squares(SIZES, dtype=np.float32)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        state = run(
            problem, algorithm, rounds=500, participation=2, evaluate_every=64, initial_params=START.astype(np.float32)
        ).state
    is_scaffold = "controls" in state.clients
    total, rows = (state.server["control"], state.controls) if is_scaffold else (state.server.dual, state.duals)
    exact = sums.exact(problem.data.weights, rows)
    np.testing.assert_allclose(np.float64(total.value), exact, atol=2e-6 * np.abs(rows).max())


@pytest.mark.parametrize("make", [fa.scaffold, lambda local: fa.feddyn(local, 0.3)], ids=["scaffold", "feddyn"])
def test_half_precision_parameters(make):
    problem, *_ = least_squares(SIZES, dtype=np.float32, heterogeneity=0.1)
    result = run(problem, make(fa.LocalSolver(0.05, 4, 3)), rounds=12, initial_params=jnp.zeros(5, jnp.bfloat16),
                 participation=1.0)  # fmt: skip
    assert result.params.dtype == jnp.bfloat16
    assert result.history["loss"][-1] < 0.5 * result.history["loss"][0]


def steep_for_some(w, batch):
    return 0.5 * (batch["x"] @ w - batch["y"]) ** 2 * jnp.where(batch["y"] > 50, 1e30, 1.0)


def test_floats_of_scaffold_and_feddyn():
    """SCAFFOLD sends two vectors each way; a client that failed received, but did not send."""
    n, rng = 5, np.random.default_rng(0)
    xs = [rng.normal(size=(6, n)) for _ in range(3)]
    problem = make_problem(xs, [rng.normal(size=6), np.full(6, 100.0), rng.normal(size=6)], dtype=np.float32)
    problem = fa.Problem(problem.init, steep_for_some, problem.data)
    local = fa.LocalSolver(learning_rate=0.05, max_epochs=3)
    for algorithm, down, up in ((fa.scaffold(local), 2 * n, 2 * n), (fa.feddyn(local, 0.3), n, n)):
        result = run(problem, algorithm, rounds=2, participation=[[0, 2], [0, 1]], initial_params=np.zeros(n, "f"))
        np.testing.assert_array_equal(result.history["failed_clients"], [0, 0, 1])
        np.testing.assert_array_equal(result.history["communicated_floats"], [0, 2 * (down + up), 2 * down + up])


def test_numbers_compile_nothing():
    problem, *_ = federation("equal")
    local, same = solver(4), dict(initial_params=START, execution=fa.Execution(lanes=3))  # as above: compiled already
    for make in (lambda value: fa.scaffold(local, server_learning_rate=value), lambda value: fa.feddyn(local, value)):
        run(problem, make(0.5), **same)
        with compilations() as compiled:
            run(problem, make(1), **same)
        assert "jit(device_rounds)" not in compiled


CLIENT_REFERENCE = fa.criteria.relative_residual(sigma=0.5, reference="client")
BAD = {
    "scaffold with adam": (lambda: fa.scaffold(fa.LocalSolver(0.1, optimizer=optax.adam)), "scaffold needs optimizer=optax.sgd.*adam"),
    "scaffold with momentum": (
        lambda: fa.scaffold(fa.LocalSolver(0.1, options={"momentum": 0.9})), "scaffold needs optax.sgd without momentum",
    ),
    "scaffold without a solver": (lambda: fa.scaffold(0.1), "local must be an object made by fa.LocalSolver"),
    "server rate": (lambda: fa.scaffold(FULL, server_learning_rate=0), "server_learning_rate must be above 0, got 0"),
    "server rate per client": (lambda: fa.scaffold(FULL, server_learning_rate=[1.0, 1.0]), "server_learning_rate must be a number, got"),
    "control": (lambda: fa.scaffold(FULL, control="grad"), "control must be 'steps' or 'gradient', got 'grad'"),
    "scaffold's reference": (lambda: fa.scaffold(FULL, criterion=CLIENT_REFERENCE), "reference='client' needs .* use 'server'"),
    "feddyn without a solver": (lambda: fa.feddyn(0.1, 1.0), "local must be an object made by fa.LocalSolver"),
    "penalty": (lambda: fa.feddyn(FULL, penalty=0.0), "penalty must be above 0, got 0"),
    "penalty of one client": (lambda: fa.feddyn(FULL, penalty=[1.0, -1.0]), "penalty must be above 0, got -1 for client 1"),
    "penalties of wrong length": (lambda: run(federation("equal")[0], fa.feddyn(FULL, [1.0, 2.0])), "penalty has 2 entries for 6"),
    "feddyn's reference": (lambda: fa.feddyn(FULL, 1.0, criterion=CLIENT_REFERENCE), "reference='client' needs .* use 'server'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
