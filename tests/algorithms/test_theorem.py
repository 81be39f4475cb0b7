"""Theorem 3.3: convergence of FedADMM-In with full participation, exact gradients and criterion (3.7).

Convergence alone is weak evidence (a sigma far outside its bound converges too), so each round is also held
against Lemma 1 of the appendix, which for an unconstrained z holds with equality:

    (w+ - w*)' F(w+) = (u+ - u*)' I_alpha e(u+) + 1/2 (|v - v*|_H^2 - |v+ - v*|_H^2 - |v - v+|_H^2).
"""

from __future__ import annotations

import dataclasses

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from federations import GAMMA, least_squares, make_problem, optimum
from hypothesis import given, settings

import fedjax_admm as fa
from fedjax_admm.core.sums import RunningSum

SIZES = [6, 9, 4, 12]


def gradient(x, y, w):
    return x.T @ (x @ w - y) / len(x) + GAMMA * w


def setup(delta, sigma_factor=0.999, seed=0):
    """A federation that meets the theorem's conditions: c_i the true modulus, a step below 2 / (s_i + beta_i)."""
    problem, xs, ys = least_squares(SIZES, seed=seed)
    spectra = [np.linalg.eigvalsh(x.T @ x / len(x)) + GAMMA for x in xs]
    penalty = np.array([0.5, 1.0, 2.0, 0.7])
    local = fa.LocalSolver(learning_rate=[1 / (s[-1] + b) for s, b in zip(spectra, penalty, strict=True)],
                           max_epochs=10_000)  # fmt: skip
    algorithm = fa.fedadmm_in(
        local, penalty=penalty, c=[s[0] for s in spectra], delta=delta, reference="client", sigma_factor=sigma_factor
    )
    return problem, algorithm, xs, ys, penalty


def snapshot(state):
    return np.asarray(state.client_params), np.asarray(state.duals), np.asarray(state.params)


def lemma_gap(before, after, exact, xs, ys, alpha, beta, delta):
    """How far a round is from the lemma's equality, relative to its largest term."""
    (_, lam0, z0), (u, lam, z), (u_star, lam_star, z_star) = before, after, exact

    def h_norm(lam, z):
        cross = 2 * np.einsum("i,ij,j->", alpha, lam, z)
        return np.sum(alpha / beta * np.sum(lam**2, 1)) + cross + (1 + delta) * np.sum(alpha * beta) * z @ z

    e = np.array(
        [gradient(x, y, u[i]) - lam0[i] + beta[i] * (u[i] - z0) for i, (x, y) in enumerate(zip(xs, ys, strict=True))]
    )
    grad = np.array([gradient(x, y, u[i]) for i, (x, y) in enumerate(zip(xs, ys, strict=True))])
    left = np.einsum("i,ij,ij->", alpha, u - u_star, grad - lam) + np.einsum("i,ij,ij->", alpha, lam - lam_star, u - z)
    left += (z - z_star) @ np.einsum("i,ij->j", alpha, lam)
    terms = [
        np.einsum("i,ij,ij->", alpha, u - u_star, e),
        0.5 * h_norm(lam0 - lam_star, z0 - z_star),
        -0.5 * h_norm(lam - lam_star, z - z_star),
        -0.5 * h_norm(lam0 - lam, z0 - z),
    ]
    return abs(left - sum(terms)) / max(abs(left), *map(abs, terms))


def wrong_dual(kind, before, state, alpha, beta, delta):
    """The state that a wrong dual update would have left, with the server's sum consistent with it."""
    _, lam0, z0 = before
    u, _, z = snapshot(state)
    if kind == "sign":
        lam = lam0 + beta[:, None] * (u - z0)
        z_hat = np.einsum("i,ij->j", alpha, beta[:, None] * u - lam) / np.sum(alpha * beta)
        z = (z_hat + delta * z0) / (1 + delta)
    else:  # the new z instead of the one that the client had
        lam = lam0 - beta[:, None] * (u - z)
    total = RunningSum.of(jnp.asarray(np.einsum("i,ij->j", alpha, beta[:, None] * u - lam)))
    return dataclasses.replace(
        state,
        params=jnp.asarray(z),
        clients=state.clients | {"duals": jnp.asarray(lam)},
        server=dataclasses.replace(state.server, total=total),
    )


def run(delta, rounds, mutation=None):
    """The final state, its distance to the exact solution, and the largest deviation from the lemma."""
    problem, algorithm, xs, ys, beta = setup(delta)
    alpha = np.array(SIZES) / sum(SIZES)
    z_star = optimum(xs, ys, alpha)
    exact = (np.tile(z_star, (4, 1)), np.array([gradient(x, y, z_star) for x, y in zip(xs, ys, strict=True)]), z_star)
    sim = fa.Simulation(problem, algorithm, participation=1.0)
    state, gaps = sim.init(), []
    for _ in range(rounds):
        before = snapshot(state)
        state, info = sim.round(state)
        if mutation:
            state = wrong_dual(mutation, before, state, alpha, beta, delta)
        elif not np.all(info.stop_reason == "criterion"):
            pytest.fail(f"a solve did not end by the criterion: {info.stop_reason}")
        if np.linalg.norm(before[2] - z_star) > 1e-4:  # afterwards the terms are rounding
            gaps.append(lemma_gap(before, snapshot(state), exact, xs, ys, alpha, beta, delta))
        if np.max(info.reference_residual) < 1e-10:  # near rounding no relative criterion can be met
            break
    distance = max(np.abs(a - b).max() for a, b in zip(snapshot(state), exact, strict=True))
    return distance, max(gaps), np.asarray(info.reference_residual)


@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_converges_to_the_exact_solution(delta):
    distance, gap, residuals = run(delta, rounds=400)
    assert distance < 1e-9  # z, every u_i and every lambda_i
    assert residuals.max() < 1e-8
    assert gap < 1e-9


@pytest.mark.parametrize("mutation", ["sign", "new z"])
def test_a_wrong_dual_update_is_noticed(mutation):
    _, gap, _ = run(0.3, rounds=8, mutation=mutation)
    assert gap > 1e-3


@given(
    seed=st.integers(0, 10_000),
    clients=st.sampled_from([1, 3]),
    beta=st.floats(0.05, 20.0),
    factor=st.floats(0.05, 0.999),
    batch_size=st.sampled_from([None, 3]),
)
@settings(max_examples=25, deadline=None)
def test_criterion_holds_where_it_stopped_the_solve(seed, clients, beta, factor, batch_size):
    """(3.7), computed here from the parameters alone, for every solve whose reason is the criterion."""
    rng = np.random.default_rng(seed)
    # Clients of one size, so that all federations with as many clients share compiled code.
    xs = [rng.normal(size=(5, 3)) for _ in range(clients)]
    ys = [rng.normal(size=5) for _ in range(clients)]
    c = 0.1
    local = fa.LocalSolver(learning_rate=0.05, batch_size=batch_size, max_epochs=12)
    algorithm = fa.fedadmm_in(local, penalty=beta, c=c, reference="client", sigma_factor=factor)
    sim = fa.Simulation(make_problem(xs, ys), algorithm, participation=1.0, seed=seed)
    state = sim.init()
    sigma = factor * np.sqrt(2 * c) / (np.sqrt(2 * c) + np.sqrt(beta))
    for _ in range(4):
        u0, lam, z = snapshot(state)
        state, info = sim.round(state)
        u = np.asarray(state.client_params)
        np.testing.assert_allclose(info.sigma, sigma, rtol=1e-12)
        for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
            left, right = (np.linalg.norm(gradient(x, y, w) - lam[i] + beta * (w - z)) for w in (u[i], u0[i]))
            if info.stop_reason[i] == "criterion":
                assert left <= sigma * right * (1 + 1e-9)
                np.testing.assert_allclose(
                    [info.final_residual[i], info.reference_residual[i]], [left, right], rtol=1e-9
                )
            else:
                assert info.stop_reason[i] == "maximum" and info.epochs[i] == 12
                assert np.isnan(info.final_residual[i])
