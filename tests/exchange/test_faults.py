"""Faults: who is away and what is received, against plain loops; no trace of them where there are none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from compilations import compilations
from federations import GAMMA, epoch_order, least_squares, make_problem, squared_error
from test_devices import in_a_process
from test_engine import LOCAL
from test_oracle import CASES, COHORTS, EPOCHS, PENALTY, RATE, ROUNDS, SIZES, TOLERANCE, algorithm_of
from test_runs import Crash, crash_in

import fedjax_admm as fa
from fedjax_admm.core import randomness, trees
from fedjax_admm.core.vocabulary import Client, Round
from fedjax_admm.exchange.stage import Exchange
from fedjax_admm.storage import checkpoints

M = len(SIZES)
# Who drops out when, of the oracle's six clients in six rounds; in round 2 everybody.
SCHEDULE = np.random.default_rng(0).random((ROUNDS, M)) < 0.4
SCHEDULE[2] = True
INSA = fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5)


def run(problem, algorithm, rounds=8, **options):
    return fa.simulate(problem, algorithm, rounds, **dict(progress=False, participation=4) | options)


def assert_identical(one, other):
    def arrays(result):
        kept = {name: jax.tree.map(np.asarray, result.state.clients[name]) for name in result.state.clients}
        return result.params, kept, result.solves

    for a, b in zip(*(jax.tree.leaves(arrays(result)) for result in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", ["fedavg_selected", "fedavg_all", "fedprox", "in_client", "insa_current", "insa_sent"])
def test_dropouts_by_a_schedule_are_the_paper_with_fewer_clients(case):
    """In double precision against the plain loop over those that are there; a round without any changes nothing."""
    problem, xs, ys = least_squares(SIZES)
    settings = oracle.Settings(
        learning_rate=RATE, max_epochs=EPOCHS, batch_size=4, gamma=GAMMA, penalty=PENALTY, **CASES[case]
    )
    start = np.random.default_rng(3).normal(size=5)
    result = run(
        problem, algorithm_of(settings), ROUNDS, participation=COHORTS, seed=5, initial_params=start,
        execution=fa.Execution(lanes=3), faults=fa.Faults(dropout=SCHEDULE),
    )  # fmt: skip
    there = [[i for i in cohort if not SCHEDULE[k, i]] for k, cohort in enumerate(COHORTS)]
    assert 0 < sum(map(len, there)) < COHORTS.size and not there[2]
    truth = oracle.run(xs, ys, np.array(SIZES) / sum(SIZES), start, there, settings, epoch_order(5, SIZES))
    np.testing.assert_allclose(result.params, truth.server[-1], rtol=TOLERANCE, atol=TOLERANCE)
    away = np.take_along_axis(SCHEDULE, COHORTS, axis=1)
    np.testing.assert_array_equal(result.solves.stop_reason == "dropped", away)
    for mine, theirs in ((result.epochs, truth.epochs), (result.solves.gradient_samples, truth.samples)):
        np.testing.assert_array_equal(mine[~away], np.concatenate(theirs))
        assert not mine[away].any()
    for name, value in (("client_params", truth.clients), ("duals", truth.duals), ("penalties", truth.penalties)):
        if name in result.state.clients:
            np.testing.assert_allclose(getattr(result.state, name), value, rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_array_equal(result.history["dropped_clients"][1:], away.sum(axis=1))
    number = np.array([len(ids) for ids in there])
    told = fa.estimate(problem, algorithm_of(settings))
    traffic = number * (told.floats_down + told.floats_up)
    np.testing.assert_array_equal(result.history["communicated_floats"][1:], traffic)
    assert (
        np.isnan(result.history["epochs_mean"][3])
        and np.isnan(result.client_epochs()).sum() == M * ROUNDS - number.sum()
    )
    assert result.epoch_reduction == 1 - result.epochs.sum() / result.solves.max_epochs[~away].sum()


def test_who_drops_out_depends_on_seed_round_and_client_alone():
    probability = np.linspace(0, 1, 400)
    exchange = trees.cast_floats(Exchange.of(fa.Faults(dropout=probability)), jnp.float32)

    @jax.jit
    def dropped(key, ids):
        def one(round, id):
            client = Client(id, jnp.int32(1), jnp.float32(1), 400)
            return exchange.of_client(id).absent({}, client, Round(round, key)) == fa.StopReason.DROPPED.code

        return jax.vmap(lambda round: jax.vmap(lambda id: one(round, id))(ids))(jnp.arange(100))

    key, ids = randomness.root_key(0), jnp.arange(400)
    first = np.asarray(dropped(key, ids))
    assert not first[:, 0].any() and first[:, -1].all()
    np.testing.assert_allclose(first.mean(axis=0), probability, atol=5 * np.sqrt(0.25 / 100))  # over the rounds
    np.testing.assert_allclose(first.mean(axis=1), 0.5, atol=5 * np.sqrt(1 / 6 / 400))  # over the clients
    assert len(np.unique(first, axis=0)) == 100
    np.testing.assert_array_equal(dropped(key, ids[::-1])[:, ::-1], first)
    assert not np.array_equal(dropped(randomness.root_key(1), ids), first)


EVERYTHING = fa.Faults(
    dropout=0.3, corruption="noise", corrupted=[1, 4], strength=3.0, clip_norm=2.0, quarantine_after=2
)


def steep_for_some(w, batch):
    """A loss whose solve overflows where y is large."""
    return squared_error(w, batch) * jnp.where(batch["y"] > 50, 1e300, 1.0)


def with_failing_clients(failing=(2,), sizes=(6, 11, 3, 8, 5, 9, 4, 7), **options):
    _, xs, ys = least_squares(sizes, heterogeneity=0.3)
    ys = [np.full(len(y), 100.0) if i in failing else y for i, y in enumerate(ys)]
    problem = make_problem(xs, ys, **options)
    return fa.Problem(problem.init, steep_for_some, problem.data)


def test_faults_do_not_depend_on_where_the_rows_are_nor_on_interruptions(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)
    problem = with_failing_clients()

    def go(kind="device", **options):
        options = dict(faults=EVERYTHING, client_time=fa.ClientTime(10, deadline=4.0), evaluate_every=3) | options
        return run(
            problem, INSA, 20, participation=6, checkpoint_seconds=0, execution=fa.Execution(population=kind), **options
        )

    whole = go()
    assert {"failed", "dropped", "quarantined", "corrupted", "late"} <= set(whole.solves.stop_reason.ravel())
    for kind in ("host", "disk"):
        assert_identical(go(kind), whole)
    for kind in ("device", "disk"):
        with pytest.raises(Crash):
            go(kind, run_dir=tmp_path / kind, on_round=crash_in(11))
        assert_identical(go(kind, run_dir=tmp_path / kind), whole)


def test_faults_do_not_depend_on_devices():
    """Eight clients, whose rows can be split evenly over two devices, and five, whose cannot."""
    in_a_process("""
        faults = fa.Faults(dropout=0.3, corruption="constant", corrupted=[2], clip_norm=2.0, quarantine_after=1)
        time = fa.ClientTime(10, deadline=6.0)
        for sizes in ([6, 11, 3, 8, 5, 9, 4, 7], [6, 11, 3, 8, 5]):
            problem, *_ = least_squares(sizes)
            def run(**execution):
                return fa.simulate(problem, INSA, 12, participation=4, evaluate_every=4, progress=False, faults=faults,
                                   client_time=time, execution=fa.Execution(**execution))
            one = run(mesh=1)
            reasons = set(one.solves.stop_reason.ravel())
            assert {"dropped", "quarantined", "rejected", "late"} <= reasons, reasons
            for execution in ({"mesh": 2}, {"mesh": 3, "lanes": 2, "population": "host"}):
                many = run(**execution)
                np.testing.assert_array_equal(one.solves.stop_reason, many.solves.stop_reason)
                np.testing.assert_array_equal(one.solves.gradient_samples, many.solves.gradient_samples)
                np.testing.assert_array_equal(one.state.exchange["Faults"]["offences"], many.state.exchange["Faults"]["offences"])
                np.testing.assert_allclose(one.params, many.params, rtol=1e-9)
    """)


def test_a_client_away_costs_no_gradient_and_keeps_its_place_in_the_queue():
    """With one lane the trips are those of the clients that are there, and none if nobody is."""
    problem, *_ = least_squares([9, 4, 7, 5])
    schedule = np.array([[1, 0, 0, 1], [1, 1, 1, 1]], float)
    sim = fa.Simulation(problem, INSA, faults=fa.Faults(dropout=schedule), execution=fa.Execution(lanes=1))
    state = sim.init()
    before = np.asarray(state.last_epochs)
    state, infos, _ = sim.run_rounds(state, np.arange(4)[None], 1)
    np.testing.assert_array_equal(np.asarray(state.last_epochs)[[0, 3]], before[[0, 3]])
    info = jax.tree.map(lambda leaf: leaf[0], infos.solves)
    assert np.isnan(info.reference_residual[0]) and np.isfinite(info.reference_residual[1])
    batches = -(-np.array([9, 4, 7, 5]) // 4)
    passes = (np.asarray(info.gradient_samples) / [9, 4, 7, 5]).round().astype(int)
    assert int(infos.trips[0]) == np.sum(passes * batches) and not passes[[0, 3]].any()
    server = np.array(state.params)
    state, infos, _ = sim.run_rounds(state, np.arange(4)[None], 1)
    np.testing.assert_array_equal(state.params, server)
    assert not np.asarray(infos.solves.gradient_samples).any() and int(infos.trips[0]) == 0
    with pytest.raises(ValueError, match="dropout is a schedule of 2 rounds, but rounds is 3"):
        sim.round(state)


def test_no_faults_leave_no_trace():
    """The same program, state and history; and with a fault that never happens, the same numbers."""
    problem, *_ = least_squares([6, 11, 3, 8, 5])
    without = run(problem, INSA)
    with compilations() as compiled:
        empty = run(problem, INSA, faults=fa.Faults())
    assert not compiled
    assert list(empty.history) == list(without.history) and "exchange" not in empty.state.clients
    assert_identical(empty, without)
    never = fa.Faults(dropout=0.0, clip_norm=1e9, corruption="scale", corrupted=[0], strength=1.0)
    with compilations() as compiled:
        idle = run(problem, INSA, faults=never)
    assert compiled
    np.testing.assert_allclose(idle.params, without.params, rtol=1e-12)


def test_other_numbers_compile_nothing():
    problem, *_ = least_squares([6, 11, 3, 8, 5])
    run(problem, INSA, faults=EVERYTHING)
    other = fa.Faults(dropout=0.1, corruption="noise", corrupted=[0, 2], strength=5, clip_norm=1, quarantine_after=9)
    with compilations() as compiled:
        run(problem, INSA, faults=other)
    assert not compiled


def test_under_strict_promotion_and_in_half_precision():
    problem, *_ = least_squares([6, 11, 3, 8, 5])
    options = dict(faults=EVERYTHING, client_time=fa.ClientTime(np.full(5, 10.0), np.full(5, 10.0), deadline=4.0))
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        run(problem, INSA, 2, **options)
    half = run(problem, INSA, 3, initial_params=jnp.zeros(5, jnp.bfloat16), **options)
    assert half.params.dtype == jnp.bfloat16 and np.isfinite(half.history["loss"]).all()


def test_quarantine_is_after_so_many_and_for_ever(tmp_path):
    problem = with_failing_clients(failing=(2, 5))
    faults = fa.Faults(quarantine_after=3, corruption="constant", corrupted=[0])
    result = run(problem, INSA, 12, participation=5, faults=faults)
    reasons, cohorts = result.solves.stop_reason, result.cohorts
    offences = {0: "rejected", 2: "failed", 5: "failed"}
    for client in range(8):
        mine = reasons[cohorts == client].tolist()
        bad = offences.get(client)
        assert (
            (mine[:3], set(mine[3:])) == ([bad] * 3, {"quarantined"})
            if bad
            else not set(mine) & {"failed", "quarantined", "rejected"}
        )
    np.testing.assert_array_equal(result.state.exchange["Faults"]["offences"], [3, 0, 3, 0, 0, 3, 0, 0])
    np.testing.assert_array_equal(result.history["quarantined_clients"][1:], np.sum(reasons == "quarantined", axis=1))


def test_only_a_round_of_failed_solves_is_a_divergence():
    problem = with_failing_clients(failing=(0, 1), sizes=(4, 4, 4))
    cohorts = np.array([[0, 2], [0, 1]])
    with pytest.raises(fa.DivergenceError, match="round 2: every selected client's solve"):
        run(problem, INSA, 2, participation=cohorts, faults=fa.Faults(dropout=np.array([[0.0, 0, 0], [1, 0, 0]])))
    sound = run(problem, INSA, 2, participation=cohorts, faults=fa.Faults(dropout=np.array([[1.0, 0, 0], [1, 1, 0]])))
    assert sound.solves.stop_reason.tolist() == [["dropped", "maximum"], ["dropped", "dropped"]]
    # Rubbish that is kept out is no divergence of the method, though nothing else came.
    problem, *_ = least_squares([4, 4])
    rubbish = run(problem, INSA, 2, participation=1.0, faults=fa.Faults(corruption="constant", corrupted=[0, 1]))
    np.testing.assert_array_equal(rubbish.params, np.zeros(5))
    assert set(rubbish.solves.stop_reason.ravel()) == {"rejected"}


def test_example_1_with_dropouts_and_failing_clients_does_what_fewer_participants_do():
    """30 % dropouts and 5 % of the clients not finite, against 0.65 times the participants and no faults.

    FedADMM's server counts every client, those of which it never hears at their start; so the run without faults too
    draws its participants from the 95 %.
    """
    settings = dict(num_clients=40, rows_per_client=20, dimension=30, batch_size=10, learning_rate=0.005)
    example, rounds, bad = fa.examples.linear_regression(**settings), 40, [3, 17]
    algorithm = example.algorithm("fedadmm_insa", penalty=0.5)

    def excess(**options):
        return run(example.problem, algorithm, rounds, **options)

    faults = fa.Faults(dropout=0.3, corruption="constant", corrupted=bad, quarantine_after=3)
    faulted = [excess(participation=20, seed=seed, faults=faults) for seed in range(3)]
    for result in faulted:
        assert {"dropped", "rejected", "quarantined"} <= set(result.solves.stop_reason.ravel())
        assert 0.6 < np.mean(result.solves.took_place) < 0.72
    sound, rng = np.setdiff1d(np.arange(40), bad), np.random.default_rng(0)
    cohorts = [np.stack([rng.choice(sound, 13, replace=False) for _ in range(rounds)]) for _ in range(3)]
    fewer = [excess(participation=cohort, seed=seed) for seed, cohort in enumerate(cohorts)]
    with_faults, without = (np.mean([r.history["excess_loss"][-10:] for r in runs]) for runs in (faulted, fewer))
    print(with_faults, without)
    assert with_faults < 0.1 * faulted[0].history["excess_loss"][0]
    assert with_faults < 1.3 * without


BAD = {
    "dropout above one": (dict(dropout=1.5), "dropout must be at most 1, got 1.5"),
    "dropout in a schedule": (dict(dropout=[[0, 0.5], [0, -1]]), "dropout must be at least 0, got -1 for client 1 in round 1"),
    "dropout a word": (dict(dropout="often"), "dropout must be a number, one per client, or one per round and client"),
    "corruption unknown": (dict(corruption="sign-flip", corrupted=[0]), "did you mean 'sign_flip'"),
    "corruption of nobody": (dict(corruption="scale"), "corrupted which of them: give both"),
    "corrupted by nothing": (dict(corrupted=[1]), "corrupted which of them: give both"),
    "corrupted twice": (dict(corruption="scale", corrupted=[1, 1]), "corrupted names client 1 twice"),
    "corrupted fraction": (dict(corruption="scale", corrupted=0.5), "corrupted must be client numbers"),
    "strength alone": (dict(strength=3), "strength is the corruption's"),
    "strength a word": (dict(corruption="scale", corrupted=[0], strength="big"), "strength must be a number, got 'big'"),
    "clip at zero": (dict(clip_norm=0), "clip_norm must be above 0, got 0"),
    "quarantine at once": (dict(quarantine_after=0), "quarantine_after must be at least 1, got 0"),
}  # fmt: skip
UNFIT = {
    "dropout": (fa.Faults(dropout=[0.1, 0.2]), "dropout has 2 entries for 3 clients"),
    "schedule": (fa.Faults(dropout=np.zeros((5, 2))), "dropout has 2 entries for 3 clients"),
    "short schedule": (fa.Faults(dropout=np.zeros((5, 3))), "dropout is a schedule of 5 rounds, but rounds is 8"),
    "unknown client": (fa.Faults(corruption="scale", corrupted=[3]), "corrupted names client 3, but the clients are 0 to 2"),
    "a number": (0.3, "faults must be a fedjax_admm.Faults, got 0.3"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_faults(case):
    options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        fa.Faults(**options)


@pytest.mark.parametrize("case", UNFIT)
def test_faults_that_do_not_fit(case):
    faults, message = UNFIT[case]
    problem, *_ = least_squares([3, 4, 2])
    with compilations() as compiled:
        with pytest.raises(ValueError, match=message):
            run(problem, INSA, faults=faults, participation=1.0)
        with pytest.raises(ValueError, match=message):
            fa.compare(problem, {"InSa": INSA}, rounds=8, faults=faults)
    assert "jit(device_rounds)" not in compiled


def test_a_run_with_faults_is_made_again_from_its_settings(tmp_path):
    example = fa.examples.linear_regression(num_clients=5, rows_per_client=4, dimension=3, rounds=4)
    faults = fa.Faults(dropout=[0.1, 0.2, 0.3, 0.4, 0.5], corruption="constant", corrupted=[2], quarantine_after=1)
    time = fa.ClientTime([1.0, 2, 3, 4, 5], deadline=50)
    options = dict(progress=False, faults=faults, client_time=time, **example.run_settings)
    first = fa.simulate(example.problem, example.algorithm("fedadmm"), run_dir=tmp_path / "run", **options)
    assert_identical(fa.resume(tmp_path / "run", progress=False), first)
    with pytest.raises(ValueError, match=r"faults.*there, None now"):
        fa.simulate(
            example.problem, example.algorithm("fedadmm"), run_dir=tmp_path / "run", **options | {"faults": None}
        )
    fa.compare(example.problem, {"a": example.algorithm("fedadmm")}, run_dir=tmp_path / "all", **options)
    from fedjax_admm.runs.resume import resume_comparison

    again = resume_comparison(tmp_path / "all", progress=False)
    np.testing.assert_array_equal(again.runs["a"][0].history["loss"], first.history["loss"])
    with pytest.raises(ValueError, match=r"faults.*there, None now"):
        fa.compare(
            example.problem, {"a": example.algorithm("fedadmm")}, run_dir=tmp_path / "all", **options | {"faults": None}
        )
