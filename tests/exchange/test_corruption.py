"""Clients that send rubbish: what is received of it, clipped and kept out, and what the server goes on from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import least_squares
from test_engine import ALGORITHMS, LOCAL, bounded
from test_faults import INSA, run

import fedjax_admm as fa
from fedjax_admm.exchange.faults import clip

SENT = {
    "scale": lambda z, u: z + 7 * (u - z),
    "sign_flip": lambda z, u: z - 7 * (u - z),
    "constant": lambda z, u: np.full_like(u, 7.0),
}


@pytest.mark.parametrize(("corruption", "clip_norm"), [("scale", None), ("sign_flip", None), ("constant", 0.3)])
def test_what_corrupted_clients_send_is_what_everyone_goes_on_from(corruption, clip_norm):
    """One round of FedADMM by hand: received and clipped parameters, duals and server follow from them."""
    problem, *_ = least_squares([6, 11, 3])
    algorithm, start = fa.fedadmm(LOCAL, penalty=0.7), np.full(5, 0.2)
    u = np.asarray(run(problem, algorithm, 1, participation=1.0, initial_params=start).state.client_params)
    faults = fa.Faults(corruption=corruption, corrupted=[1], strength=7, clip_norm=clip_norm)
    result = run(problem, algorithm, 1, participation=1.0, initial_params=start, faults=faults)
    expected = np.stack([u[0], SENT[corruption](start, u[1]), u[2]])
    if clip_norm is not None:
        gaps = np.linalg.norm(expected - start, axis=1)
        assert gaps.min() < clip_norm < gaps.max()
        expected = start + (expected - start) * np.minimum(1, clip_norm / gaps)[:, None]
    np.testing.assert_allclose(result.state.client_params, expected, rtol=1e-12)
    np.testing.assert_allclose(result.state.duals, -0.7 * (expected - start), rtol=1e-12)
    np.testing.assert_allclose(result.solves.consensus_gap[0], np.linalg.norm(expected - start, axis=1), rtol=1e-12)
    alpha = np.array([6, 11, 3]) / 20
    np.testing.assert_allclose(result.params, alpha @ (expected - np.asarray(result.state.duals) / 0.7), rtol=1e-12)
    assert result.solves.stop_reason[0].tolist() == ["maximum", "corrupted", "maximum"]
    assert result.history["corrupted_clients"].tolist() == [0, 1]


def test_noise_is_that_of_the_client_and_the_round():
    problem, *_ = least_squares([6, 6, 6, 6], dimension=500)

    def noise(strength):
        faults = fa.Faults(corruption="noise", corrupted=[0, 1], strength=strength)
        sim = fa.Simulation(problem, fa.fedavg(LOCAL, average="all"), faults=faults)
        return np.asarray(sim.round(sim.init())[0].client_params)

    difference = noise(0.5) - noise(0.0)
    assert not difference[2:].any()
    np.testing.assert_allclose(difference[:2].std(axis=1), 0.5, rtol=0.15)
    assert abs(np.corrcoef(difference[0], difference[1])[0, 1]) < 0.2


RUBBISH = (np.nan, 1e38, -float(np.finfo(np.float32).max), 1e4)


@pytest.mark.parametrize("algorithm", [pytest.param(a, id=n) for n, a in ALGORITHMS.items() if n not in bounded])
def test_the_server_stays_bounded_whatever_clients_send(algorithm):
    """Half of the clients send rubbish, in single precision; without quarantine it is clipped in every round."""
    problem, *_ = least_squares([6, 11, 3, 8], dtype=np.float32, heterogeneity=0.1)
    options = dict(participation=1.0, evaluate_every=50, initial_params=np.zeros(5, np.float32))
    for strength in RUBBISH:
        faults = fa.Faults(
            corruption="constant", corrupted=[0, 2], strength=strength, clip_norm=1.0, quarantine_after=2
        )
        result = run(problem, algorithm, 100, faults=faults, **options)
        assert set(result.solves.stop_reason[:2, [0, 2]].ravel()) == {"rejected"}
        assert set(result.solves.stop_reason[2:, [0, 2]].ravel()) == {"quarantined"}
        assert np.abs(result.params).max() < 2 and result.history["loss"][-1] < result.history["loss"][0]
    faults = fa.Faults(corruption="constant", corrupted=[0, 2], strength=1e38, clip_norm=0.01)
    result = run(problem, algorithm, 50, faults=faults, **options)
    assert (result.solves.stop_reason[:, [0, 2]] == "corrupted").all()
    if getattr(algorithm, "relaxation", None) is None:  # else the gap is to another center than z
        np.testing.assert_allclose(result.solves.consensus_gap[:, [0, 2]], 0.01, rtol=1e-3)
    kept = [np.asarray(leaf) for leaf in jax.tree.leaves((result.state.clients, result.params))]
    assert max(np.abs(leaf).max() for leaf in kept if leaf.dtype.kind == "f") < 10  # rounds are counted beyond that


@pytest.mark.filterwarnings("ignore:.*penalties are at their bound")  # what is sent in their stead balances nothing
@pytest.mark.parametrize("name", ["fedavg", "fedadmm", "fedadmm_insa", "scaffold", "feddyn"])
def test_in_a_long_run_clients_lead_the_server_no_further_than_the_clip_allows(name):
    """Two thirds of the weight pull to one place, round after round, within the clip or not grossly beyond it."""
    problem, *_ = least_squares([6, 11, 3, 8], dtype=np.float32, heterogeneity=0.1)
    options = dict(participation=1.0, evaluate_every=200, initial_params=np.zeros(5, np.float32))
    algorithm = getattr(fa, name)(LOCAL, **({"penalty": 1.0} if "adm" in name or name == "feddyn" else {}))
    rounds, used = 200, 0
    for strength in (0.2, -1.0, 3.0):
        faults = fa.Faults(
            corruption="constant", corrupted=[1, 3], strength=strength, clip_norm=1.0, quarantine_after=3
        )
        result = run(problem, algorithm, rounds, faults=faults, **options)
        used += np.count_nonzero(result.solves.stop_reason == "corrupted")
        bound = rounds if name in ("fedavg", "scaffold") else rounds * (rounds + 3) / 2
        assert np.linalg.norm(result.params) <= bound
        kept = jax.tree.leaves(result.state.clients)
        assert all(np.isfinite(leaf).all() for leaf in kept) and np.isfinite(result.history["loss"][-1])
    assert used > 20  # it was not quarantine alone


def test_clipping_of_numbers_whose_squares_overflow():
    rng = np.random.default_rng(0)
    for size in (1e-30, 1.0, 1e30, 1e38):
        update = {"a": (size * rng.uniform(-1, 1, (4, 3))).astype(np.float32), "b": np.float32(size)}
        flat = np.concatenate([update["a"].ravel(), update["b"].ravel()]).astype(np.float64)
        for most in (0.5, 1e30):
            got, longer, _ = clip(jax.tree.map(jnp.asarray, update), jnp.float32(most))
            norm = np.linalg.norm(flat)
            expected = flat * min(1.0, most / norm)
            np.testing.assert_allclose(np.concatenate([np.ravel(got["a"]), np.ravel(got["b"])]), expected, rtol=1e-5)
            assert bool(longer) == (norm > most)
    nothing, longer, gross = clip({"a": jnp.zeros(3, jnp.float32)}, jnp.float32(1e-30))
    assert not (longer | gross) and not np.any(nothing["a"])


@pytest.mark.parametrize(("times", "kept"), [(0.95, 0.95), (1.05, 1.0), (9.5, 1.0), (10.5, None)])
def test_an_update_is_clipped_above_the_norm_and_kept_out_above_ten_times_of_it(times, kept):
    problem, *_ = least_squares([6, 11], dimension=4)
    faults = fa.Faults(
        corruption="constant", corrupted=[0], strength=times * 0.3 / 2, clip_norm=0.3, quarantine_after=5
    )  # the norm of four equal numbers is twice one of them
    result = run(problem, fa.fedavg(LOCAL), 1, participation=1.0, initial_params=np.zeros(4), faults=faults)
    assert result.solves.stop_reason[0, 0] == ("rejected" if kept is None else "corrupted")
    if kept is not None:
        np.testing.assert_allclose(result.solves.consensus_gap[0, 0], kept * 0.3, rtol=1e-12)


def slope(w, batch):
    """A loss that stays finite at any finite parameters."""
    return 1e-8 * (batch["x"] @ w)


def test_finite_parameters_whose_update_overflows_are_kept_out():
    """The largest number and a start far below zero: what was sent is finite, its distance from there is not."""
    problem, *_ = least_squares([6, 11], dtype=np.float32)
    problem = fa.Problem(problem.init, slope, problem.data)
    start, largest = np.full(5, -1e33, np.float32), float(np.finfo(np.float32).max)
    faults = fa.Faults(corruption="constant", corrupted=[0], strength=largest)
    result = run(problem, fa.fedavg(LOCAL), 1, participation=1.0, initial_params=start, faults=faults)
    assert result.solves.stop_reason[0].tolist() == ["rejected", "maximum"]
    np.testing.assert_allclose(result.params, start, rtol=1e-6)


def test_a_clipped_update_does_not_raise_the_penalty_for_ever():
    problem, *_ = least_squares([6, 11, 3], dtype=np.float32)
    faults = fa.Faults(corruption="constant", corrupted=[0], strength=100.0, clip_norm=0.5)
    result = run(
        problem, INSA, 100, participation=1.0, faults=faults, evaluate_every=50, initial_params=np.zeros(5, np.float32)
    )
    assert (result.solves.stop_reason[:, 0] == "corrupted").all()
    assert np.unique(result.solves.new_penalty[:, 0]).size == 1 and np.unique(result.solves.new_penalty[:, 1]).size > 1
