"""FedNova against its paper's formulas in NumPy, with factors that are summed one by one."""

from __future__ import annotations

import functools

import numpy as np
import optax
import pytest
from compilations import compilations
from federations import initializer, least_squares
from pseudocode import BATCH, COHORTS, EPOCHS, LOCAL, RATE, SIZES, START, UNEQUAL, batches, bowl, close, descend, run

import fedjax_admm as fa

STEPS = EPOCHS * -(-np.array(SIZES) // BATCH)
RHO, MU = 0.6, 0.8
MOMENTUM = fa.LocalSolver(RATE, BATCH, EPOCHS, options={"momentum": RHO})


@functools.cache
def federation():
    return least_squares(SIZES, weights=UNEQUAL)


def factors(steps, rate, momentum=0.0, mu=0.0):
    """sum_s a_s: where a client ends, over -rate, if every gradient is 1."""
    moved, velocity = 0.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 + mu * -rate * moved
        moved += velocity
    return moved


def nova(momentum=0.0, mu=0.0, effective="steps"):
    """Wang et al. 2020, with their default tau_eff or the program's."""
    _, xs, ys = federation()
    z = START
    for k, cohort in enumerate(COHORTS):
        p = UNEQUAL[cohort] / UNEQUAL[cohort].sum()
        ends = [descend(xs[i], ys[i], z, batches(k, i), RATE[i], 0, mu, z, momentum) for i in cohort]
        norms = np.array([factors(STEPS[i], RATE[i], momentum, mu) for i in cohort])
        normalised = [(z - end) / (RATE[i] * norm) for end, norm, i in zip(ends, norms, cohort, strict=True)]
        effective_steps = p @ (STEPS[cohort] if effective == "steps" else norms)
        z = z - effective_steps * sum(p[j] * RATE[i] * normalised[j] for j, i in enumerate(cohort))
    return z


CASES = {
    "plain": (LOCAL, {}, {}),
    "momentum": (MOMENTUM, {}, {"momentum": RHO}),
    "momentum by norm": (MOMENTUM, {"effective": "norm"}, {"momentum": RHO}),
    "proximal": (LOCAL, {"proximal": MU}, {"mu": MU}),
    "proximal by norm": (LOCAL, {"proximal": MU, "effective": "norm"}, {"mu": MU}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_papers(case):
    local, ours, theirs = CASES[case]
    result = run(federation()[0], fa.fednova(local, **ours))
    close(result.params, nova(**theirs, effective=ours.get("effective", "steps")))
    np.testing.assert_array_equal(result.history["communicated_floats"][1:], 4 * (5 + 6))


def test_equal_steps_are_fedavgs():
    problem = federation()[0]
    local = fa.LocalSolver(0.05, max_epochs=5)
    pairs = [(fa.fednova(local), fa.fedavg(local))]
    pairs.append((fa.fednova(local, proximal=MU, effective="norm"), fa.fedprox(local, MU)))
    heavy = fa.LocalSolver(0.05, max_epochs=5, options={"momentum": RHO})
    pairs.append((fa.fednova(heavy, effective="norm"), fa.fedavg(heavy)))
    for nova, average in pairs:
        close(run(problem, nova).params, run(problem, average).params, 1e-14)
    assert np.abs(run(problem, fa.fednova(LOCAL)).params - run(problem, fa.fedavg(LOCAL)).params).max() > 1e-3


def test_the_fixed_points_on_a_line():
    """f_i = (x - e_i)^2 / 2, 2 and 20 steps of rate 0.1: FedAvg ends where the one with more steps wants it."""
    data = fa.FederatedData.from_arrays({"h": np.ones(2), "e": np.array([[0.0], [1.0]])}, [[0], [1]])
    problem = fa.Problem(init=initializer(1), loss=bowl, data=data)
    local = fa.LocalSolver(0.1, max_epochs=[2, 20])
    for algorithm, truth in ((fa.fedavg(local), 0.82217), (fa.fednova(local), 0.31616)):
        result = fa.simulate(problem, algorithm, 300, evaluate_every=300, progress=False)
        np.testing.assert_allclose(result.params, truth, atol=5e-6)


def test_steps_are_those_that_were_done():
    """A criterion that ends a solve before its first step leaves its client out of the average's direction."""
    problem, tolerance = federation()[0], np.where(np.arange(6) == COHORTS[0][0], 1e9, 1e-9)
    local = fa.LocalSolver(0.05, max_epochs=3)
    result = run(problem, fa.fednova(local, criterion=fa.criteria.constant_tolerance(tolerance)), COHORTS[:1])
    assert sorted(result.epochs[0]) == [0, 3, 3, 3]
    moved = run(problem, fa.fedavg(local, criterion=fa.criteria.constant_tolerance(tolerance)), COHORTS[:1])
    share = 1 - UNEQUAL[COHORTS[0][0]] / UNEQUAL[COHORTS[0]].sum()
    close(result.params - START, share * (moved.params - START), 1e-13)  # tau_eff = 3 share, d_i = (u_i - z) / 3


def test_the_server_step_has_the_programs_momentum():
    """JYWa/FedNova: buf = gmf buf + step / lr, z -= lr buf."""
    problem = federation()[0]
    result = run(problem, fa.fednova(LOCAL, server=fa.ServerStep(options={"momentum": 0.5})), COHORTS[:2])
    first = run(problem, fa.fednova(LOCAL), COHORTS[:1]).params - START
    _, xs, ys = federation()
    z, cohort = START + first, COHORTS[1]
    p = UNEQUAL[cohort] / UNEQUAL[cohort].sum()
    ends = [descend(xs[i], ys[i], z, batches(1, i), RATE[i]) for i in cohort]
    second = p @ STEPS[cohort] * sum(p[j] * (ends[j] - z) / STEPS[i] for j, i in enumerate(cohort))
    close(result.params, z + 0.5 * first + second)


def test_numbers_compile_nothing():
    run(federation()[0], fa.fednova(MOMENTUM))
    with compilations() as compiled:
        run(federation()[0], fa.fednova(fa.LocalSolver(RATE, BATCH, EPOCHS, options={"momentum": 0.2})))
    assert "jit(device_rounds)" not in compiled


BAD = {
    "adam": (lambda: fa.fednova(fa.LocalSolver(0.1, optimizer=optax.adam)), "fednova needs optimizer=optax.sgd in local, .*'adam'"),
    "nesterov": (lambda: fa.fednova(fa.LocalSolver(0.1, options={"nesterov": 1})), "plain or with options=.*nesterov"),
    "momentum": (lambda: fa.fednova(fa.LocalSolver(0.1, options={"momentum": 1})), "momentum must be below 1, got 1"),
    "both": (lambda: fa.fednova(MOMENTUM, proximal=0.1), "proximal and momentum=0.6 at once have no factor"),
    "steep": (lambda: fa.fednova(LOCAL, proximal=20.0), "proximal times the learning rate must be below 1, got 1"),
    "effective": (lambda: fa.fednova(LOCAL, effective="norms"), "effective must be 'steps' or 'norm', got 'norms': did you mean 'norm'"),
    "no solver": (lambda: fa.fednova(0.1), "local must be an object made by fa.LocalSolver"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
