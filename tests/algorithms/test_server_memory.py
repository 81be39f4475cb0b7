"""What the server remembers of its clients: only those it has heard from, and messages that fade."""

from __future__ import annotations

import jax
import numpy as np
import oracle
import pytest
from federations import GAMMA, epoch_order, least_squares
from test_devices import in_a_process

import fedjax_admm as fa

SIZES = [7, 3, 12, 1, 9, 5, 4, 8]
M, ROUNDS, SEED = len(SIZES), 12, 5
WEIGHTS = np.array([1.0, 5, 2, 2, 1, 3, 1, 2])
RNG = np.random.default_rng(2)
COHORTS = np.stack([np.sort(RNG.choice(M - 1, 3, replace=False)) for _ in range(ROUNDS)])  # the last is never selected
DROPOUT = (RNG.random((ROUNDS, M)) < 0.25).astype(float)
DROPOUT[[4, 5]] = 1  # rounds without any message: the server stays as it is, but messages grow older
FAILING = 3  # whose solves are not finite
PENALTY = np.exp(RNG.uniform(np.log(0.03), np.log(3.0), M))
RATE = RNG.uniform(0.02, 0.08, M)
START = RNG.normal(size=5)
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)


def algorithm_of(heard, forgetting, mode, **options):
    local = fa.LocalSolver(learning_rate=np.where(np.arange(M) == FAILING, 1e300, RATE), batch_size=4, max_epochs=3)
    rule = fa.penalties.residual_balancing(1.5, 2.0)
    parts = dict(delta=0.02, penalty_rule=rule, unselected_penalty=mode, heard=heard, forgetting=forgetting)
    return fa.fedadmm(local, PENALTY, **parts, **options)


def simulate(algorithm, problem=None, **options):
    problem = least_squares(SIZES, weights=WEIGHTS)[0] if problem is None else problem
    given = dict(rounds=ROUNDS, participation=COHORTS, seed=SEED, initial_params=START, progress=False)
    return fa.simulate(problem, algorithm, **given | options)


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("mode", ["current", "sent"])
@pytest.mark.parametrize(
    ("heard", "forgetting"),
    [
        ("only", 1.0),
        ("all", 0.8),
        ("only", 0.8),
        ("only", 0.1),
        ("only", "auto"),
        ("all", "auto"),
        ("only", "returning"),
    ],
)
def test_same_as_sums_in_full(heard, forgetting, mode, lanes):
    """With clients that drop out, that fail, that are never selected, and rounds in which nobody comes."""
    problem, xs, ys = least_squares(SIZES, weights=WEIGHTS)
    algorithm = algorithm_of(heard, forgetting, mode)
    execution = fa.Execution(lanes=lanes)
    result = simulate(algorithm, problem, faults=fa.Faults(dropout=DROPOUT), execution=execution)
    settings = oracle.Settings(
        method="admm", learning_rate=RATE, max_epochs=np.full(M, 3), batch_size=4, gamma=GAMMA, penalty=PENALTY,
        delta=0.02, adaptive=True, mu=1.5, unselected=mode, heard=heard, forgetting=forgetting,
    )  # fmt: skip
    came = [[i for i in cohort if not DROPOUT[k, i] and i != FAILING] for k, cohort in enumerate(COHORTS)]
    assert {len(cohort) for cohort in came} >= {0, 1, 2} and {"dropped", "failed"} < set(result.solves.stop_reason.flat)
    truth = oracle.run(xs, ys, WEIGHTS / WEIGHTS.sum(), START, came, settings, epoch_order(SEED, SIZES))
    close = dict(rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(result.params, truth.server[-1], **close)
    for name, value in (("client_params", truth.clients), ("duals", truth.duals), ("penalties", truth.penalties)):
        np.testing.assert_allclose(getattr(result.state, name), value, **close)
    last = [max((k for k in range(ROUNDS) if i in came[k]), default=-1) for i in range(M)]
    np.testing.assert_array_equal(result.state.message_rounds, last)
    if isinstance(forgetting, str):
        assert len(set(truth.factors)) > 3 and min(truth.factors) < 0.9  # something was found out, and forgotten


@pytest.mark.parametrize("mode", ["current", "sent"])
@pytest.mark.parametrize("forgetting", [1.0, 0.7, "auto", "returning"])
def test_with_everybody_in_every_round_it_is_the_papers_method(forgetting, mode):
    """From the first round on: nobody's message is older than a round, and nobody's is missing."""
    problem, *_ = least_squares(SIZES)
    settings = dict(mu=1.5, delta=0.0, unselected_penalty=mode)
    paper, ours = (
        simulate(fa.fedadmm_insa(LOCAL, 0.5, **settings, **memory), problem, participation=1.0, evaluate_every=1)
        for memory in ({}, {"heard": "only", "forgetting": forgetting})
    )
    np.testing.assert_allclose(ours.history["loss"], paper.history["loss"], rtol=1e-12)
    np.testing.assert_array_equal(ours.epochs, paper.epochs)
    np.testing.assert_allclose(ours.params, paper.params, rtol=1e-11)


def test_fewer_clients_are_no_slower_with_more_that_were_never_heard():
    """Clients that are never selected hold the paper's server back, but not one that counts only those it heard."""
    few, many = (
        least_squares([5] * number, heterogeneity=0.1, seed=4)[0] for number in (4, 400)
    )  # whose first four clients are the same
    cohorts = np.tile(np.arange(4), (ROUNDS, 1))
    moved = {}
    for heard in ("all", "only"):
        algorithm = fa.fedadmm_in(LOCAL, 0.5, heard=heard)
        for problem in (few, many):
            params = simulate(algorithm, problem, participation=cohorts).params
            moved[heard, problem.data.num_clients] = np.linalg.norm(params - START)
    assert moved["all", 400] < 0.2 * moved["all", 4]
    assert moved["only", 400] > 0.5 * moved["only", 4]


def test_the_paper_keeps_nothing_more():
    """Neither rows nor numbers sent: the default is the paper's server."""
    plain, said = fa.fedadmm_insa(LOCAL, 0.5), fa.fedadmm_insa(LOCAL, 0.5, heard="all", forgetting=1)
    assert plain == said and jax.tree.structure(plain) == jax.tree.structure(said)
    problem, *_ = least_squares(SIZES)
    floats = {}
    for mode in ("current", "sent"):
        for forgetting in (1, 0.9):
            algorithm = fa.fedadmm_insa(LOCAL, 0.5, unselected_penalty=mode, forgetting=forgetting)
            result = simulate(algorithm, problem, rounds=1)
            assert ("message_rounds" in result.state.clients) == (forgetting < 1)
            floats[mode, forgetting] = result.history["communicated_floats"][-1] // 3 - 5
    assert floats == {("current", 1): 11, ("current", 0.9): 12, ("sent", 1): 6, ("sent", 0.9): 6}


@pytest.mark.parametrize(("mode", "forgetting"), [("current", 0.8), ("sent", 0.8), ("sent", "auto")])
def test_the_same_bits_wherever_rows_live_and_after_a_resume(mode, forgetting, tmp_path):
    algorithm, faults = algorithm_of("only", forgetting, mode), fa.Faults(dropout=DROPOUT)
    whole = simulate(algorithm, faults=faults)

    def crash(record):
        if record["round"] == 6:  # after the rounds without messages
            raise RuntimeError("crash")

    for population in ("host", "disk"):
        other = simulate(algorithm, faults=faults, execution=fa.Execution(population=population))
        np.testing.assert_array_equal(other.params, whole.params)
        np.testing.assert_array_equal(other.state.message_rounds, whole.state.message_rounds)
    options = dict(faults=faults, run_dir=tmp_path / "run", evaluate_every=2, checkpoint_seconds=0)
    with pytest.raises(RuntimeError, match="crash"):
        simulate(algorithm, on_round=crash, **options)
    again = simulate(algorithm, **options)
    np.testing.assert_array_equal(again.params, whole.params)


def test_runs_at_once_may_forget_differently():
    problem, *_ = least_squares(SIZES)
    factors = (0.9, 0.5)
    options = dict(rounds=6, participation=3, progress=False, initial_params=START)
    runs = [(fa.fedadmm(LOCAL, 0.5, heard="only", forgetting=factor), 0) for factor in factors]
    many = fa.simulate_many(problem, runs, **options)
    for result, (algorithm, seed) in zip(many, runs, strict=True):
        alone = fa.simulate(problem, algorithm, seed=seed, **options)
        np.testing.assert_allclose(result.params, alone.params, rtol=1e-10)
    assert not np.allclose(many[0].params, many[1].params)


def test_devices_agree():
    in_a_process("""
        from test_server_memory import *
        for forgetting in (0.8, "auto"):
            algorithm, faults = algorithm_of("only", forgetting, "current"), fa.Faults(dropout=DROPOUT)
            whole = simulate(algorithm, faults=faults)
            for mesh, placement in ((2, "home"), (2, "dealt")):
                other = simulate(algorithm, faults=faults, execution=fa.Execution(mesh=mesh, placement=placement))
                np.testing.assert_allclose(other.params, whole.params, rtol=1e-9)
    """)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heard": "some"}, "heard must be 'all' or 'only', got 'some'"),
        (
            {"forgetting": "automatic"},
            "forgetting must be 'auto' or 'returning', got 'automatic': did you mean 'auto'?",
        ),
        ({"forgetting": 0}, "forgetting must be above 0, got 0"),
        ({"forgetting": 1.5}, "forgetting must be at most 1, got 1.5"),
        ({"forgetting": [0.5, 0.6]}, r"forgetting must be a number, got an array of shape \(2,\)"),
    ],
)
def test_what_is_no_memory(options, message):
    for make in (fa.fedadmm, fa.fedadmm_in, fa.fedadmm_insa):
        with pytest.raises(ValueError, match=message):
            make(LOCAL, 1.0, **options)
