"""The paper's examples: sizes, partitions, starts, optimum; the real data where it is at hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SHARED

import fedjax_admm as fa
from fedjax_admm import models
from fedjax_admm.examples import linear
from fedjax_admm.problems.evaluation import evaluate

OPTIMIZED = True  # networks compute longer than they compile

REAL = SHARED / "tensorflow_datasets"
needs_data = pytest.mark.skipif(not REAL.is_dir(), reason="tensorflow_datasets is not beside the checkout")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_ADMM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def small_linear(**kwargs):
    return fa.examples.linear_regression(num_clients=20, rows_per_client=30, dimension=40, **kwargs)


def test_linear_regression_follows_the_paper():
    example = small_linear()
    assert (example.rounds, example.participation) == (300, 0.2)
    insa = example.algorithm("fedadmm_insa")
    assert (insa.criterion.c, insa.delta, insa.penalty_rule.mu, insa.penalty_rule.tau) == (0.01, 0.01, 5.0, 2.0)
    assert (example.local.learning_rate, example.local.batch_size, example.local.max_epochs) == (0.001, 50, 20)
    x, y = (np.asarray(example.problem.data.fields[name]) for name in ("x", "y"))
    assert x.shape == (600, 40) and set(np.asarray(example.problem.data.sizes)) == {30}
    # A third of the rows each: normal, t, uniform. Uniform rows have variance 25 / 3 and no entry beyond 5.
    bounded = (np.abs(x).max(1) <= 5) & (x.var(1) > 5)
    assert 180 <= bounded.sum() <= 220
    np.testing.assert_allclose(y[bounded].var(), 25 / 3, rtol=0.2)
    params = example.problem.init(jax.random.key(0))
    assert params.dtype == jnp.float64  # double precision is on in these tests
    assert 0.9 * 40**-0.5 < np.abs(params).max() <= 40**-0.5


def test_the_three_distributions():
    x, _ = linear.draw(30_000, 20, seed=3)
    assert abs(x.mean()) < 0.02
    np.testing.assert_allclose(x.var(), (1 + 5 / 3 + 25 / 3) / 3, rtol=0.02)
    from scipy import stats

    kinds = (stats.norm(), stats.t(5), stats.uniform(-5, 10))
    x, y = linear.draw(300_000, 1, seed=3)
    for values in (x[:, 0], y):
        assert stats.kstest(values, lambda at: sum(kind.cdf(at) for kind in kinds) / 3).pvalue > 1e-3


def test_the_optimum_is_exact():
    example = small_linear()
    x, y = (np.asarray(example.problem.data.fields[name], np.float64) for name in ("x", "y"))
    w = np.linalg.solve(x.T @ x / len(x) + linear.GAMMA * np.eye(40), x.T @ y / len(x))
    loss = np.mean((x @ w - y) ** 2) / 2 + linear.GAMMA / 2 * w @ w
    np.testing.assert_allclose(example.problem.optimal_loss, loss, rtol=1e-6)
    local = fa.LocalSolver(learning_rate=0.02, max_epochs=30)
    result = fa.simulate(
        example.problem, fa.fedadmm(local, penalty=1.0), rounds=100, progress=False, evaluate_every=100
    )
    assert -1e-6 < result.history["excess_loss"][-1] < 1e-3
    assert result.history["excess_loss"][0] == result.history["loss"][0] - example.problem.optimal_loss


def test_the_optimum_is_solved_for_once(monkeypatch):
    first = small_linear(data_seed=5).problem.optimal_loss
    monkeypatch.setattr(linear, "solve", None)
    assert small_linear(data_seed=5).problem.optimal_loss == first


def test_algorithms_by_name():
    example = small_linear()
    insa = example.algorithm("fedadmm_insa", penalty=0.1, mu=3)
    assert (insa.penalty, insa.delta, insa.penalty_rule.mu, insa.criterion.c) == (0.1, 0.01, 3.0, 0.01)
    assert example.algorithm("fedavg").average == "all"  # as the paper's experiments
    assert example.algorithm("fedavg", average="selected").average == "selected"
    assert example.algorithm("fedadmm", penalty=2).delta == 0.0
    with pytest.raises(ValueError, match="name must be one of .*'fedavg', .* got 'fedsgd'"):
        example.algorithm("fedsgd")


def test_mnist_mini_is_learned():
    """FedADMM-InSa on clients with two labels each, to over 90 % of the test images."""
    example = fa.examples.mnist_mini()
    result = fa.simulate(
        example.problem,
        example.algorithm("fedadmm_insa", penalty=0.1),
        evaluate_every=50,
        progress=False,
        **example.run_settings,
    )
    assert result.history["accuracy"][-1] > 0.9
    assert result.epochs.mean() < 0.8 * example.local.max_epochs


@needs_data
def test_mnist_cnn_follows_the_paper():
    example = fa.examples.mnist_cnn(data_dir=REAL)
    problem = example.problem
    assert problem.num_params == 582_026
    labels, offsets = np.asarray(problem.data.fields["y"]), np.asarray(problem.data.offsets)
    sizes = np.asarray(problem.data.sizes)
    held = [np.unique(labels[start : start + n]) for start, n in zip(offsets, sizes, strict=True)]
    assert len(held) == 200 and max(map(len, held)) == 2
    assert sizes.sum() == 60_000 and sizes.min() >= 295 and sizes.max() <= 305
    assert jax.tree.leaves(problem.eval_data)[0].shape[0] == 10_000
    assert (example.local.learning_rate, example.local.batch_size, example.local.max_epochs) == (0.01, 50, 20)
    assert problem.data.fields["x"].dtype == np.uint8
    few = fa.FederatedData.from_arrays(problem.data.client(0), [np.arange(50)])
    start = problem.init(jax.random.key(0))
    loss = evaluate(fa.Problem(problem.init, problem.loss, few), start)["loss"]
    assert abs(loss - np.log(10)) < 0.1


@needs_data
def test_fewer_rows_are_drawn_by_the_seed_and_without_repetition():
    def images(seed):
        return fa.examples.mnist_cnn(
            data_dir=REAL, num_clients=20, rows_per_client=30, test_rows=500, partition_seed=seed
        )

    one, other = images(0).problem, images(1).problem
    sizes = np.asarray(one.data.sizes)  # a shard has one label, and labels are not equally frequent
    assert sizes.sum() == 600 and sizes.min() >= 20 and sizes.max() <= 40
    pixels = [one.data.client(i)["x"] for i in range(20)]
    assert len(np.unique(np.concatenate(pixels).reshape(600, -1), axis=0)) == 600
    assert all(len(np.unique(one.data.client(i)["y"])) <= 2 for i in range(20))
    assert not np.array_equal(pixels[0], other.data.client(0)["x"])
    for tested in (one.eval_data, other.eval_data):  # seeds are compared on the same images
        assert len(tested["y"]) == 500
        np.testing.assert_array_equal(tested["x"], one.eval_data["x"])
    with pytest.raises(ValueError, match="rows_per_client=3001 is more than there are, 3000: lower it"):
        fa.examples.mnist_cnn(data_dir=REAL, num_clients=20, rows_per_client=3001)
    with pytest.raises(ValueError, match="test_rows must be .*at least 1"):
        fa.examples.mnist_cnn(data_dir=REAL, test_rows=0)


@needs_data
def test_cifar10_resnet20_follows_the_paper():
    example = fa.examples.cifar10_resnet20(data_dir=REAL)
    problem = example.problem
    assert problem.num_params == 269_722
    labels, offsets = np.asarray(problem.data.fields["y"]), np.asarray(problem.data.offsets)
    assert set(np.asarray(problem.data.sizes)) == {5000}
    assert max(len(np.unique(labels[start : start + 5000])) for start in offsets) <= 5
    assert (example.local.learning_rate, example.local.batch_size, example.local.max_epochs) == (0.001, 500, 10)
    assert example.c == 0.001


def test_a_cnn_round_runs_on_the_embedded_images():
    example = fa.examples.mnist_mini(model=models.cnn(), max_epochs=1, num_clients=50)
    sim = fa.Simulation(example.problem, example.algorithm("fedadmm_in", penalty=0.1), participation=2)
    state = sim.init()
    before = jax.tree.map(np.array, state.params)
    state, info = sim.round(state)
    assert info.epochs.tolist() == [1, 1]
    assert not any(jax.tree.leaves(jax.tree.map(np.array_equal, before, state.params)))
