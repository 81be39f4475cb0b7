"""Lanes: the same run whatever their number, no needless work, and a real mask."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import least_squares
from scipy import stats

import fedjax_admm as fa
from fedjax_admm.core import randomness
from fedjax_admm.engine import lanes, shuffle

SIZES = [17, 5, 1, 30, 8, 12, 3, 22]


@pytest.mark.parametrize("algorithm", ["fedavg", "insa"])
def test_same_run_for_every_width(algorithm):
    problem, *_ = least_squares(SIZES)
    local = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=6)
    method = fa.fedavg(local) if algorithm == "fedavg" else fa.fedadmm_insa(local, penalty=0.5, mu=1.5)
    runs = [
        fa.simulate(problem, method, rounds=4, participation=0.75, seed=3, progress=False,
                    execution=fa.Execution(lanes=width))
        for width in (1, 2, 6)
    ]  # fmt: skip
    for run in runs[1:]:
        np.testing.assert_array_equal(run.cohorts, runs[0].cohorts)
        np.testing.assert_array_equal(run.epochs, runs[0].epochs)
        np.testing.assert_allclose(run.params, runs[0].params, rtol=1e-12, atol=1e-13)


def row_loss(w, batch):
    """Its gradient is the row itself, so that SGD adds up the rows it visits."""
    return -batch["row"] @ w


@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_an_epoch_visits_each_row_once(batch_size):
    sizes = [9, 1, 14]
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    data = fa.FederatedData.from_arrays({"row": np.eye(sum(sizes))}, parts)
    problem = fa.Problem(init=lambda key: jnp.zeros(sum(sizes)), loss=row_loss, data=data)
    local = fa.LocalSolver(learning_rate=1.0, batch_size=batch_size, max_epochs=1)
    result = fa.simulate(problem, fa.fedavg(local, average="all"), rounds=1, progress=False)
    visited = np.asarray(result.state.client_params)
    for i, part in enumerate(parts):
        # A row of a batch of b rows moves its coordinate by 1 / b: the last batch is weighted as it is.
        full, rest = divmod(len(part), batch_size)
        steps = np.sort(np.concatenate([np.full(full * batch_size, 1 / batch_size), np.full(rest, 1 / max(rest, 1))]))
        np.testing.assert_allclose(np.sort(visited[i][part]), steps)
        assert np.count_nonzero(visited[i]) == len(part)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 12, 64, 65, 1000, 99_999])
def test_the_order_is_a_permutation(size):
    words = shuffle.epoch_order(jax.random.bits(jax.random.key(size), (2,), jnp.uint32), jnp.int32(0))
    order = np.asarray(
        jax.jit(shuffle.permute)(words, jnp.arange(size, dtype=jnp.int32), jnp.int32(0), jnp.int32(size))
    )
    np.testing.assert_array_equal(np.sort(order), np.arange(size))


@pytest.mark.parametrize("size", [2, 3, 5, 6, 13, 50])
def test_the_order_is_uniform(size):
    """Where each row goes, and which row follows which, over many keys: chi-square over the table of counts."""
    draws = 100_000
    words = jax.random.key_data(jax.random.split(randomness.root_key(0), 1)[0])
    positions = jnp.arange(size, dtype=jnp.int32)

    def order_of(epoch):
        return shuffle.permute(shuffle.epoch_order(words, epoch), positions, jnp.int32(0), jnp.int32(size))

    orders = np.asarray(jax.jit(jax.vmap(order_of))(jnp.arange(draws, dtype=jnp.int32)))
    counts = np.stack([np.bincount(orders[:, p], minlength=size) for p in range(size)])
    # Rows and columns of the table sum to the draws, which leaves (size - 1)^2 degrees of freedom.
    statistic = np.sum((counts - draws / size) ** 2) / (draws / size) * (size - 1) / size
    assert stats.chi2.sf(statistic, (size - 1) ** 2) > 1e-4
    if size > 2:
        pairs = np.bincount(orders[:, 0] * size + orders[:, 1], minlength=size**2).reshape(size, size)
        off_diagonal = pairs[~np.eye(size, dtype=bool)]
        assert stats.chisquare(off_diagonal).pvalue > 1e-4


def test_orders_differ_between_epochs_clients_and_rounds():
    key = randomness.root_key(0)
    words = np.stack(
        [
            shuffle.epoch_order(
                jax.random.key_data(randomness.client_key(key, jnp.int32(k), jnp.int32(i))), jnp.int32(e)
            )
            for k in range(3)
            for i in range(3)
            for e in range(3)
        ]
    )
    assert len(np.unique(words, axis=0)) == 27


def countdown() -> lanes.Program:
    """A job is a number of units; its result is how often it was advanced."""
    return lanes.Program(
        start=lambda job: {"left": job["units"], "advanced": jnp.int32(0), "closed": job["units"] == 0},
        step=lambda job, c: {
            "left": jnp.where(c["closed"], c["left"], c["left"] - 1),
            "advanced": c["advanced"] + ~c["closed"],
            "closed": c["closed"],
        },
        at_turn=lambda job, c: ~c["closed"] & (c["left"] == 0),
        turn=lambda job, c: c | {"closed": jnp.bool_(True)},
        finished=lambda c: c["closed"],
        retire=lambda c: c | {"closed": jnp.bool_(True)},
    )


def desk(order, idle=()) -> lanes.Desk:
    """The store has each job's units and how often it was advanced, -1 before it was handed over, and counts hand-overs."""

    def hand_over(store, jobs, carry, done):
        places = jnp.where(done, jobs["number"], len(store["advanced"]))
        times = store["times"].at[places].add(1, mode="drop")
        return store | {"advanced": store["advanced"].at[places].set(carry["advanced"], mode="drop"), "times": times}

    return lanes.Desk(
        take=lambda store, place: {"units": store["units"][order[place]], "number": order[place]},
        hand_over=hand_over,
        idle=lambda job: jnp.isin(job["number"], jnp.asarray(idle, jnp.int32)),
    )


@pytest.mark.parametrize("width", [1, 2, 3, 7])
def test_every_job_gets_its_own_work_and_no_more(width):
    units = np.array([4, 1, 0, 9, 2, 0, 5])
    order = jnp.argsort(-jnp.asarray(units))
    store = {"units": jnp.asarray(units, jnp.int32), "advanced": jnp.full(7, -1), "times": jnp.zeros(7, jnp.int32)}
    run = jax.jit(lambda store, count: lanes.run(countdown(), desk(order), store, count, width))
    after, trips = run(store, 7)
    np.testing.assert_array_equal(after["advanced"], units)
    np.testing.assert_array_equal(after["times"], 1)  # each handed over once
    assert trips <= units.sum() // width + units.max()
    if width == 1:
        assert trips == units.sum()
    for count in (0, 1, 3):  # a part of the queue: the others are not touched
        after, _ = run(store, count)
        named = np.isin(np.arange(7), np.asarray(order)[:count])
        np.testing.assert_array_equal(after["advanced"], np.where(named, units, -1))
        np.testing.assert_array_equal(after["times"], named)


@pytest.mark.parametrize("width", [1, 3])
def test_idle_jobs_are_handed_over_without_work(width):
    units = np.array([4, 1, 3, 9, 2])
    store = {"units": jnp.asarray(units, jnp.int32), "advanced": jnp.full(5, -1), "times": jnp.zeros(5, jnp.int32)}
    after, trips = lanes.run(countdown(), desk(jnp.arange(5), idle=(0, 3, 4)), store, 5, width)
    np.testing.assert_array_equal(after["advanced"], [0, 1, 3, 0, 0])
    np.testing.assert_array_equal(after["times"], 1)
    assert trips <= 4 and (width > 1 or trips == 4)


def test_a_client_that_stopped_is_not_changed():
    """A short solve beside a long one in as many lanes as clients equals the short one alone."""
    problem, *_ = least_squares([6, 6, 6])
    rates = fa.LocalSolver(learning_rate=0.05, batch_size=2, max_epochs=[1, 40, 3])
    together = fa.Simulation(problem, fa.fedadmm(rates), participation=3, execution=fa.Execution(lanes=3))
    state, info = together.round(together.init())
    assert info.epochs.tolist() == [1, 40, 3]
    for client in range(3):
        alone = fa.Simulation(problem, fa.fedadmm(rates), participation=1, execution=fa.Execution(lanes=1))
        single, _ = alone.round(alone.init(), [client])
        np.testing.assert_array_equal(state.client_params[client], single.client_params[client])


def test_unequal_clients_waste_little():
    labels = np.random.default_rng(0).integers(0, 10, 12_000)
    sizes = [len(part) for part in fa.partition.dirichlet(labels, 40, alpha=0.3, seed=0)]
    assert max(sizes) > 10 * min(sizes)
    problem, *_ = least_squares(sizes, dimension=3)
    local = fa.LocalSolver(learning_rate=0.02, batch_size=20, max_epochs=5)
    full = fa.LocalSolver(learning_rate=0.02, max_epochs=5)
    for algorithm in (fa.fedavg(local), fa.fedadmm_in(local, penalty=1.0), fa.fedadmm_in(full, penalty=1.0)):
        result = fa.simulate(problem, algorithm, rounds=4, progress=False, execution=fa.Execution(lanes=4))
        assert result.history["lane_efficiency"][1:].min() >= 0.85


def test_lane_efficiency_is_useful_over_executed():
    problem, *_ = least_squares([8, 8])
    local = fa.LocalSolver(learning_rate=0.02, batch_size=4, max_epochs=[1, 3])
    result = fa.simulate(problem, fa.fedavg(local), rounds=1, progress=False, execution=fa.Execution(lanes=2))
    # 8 + 24 useful rows in six trips of two lanes of four rows.
    assert result.history["lane_efficiency"][1] == 32 / 48


def test_a_line_search_is_not_a_lane():
    """Its evaluations are gradients, but not trips: efficiency stays below one."""
    problem, *_ = least_squares([8, 5])
    local = fa.LocalSolver(learning_rate=1.0, max_epochs=3, optimizer=optax.lbfgs)
    result = fa.simulate(problem, fa.fedprox(local, penalty=0.1), rounds=1, progress=False)
    assert result.history["gradient_samples"][1] > 3 * 13
    assert 0.5 < result.history["lane_efficiency"][1] <= 1
