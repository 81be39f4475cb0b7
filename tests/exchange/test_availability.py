"""Availability: who is drawn, and rounds of different sizes against plain loops, wherever the rows are."""

from __future__ import annotations

import jax
import numpy as np
import oracle
import pytest
from compilations import compilations
from federations import GAMMA, epoch_order, least_squares
from test_devices import in_a_process
from test_oracle import CASES, EPOCHS, PENALTY, RATE, ROUNDS, SIZES, TOLERANCE, algorithm_of
from test_runs import Crash, crash_in

import fedjax_admm as fa
from fedjax_admm.exchange.availability import Moment
from fedjax_admm.exchange.cohorts import Cohorts
from fedjax_admm.results.remarks import note
from fedjax_admm.show.report import page
from fedjax_admm.storage import checkpoints

M = len(SIZES)
# In round 2 nobody; the last client, whose number an empty place must not be taken for, in some rounds alone.
GIVEN = [[0, 3, 5], [1], [], [5, 2, 4, 0], [3, 1], [5]]
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=4)
INSA = fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5)
TIME = fa.ClientTime([20.0, 10.0, 40.0, 15.0, 30.0, 25.0])


def run(algorithm=INSA, rounds=ROUNDS, problem=None, **options):
    problem = problem or least_squares(SIZES)[0]
    return fa.simulate(problem, algorithm, rounds, **dict(progress=False, participation=GIVEN) | options)


def assert_identical(one, other):
    for a, b in zip(*(jax.tree.leaves((each.params, each.solves)) for each in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(one.cohorts, other.cohorts)
    for name in one.state.clients:
        for a, b in zip(*(jax.tree.leaves(each.state.clients[name]) for each in (one, other)), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    for name in set(one.history) - {"seconds", "eval_seconds", "lane_efficiency", "device_efficiency"}:
        np.testing.assert_array_equal(one.history[name], other.history[name])


REPLAYS = {
    "array": lambda cohorts: cohorts,
    "list with empty places": lambda cohorts: cohorts.tolist(),
    "list": lambda cohorts: [ids[ids >= 0].tolist() for ids in cohorts],
    "list of arrays": lambda cohorts: [ids[ids >= 0] for ids in cohorts],
    "function": lambda cohorts: fa.availability.chosen_by(lambda k, key: cohorts[k], cohort=cohorts.shape[1]),
    "function of lists": lambda cohorts: lambda k, key: cohorts[k][cohorts[k] >= 0].tolist(),
}


@pytest.mark.parametrize("population", ["device", "host"])
@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("probability", [0.0, 0.15])
def test_a_runs_cohorts_are_replayed_also_where_rounds_have_no_clients(replay, probability, population):
    """At first nobody, or in all rounds; a function has nothing to say of the round after the last."""
    rule = fa.availability.probability([0.0] * (M - 3) + [probability] * 3, cohort=3)
    options = {"rounds": 9, "execution": fa.Execution(population=population, lanes=2), "seed": 2}
    first = run(participation=rule, **options)
    assert (first.cohorts == -1).all(axis=1).any()
    again = run(participation=REPLAYS[replay](first.cohorts), **options)
    same_places = first.cohorts.shape == again.cohorts.shape  # else sums are rounded in another order
    assert same_places == (replay in ("array", "list with empty places", "function"))
    pairs = [(first.params, again.params)]
    pairs += [(first.state.clients[name], again.state.clients[name]) for name in first.state.clients]
    for pair in pairs:
        one, other = map(np.asarray, pair)
        np.testing.assert_allclose(one, other, rtol=0 if same_places else 1e-12, atol=0 if same_places else 1e-15)
    if same_places:
        np.testing.assert_array_equal(first.cohorts, again.cohorts)


@pytest.mark.parametrize("population", ["device", "host", "disk"])
@pytest.mark.parametrize("case", ["fedavg_all", "insa_current", "insa_sent"])
def test_rounds_of_different_sizes_are_the_paper(case, population):
    """In double precision against the plain loop; a round without any client changes nothing."""
    problem, xs, ys = least_squares(SIZES)
    settings = oracle.Settings(
        learning_rate=RATE, max_epochs=EPOCHS, batch_size=4, gamma=GAMMA, penalty=PENALTY, **CASES[case]
    )
    start = np.random.default_rng(3).normal(size=5)
    result = run(
        algorithm_of(settings), problem=problem, seed=5, initial_params=start, evaluate_every=2,
        execution=fa.Execution(lanes=3, population=population),
    )  # fmt: skip
    truth = oracle.run(xs, ys, np.array(SIZES) / sum(SIZES), start, GIVEN, settings, epoch_order(5, SIZES))
    np.testing.assert_allclose(result.params, truth.server[-1], rtol=TOLERANCE, atol=TOLERANCE)
    for name, value in (("client_params", truth.clients), ("duals", truth.duals), ("penalties", truth.penalties)):
        if name in result.state.clients:
            kept = np.asarray(getattr(result.state, name))
            np.testing.assert_allclose(kept, value, rtol=TOLERANCE, atol=TOLERANCE)
    taken = np.array([[place < len(ids) for place in range(4)] for ids in GIVEN])
    for mine, theirs in ((result.epochs, truth.epochs), (result.solves.gradient_samples, truth.samples)):
        np.testing.assert_array_equal(mine[taken], np.concatenate(theirs))
        assert not mine[~taken].any()
    np.testing.assert_array_equal(result.cohorts[taken], np.concatenate(GIVEN))
    assert (result.cohorts[~taken] == -1).all()
    np.testing.assert_array_equal(result.solves.stop_reason == "nobody", ~taken)
    last = np.array(EPOCHS)
    for ids, epochs in zip(GIVEN, result.epochs, strict=True):
        last[np.array(ids, int)] = np.maximum(epochs[: len(ids)], 1)
    np.testing.assert_array_equal(result.state.last_epochs, last)
    number = [0, *map(len, GIVEN)]
    for name in ("clients_available", "clients_selected"):
        np.testing.assert_array_equal(result.history[name], number)
    told = fa.estimate(problem, algorithm_of(settings))
    np.testing.assert_array_equal(
        result.history["communicated_floats"], np.array(number) * (told.floats_down + told.floats_up)
    )
    assert np.isnan(result.history["epochs_mean"][3])
    assert np.isfinite(result.client_epochs()).sum() == result.selected().sum() == sum(number)
    if "penalties" in result.state.clients:
        np.testing.assert_allclose(result.client_penalties()[-1], truth.penalties, rtol=TOLERANCE)
    assert result.epoch_reduction == 1 - result.epochs.sum() / result.solves.max_epochs[taken].sum()


def test_a_round_of_nobody_leaves_everything_as_it_was():
    sim = fa.Simulation(least_squares(SIZES)[0], INSA, participation=[[0, 4, 2], [], [1]])
    state, _ = sim.round(sim.init())
    before = jax.tree.map(np.asarray, state)
    state, solves = sim.round(state)
    after = jax.tree.map(np.asarray, state)
    assert int(after.round) == int(before.round) + 1 == 2
    for name in ("params", "server", "clients", "last_epochs", "penalty_mean"):
        for a, b in zip(*(jax.tree.leaves(getattr(each, name)) for each in (before, after)), strict=True):
            np.testing.assert_array_equal(a, b)
    assert solves.stop_reason.tolist() == ["nobody"] * 3 and not solves.took_place.any()


def test_nothing_is_compiled_again_for_another_size():
    options = dict(problem=least_squares(SIZES)[0], evaluate_every=2)
    for population, program in (("device", "device_rounds"), ("host", "_work_off_block")):
        with compilations() as names:
            run(execution=fa.Execution(lanes=3, population=population), **options)
        assert sum(program in name for name in names) == 1, names


@pytest.mark.parametrize("placement", ["home", "dealt"])
def test_same_results_wherever_clients_are_solved(placement):
    in_a_process(f"""
        import fedjax_admm.engine.placement as placements
        placements.BLOCK_BYTES = 600  # a few clients at a time
        problem, *_ = least_squares([6, 11, 3, 8, 5, 9, 4, 7])
        given = [[0, 3, 7], [1], [], [7, 2, 4, 0, 5, 6], [3, 1], [7], [6, 5, 4, 3, 2, 1]]
        def run(**execution):
            return fa.simulate(problem, INSA, 7, participation=given, progress=False, execution=fa.Execution(**execution))
        one = run(mesh=1)
        for many in (run(mesh=4, placement={placement!r}), run(mesh=2, population="host", lanes=1)):
            np.testing.assert_allclose(one.params, np.asarray(many.params), rtol=1e-9)
            np.testing.assert_array_equal(one.epochs, many.epochs)
            np.testing.assert_array_equal(one.solves.stop_code, many.solves.stop_code)
            np.testing.assert_array_equal(np.isnan(one.solves.penalty), np.isnan(many.solves.penalty))
            for field in one.state.clients:
                np.testing.assert_allclose(one.state.clients[field], np.asarray(many.state.clients[field]), rtol=1e-9, atol=1e-12)
    """)


def test_runs_at_once_are_those_one_by_one():
    problem = least_squares(SIZES)[0]
    part, local = fa.availability.probability(0.3, cohort=3), fa.LocalSolver(learning_rate=0.05, max_epochs=3)
    pairs = [(fa.fedadmm_insa(local, penalty=penalty), seed) for penalty, seed in ((0.1, 4), (1.0, 5))]
    many = fa.simulate_many(problem, pairs, 5, participation=part, progress=False)
    for together, (algorithm, seed) in zip(many, pairs, strict=True):
        alone = run(algorithm, 5, problem=problem, seed=seed, participation=part)
        np.testing.assert_array_equal(together.cohorts, alone.cohorts)
        np.testing.assert_array_equal(together.solves.stop_code, alone.solves.stop_code)
        np.testing.assert_allclose(together.params, alone.params, rtol=1e-9)
        np.testing.assert_allclose(together.state.duals, alone.state.duals, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(together.history["clients_available"], alone.history["clients_available"])


def test_who_is_always_available_is_drawn_as_ever():
    assert_identical(
        run(participation=0.5, evaluate_every=3),
        run(participation=fa.availability.always(cohort=0.5), evaluate_every=3),
    )
    for part in (fa.availability.always(), fa.availability.periodic(3, on=3), fa.availability.probability(1)):
        assert Cohorts(part, 6, seed=0)[4].tolist() == list(range(6))


def test_clients_are_available_with_their_probability():
    probability = np.linspace(0, 1, 400)
    cohorts = Cohorts(fa.availability.probability(probability), 400, seed=3)
    table = np.array([np.isin(np.arange(400), cohorts[round]) for round in range(200)])
    assert not table[:, 0].any() and table[:, -1].all()
    np.testing.assert_allclose(table.mean(axis=0), probability, atol=5 * np.sqrt(0.25 / 200))  # over the rounds
    np.testing.assert_allclose(table.mean(axis=1), 0.5, atol=5 * np.sqrt(1 / 6 / 400))  # over the clients
    assert len(np.unique(table, axis=0)) == 200
    other = Cohorts(fa.availability.probability(probability), 400, seed=4)
    assert not np.array_equal(other[0], cohorts[0])


def test_a_cohort_is_drawn_uniformly_among_those_available():
    """Of clients 2 to 6 three in each round, or as many as there are; every triple as often as any other."""
    part = fa.availability.chosen_by(lambda round, key: np.arange(2, 7) if round % 10 else [4], cohort=3)
    cohorts = Cohorts(part, 8, seed=0)
    drawn = np.array([cohorts[round] for round in range(3000) if round % 10])
    assert cohorts[10].tolist() == [4, -1, -1] and cohorts.select(11).available == 5
    triples, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(triples) == 10 and (np.diff(triples, axis=1) > 0).all() and set(np.unique(triples)) == set(range(2, 7))
    np.testing.assert_allclose(counts / len(drawn), 0.1, atol=5 * np.sqrt(0.09 / len(drawn)))


def test_clients_take_turns():
    def loop(period, on, offset, rounds=9):
        return [[i for i in range(6) if (k - offset[i]) % period[i] < on[i]] for k in range(rounds)]

    period, on, offset = [4, 3, 5, 2, 1, 4], [1, 2, 2, 1, 1, 3], [0, 2, 7, 1, 0, 3]
    for arguments, expected in (
        ((3, 1), loop([3] * 6, [1] * 6, [0, 0, 1, 1, 2, 2])),
        ((period, on, offset), loop(period, on, offset)),
    ):
        cohorts = Cohorts(fa.availability.periodic(*arguments), 6, seed=0)
        assert [[int(i) for i in cohorts[k] if i >= 0] for k in range(9)] == expected


# Client 5 has two times; from 5.5 to 6, and from 9 on, nobody is there.
TIMES = [[(0, 2)], [(1, 3.5)], [(2, 5)], [], [(6, 9)], [(0.5, 1), (3, 5.5)]]


@pytest.mark.parametrize("period", [None, 10.0])
def test_a_trace_follows_the_simulated_clock(period):
    """Against a plain loop: who is there at the round's start, what the round takes, or how long the server waits."""
    trace = fa.availability.trace(TIMES, period=period)
    result = run(rounds=24, participation=trace, client_time=TIME)
    clock, waits = 0.0, 0
    for k in range(24):
        now = clock if period is None else clock % period
        there = [i for i, pairs in enumerate(TIMES) if any(on <= now < off for on, off in pairs)]
        taken = len(there)
        assert result.cohorts[k].tolist() == there + [-1] * (6 - taken), (k, clock)
        assert result.history["clients_available"][k + 1] == taken
        if there:
            seconds = max(
                float(samples) / TIME.gradients_per_second[i]
                for i, samples in zip(there, result.solves.gradient_samples[k], strict=False)
            )
        else:
            starts = [on for pairs in TIMES for on, _ in pairs]
            later = [on - now for on in starts if on > now] or ([] if period is None else [period - now])
            seconds, waits = min(later, default=0.0), waits + 1
        np.testing.assert_allclose(result.history["simulated_seconds"][k + 1], seconds, rtol=1e-12)
        clock += result.history["simulated_seconds"][k + 1]
    assert waits > 0 and (clock > 12 if period else clock > 9)


def test_the_clock_goes_on_though_rounding_is_against_it():
    part = fa.availability.trace([[(0.1, 0.2)]], period=0.3)
    clock = 0.0
    for _ in range(10_000):
        here = len(part.available(Moment(0, clock, 1, 0)))
        step = 0.1 if here else part.wait(clock)
        assert clock + step > clock
        clock += step
    assert clock > 1000


@pytest.mark.parametrize("kind", ["trace", "function", "given"])
def test_a_run_goes_on_to_the_bit(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)
    part = {
        "trace": fa.availability.trace(TIMES, period=10.0, cohort=2),
        "function": named_by_key,
        "given": GIVEN + [[1, 2]] * 4,
    }[kind]
    options = dict(rounds=10, participation=part, client_time=TIME, evaluate_every=2, checkpoint_seconds=0)
    whole = run(**options)
    assert (whole.cohorts < 0).any()
    with pytest.raises(Crash):
        run(run_dir=tmp_path, on_round=crash_in(7), **options)  # not where the trace's period ends
    assert_identical(run(run_dir=tmp_path, **options), whole)
    assert_identical(run(run_dir=tmp_path, **options), whole)  # finished, it is read
    read = fa.read_run(tmp_path)
    np.testing.assert_array_equal(read.cohorts, whole.cohorts)
    if kind == "trace":
        other = dict(options, participation=fa.availability.trace(TIMES, cohort=2))
        with pytest.raises(ValueError, match=r"participation.period: 10.0 there, None now"):
            run(run_dir=tmp_path, **other)
    if kind == "function":
        monkeypatch.setitem(globals(), "TAKES_THE_OTHERS", [True])
        with pytest.raises(ValueError, match="participation names other clients in round 0"):
            run(run_dir=tmp_path, **options)


TAKES_THE_OTHERS = []


def named_by_key(round, key):
    return jax.random.bernoulli(key, 0.4, (M,)) ^ bool(TAKES_THE_OTHERS)


def test_a_run_is_made_again_from_its_directory(tmp_path):
    """Parts are found by name, and numbers per client and times come back as they were."""
    example = fa.examples.linear_regression(num_clients=6, rows_per_client=10, dimension=5, rounds=6)
    parts = (
        fa.availability.probability(np.linspace(0.1, 0.9, 6), cohort=3),
        fa.availability.trace([*TIMES[:5], [(0, float("inf"))]]),
        fa.availability.periodic(3, on=[1, 1, 1, 2, 2, 2]),
        GIVEN,
    )
    for number, part in enumerate(parts):
        settings = example.run_settings | {"participation": part, "client_time": TIME, "progress": False}
        with pytest.raises(Crash):
            place = tmp_path / str(number)
            fa.simulate(example.problem, example.algorithm("fedavg"), run_dir=place, on_round=crash_in(3), **settings)
        whole = fa.simulate(example.problem, example.algorithm("fedavg"), **settings)
        assert_identical(fa.resume(place, progress=False), whole)


def test_what_a_reader_is_told(tmp_path):
    result = run(run_dir=tmp_path)
    text = page("A run", {"insa": [result]}, table=fa.Comparison({"insa": {0: result}}, {"insa": {}}, "insa").table())
    assert "0 to 4 of 6 clients selected in each" in text and "nobody" not in text.split("<body")[1].split("<style")[0]
    assert 'class="away"' not in text
    assert "clients available" in text.lower()
    assert note(result) is None
    nobody = run(participation=[[0], [], []] * 2, faults=fa.Faults(dropout=1.0))
    told = "no client's solve was ever used (2 dropped, 4 nobody), so nothing was learned: make clients available"
    assert note(nobody) == told


BAD = {
    "probability must be at most 1, got 1.2": lambda: fa.availability.probability(1.2),
    "probability has 2 entries for 6 clients": lambda: run(participation=fa.availability.probability([0.1, 0.2])),
    "cohort as a number of clients must be 1 to 6, got 7": lambda: run(participation=fa.availability.always(7)),
    "cohort as a fraction must be at most 1, got 1.5": lambda: run(participation=fa.availability.periodic(2, 1, cohort=1.5)),
    "on must be at most the period, 2, got 3": lambda: fa.availability.periodic(2, on=3),
    "period must be at least 1, got 0": lambda: fa.availability.periodic(0, on=1),
    "offset has 3 entries for 6 clients": lambda: run(participation=fa.availability.periodic(2, 1, offset=[0, 1, 1])),
    r"intervals\[1\] must have 0 <= on < off, got \(5, 5\)": lambda: fa.availability.trace([[(0, 1)], [(5, 5)]]),
    r"intervals\[0\] must be pairs \(on, off\) of seconds, got \(0, 1\)": lambda: fa.availability.trace([(0, 1)]),
    "intervals must have a time for one client at least": lambda: fa.availability.trace([[], []]),
    "intervals must end within the period, 10, got 11": lambda: fa.availability.trace([[(0, 11)]], period=10),
    "intervals has 1 entries for 6 clients": lambda: run(participation=fa.availability.trace([[(0, 1)]]), client_time=TIME),
    r"needs simulated seconds: give client_time=fa.ClientTime": lambda: run(participation=fa.availability.trace(TIMES)),
    "cohort must be given where participation is a trace": lambda: step(fa.availability.trace(TIMES)),
    r"participation\(round=0, key\) names client 6, but the clients are 0 to 5": lambda: run(participation=lambda round, key: [6]),
    r"participation\(round=0, key\) names client 1 twice": lambda: run(participation=lambda round, key: [1, 1]),
    r"participation\(round=0, key\) must be client numbers": lambda: run(participation=lambda round, key: [0.5]),
    r"participation\(round=0, key\) must be client numbers, integers \[cohort\], got None": lambda: run(participation=lambda round, key: None),
    r"participation must be a function, \(round, key\) -> clients, got one of \(round\)": lambda: run(participation=lambda round: [0]),
    r"participation must be a function, \(round, key\) -> clients": lambda: fa.availability.chosen_by(3),
    "participation gives the cohorts of 2 rounds, but rounds is 6": lambda: run(participation=[[0, 1], [2]]),
    r"participation\[1\] names client 9": lambda: run(participation=[[0, 1], [9]]),
}  # fmt: skip


def step(participation):
    sim = fa.Simulation(least_squares(SIZES)[0], INSA, participation=participation)
    return sim.round(sim.init())


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_told_in_one_line(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
