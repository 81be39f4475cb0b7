"""The server's sums over all clients are those of the clients' rows, summed exactly, whatever the penalties do."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import least_squares
from test_devices import in_a_process

import fedjax_admm as fa
from fedjax_admm.algorithms import fading
from fedjax_admm.core.sums import LIMIT, PositiveSum, RunningSum
from fedjax_admm.engine import renewal
from fedjax_admm.engine.rounds import ServerState

SIZES = [6, 11, 3, 8, 5, 9, 4, 7]  # so that no weight is a power of two, with which nothing is rounded
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=2)
BLOCK = 250  # rounds between two looks

pytestmark = pytest.mark.filterwarnings("ignore:.*penalties are at their bound")


def shrinking(tolerance=0.5, mode="current", penalty=1, **memory):
    """Most solves do no epoch, after which (3.15) halves the penalty."""
    criterion = fa.criteria.constant_tolerance(tolerance)
    return fa.fedadmm_insa(LOCAL, penalty=penalty, criterion=criterion, unselected_penalty=mode, **memory)


def federation(dtype, heterogeneity=0.3):
    return least_squares(SIZES, dtype=dtype, heterogeneity=heterogeneity)[0]


def simulation(problem, algorithm, dtype, participation=2, **execution):
    start = np.zeros(5, dtype)
    options = dict(participation=participation, execution=fa.Execution(**execution))
    return fa.Simulation(problem, algorithm, initial_params=start, **options)


def go_on(sim, state, rounds=BLOCK):
    first = int(state.round)
    cohorts = np.stack([sim.cohorts[first + k] for k in range(rounds)])
    state, infos, done = sim.run_rounds(state, cohorts, rounds)
    assert done == rounds
    return state, int(np.sum(infos.renewed))


def worst_error(problem, state, dtype, share=None):
    """Of the sums, in which each client has this share [clients], by default 1, in units of eps times what is summed of sizes: in rational numbers, so without rounding.

    Returns:
        The error, and the sum of the clients' penalties by their weights.
    """
    exactly = np.vectorize(Fraction, otypes=[object])
    alpha = exactly(np.asarray(problem.data.weights).astype(dtype).astype(float))
    alpha = alpha if share is None else alpha * share
    clients = {name: exactly(np.asarray(value).astype(float)) for name, value in state.clients.items()}
    u, duals, counted = clients["client_params"], clients["duals"], clients["sent_penalties"]
    weight, total = alpha @ counted, alpha @ (counted[:, None] * u - duals)
    sums = jax.tree.map(lambda leaf: exactly(np.asarray(leaf).astype(float)), state.server)
    # Beside all coordinates: one of them may pass through zero, and nothing is said of its own size.
    of_total = np.max(np.abs(sums.total.high + sums.total.low - total)) / (alpha @ (counted * np.max(abs(u), axis=1)))
    of_weight = abs(sums.weight.sum.high.item() + sums.weight.sum.low.item() - weight) / weight
    mean = np.mean(clients["penalties"])
    kept = jax.tree.map(lambda leaf: Fraction(float(leaf)), state.penalty_mean)
    of_mean = abs(kept.sum.high + kept.sum.low - mean) / mean
    return float(max(of_total, of_weight, of_mean)) / float(np.finfo(dtype).eps), float(weight)


def assert_exact(problem, state, dtype):
    """The sums are as exact as is promised, and were not left worn."""
    assert worst_error(problem, state, dtype)[0] < LIMIT
    assert not state.server.weight.worn and not state.penalty_mean.worn


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tolerance", [0.5, 2.0])
@pytest.mark.parametrize("mode", ["current", "sent"])
def test_the_sums_are_exact_though_penalties_shrink(mode, tolerance, dtype):
    """Over 5,000 rounds, in which the sum of the penalties falls by many orders of magnitude and comes back."""
    problem = federation(dtype)
    sim = simulation(problem, shrinking(tolerance, mode), dtype)
    state, lowest, renewals = sim.init(), 1.0, 0
    for _ in range(0, 5000, BLOCK):
        state, new = go_on(sim, state)
        error, weight = worst_error(problem, state, dtype)
        assert error < LIMIT
        assert np.min(state.penalties) > 0
        lowest, renewals = min(lowest, weight), renewals + new
    assert lowest < 1e-3 and 10 < renewals < 500


def shares(state, forgetting):
    """What still counts of each client's last message, in rational numbers, or nearly so with "auto"."""
    if forgetting == "auto":
        steps = int(state.server.memory.forgotten) - np.asarray(state.forgotten)
        left = np.exp2(-steps / fading.STEPS) * (np.asarray(state.message_rounds) >= 0)
        return np.vectorize(Fraction, otypes=[object])(left)
    ages = int(state.round) - 1 - np.asarray(state.message_rounds)
    heard = np.asarray(state.message_rounds) >= 0
    return np.array(
        [Fraction(float(forgetting)) ** int(age) * int(known) for age, known in zip(ages, heard, strict=True)]
    )


@pytest.mark.parametrize("forgetting", [1.0, 0.999, 0.9, 0.3, "auto"])
@pytest.mark.parametrize("mode", ["current", "sent"])
def test_the_sums_are_exact_though_messages_fade(mode, forgetting):
    """Over 2,000 rounds, after which a factor per round that were kept as a power would have left all range."""
    problem = federation(np.float32)
    algorithm = shrinking(2.0, mode, heard="only", forgetting=forgetting)
    sim = simulation(problem, algorithm, np.float32)
    state, lowest, renewals = sim.init(), 1.0, 0
    for _ in range(0, 2000, BLOCK):
        state, new = go_on(sim, state)
        factor = forgetting if forgetting == "auto" else np.float32(forgetting)
        error, weight = worst_error(problem, state, np.float32, shares(state, factor))
        assert error < LIMIT
        lowest, renewals = min(lowest, weight), renewals + new
    assert lowest < 0.1 and renewals > 2


def test_faded_sums_are_formed_anew_where_they_are():
    """On the device and in host memory alike, with clients of whom nothing was heard."""
    problem, forgetting, results = federation(np.float32), np.float32(0.95), []
    cohorts = np.int32([[k % 6, (k + 1) % 6] for k in range(300)])  # two are never selected
    for population in ("device", "host"):
        algorithm = shrinking(heard="only", forgetting=forgetting)
        sim = simulation(problem, algorithm, np.float32, population=population)
        state, infos, _ = sim.run_rounds(sim.init(), cohorts, 300)
        assert np.any(infos.renewed)
        assert worst_error(problem, state, np.float32, shares(state, forgetting))[0] < LIMIT
        results.append((state.params, state.server, dict(state.clients)))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_the_same_bits_in_whatever_pieces_the_rounds_are_done():
    """A run that is resumed goes on with sums that are as worn as they were."""
    sim = simulation(federation(np.float32), shrinking(), np.float32)
    whole, renewals = go_on(sim, sim.init(), 400)
    state = sim.init()
    for rounds in (37, 200, 1, 162):
        state, new = go_on(sim, jax.tree.map(np.asarray, state), rounds)
        renewals -= new
    assert renewals == 0
    jax.tree.map(np.testing.assert_array_equal, state, whole)


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_the_same_bits_wherever_the_rows_are_counted_anew(kind):
    problem = federation(np.float32)
    results = []
    for population in ("device", kind):
        sim = simulation(problem, shrinking(), np.float32, population=population)
        state, renewals = go_on(sim, sim.init(), 400)
        assert renewals > 2
        assert_exact(problem, state, np.float32)
        results.append((renewals, state.params, state.server, state.penalty_mean, dict(state.clients)))
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_the_clients_off_the_device_are_counted_in_blocks(monkeypatch):
    """Blocks of three of eight clients, of which two were never selected."""
    monkeypatch.setattr(renewal, "BLOCK_ROWS", 3)
    problem = federation(np.float32)
    start = np.array([1.0] * 6 + [1e-6] * 2)  # so that what is left when the others have shrunk is little
    sim = simulation(problem, shrinking(penalty=start), np.float32, population="host")
    state, renewals = sim.init(), 0
    for k in range(300):
        state, infos, _ = sim.run_rounds(state, np.int32([[k % 6, (k + 1) % 6]]), 1)
        renewals += int(infos.renewed[0])
    assert renewals > 2
    assert_exact(problem, state, np.float32)
    np.testing.assert_array_equal(state.penalties[[6, 7]], np.float32(1e-6))


def test_runs_at_once_have_sums_of_their_own():
    """Two runs whose penalties shrink and one whose do not: as they are one by one."""
    problem = federation(np.float32)
    runs = [(shrinking(tolerance), seed) for tolerance, seed in ((0.5, 0), (1e-9, 0), (0.5, 3))]
    options = dict(rounds=200, participation=2, evaluate_every=50, progress=False)
    options["initial_params"] = np.zeros(5, np.float32)
    for one, (algorithm, seed) in zip(fa.simulate_many(problem, runs, **options), runs, strict=True):
        assert_exact(problem, one.state, np.float32)
        alone = fa.simulate(problem, algorithm, seed=seed, **options)
        np.testing.assert_array_equal(one.epochs, alone.epochs)
        np.testing.assert_allclose(one.history["penalty_mean"], alone.history["penalty_mean"], rtol=1e-5)


def test_rows_that_are_split_over_devices():
    """Eight clients on two and on eight devices."""
    in_a_process("""
        import warnings
        warnings.simplefilter("ignore")
        from test_sums import *
        problem = federation(np.float32)
        for mesh in (2, 8):
            sim = simulation(problem, shrinking(), np.float32, mesh=mesh)
            state, renewals = go_on(sim, sim.init(), 200)
            assert renewals > 1 and not state.duals.sharding.is_fully_replicated
            assert_exact(problem, state, np.float32)
            for forgetting, factor in ((0.95, np.float32(0.95)), ("auto", "auto")):
                sim = simulation(problem, shrinking(heard="only", forgetting=forgetting), np.float32, mesh=mesh)
                state, renewals = go_on(sim, sim.init(), 200)
                assert renewals > 0
                assert worst_error(problem, state, np.float32, shares(state, factor))[0] < LIMIT
    """)


def test_what_the_server_has_found_out_outlives_its_sums():
    """Sums are formed anew from the clients' rows, averages over rounds cannot be."""
    problem = federation(np.float32)
    sim = simulation(problem, shrinking(heard="only", forgetting="auto"), np.float32)
    state, _ = go_on(sim, sim.init(), 20)
    before = jax.device_get(state.server)
    anew = renewal.renew(sim.setup, ServerState(state.params, state.server, state.penalty_mean), state.clients)
    assert before.memory.statistics.value.square > 0
    jax.tree.map(np.testing.assert_array_equal, anew.server.memory, before.memory)
    np.testing.assert_allclose(anew.server.total.value, before.total.value, rtol=1e-5)


def test_penalties_that_someone_else_changes_are_counted():
    """What the server holds of a client is known by its rows, whatever was done to its penalty."""
    problem = federation(np.float64)
    for mode in ("current", "sent"):
        sim = simulation(problem, shrinking(1e-9, mode), np.float64)
        state, _ = go_on(sim, sim.init(), 5)
        changed = state.clients | {"penalties": state.penalties * jnp.linspace(0.2, 1, 8)}
        state, renewals = go_on(sim, dataclasses.replace(state, clients=changed), 12)
        assert renewals == 0
        # The mean is not: it is a sum of what the rule did.
        fixed = PositiveSum.of(jnp.mean(state.penalties))
        state = dataclasses.replace(state, penalty_mean=fixed)
        assert worst_error(problem, state, np.float64)[0] < LIMIT


def test_steady_penalties_are_counted_anew_as_seldom_as_is_said():
    """With a share p of the clients in each round, every LIMIT / (2 p) rounds."""
    problem = federation(np.float32)
    sim = simulation(problem, fa.fedadmm(LOCAL, penalty=1), np.float32, participation=8)
    assert go_on(sim, sim.init(), 5 * LIMIT)[1] in (9, 10)


def test_to_count_anew_needs_no_second_copy_of_the_clients():
    dimension, clients = 2000, 500
    problem = least_squares([2] * clients, dimension=dimension, dtype=np.float32)[0]
    sim = fa.Simulation(problem, shrinking(), participation=1, initial_params=np.zeros(dimension, np.float32))
    state = sim.shapes()
    server = ServerState(state.params, state.server, state.penalty_mean)
    lowered = renewal.renew.lower(sim.setup, server, state.clients)
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 0.02 * clients * dimension * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_added_without_rounding(dtype):
    rng = np.random.default_rng(0)
    factors, rows = rng.normal(size=50).astype(dtype), rng.normal(size=(50, 7)).astype(dtype)
    total = RunningSum.of(jnp.zeros(7, dtype))
    for sign in (1, -1):  # what is left is tiny beside the terms
        for factor, row in zip(sign * factors, rows * (1 + (sign < 0) * dtype(1e-6)), strict=True):
            total = jax.jit(RunningSum.add_product)(total, factor, row)
    exactly = np.vectorize(lambda x: Fraction(float(x)), otypes=[object])
    exact = exactly(factors) @ (exactly(rows) - exactly(rows * (1 + dtype(1e-6))))
    error = np.abs(exactly(total.high) + exactly(total.low) - exact).astype(float)
    assert np.all(error < 500 * np.finfo(dtype).eps ** 2)
