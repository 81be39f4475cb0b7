"""FedADMM of other authors, as options of one record, against their papers' pseudocode in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from compilations import compilations
from federations import least_squares
from pseudocode import (
    COHORTS,
    EQUAL,
    LOCAL,
    RATE,
    SIZES,
    START,
    UNEQUAL,
    M,
    batches,
    bowls,
    close,
    descend,
    exact,
    run,
)

import fedjax_admm as fa

PENALTY = np.array([0.3, 1.0, 0.5, 2.0, 0.8, 1.4])
RNG = np.random.default_rng(0)
CURVATURES, OPTIMA = np.exp(RNG.uniform(-1, 1, 10)), RNG.normal(size=(10, 3)) * 2
HALVES = np.stack([RNG.choice(10, 5, replace=False) for _ in range(400)])


def federation(weights=EQUAL):
    return least_squares(SIZES, weights=weights)


@fa.record
class Growing:
    """A penalty rule: each solve makes the penalty greater."""

    factor: Any

    def __call__(self, penalty, consensus_gap, movement):
        return self.factor * penalty


def gong(eta, start="server", cohorts=COHORTS, alpha=EQUAL, rho=PENALTY, growth=1.0):
    """Gong, Li, Freris 2022, Algorithm 1, with their dual y = -lambda; with weights, where theirs are equal."""
    _, xs, ys = federation(alpha)
    rho = rho.copy()
    theta, w, y = START, np.tile(START, (M, 1)), np.zeros((M, 5))
    for k, cohort in enumerate(cohorts):
        total, weight = 0.0, 0.0
        for i in cohort:
            begin = theta if start == "server" else w[i]
            new = descend(xs[i], ys[i], begin, batches(k, i), RATE[i], -y[i], rho[i], theta)
            new_y = y[i] + rho[i] * (new - theta)
            delta = (new + new_y / rho[i]) - (w[i] + y[i] / rho[i])
            w[i], y[i] = new, new_y
            total, weight = total + alpha[i] * rho[i] * delta, weight + alpha[i] * rho[i]
            rho[i] *= growth
        theta = theta + eta / weight * total
    return theta, w, -y


@pytest.mark.parametrize(("start", "alpha"), [("server", EQUAL), ("client", UNEQUAL)])
def test_the_server_step_is_gongs(start, alpha):
    result = run(federation(alpha)[0], fa.fedadmm(LOCAL, PENALTY, server_step=0.7, start=start))
    theta, w, duals = gong(0.7, start, alpha=alpha)
    close(result.params, theta)
    close(result.state.client_params, w)
    close(result.state.duals, duals)
    assert not np.allclose(gong(0.7, "server", alpha=alpha)[0], gong(0.7, "client", alpha=alpha)[0])


def test_gongs_step_with_penalties_that_change():
    """The changes of u - lambda / beta are taken with the penalty that the solve had, whatever it was before."""
    growth = 1.5
    ours = fa.fedadmm(LOCAL, PENALTY, server_step=0.7, penalty_rule=Growing(growth))
    result = run(federation(UNEQUAL)[0], ours)
    theta, w, duals = gong(0.7, alpha=UNEQUAL, growth=growth)
    close(result.params, theta)
    close(result.state.client_params, w)
    close(result.state.duals, duals)


def test_a_step_of_the_cohorts_share_is_the_average_over_all():
    problem, share = federation()[0], COHORTS.shape[1] / M
    result = run(problem, fa.fedadmm(LOCAL, 0.6, server_step=share))
    close(result.params, run(problem, fa.fedadmm(LOCAL, 0.6)).params, 1e-14)
    np.testing.assert_array_equal(result.history["communicated_floats"][1:], 4 * (5 + 6))


def away(problem, optimum, algorithm, rounds=400, participation=HALVES):
    result = fa.simulate(problem, algorithm, rounds, participation=participation, evaluate_every=rounds, progress=False)
    return np.linalg.norm(result.params - optimum)


@fa.record
class GongsProgram:
    """What the program of Gong et al. does: its message is u+ - theta + (y+ - y) / rho = 2 (u+ - theta)."""

    local: Any
    rho: Any
    criterion: Any = fa.criteria.run_to_maximum()

    def init(self, params, clients):
        return ()

    def start(self, params, client):
        return {"duals": optax.tree.zeros_like(params)}

    def broadcast(self, params, server, round):
        return params

    def subproblem(self, sent, row, client, round):
        return fa.Subproblem(linear=row["duals"], penalty=self.rho)

    def reply(self, sent, row, solution, client, round):
        duals = row["duals"] - self.rho * (solution.params - sent)
        return solution.params - sent + (row["duals"] - duals) / self.rho, {"duals": duals}

    def aggregate(self, params, server, received, round):
        return params + received.total / received.weight, server


def test_what_converges_and_what_does_not():
    """At half participation with exact solves: the average over all converges, Gong's step of 1 and program do not."""
    problem, optimum = bowls(CURVATURES, OPTIMA)
    local = exact(CURVATURES, 1.0)
    assert away(problem, optimum, fa.fedadmm(local, 1.0)) < 1e-6
    assert away(problem, optimum, fa.fedadmm(local, 1.0, server_step=0.5)) < 1e-6
    assert away(problem, optimum, fa.fedadmm(local, 1.0, server_step=1.0)) > 0.01
    assert away(problem, optimum, GongsProgram(local, 1.0)) > 0.01


def test_the_message_of_gongs_program_is_twice_the_update():
    problem = federation()[0]
    twice = run(problem, GongsProgram(LOCAL, 0.6), COHORTS[:1])
    once = run(problem, fa.fedprox(LOCAL, 0.6), COHORTS[:1])
    close(twice.params - START, 2 * (once.params - START), 1e-14)


def shrink(params, step):
    return jax.tree.map(lambda leaf: leaf / (1 + step), params)


PROX = {
    "l1": (fa.prox.l1(0.3), lambda v, step: np.sign(v) * np.maximum(np.abs(v) - 0.3 * step, 0)),
    "l2": (fa.prox.l2(0.3), lambda v, step: v / (1 + 0.3 * step)),
    "box": (fa.prox.box(-0.2, 0.1), lambda v, step: np.clip(v, -0.2, 0.1)),
    "nonnegative": (fa.prox.nonnegative(), lambda v, step: np.maximum(v, 0)),
    "own": (shrink, lambda v, step: v / (1 + step)),
}


@pytest.mark.parametrize("kind", PROX)
def test_the_server_prox_is_wangs(kind):
    """Wang, Marella, Anderson 2022, with eta_i = 1 / beta_i and weights; memory delta besides, which they have not."""
    ours, prox = PROX[kind]
    delta, alpha = (0.0, EQUAL) if kind == "l1" else (0.2, UNEQUAL)
    problem, xs, ys = federation(alpha)
    result = run(problem, fa.fedadmm(LOCAL, PENALTY, server_prox=ours, delta=delta))
    weight = alpha @ PENALTY
    xbar, tilde = START, START
    x, z = np.tile(START, (M, 1)), np.zeros((M, 5))
    for k, cohort in enumerate(COHORTS):
        for i in cohort:
            eta, hat = 1 / PENALTY[i], x[i] + z[i] / PENALTY[i]
            x[i] = descend(xs[i], ys[i], xbar, batches(k, i), RATE[i], -z[i], 1 / eta, xbar)
            z[i] = z[i] + (x[i] - xbar) / eta
            tilde = tilde + alpha[i] * PENALTY[i] / weight * (x[i] + eta * z[i] - hat)
        xbar = prox((tilde + delta * xbar) / (1 + delta), 1 / (weight * (1 + delta)))
    close(result.params, xbar)
    close(result.state.duals, -z)


def test_with_a_prox_it_finds_the_minimiser_of_the_whole():
    """min mean_i h_i / 2 ||x - e_i||^2 + w ||x||_1: the soft threshold of the smooth part's minimiser."""
    problem, smooth = bowls(CURVATURES, OPTIMA)
    weight = 1.2 * np.abs(CURVATURES.mean() * smooth).min()
    optimum = np.sign(smooth) * np.maximum(np.abs(smooth) - weight / CURVATURES.mean(), 0)
    assert 0 in optimum and np.abs(optimum).max() > 0
    for algorithm in (fa.fedadmm(exact(CURVATURES, 1.0), 1.0, server_prox=fa.prox.l1(weight)),
                      fa.fedadmm(exact(CURVATURES, 1.0), 1.0, server_prox=fa.prox.l1(weight), delta=0.1)):  # fmt: skip
        assert away(problem, optimum, algorithm) < 1e-6


def test_the_memory_is_a_step_towards_the_average():
    """z+ = z + (z_hat - z) / (1 + delta)."""
    problem, xs, ys = federation()
    delta, alpha = 0.3, EQUAL
    z, u, lam = START, np.tile(START, (M, 1)), np.zeros((M, 5))
    for k, cohort in enumerate(COHORTS):
        for i in cohort:
            u[i] = descend(xs[i], ys[i], z, batches(k, i), RATE[i], lam[i], 0.6, z)
            lam[i] = lam[i] - 0.6 * (u[i] - z)
        z = z + (alpha @ (u - lam / 0.6) - z) / (1 + delta)
    close(run(problem, fa.fedadmm(LOCAL, 0.6, delta=delta)).params, z, 1e-13)


def test_the_dual_step():
    problem, xs, ys = federation(UNEQUAL)
    steps = np.array([1.0, 0.5, 0.0, 1.5, 0.2, 0.9])
    result = run(problem, fa.fedadmm(LOCAL, PENALTY, dual_step=steps))
    z, u, lam = START, np.tile(START, (M, 1)), np.zeros((M, 5))
    for k, cohort in enumerate(COHORTS):
        for i in cohort:
            u[i] = descend(xs[i], ys[i], z, batches(k, i), RATE[i], lam[i], PENALTY[i], z)
            lam[i] = lam[i] - steps[i] * PENALTY[i] * (u[i] - z)
        z = UNEQUAL @ (PENALTY[:, None] * u - lam) / (UNEQUAL @ PENALTY)
    close(result.params, z)
    without = run(problem, fa.fedadmm(LOCAL, 0.6, dual_step=0)).params
    close(without, run(problem, fa.fedprox(LOCAL, 0.6, average="all")).params, 1e-14)


def douglas_rachford(relaxation, start, prox=lambda v, step: v, alpha=UNEQUAL):
    """FedDR's own lines (Tran-Dinh et al. 2021), y_i and x_i, with eta_i = 1 / beta_i and weights."""
    _, xs, ys = federation(alpha)
    share = alpha * PENALTY / (alpha @ PENALTY)
    x, y, hat = (np.tile(START, (M, 1)) for _ in range(3))
    bar = START
    for k, cohort in enumerate(COHORTS):
        for i in cohort:
            y[i] = y[i] + relaxation * (bar - x[i])
            begin = bar if start == "server" else x[i]
            x[i] = descend(xs[i], ys[i], begin, batches(k, i), RATE[i], 0, PENALTY[i], y[i])
            hat[i] = 2 * x[i] - y[i]
        bar = prox(share @ hat, 1 / (alpha @ PENALTY))
    return bar, x, y


@pytest.mark.parametrize(("relaxation", "start"), [(1.9, "server"), (0.7, "client")])
def test_feddr_is_its_papers(relaxation, start):
    ours, prox = PROX["l1"]
    algorithm = fa.feddr(LOCAL, PENALTY, relaxation=relaxation, server_prox=ours, start=start)
    result = run(federation(UNEQUAL)[0], algorithm)
    bar, x, y = douglas_rachford(relaxation, start, prox)
    close(result.params, bar)
    close(result.state.client_params, x)
    close(result.state.duals, PENALTY[:, None] * (y - x))


def test_feddr_without_relaxation_is_fedadmm():
    """With part of the clients, weights, inexact solves and a prox at the server."""
    problem = federation(UNEQUAL)[0]
    for options in ({}, {"server_prox": fa.prox.l1(0.3)}):
        both = (
            run(problem, fa.feddr(LOCAL, PENALTY, relaxation=1, **options)),
            run(problem, fa.fedadmm(LOCAL, PENALTY, **options)),
        )
        close(both[0].params, both[1].params, 1e-15)
        close(both[0].state.duals, both[1].state.duals, 1e-14)


def test_feddr_converges():
    problem, optimum = bowls(CURVATURES, OPTIMA)
    for relaxation in (0.5, 1.6):
        assert away(problem, optimum, fa.feddr(exact(CURVATURES, 1.0), 1.0, relaxation=relaxation)) < 1e-6


def test_numbers_compile_nothing():
    problem = federation()[0]
    prox = (fa.prox.l1(0.3), fa.prox.l1(1))
    changes = (
        (fa.fedadmm, "server_step", (0.5, 1)),
        (fa.fedadmm, "server_prox", prox),
        (fa.feddr, "relaxation", (1.5, 1)),
    )
    for make, name, values in changes:
        run(problem, make(LOCAL, 0.6, **{name: values[0]}))
        with compilations() as compiled:
            run(problem, make(LOCAL, 2, **{name: values[1]}))
        assert "jit(device_rounds)" not in compiled


BAD = {
    "server step": (dict(server_step=0), "server_step must be above 0, got 0"),
    "step and memory": (dict(server_step=1.0, delta=0.1), "server_step is of a server without memory .*: leave delta out"),
    "step and heard": (dict(server_step=1.0, heard="only"), "leave heard or forgetting out"),
    "step and prox": (dict(server_step=1.0, server_prox=fa.prox.l2(1.0)), "leave server_prox out"),
    "step and current": (dict(server_step=1.0, unselected_penalty="current"), 'leave unselected_penalty="current" out'),
    "prox and forgetting": (dict(server_prox=fa.prox.l2(1.0), forgetting=0.5), 'needs heard="all" and forgetting=1'),
    "prox's maker": (dict(server_prox=fa.prox.l1), r"server_prox must be fa.prox.l1\(weight\).*got <function l1"),
    "a number as prox": (dict(server_prox=0.1), "server_prox must be .*got 0.1"),
    "dual step": (dict(dual_step=-1), "dual_step must be at least 0, got -1"),
    "no relaxation": (dict(relaxation=0), "relaxation must be above 0, got 0"),
    "relaxation": (dict(relaxation=2.0), "relaxation must be below 2, got 2"),
    "start": (dict(start="sever"), "start must be 'server' or 'client', got 'sever': did you mean 'server'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case):
    options, message = BAD[case]
    make = fa.feddr if "relaxation" in options else fa.fedadmm
    with pytest.raises(ValueError, match=message) as caught:
        make(LOCAL, 0.6, **options)
    assert "\n" not in str(caught.value)


def test_bad_terms():
    for make, message in (
        (lambda: fa.prox.l1(-1), "weight must be at least 0"),
        (lambda: fa.prox.box(1, 0), "high must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
