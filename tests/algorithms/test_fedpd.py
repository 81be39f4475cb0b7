"""FedPD against its paper's pseudocode in NumPy, the rounds in which nothing is exchanged, and what does not converge."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from compilations import compilations
from federations import least_squares
from pseudocode import LOCAL, RATE, SEED, SIZES, START, UNEQUAL, M, batches, bowls, close, descend, exact, run

import fedjax_admm as fa

PENALTY = np.array([0.3, 1.0, 0.5, 2.0, 0.8, 1.4])
ROUNDS, RNG = 10, np.random.default_rng(0)
CURVATURES, OPTIMA = np.exp(RNG.uniform(-1, 1, 10)), RNG.normal(size=(10, 3)) * 2


@functools.cache
def federation():
    return least_squares(SIZES, weights=UNEQUAL)


def paper(talks, start="client", alpha=UNEQUAL, rho=PENALTY):
    """Algorithm 1 with its own signs, y = -lambda and eta_i = 1 / rho_i; with weights, where theirs are equal."""
    _, xs, ys = federation()
    z, own, x, y = START, np.tile(START, (M, 1)), np.tile(START, (M, 1)), np.zeros((M, 5))
    for k, communicates in enumerate(talks):
        c = np.zeros((M, 5))
        for i in range(M):
            begin = x[i] if start == "client" else own[i]
            x[i] = descend(xs[i], ys[i], begin, batches(k, i), RATE[i], -y[i], rho[i], own[i])
            y[i] = y[i] + rho[i] * (x[i] - own[i])
            c[i] = x[i] + y[i] / rho[i]
        if communicates:
            z = (alpha * rho) @ c / (alpha @ rho)
            own = np.tile(z, (M, 1))
        else:
            own = c
    return z, x, y


def play(algorithm, rounds=ROUNDS, **options):
    options = dict(seed=SEED, initial_params=START, progress=False) | options
    return fa.simulate(federation()[0], algorithm, rounds, **options)


@pytest.mark.parametrize("start", ["client", "server"])
def test_it_is_the_papers(start):
    """The history tells which rounds were silent; everything else must follow from the paper's lines."""
    result = play(fa.fedpd(LOCAL, PENALTY, skip=0.5, start=start))
    floats = result.history["communicated_floats"][1:]
    talks = floats > 0
    assert talks[:2].all() and not talks[-2:].any(), "with this seed both kinds follow each other"
    np.testing.assert_array_equal(floats[talks], 2 * 5 * M)
    z, x, y = paper(talks, start)
    close(result.params, z)
    close(result.state.client_params, x)
    close(result.state.duals, -y)
    np.testing.assert_array_equal(result.state.alone, True)


def test_a_silent_round_leaves_the_server_as_it_was():
    result = play(fa.fedpd(LOCAL, PENALTY, skip=0.5))
    talks = result.history["communicated_floats"][1:] > 0
    np.testing.assert_array_equal(np.diff(result.history["loss"]) != 0, talks)
    assert (result.history["gradient_samples"][1:] == result.history["gradient_samples"][1]).all()


def test_coins_are_fair_and_the_seeds():
    problem, _ = bowls(np.ones(2), np.zeros((2, 1)))

    def coins(skip, seed=0):
        algorithm = fa.fedpd(fa.LocalSolver(0.1), 1.0, skip=skip)
        return (
            fa.simulate(problem, algorithm, 400, seed=seed, evaluate_every=400, progress=False).history[
                "communicated_floats"
            ][1:]
            > 0
        )

    half = coins(0.5)
    assert abs(half.mean() - 0.5) < 0.1 and abs(coins(0.9).mean() - 0.1) < 0.06 and coins(0.0).all()
    np.testing.assert_array_equal(coins(0.5), half)
    assert (coins(0.5, seed=1) != half).any()


def test_without_skipping_it_is_fedadmm():
    """With full participation, from the client's own start; exact solves need no such start, and FedDyn is the same."""
    pd, admm = play(fa.fedpd(LOCAL, PENALTY)), play(fa.fedadmm(LOCAL, PENALTY, start="client"))
    close(pd.params, admm.params, 1e-13)
    close(pd.state.duals, admm.state.duals, 1e-13)
    assert np.abs(pd.params - play(fa.fedadmm(LOCAL, PENALTY)).params).max() > 1e-3
    problem, _ = bowls(CURVATURES, OPTIMA)
    local = exact(CURVATURES, 1.0)
    ends = [fa.simulate(problem, make(local, 1.0), 20, progress=False) for make in (fa.fedpd, fa.feddyn, fa.fedadmm)]
    for other in ends[1:]:
        close(ends[0].params, other.params, 1e-13)


def test_what_converges_and_what_does_not():
    """Skipping half of the rounds leaves the optimum, unless all clients have the same."""
    problem, optimum = bowls(CURVATURES, OPTIMA)
    alike, same = bowls(CURVATURES, np.tile(OPTIMA[0], (10, 1)))

    def away(problem, optimum, skip):
        algorithm = fa.fedpd(exact(CURVATURES, 1.0), 1.0, skip=skip)
        result = fa.simulate(problem, algorithm, 400, evaluate_every=400, progress=False)
        return np.linalg.norm(result.params - optimum)

    assert away(problem, optimum, 0.0) < 1e-9
    assert away(problem, optimum, 0.5) > 0.05
    assert away(alike, same, 0.5) < 1e-9


def test_interrupted_runs_and_all_places_of_rows_agree(tmp_path):
    algorithm = fa.fedpd(LOCAL, PENALTY, skip=0.5)
    whole = play(algorithm)

    def stop(row):
        if row["round"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(algorithm, run_dir=tmp_path, on_round=stop, checkpoint_seconds=0)
    others = [play(algorithm, run_dir=tmp_path)]
    others += [play(algorithm, execution=fa.Execution(population=kind)) for kind in ("host", "disk")]
    for other in others:
        np.testing.assert_array_equal(other.params, whole.params)
        for name in whole.state.clients:
            np.testing.assert_array_equal(np.asarray(other.state.clients[name]), whole.state.clients[name])
        np.testing.assert_array_equal(other.history["communicated_floats"], whole.history["communicated_floats"])


@fa.record
class Marked(fa.Stage):
    """Counts the messages that came, and what clients had to send, and spoils what is received."""

    def start(self, params, client):
        return {"messages": jax.numpy.int32(0)}

    def receive(self, outcome, memory, client, round):
        return outcome._replace(params=jax.tree.map(lambda leaf: leaf + outcome.floats, outcome.params))

    def transform(self, message, memory, client, round):
        return message, {"messages": memory["messages"] + 1}


def test_stages_see_nothing_of_a_silent_round():
    result = play(fa.fedpd(LOCAL, PENALTY, skip=0.5), exchange=Marked())
    talks = result.history["communicated_floats"][1:] > 0
    np.testing.assert_array_equal(result.state.clients["exchange"]["Marked"]["messages"], talks.sum())
    first = int(np.argmin(talks))  # silent rounds before any other are as without the stage
    if first == 0:
        one = play(fa.fedpd(LOCAL, PENALTY, skip=0.5), rounds=1, exchange=Marked())
        close(one.state.client_params, play(fa.fedpd(LOCAL, PENALTY, skip=0.5), rounds=1).state.client_params, 1e-15)


def test_silent_rounds_take_no_time_to_send():
    time = fa.ClientTime(1e9, floats_per_second=1.0)
    history = play(fa.fedpd(LOCAL, PENALTY, skip=0.5), client_time=time).history
    np.testing.assert_allclose(history["simulated_seconds"][1:], history["communicated_floats"][1:] / M, atol=1e-5)


def test_numbers_compile_nothing():
    play(fa.fedpd(LOCAL, PENALTY, skip=0.5))
    with compilations() as compiled:
        play(fa.fedpd(LOCAL, 2 * PENALTY, skip=0.25))
    assert "jit(device_rounds)" not in compiled


BAD = {
    "part of the clients": (lambda: fa.Simulation(federation()[0], fa.fedpd(LOCAL, 1.0), participation=3), "participation must be 1.0 for FedPD, which .*all clients .*got 3 of 6"),
    "part of the rounds": (lambda: run(federation()[0], fa.fedpd(LOCAL, 1.0), [[0, 1], [2, 3]]), "participation must be 1.0 for FedPD.*got 2 of 6"),
    "whoever is there": (lambda: fa.Simulation(federation()[0], fa.fedpd(LOCAL, 1.0), participation=fa.availability.probability(0.9)), "participation must be 1.0.*got cohorts that may vary"),
    "a cohort": (lambda: (sim := fa.Simulation(federation()[0], fa.fedpd(LOCAL, 1.0))).round(sim.init(), [0, 1]), "participation must be 1.0.*got 2 of 6"),
    "skip": (lambda: fa.fedpd(LOCAL, 1.0, skip=1.0), "skip must be below 1, got 1"),
    "penalty": (lambda: fa.fedpd(LOCAL, 0.0), "penalty must be above 0, got 0"),
    "start": (lambda: fa.fedpd(LOCAL, 1.0, start="servers"), "start must be 'client' or 'server', got 'servers': did you mean 'server'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case):
    make, message = BAD[case]
    with compilations() as compiled, pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value) and "jit(device_rounds)" not in compiled
