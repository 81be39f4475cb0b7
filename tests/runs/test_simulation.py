"""`Simulation`: a round at a time is `simulate`, from any start, and a state is used once."""

from __future__ import annotations

import collections

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import least_squares
from test_engine import ALGORITHMS, LOCAL, SIZES, run

import fedjax_admm as fa
from fedjax_admm.algorithms.base import broadcast_params


def test_rounds_in_one_dispatch_are_the_rounds_one_by_one():
    problem, *_ = least_squares(SIZES)
    algorithm = ALGORITHMS["fedadmm_insa"]
    one, several = (run(problem, algorithm, rounds=7, participation=2, evaluate_every=n) for n in (1, 3))
    np.testing.assert_array_equal(several.params, one.params)
    for name in one.solves.names():
        np.testing.assert_array_equal(several.solves[name], one.solves[name])
    evaluated = [0, 3, 6, 7]
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(several.history["loss"])), evaluated)
    np.testing.assert_array_equal(several.history["loss"][evaluated], one.history["loss"][evaluated])


def test_a_round_at_a_time_is_simulate():
    problem, *_ = least_squares(SIZES)
    sim = fa.Simulation(problem, ALGORITHMS["fedadmm_insa"], participation=0.5, seed=2)
    state = sim.init()
    for _ in range(3):
        state, info = sim.round(state)
    result = run(problem, ALGORITHMS["fedadmm_insa"], participation=0.5, seed=2)
    np.testing.assert_array_equal(state.params, result.params)
    np.testing.assert_array_equal(info.epochs, result.epochs[-1])


def test_seeds():
    problem, *_ = least_squares(SIZES)
    first, again, other = (run(problem, ALGORITHMS["fedavg"], participation=2, seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.params, again.params)
    assert not np.array_equal(first.cohorts, other.cohorts)
    # Other algorithms see the same clients in the same order of rows.
    np.testing.assert_array_equal(run(problem, ALGORITHMS["fedadmm"], participation=2, seed=1).cohorts, first.cohorts)


def test_cohorts_are_uniform():
    problem, *_ = least_squares([2] * 10)
    sim = fa.Simulation(problem, ALGORITHMS["fedavg"], participation=0.3)
    counts = np.bincount(np.concatenate([sim.cohorts[k] for k in range(2000)]), minlength=10)
    assert counts.sum() == 6000
    assert abs(counts - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


def test_initial_parameters_may_be_plain_numbers_and_any_pytree():
    @jax.tree_util.register_pytree_node_class
    class Line:
        def __init__(self, w, b):
            self.w, self.b = w, b

        def tree_flatten(self):
            return (self.w, self.b), None

        @classmethod
        def tree_unflatten(cls, _, leaves):
            return cls(*leaves)

    def loss(line, batch):
        return 0.5 * (batch["x"] @ line.w + line.b - batch["y"]) ** 2

    data = least_squares([5, 9])[0].data
    problem = fa.Problem(lambda key: Line(jnp.zeros(5), jnp.zeros(())), loss, data)
    algorithm = fa.fedadmm(fa.LocalSolver(0.05))
    plain, arrays = (
        run(problem, algorithm, rounds=2, initial_params=Line(np.ones(5), b)) for b in (2.0, np.array(2.0))
    )
    np.testing.assert_array_equal(plain.params.w, arrays.params.w)
    assert np.isfinite(plain.history["loss"]).all() and plain.params.b.dtype == arrays.params.b.dtype


def test_initial_parameters_take_the_form_of_inits():
    """Other mappings with the same keys, and numbers without a precision of their own."""

    def loss(params, batch):
        return 0.5 * (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2

    data = least_squares([5, 9], dtype=np.float32)[0].data
    problem = fa.Problem(lambda key: {"w": jnp.zeros(5, "f4"), "b": jnp.zeros((), "f4")}, loss, data)
    start = {"b": 2.0, "w": np.ones(5, np.float32)}
    for given in (start, flax.core.freeze(start), collections.OrderedDict(start)):
        params = run(problem, ALGORITHMS["fedavg"], rounds=1, initial_params=given).params
        assert type(params) is dict and params["b"].dtype == params["w"].dtype == np.float32
    wide = fa.Simulation(problem, ALGORITHMS["fedavg"], initial_params=start | {"b": np.float64(2.0)}).init().params
    assert wide["b"].dtype == np.float64  # which NumPy's number says


def test_a_state_is_given_away():
    problem, *_ = least_squares(SIZES)
    start = jnp.ones(5)
    sim = fa.Simulation(problem, ALGORITHMS["fedadmm"], initial_params=start)
    state = sim.init()
    new, _ = sim.round(state)
    assert state.client_params.is_deleted() and not new.client_params.is_deleted()
    assert not start.is_deleted()


@pytest.mark.parametrize("population", ["device", "host", "disk"])
@pytest.mark.parametrize("name", ["fedavg", "fedadmm_insa"])
def test_a_state_that_was_given_away_is_told_and_a_copy_goes_on(name, population):
    problem, *_ = least_squares(SIZES)
    sim = fa.Simulation(problem, ALGORITHMS[name], execution=fa.Execution(population=population))
    first = sim.init()
    kept = jax.tree.map(jnp.copy, first) if population == "device" else None
    second, _ = sim.round(first)
    with pytest.raises(ValueError, match="state was used before.*go on with that one"):
        sim.round(first)
    if kept is not None:
        again, _ = sim.round(kept)
        np.testing.assert_array_equal(again.params, second.params)
    third, _ = sim.round(second)
    assert int(third.round) == 2
    with pytest.raises(ValueError, match="state must come from init or round, got int"):
        sim.round(3)


@fa.record
class Forgetful:
    """FedAvg over the cohort with a count for each client: its server keeps nothing, so no memory is taken over."""

    local: fa.LocalSolver
    criterion: fa.criteria.Criterion = fa.criteria.run_to_maximum()

    broadcast = broadcast_params

    def init(self, params, clients):
        return ()

    def start(self, params, client):
        return {"turns": jnp.zeros(())}

    def subproblem(self, sent, row, client, round):
        return fa.Subproblem()

    def reply(self, sent, row, solution, client, round):
        return solution.params - sent, {"turns": row["turns"] + 1}

    def aggregate(self, params, server, received, round):
        return params + received.total / received.weight, server


@pytest.mark.parametrize("population", ["host", "disk"])
def test_rows_that_have_gone_on_are_told_from_the_states(population):
    problem, *_ = least_squares(SIZES)
    sim = fa.Simulation(problem, Forgetful(LOCAL), execution=fa.Execution(population=population))
    first = sim.init()
    second, _ = sim.round(first)
    with pytest.raises(ValueError, match="state was used before"):
        sim.round(first)
    np.testing.assert_array_equal(np.asarray(second.clients["turns"]), np.ones(len(SIZES)))


def test_a_result_keeps_its_parameters():
    problem, *_ = least_squares(SIZES)
    result = run(problem, ALGORITHMS["fedadmm"])
    sim = fa.Simulation(problem, ALGORITHMS["fedadmm"])
    sim.round(result.state)
    assert np.isfinite(np.asarray(result.params)).all()
