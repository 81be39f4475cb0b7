"""Stages between client and server: one of one's own with every method, wherever the rows live, and over interruptions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa

SIZES = [6, 11, 3, 8, 5, 7]
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=4)
METHODS = {
    "fedavg": fa.fedavg(LOCAL),
    "fedavg all": fa.fedavg(LOCAL, average="all"),
    "fedprox": fa.fedprox(LOCAL, 0.3),
    "fedadmm": fa.fedadmm(LOCAL, 0.5),
    "insa current": fa.fedadmm_insa(LOCAL, 0.5, mu=1.5),
    "insa sent": fa.fedadmm_insa(LOCAL, 0.5, mu=1.5, unselected_penalty="sent"),
    "scaffold": fa.scaffold(LOCAL),
    "feddyn": fa.feddyn(LOCAL, 0.3),
}


@fa.record
class Halve(fa.Stage):
    """Halves every message, and counts how many each client sent."""

    factor: Any = 0.5

    def start(self, params, client):
        return {"sent": jnp.int32(0)}

    def transform(self, message, memory, client, round):
        return jax.tree.map(lambda leaf: leaf * self.factor, message), {"sent": memory["sent"] + 1}


def run(algorithm, rounds=4, **options):
    problem, *_ = least_squares(SIZES)
    settings = dict(participation=3, progress=False, exchange=(Halve(),)) | options
    return fa.simulate(problem, algorithm, rounds, **settings)


def counts(result):
    return np.asarray(result.state.clients["exchange"]["Halve"]["sent"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_wherever_the_rows_live(name):
    whole = run(METHODS[name])
    np.testing.assert_array_equal(counts(whole), np.bincount(whole.cohorts.ravel(), minlength=len(SIZES)))
    for population in ("host", "disk"):
        other = run(METHODS[name], execution=fa.Execution(population=population))
        np.testing.assert_array_equal(other.params, whole.params)
        np.testing.assert_array_equal(counts(other), counts(whole))


def test_half_of_every_message_is_half_a_step():
    """Of FedAvg's update, so with the factor 1 it is as without the stage."""
    problem, *_ = least_squares(SIZES)
    start = np.ones(5)
    plain, half, one = (
        fa.simulate(problem, METHODS["fedavg"], 1, initial_params=start, exchange=stages, progress=False).params
        for stages in ((), (Halve(),), (Halve(1.0),))
    )
    np.testing.assert_allclose(half - start, (plain - start) / 2, rtol=1e-12)
    np.testing.assert_array_equal(one, plain)


def test_a_factor_per_client_is_that_clients():
    problem, *_ = least_squares(SIZES)
    factors = np.arange(len(SIZES)) / 10
    start = np.ones(5)
    alone = fa.simulate(problem, METHODS["fedavg"], 1, initial_params=start, participation=[[2]], progress=False)
    scaled = fa.simulate(
        problem,
        METHODS["fedavg"],
        1,
        initial_params=start,
        participation=[[2]],
        exchange=Halve(factors),
        progress=False,
    )
    np.testing.assert_allclose(scaled.params - start, 0.2 * (alone.params - start), rtol=1e-12)


@pytest.mark.parametrize("population", ["device", "host", "disk"])
def test_memories_are_saved(population, tmp_path):
    """A run that ended after two rounds and goes on is to the bit the one that was not disturbed."""
    execution = fa.Execution(population=population)
    whole = run(METHODS["insa current"], rounds=5, execution=execution)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            METHODS["insa current"],
            rounds=5,
            execution=execution,
            run_dir=tmp_path,
            on_round=stop,
            checkpoint_seconds=0,
        )
    again = run(METHODS["insa current"], rounds=5, execution=execution, run_dir=tmp_path)
    np.testing.assert_array_equal(again.params, whole.params)
    np.testing.assert_array_equal(counts(again), counts(whole))


def test_clients_whose_message_does_not_come_keep_their_memory():
    faults = fa.Faults(dropout=[1.0, 0, 0, 0, 0, 0], corruption="constant", corrupted=[1])  # NaN: rejected
    result = run(METHODS["fedadmm"], participation=1.0, faults=faults)
    np.testing.assert_array_equal(counts(result), [0, 0, 4, 4, 4, 4])


@pytest.mark.filterwarnings("ignore:.*penalties are at their bound")
def test_sums_of_changed_messages_are_not_formed_anew_from_the_rows():
    """Penalties that shrink wear the sums; but what a stage made of the messages is in no row."""
    problem, *_ = least_squares(SIZES, dtype=np.float32, heterogeneity=0.3)
    shrinking = fa.fedadmm_insa(LOCAL, 1.0, criterion=fa.criteria.constant_tolerance(0.5))

    def renewals(stages):
        sim = fa.Simulation(
            problem, shrinking, participation=2, initial_params=np.zeros(5, np.float32), exchange=stages
        )
        cohorts = np.stack([sim.cohorts[k] for k in range(120)])
        return int(np.sum(sim.run_rounds(sim.init(), cohorts, 120)[1].renewed))

    assert renewals(()) > 0 and renewals((Halve(),)) == 0


@fa.record
class Draws(fa.Stage):
    """Adds a uniform number to every message."""

    def transform(self, message, memory, client, round):
        return jax.tree.map(lambda leaf: leaf + jax.random.uniform(round.key, leaf.shape, leaf.dtype), message), memory


def test_draws_depend_on_the_round_and_the_client_alone():
    problem, *_ = least_squares(SIZES)

    def parameters(lanes, cohort, seed=0):
        options = dict(initial_params=np.ones(5), participation=cohort, seed=seed, progress=False)
        run = fa.simulate(
            problem, METHODS["fedavg"], 1, exchange=Draws(), execution=fa.Execution(lanes=lanes), **options
        )
        return np.asarray(run.params)

    np.testing.assert_allclose(parameters(1, [[0, 3, 5]]), parameters(3, [[0, 3, 5]]), rtol=1e-12)
    assert not np.allclose(parameters(1, [[0]], seed=1), parameters(1, [[0]]))


@fa.record
class Doorman(fa.Stage):
    """Keeps out one client, without a word."""

    def receive(self, outcome, memory, client, round):
        return outcome._replace(ok=outcome.ok & (client.id != 2))


def test_what_a_stage_keeps_out_is_rejected():
    result = run(METHODS["fedadmm"], participation=1.0, exchange=Doorman())
    assert np.all(result.solves.stop_reason[:, 2] == "rejected") and not np.any(result.state.duals[2])
    assert "rejected" not in result.solves.stop_reason[:, [0, 1, 3, 4, 5]]


class Bare:
    name = "bare"


BAD = {
    "not a stage": (Bare(), "exchange must have .*which Bare lacks"),
    "no record": (type("Loose", (fa.Stage,), {})(), "exchange has a Loose, whose numbers JAX cannot see: write @fa.record"),
    "faults among them": (fa.Faults(dropout=0.5), "exchange has a Faults: give it as faults="),
    "numbers of some clients": (Halve(np.ones(2)), r"Halve.factor .*2"),
    "a word": (
        fa.record(type("Word", (fa.Stage,), {"__annotations__": {"kind": str}, "kind": "a"}))(),
        r"Word.kind is 'a', and only numbers can be traced",
    ),
    "ok of several": (
        fa.record(type("Many", (fa.Stage,), {"receive": lambda self, out, *_: out._replace(ok=jnp.ones(3, bool))}))(),
        r"Many.receive: ok must be one number, got bool\[3\]",
    ),
    "two of a name": ((Halve(), Halve()), "exchange has two stages of the name 'Halve'"),
    "another shape": (
        fa.record(type("Cut", (fa.Stage,), {"transform": lambda self, message, memory, *_: (message[:2], memory)}))(),
        r"Cut.transform: message must have shape \(5,\), got \(2,\)",
    ),
    "one value": (
        fa.record(type("Lone", (fa.Stage,), {"transform": lambda self, message, *_: message}))(),
        r"Lone.transform must return 2 values, \(message, memory\)",
    ),
    "memory not by name": (
        fa.record(type("List", (fa.Stage,), {"start": lambda self, params, client: [1]}))(),
        "List.start must return a client's row as a dict",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_stages_are_told_in_one_line(case):
    stage, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        run(METHODS["fedavg"], exchange=stage)
    assert "\n" not in str(caught.value)
