"""Every algorithm and option against the plain NumPy loop, in double precision."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from federations import GAMMA, epoch_order, least_squares

import fedjax_admm as fa

SIZES = [7, 3, 12, 1, 9, 5]
ROUNDS = 6
TOLERANCE = 1e-9
RNG = np.random.default_rng(1)
M = len(SIZES)
COHORTS = np.stack([np.sort(RNG.choice(M, 4, replace=False)) for _ in range(ROUNDS)])
PENALTY = np.exp(RNG.uniform(np.log(0.03), np.log(3.0), M))
C = RNG.uniform(0.05, 0.2, M)
RATE = RNG.uniform(0.02, 0.08, M)
EPOCHS = RNG.integers(2, 9, M)

RELATIVE = dict(criterion="relative", c=C, delta=0.02)
CASES = {
    "fedavg_selected": dict(method="fedavg_selected"),
    "fedavg_all": dict(method="fedavg_all"),
    "fedprox": dict(method="fedprox"),
    "fedprox_gamma_inexact": dict(method="fedprox", criterion="relative", sigma=0.4),
    "fedavg_all_client_reference": dict(method="fedavg_all", criterion="relative", sigma=0.7, reference="client"),
    "admm": dict(method="admm"),
    "admm_memory": dict(method="admm", delta=0.3),
    "admm_constant": dict(method="admm", criterion="constant", eps=0.5),
    "admm_decaying": dict(method="admm", criterion="decaying", eps=2.0, factor=0.7),
    "in_server": dict(method="admm", **RELATIVE),
    "in_client": dict(method="admm", reference="client", **RELATIVE),
    "in_floor": dict(method="admm", floor=0.6, sigma_factor=0.5, **RELATIVE),
    "insa_current": dict(method="admm", adaptive=True, mu=1.5, **RELATIVE),
    "insa_sent": dict(method="admm", adaptive=True, mu=1.5, unselected="sent", **RELATIVE),
    "insa_client_no_memory": dict(method="admm", adaptive=True, mu=1.2, tau=1.5, reference="client", criterion="relative", c=C),
    "in_epoch_mean": dict(method="admm", residual="epoch_mean", **RELATIVE),
    "in_verified": dict(method="admm", residual="verified", **RELATIVE),
    "insa_verified_client": dict(method="admm", adaptive=True, residual="verified", reference="client", **RELATIVE),
    "admm_constant_epoch_mean": dict(method="admm", criterion="constant", eps=0.5, residual="epoch_mean"),
    "admm_squared": dict(method="admm", criterion="squared", eps=np.linspace(1, 9, M), factor=np.linspace(0.4, 0.9, M)),
    "fedprox_summable": dict(method="fedprox", criterion="summable", eps=np.linspace(1, 4, M), power=np.linspace(1.1, 2, M)),
    "admm_noise": dict(method="admm", criterion="noise", residual="epoch_mean", factor=np.linspace(0.2, 2, M)),
    "fedprox_noise_exact": dict(method="fedprox", criterion="noise", residual="exact", factor=0.5),
    "fedavg_selected_noise_verified": dict(method="fedavg_selected", criterion="noise", residual="verified", factor=1.5),
    "insa_until": dict(method="admm", adaptive=True, mu=1.5, until=np.array([1, 2, 3, 1, 2, 3]), **RELATIVE),
    "relative": dict(method="admm", adaptive=True, rule="relative", mu=1.5, **RELATIVE),
    "relative_until_sent": dict(method="admm", adaptive=True, rule="relative", mu=1.2, until=2, unselected="sent"),
    "spectral": dict(method="admm", adaptive=True, rule="spectral"),
    "spectral_inexact_sent": dict(method="admm", adaptive=True, rule="spectral", slack=2.0, unselected="sent", **RELATIVE),
    "spectral_until": dict(method="admm", adaptive=True, rule="spectral", correlation=0.4, until=4),
    "insa_noise": dict(method="admm", criterion="noise", residual="epoch_mean", factor=0.5, adaptive=True, mu=1.5),
}  # fmt: skip


def criterion_of(s: oracle.Settings):
    if s.criterion == "constant":
        return fa.criteria.constant_tolerance(s.eps, residual=s.residual)
    if s.criterion == "decaying":
        return fa.criteria.decaying_tolerance(s.eps, s.factor, residual=s.residual)
    if s.criterion == "squared":
        return fa.criteria.decaying_squared_tolerance(s.eps, s.factor, residual=s.residual)
    if s.criterion == "summable":
        return fa.criteria.summable_tolerance(s.eps, s.power, residual=s.residual)
    if s.criterion == "noise":
        return fa.criteria.sampling_noise(s.factor, residual=s.residual)
    if s.criterion == "relative":
        c = None if s.sigma else s.c
        return fa.criteria.relative_residual(
            c=c, sigma=s.sigma, reference=s.reference, residual=s.residual, sigma_factor=s.sigma_factor, floor=s.floor
        )
    return fa.criteria.run_to_maximum()


def rule_of(s: oracle.Settings):
    if s.rule == "spectral":
        return fa.penalties.spectral(correlation=s.correlation, slack=s.slack, until=s.until)
    if s.rule == "relative":
        return fa.penalties.relative_balancing(s.mu, s.tau, until=s.until)
    return fa.penalties.residual_balancing(s.mu, s.tau, until=s.until)


def algorithm_of(s: oracle.Settings):
    """The same settings, through the public constructors."""
    local = fa.LocalSolver(learning_rate=s.learning_rate, batch_size=s.batch_size, max_epochs=s.max_epochs)
    criterion = criterion_of(s)
    if s.method == "fedprox":
        return fa.fedprox(local, penalty=s.penalty, criterion=criterion)
    if s.method.startswith("fedavg"):
        return fa.fedavg(local, average=s.method.removeprefix("fedavg_"), criterion=criterion)
    if s.adaptive and (s.criterion != "relative" or s.rule != "balancing" or s.until is not None):
        parts = dict(criterion=criterion, penalty_rule=rule_of(s), unselected_penalty=s.unselected)
        return fa.fedadmm(local, penalty=s.penalty, delta=s.delta, **parts)
    options = dict(c=s.c, reference=s.reference, residual=s.residual, sigma_factor=s.sigma_factor, delta=s.delta)
    if s.adaptive:
        return fa.fedadmm_insa(local, penalty=s.penalty, mu=s.mu, tau=s.tau, unselected_penalty=s.unselected, **options)
    if s.criterion == "relative" and not s.floor:
        return fa.fedadmm_in(local, penalty=s.penalty, **options)
    return fa.fedadmm(local, penalty=s.penalty, delta=s.delta, criterion=criterion)


def compare(case: str, batch_size: int | None, lanes: int, weights=None) -> tuple[fa.Result, oracle.Trajectory]:
    problem, xs, ys = least_squares(SIZES, weights=weights)
    settings = oracle.Settings(
        learning_rate=RATE, max_epochs=EPOCHS, batch_size=batch_size, gamma=GAMMA, penalty=PENALTY, **CASES[case]
    )
    start = np.random.default_rng(3).normal(size=5)
    result = fa.simulate(
        problem,
        algorithm_of(settings),
        rounds=ROUNDS,
        participation=COHORTS,
        seed=5,
        initial_params=start,
        execution=fa.Execution(lanes=lanes),
        progress=False,
    )
    alpha = np.array(SIZES) / sum(SIZES) if weights is None else weights / np.sum(weights)
    truth = oracle.run(xs, ys, alpha, start, COHORTS, settings, epoch_order(5, SIZES))
    return result, truth


def assert_same(result: fa.Result, truth: oracle.Trajectory, keeps: set[str]) -> None:
    np.testing.assert_allclose(result.params, truth.server[-1], rtol=TOLERANCE, atol=TOLERANCE)
    np.testing.assert_array_equal(result.epochs, truth.epochs)
    np.testing.assert_array_equal(result.solves.gradient_samples, truth.samples)
    np.testing.assert_array_equal(result.solves.criterion_samples, truth.criterion_samples)
    np.testing.assert_array_equal(result.solves.stop_reason, truth.reasons)
    for name, value in (("client_params", truth.clients), ("duals", truth.duals), ("penalties", truth.penalties)):
        assert hasattr(result.state, name) == (name in keeps), name
        if name in keeps:
            np.testing.assert_allclose(getattr(result.state, name), value, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("case", CASES)
def test_same_as_the_paper(case, batch_size):
    result, truth = compare(case, batch_size, lanes=3)
    keeps = {"client_params", "duals", "penalties"} if CASES[case]["method"] == "admm" else set()
    if CASES[case]["method"] == "fedavg_all":
        keeps = {"client_params"}
    assert_same(result, truth, keeps)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize(
    "case", ["fedavg_selected", "insa_sent", "insa_client_no_memory", "admm_noise", "fedprox_noise_exact"]
)
def test_any_number_of_lanes(case, batch_size, lanes):
    result, truth = compare(case, batch_size, lanes)
    keeps = {"client_params", "duals", "penalties"} if CASES[case]["method"] == "admm" else set()
    assert_same(result, truth, keeps)


def test_weights_of_clients():
    result, truth = compare("insa_current", 4, lanes=2, weights=np.array([1.0, 5, 2, 2, 1, 3]))
    assert_same(result, truth, {"client_params", "duals", "penalties"})


def test_the_cases_exercise_what_they_name():
    """Otherwise the comparisons above would be easier than they look."""
    result, _ = compare("in_client", None, lanes=3)
    assert (result.epochs == 0).any(), "no zero-epoch solve"
    result, _ = compare("in_floor", 4, lanes=3)
    assert set(result.solves.stop_reason.ravel()) == {"criterion", "maximum", "floor"}
    result, _ = compare("insa_current", 4, lanes=3)
    growth = np.asarray(result.state.penalties) / PENALTY
    assert (growth > 1).any() and (growth < 1).any(), "penalties did not move both ways"
    for case in ("relative", "relative_until_sent", "spectral", "spectral_inexact_sent", "spectral_until"):
        solves = compare(case, 4, lanes=3)[0].solves
        growth = solves.new_penalty / solves.penalty
        assert (growth > 1).any() and (growth < 1).any() and (growth == 1).any(), case
    result, _ = compare("in_verified", 4, lanes=3)
    epochs_run_to_measure = np.asarray(result.solves.criterion_samples) // np.array(SIZES)[COHORTS]
    assert (epochs_run_to_measure > 1).any(), "nothing was verified"
    for case in (
        "admm_squared",
        "fedprox_summable",
        "admm_noise",
        "fedprox_noise_exact",
        "fedavg_selected_noise_verified",
    ):
        result, _ = compare(case, 4, lanes=3)
        assert set(result.solves.stop_reason.ravel()) == {"criterion", "maximum"}, case
        assert len(set(result.epochs[result.solves.stop_reason == "criterion"])) > 1, case
