"""Penalty rules that remember something of each client, and people who change penalties by other ways."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.algorithms.admm import FedADMM
from fedjax_admm.core.sums import exact

SIZES = [6, 11, 3, 8, 5, 7]
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)


@fa.record
class Remembering:
    """Raises the penalty by a tenth with every solve, and keeps what it saw."""

    factor: Any = 1.1

    def start(self, params):
        return {"solves": jnp.int32(0), "last": jnp.zeros_like(params), "errors": jnp.zeros((4,), params.dtype)}

    def __call__(self, penalty, seen, memory):
        norm = optax.tree.norm
        dual = seen.previous_duals - penalty * (seen.params - seen.center)
        errors = jnp.stack(
            [
                norm(seen.params - seen.center) - seen.consensus_gap,
                norm(seen.params - seen.previous) - seen.movement,
                norm(dual - seen.duals),
                norm(seen.previous - memory["last"]) * (memory["solves"] > 0),
            ]
        )
        return penalty * self.factor, {"solves": memory["solves"] + 1, "last": seen.params, "errors": errors}


@pytest.mark.parametrize("population", ["device", "host", "disk"])
@pytest.mark.parametrize("mode", ["current", "sent"])
def test_a_rule_sees_the_vectors_and_remembers(mode, population):
    problem, *_ = least_squares(SIZES)
    algorithm = fa.fedadmm(LOCAL, 0.5, penalty_rule=Remembering(), unselected_penalty=mode)
    execution = fa.Execution(population=population)
    result = fa.simulate(problem, algorithm, 6, participation=3, execution=execution, progress=False)
    turns = np.bincount(result.cohorts.ravel(), minlength=len(SIZES))
    memory = result.state.clients["rule"]
    np.testing.assert_array_equal(np.asarray(memory["solves"]), turns)
    np.testing.assert_allclose(np.asarray(memory["errors"]), 0, atol=1e-12)
    np.testing.assert_allclose(np.asarray(result.state.penalties), 0.5 * 1.1**turns, rtol=1e-12)


def test_a_clipped_update_reaches_neither_the_rule_nor_its_memory():
    problem, *_ = least_squares(SIZES)
    algorithm = fa.fedadmm(LOCAL, 0.5, penalty_rule=Remembering())
    result = fa.simulate(problem, algorithm, 3, faults=fa.Faults(clip_norm=1e-6), progress=False)
    np.testing.assert_array_equal(result.state.clients["rule"]["solves"], 0)
    np.testing.assert_array_equal(result.state.penalties, 0.5)


@fa.record
class Halving(FedADMM):
    """Edits the row by itself, the way that looks natural."""

    def reply(self, sent, row, solution, client, round):
        message, row = super().reply(sent, row, solution, client, round)
        return message, row | {"penalties": row["penalties"] / 2}


@pytest.mark.parametrize("mode", ["current", "sent"])
def test_who_changes_penalties_outside_of_the_rule_gets_right_sums(mode):
    problem, *_ = least_squares(SIZES)
    made = fa.fedadmm(LOCAL, 0.5, unselected_penalty=mode)
    edited = Halving(**{name: getattr(made, name) for name in made.__dataclass_fields__})
    result = fa.simulate(problem, edited, 7, participation=3, progress=False)
    state = result.state
    counted, weights = np.asarray(state.sent_penalties), problem.data.weights
    held = counted[:, None] * np.asarray(state.client_params) - np.asarray(state.duals)
    np.testing.assert_allclose(state.server.total.value, exact(weights, held), rtol=1e-9)
    np.testing.assert_allclose(state.server.weight.value, exact(weights, counted), rtol=1e-9)
    turns = np.bincount(result.cohorts.ravel(), minlength=len(SIZES))
    np.testing.assert_allclose(state.penalties, 0.5 / 2.0**turns)


RULES = {
    "balancing until": fa.penalties.residual_balancing(mu=1.2, until=np.array([1, 2, 3, 1, 2, 3])),
    "relative": fa.penalties.relative_balancing(mu=1.2),
    "spectral": fa.penalties.spectral(until=4),
}


@pytest.mark.parametrize("name", RULES)
def test_the_packages_rules_are_the_same_wherever_rows_live_and_after_a_resume(name, tmp_path):
    problem, *_ = least_squares(SIZES)
    algorithm = fa.fedadmm(LOCAL, 0.5, penalty_rule=RULES[name])
    options = dict(rounds=8, participation=3, progress=False)
    whole = fa.simulate(problem, algorithm, **options)
    assert len(np.unique(whole.solves.new_penalty)) > 2

    def crash(record):
        if record["round"] == 5:
            raise RuntimeError("crash")

    for population in ("host", "disk"):
        execution = fa.Execution(population=population)
        other = fa.simulate(problem, algorithm, execution=execution, **options)
        np.testing.assert_array_equal(other.solves.new_penalty, whole.solves.new_penalty)
    options |= dict(run_dir=tmp_path / "run", evaluate_every=2, checkpoint_seconds=0)
    with pytest.raises(RuntimeError, match="crash"):
        fa.simulate(problem, algorithm, on_round=crash, **options)
    again = fa.simulate(problem, algorithm, **options)
    np.testing.assert_array_equal(again.solves.new_penalty, whole.solves.new_penalty)
    np.testing.assert_array_equal(again.params, whole.params)
