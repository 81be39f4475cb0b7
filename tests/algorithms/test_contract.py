"""An algorithm or a part that breaks its contract is told so in one line, when the simulation is made."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.algorithms.base import ModelExchange
from fedjax_admm.core.sums import weighted

CLIENTS, COHORT, DIMENSION = 6, 3, 5
PROBLEM = least_squares([3] * CLIENTS)[0]
LOCAL = fa.LocalSolver(learning_rate=0.1, max_epochs=2)


class Whole(ModelExchange):
    """FedAvg with a row for each client, whole but for what a test puts in a member's place."""

    def init(self, params, clients):
        return jnp.zeros_like(params), {"last": jnp.zeros((clients.ids.shape[0], DIMENSION))}

    def subproblems(self, params, server, rows, cohort):
        return fa.Subproblem()

    def update(self, params, server, rows, solutions, cohort):
        mean = weighted(cohort.weights / cohort.weights.sum(), solutions.params)
        return mean, server, {"last": solutions.params}


class Tolerance:
    residual = "exact"
    reference = None
    floor = 0.0

    def tolerance(self, progress):
        return self.eps * progress.residual

    def sigma(self, progress):
        return math.nan


def algorithm(criterion=None, record=fa.record, without=(), **members):
    """An object of a class `Mine` with other members than `Whole`'s."""
    kept = {name: getattr(Whole, name) for name in ("init", "subproblems", "update") if name not in without}
    fields = {"__annotations__": {"local": Any, "criterion": Any}, "local": LOCAL}
    fields["criterion"] = criterion or fa.criteria.run_to_maximum()
    return record(type("Mine", (ModelExchange,), kept | fields | members))()


def criterion(record=fa.record, without=(), fields=(), **members):
    """A criterion of a class `MyTolerance` with other members than `Tolerance`'s."""
    kept = {name: value for name, value in vars(Tolerance).items() if name[0] != "_" and name not in without}
    members = {"__annotations__": dict.fromkeys(("eps", *fields), Any), "eps": 0.1} | kept | members
    return record(type("MyTolerance", (), members))()


def returns(value):
    """A method that gives what `value` makes of its arguments, self left out."""
    return lambda self, *arguments: value(*arguments)


@fa.record
class SumOfPenalties:
    factor: Any = 2.0

    def __call__(self, penalty, consensus_gap, movement):
        return jnp.sum(penalty)


class Forgotten(Tolerance):
    eps = 0.1


def with_penalty(penalty):
    return algorithm(subproblems=returns(lambda *_: fa.Subproblem(penalty=penalty)))


BAD = {
    "rows of some": (algorithm(init=returns(lambda z, c: (z, {"v": jnp.zeros(5)}))), r"Mine.init: rows\['v'\] .*\(6, ...\).*got \(5,\)"),
    "rows of all, always": (algorithm(init=returns(lambda z, c: (z, {"v": jnp.zeros(6)}))), r"rows\['v'\] .*\(1, ...\) .*got \(6,\)"),
    "rows not by name": (algorithm(init=returns(lambda z, c: (z, z))), "Mine.init must return rows as a dict"),
    "rows that hide": (algorithm(init=returns(lambda z, c: (z, {"params": jnp.zeros(c.ids.shape)}))), r"Mine.init: rows\['params'\] .*state.params.*rename"),
    "rows of words": (algorithm(init=returns(lambda z, c: (z, {"v": "no"}))), r"Mine.init: rows\['v'\] must be an array, got 'no'"),
    "init of one value": (algorithm(init=returns(lambda z, c: z)), r"Mine.init must return 2 values, \(server, rows\), got float64\[5\]"),
    "update of two values": (algorithm(update=returns(lambda z, s, r, u, c: (z, s))), "Mine.update must return 3 values, .*got 2 values"),
    "update without rows": (algorithm(update=returns(lambda z, s, r, u, c: (z, s, {}))), r"Mine.update: rows\['last'\] must be float64\[3, 5\], got none"),
    "update with other rows": (algorithm(update=returns(lambda z, s, r, u, c: (z, s, r | {"w": z}))), r"rows\['w'\] was not there"),
    "stacked parameters": (algorithm(update=returns(lambda z, s, r, u, c: (u.params, s, r))), r"Mine.update: params must have shape \(5,\), got \(3, 5\)"),
    "another server": (algorithm(update=returns(lambda z, s, r, u, c: (z, (s, s), r))), r"server must be float64\[5\], got a tuple with \[0\], \[1\]"),
    "list for a tuple": (
        algorithm(init=returns(lambda z, c: ((z, z), {})), update=returns(lambda z, s, r, u, c: (z, list(s), r))),
        "server must be built as it was given, a tuple .*got a list",
    ),
    "fractions in a counter": (
        algorithm(init=returns(lambda z, c: (0, {})), update=returns(lambda z, s, r, u, c: (z, s + 0.5, r))), "server must be int.*got float64",
    ),
    "no subproblem": (algorithm(subproblems=returns(lambda *_: None)), "Mine.subproblems must return a fa.Subproblem, got None"),
    "shared linear term": (algorithm(subproblems=returns(lambda z, *_: fa.Subproblem(linear=z))), r"linear must have shape \(3, 5\), got \(5,\)"),
    "start in half precision": (
        algorithm(subproblems=returns(lambda *_: fa.Subproblem(start=jnp.zeros((3, 5), jnp.float16)))), "start must be float64, got float16",
    ),
    "penalties of all": (with_penalty(jnp.ones(6)), r"penalty must be one number, or one per client \(3,\), got float64\[6\]"),
    "penalty a word": (with_penalty("big"), "penalty must be one number.*got 'big'"),
    "no previous": (algorithm(criterion(reference="client")), "Mine.subproblems must give previous.*MyTolerance"),
    "penalty_mean": (algorithm(penalty_mean=returns(lambda server: None)), "Mine.penalty_mean must return one number, got None"),
    "floats_up": (algorithm(floats_up=returns(lambda n: None)), "Mine.floats_up must return one number, got None"),
    "missing member": (algorithm(without=("subproblems",)), "algorithm must have subproblems, which Mine lacks"),
    "record forgotten": (algorithm(record=lambda cls: cls), "write @fa.record above class Mine"),
    "word traced": (algorithm(criterion(fields=("residual",))), r"MyTolerance.residual is 'exact'.*residual: ... = fa.static\(default='exact'\)"),
    "function traced": (algorithm(criterion(fields=("f",), f=staticmethod(len))), r"MyTolerance.f is len.*fa.static"),
    "criterion's record forgotten": (algorithm(Forgotten()), "Mine.criterion is a Forgotten.*write @fa.record above class Forgotten"),
    "criterion's member": (algorithm(criterion(without=("residual", "floor"))), "criterion must have residual and floor, which MyTolerance lacks"),
    "word misspelt": (algorithm(criterion(residual="epochmean")), "MyTolerance.residual must be None or 'exact'.*did you mean 'epoch_mean'"),
    "reference misspelt": (algorithm(criterion(reference="Server")), "MyTolerance.reference must be None or 'server' or 'client', got 'Server'"),
    "no tolerance returned": (algorithm(criterion(tolerance=returns(lambda p: None))), "MyTolerance.tolerance must return one number, .*got None"),
    "tolerance of a cohort": (algorithm(criterion(tolerance=returns(lambda p: jnp.ones(3)))), r"tolerance must .*got float64\[3\]"),
    "sigma of a cohort": (algorithm(criterion(sigma=returns(lambda p: jnp.ones(3)))), r"MyTolerance.sigma must .*got float64\[3\]"),
    "floor": (algorithm(criterion(floor=None)), "MyTolerance.floor must be one number"),
    "one penalty for all": (fa.fedadmm(LOCAL, penalty_rule=SumOfPenalties()), r"SumOfPenalties must return one penalty for each client, shape \(3,\), got float64\[\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_clear_line(name, monkeypatch):
    broken, message = BAD[name]
    monkeypatch.setattr("fedjax_admm.engine.population.device_rounds", None)  # nothing may be compiled, let alone run
    monkeypatch.setattr("fedjax_admm.engine.population.init_state", None)
    with pytest.raises(ValueError, match=message) as caught:
        fa.Simulation(PROBLEM, broken, participation=COHORT)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [fa.fedavg, fa.fedadmm, fa.scaffold])
def test_constructors_tell_of_a_criterion_without_a_member(make):
    with pytest.raises(ValueError, match="criterion must have reference, which MyTolerance lacks"):
        make(LOCAL, criterion=criterion(without=("reference",)))


@pytest.mark.parametrize("population", ["device", "host"])
def test_what_keeps_the_contract_runs(population):
    whole = algorithm(criterion())
    run = fa.simulate(
        PROBLEM, whole, 2, participation=COHORT, execution=fa.Execution(population=population), progress=False
    )
    assert np.isfinite(run.history["loss"]).all()


def test_a_number_is_a_penalty_for_all():
    def run(algorithm):
        return fa.simulate(PROBLEM, algorithm, 3, participation=COHORT, progress=False)

    prox = run(fa.fedprox(LOCAL, penalty=0.3))
    for penalty in (0.3, np.float32(0.3), jnp.float32(0.3)):
        ours = run(with_penalty(penalty))
        np.testing.assert_allclose(ours.params, prox.params, rtol=1e-7)
        np.testing.assert_allclose(ours.solves.penalty, 0.3, rtol=1e-7)


def test_numbers_alone_are_not_looked_at_again():
    """So that a sweep of a thousand penalties does not trace a thousand times."""
    looks = []

    def tolerance(self, progress):
        looks.append(1)
        return self.eps * progress.residual

    made = algorithm(criterion(tolerance=tolerance))
    other = jax.tree.map(lambda leaf: leaf * 2, made)
    for one in (made, other, made):
        fa.Simulation(PROBLEM, one, participation=COHORT)
    assert len(looks) == 1
