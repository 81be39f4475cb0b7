"""An algorithm or a part that breaks its contract is told so in one line, when the simulation is made."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.algorithms.base import broadcast_params

CLIENTS, COHORT, DIMENSION = 6, 3, 5
PROBLEM = least_squares([3] * CLIENTS)[0]
LOCAL = fa.LocalSolver(learning_rate=0.1, max_epochs=2)
FUNCTIONS = ("init", "start", "broadcast", "subproblem", "reply", "aggregate")


class Whole:
    """FedAvg with a row for each client, whole but for what a test puts in a member's place."""

    broadcast = broadcast_params

    def init(self, params, clients):
        return jnp.zeros_like(params)

    def start(self, params, client):
        return {"last": jnp.zeros(DIMENSION)}

    def subproblem(self, sent, row, client, round):
        return fa.Subproblem()

    def reply(self, sent, row, solution, client, round):
        return solution.params - sent, {"last": solution.params}

    def aggregate(self, params, server, received, round):
        return params + received.total / received.weight, server


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
    kept = {name: getattr(Whole, name) for name in FUNCTIONS if name not in without}
    fields = {"__annotations__": {"local": Any, "criterion": Any}, "local": LOCAL}
    fields["criterion"] = criterion or fa.criteria.run_to_maximum()
    return record(type("Mine", (), kept | fields | members))()


def criterion(record=fa.record, without=(), fields=(), **members):
    """A criterion of a class `MyTolerance` with other members than `Tolerance`'s."""
    kept = {name: value for name, value in vars(Tolerance).items() if name[0] != "_" and name not in without}
    members = {"__annotations__": dict.fromkeys(("eps", *fields), Any), "eps": 0.1} | kept | members
    return record(type("MyTolerance", (), members))()


def returns(value):
    """A method that gives what `value` makes of its arguments, self left out."""
    return lambda self, *arguments: value(*arguments)


@fa.record
class PenaltyOfAll:
    factor: Any = 2.0

    def __call__(self, penalty, consensus_gap, movement):
        return penalty * jnp.ones(3)


@fa.record
class ForgetfulRule:
    """With memory, of which it returns another."""

    def start(self, params):
        return {"seen": jnp.int32(0)}

    def __call__(self, penalty, seen, memory):
        return penalty, {}


class Former:
    """A method for version 0.1."""

    local, criterion = LOCAL, fa.criteria.run_to_maximum()

    def init(self, params, clients):
        return (), {}

    def subproblems(self, params, server, rows, cohort):
        return fa.Subproblem()

    def update(self, params, server, rows, solutions, cohort):
        return params, server, rows


class Forgotten(Tolerance):
    eps = 0.1


def with_penalty(penalty):
    return algorithm(subproblem=returns(lambda *_: fa.Subproblem(penalty=penalty)))


BAD = {
    "row not by name": (algorithm(start=returns(lambda z, c: z)), "Mine.start must return a client's row as a dict"),
    "row of words": (algorithm(start=returns(lambda z, c: {"v": "no"})), r"Mine.start\['v'\] must be an array, got 'no'"),
    "row that hides": (algorithm(start=returns(lambda z, c: {"params": z})), r"Mine.start: \['params'\] could not be read, state.params is another"),
    "row of the stages": (algorithm(start=returns(lambda z, c: {"exchange": z})), r"Mine.start: \['exchange'\] could not be read"),
    "penalties of a vector": (algorithm(start=returns(lambda z, c: {"penalties": z})), r"\['penalties'\] must be one number, the client's penalty"),
    "reply of one value": (algorithm(reply=returns(lambda s, r, u, c, k: s)), r"Mine.reply must return 2 values, \(message, row\), got float64\[5\]"),
    "reply without a row": (algorithm(reply=returns(lambda s, r, u, c, k: (s, {}))), r"Mine.reply: row\['last'\] must be float64\[5\], got none"),
    "reply with another row": (algorithm(reply=returns(lambda s, r, u, c, k: (s, r | {"w": s}))), r"row\['w'\] was not there"),
    "message of words": (algorithm(reply=returns(lambda s, r, u, c, k: ("hello", r))), "Mine.reply: message must be an array, got 'hello'"),
    "aggregate of one value": (algorithm(aggregate=returns(lambda z, s, r, k: z)), r"Mine.aggregate must return 2 values, \(params, server\)"),
    "other parameters": (algorithm(aggregate=returns(lambda z, s, r, k: (z[:2], s))), r"Mine.aggregate: params must have shape \(5,\), got \(2,\)"),
    "another server": (algorithm(aggregate=returns(lambda z, s, r, k: (z, (s, s)))), r"server must be float64\[5\], got a tuple with \[0\], \[1\]"),
    "list for a tuple": (
        algorithm(init=returns(lambda z, c: (z, z)), aggregate=returns(lambda z, s, r, k: (z, list(s)))),
        "server must be built as it was given, a tuple .*got a list",
    ),
    "fractions in a counter": (
        algorithm(init=returns(lambda z, c: 0), aggregate=returns(lambda z, s, r, k: (z, s + 0.5))), "server must be int.*got float64",
    ),
    "no subproblem": (algorithm(subproblem=returns(lambda *_: None)), "Mine.subproblem must return a fa.Subproblem, got None"),
    "short linear term": (algorithm(subproblem=returns(lambda z, *_: fa.Subproblem(linear=z[:3]))), r"linear must have shape \(5,\), got \(3,\)"),
    "start in half precision": (
        algorithm(subproblem=returns(lambda *_: fa.Subproblem(start=jnp.zeros(5, jnp.float16)))), "start must be float64, got float16",
    ),
    "penalties of all": (with_penalty(jnp.ones(6)), r"penalty must be one number, got float64\[6\]"),
    "penalty a word": (with_penalty("big"), "penalty must be one number.*got 'big'"),
    "a start that is not sent": (algorithm(broadcast=returns(lambda z, s, k: 2 * z)), "Mine.subproblem leaves out start=, which then are the server's params, but Mine.broadcast does not send these"),
    "a center that is not sent": (
        algorithm(broadcast=returns(lambda z, s, k: ()), subproblem=returns(lambda s, r, c, k: fa.Subproblem(penalty=1.0))),
        "give start= and center= from what is sent, or send params too",
    ),
    "no previous": (algorithm(criterion(reference="client")), "Mine.subproblem must give previous.*MyTolerance"),
    "missing member": (algorithm(without=("subproblem",)), "algorithm must have subproblem, which Mine lacks"),
    "missing members": (algorithm(without=("start", "reply")), "algorithm must have start and reply, which Mine lacks"),
    "the former contract": (Former(), "algorithm Former is written for version 0.1, .*since 0.2 .*reply and aggregate.*own_algorithm"),
    "record forgotten": (algorithm(record=lambda cls: cls), "write @fa.record above class Mine"),
    "word traced": (algorithm(criterion(fields=("residual",))), r"MyTolerance.residual is 'exact'.*residual: ... = fa.static\(default='exact'\)"),
    "function traced": (algorithm(criterion(fields=("f",), f=staticmethod(len))), r"MyTolerance.f is len.*fa.static"),
    "criterion's record forgotten": (algorithm(Forgotten()), "Mine.criterion is a Forgotten.*write @fa.record above class Forgotten"),
    "criterion's member": (algorithm(criterion(without=("residual", "floor"))), "criterion must have residual and floor, which MyTolerance lacks"),
    "word misspelt": (algorithm(criterion(residual="epochmean")), "MyTolerance.residual must be one of None, 'exact'.*did you mean 'epoch_mean'"),
    "reference misspelt": (algorithm(criterion(reference="Server")), "MyTolerance.reference must be None or 'server' or 'client', got 'Server'"),
    "no tolerance returned": (algorithm(criterion(tolerance=returns(lambda p: None))), "MyTolerance.tolerance must return one number, .*got None"),
    "tolerance of a cohort": (algorithm(criterion(tolerance=returns(lambda p: jnp.ones(3)))), r"tolerance must .*got float64\[3\]"),
    "sigma of a cohort": (algorithm(criterion(sigma=returns(lambda p: jnp.ones(3)))), r"MyTolerance.sigma must .*got float64\[3\]"),
    "floor": (algorithm(criterion(floor=None)), "MyTolerance.floor must be one number"),
    "penalties by a rule": (fa.fedadmm(LOCAL, penalty_rule=PenaltyOfAll()), r"PenaltyOfAll must return one penalty, for one client, got float64\[3\]"),
    "a rule that forgets": (fa.fedadmm(LOCAL, penalty_rule=ForgetfulRule()), r"ForgetfulRule: memory\['seen'\] must be int32\[\], got none"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_clear_line(name):
    broken, message = BAD[name]
    with compilations() as compiled, pytest.raises(ValueError, match=message) as caught:
        fa.Simulation(PROBLEM, broken, participation=COHORT)
    assert not any("round" in program or "init_state" in program for program in compiled)
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
