"""What is compiled: nothing twice, nothing that grows with the population or has the data in it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from compilations import compilations
from federations import least_squares, squared_error
from test_engine import ALGORITHMS, LOCAL, run, weak_init

import fedjax_admm as fa
from fedjax_admm.algorithms.base import broadcast_params
from fedjax_admm.engine import population

ROUNDS = ("jit(device_rounds)", "jit(_work_off_block)")  # as JAX names the programs


def test_nothing_compiles_twice():
    problem, *_ = least_squares([5, 9, 7])
    local = fa.LocalSolver(learning_rate=0.05, batch_size=3, max_epochs=3)
    run(problem, fa.fedadmm_insa(local, penalty=0.7), rounds=4)
    run(problem, fa.fedadmm_insa(local, penalty=0.7), rounds=7, evaluate_every=3)
    other, *_ = least_squares([5, 9, 7], seed=4)
    faster = fa.LocalSolver(learning_rate=0.02, batch_size=3, max_epochs=9)
    with compilations() as compiled:
        run(other, fa.fedadmm_insa(faster, penalty=2, c=0.3, mu=3, tau=4, delta=0, sigma_factor=0.5), rounds=9, seed=8)
        run(other, fa.fedadmm_insa(faster, penalty=1), rounds=8, evaluate_every=3)
    assert not any(name in compiled for name in ROUNDS), compiled


@pytest.mark.parametrize("kind", ["device", "host"])
def test_a_start_of_weak_types_compiles_nothing_twice(kind):
    """An algorithm of one's own may begin with Python's numbers."""

    @fa.record
    class Counting:
        local: fa.LocalSolver
        criterion: Any = fa.criteria.run_to_maximum()

        broadcast = broadcast_params

        def init(self, params, clients):
            return 0

        def start(self, params, client):
            return {"rate": 0.5}

        def subproblem(self, sent, row, client, round):
            return fa.Subproblem()

        def reply(self, sent, row, solution, client, round):
            return solution.params - sent, {"rate": row["rate"] / 2}

        def aggregate(self, params, server, received, round):
            return params + received.total / received.weight, server + 1

    problem, *_ = least_squares([5, 9, 7])
    with compilations() as compiled:
        run(problem, Counting(fa.LocalSolver(0.05)), rounds=3, execution=fa.Execution(population=kind))
    assert all(compiled.count(name) <= 1 for name in ROUNDS), compiled
    assert any(name in compiled for name in ROUNDS)


def test_the_loss_is_traced_once(monkeypatch):
    """Counted by the loss itself, over rounds, runs, hyperparameters and new problems of the same shapes."""
    calls = []

    def counted(w, batch):
        calls.append(1)
        return squared_error(w, batch)

    data, other = (least_squares([5, 9], seed=seed)[0].data for seed in (0, 1))
    problem = fa.Problem(init=weak_init, loss=counted, data=data)
    sim = fa.Simulation(problem, ALGORITHMS["fedadmm_insa"])
    state, _ = sim.round(sim.init())
    run(problem, ALGORITHMS["fedadmm_insa"])
    after_first = len(calls)
    for _ in range(2):
        state, _ = sim.round(state)
    again = fa.Problem(init=weak_init, loss=counted, data=other)
    faster = fa.LocalSolver(learning_rate=0.2, batch_size=4, max_epochs=7)
    run(again, fa.fedadmm_insa(faster, penalty=3, c=0.2, mu=2, tau=3, delta=0.5), rounds=5, seed=3)
    assert len(calls) == after_first


def lowered_round(problem, algorithm, cohort):
    sim = fa.Simulation(problem, algorithm, participation=cohort)
    ids, numbers = jnp.zeros((1, cohort), jnp.int32), (jnp.int32(0), jnp.int32(1))
    return population.device_rounds.lower(sim.population.placed, sim.init(), ids, *numbers, layout=sim.layout)


def test_a_rounds_cost_does_not_grow_with_the_population():
    """The stacked state is updated in place, and what is computed depends on the cohort alone."""
    dimension = 500
    flops = []
    for clients in (50, 1000):
        problem, *_ = least_squares([2] * clients, dimension=dimension)
        compiled = lowered_round(problem, fa.fedadmm_insa(LOCAL), cohort=4).compile()
        memory = compiled.memory_analysis()
        rows = 2 * clients * dimension * 8  # client_params and duals
        assert memory.alias_size_in_bytes >= rows
        assert memory.temp_size_in_bytes < 100 * dimension * 8
        flops.append(compiled.cost_analysis()["flops"])
    assert flops[1] < 1.05 * flops[0]


def test_data_is_an_argument_and_not_a_constant():
    """Rows baked into the program would make it as large as the data."""
    problem, *_ = least_squares([2000, 2000])
    text = lowered_round(problem, ALGORITHMS["fedadmm_in"], cohort=2).as_text()
    assert len(text) < 1_000_000
