"""To where the server's memory leads when a round sees few of the clients: strongly convex losses, in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from federations import GAMMA, least_squares, optimum

import fedjax_admm as fa

M, COHORT, ROUNDS = 12, 3, 2000
FACTORS = (0.99, 0.9, 0.5, 0.1, 1e-6)
LOCAL = fa.LocalSolver(learning_rate=0.1, max_epochs=10)  # full gradients: the solves are not exact
PROBLEM, XS, YS = least_squares([6] * M, dimension=4, heterogeneity=0.5)
BEST = optimum(XS, YS, np.full(M, 1 / M))
OPTIONS = dict(rounds=ROUNDS, participation=COHORT, evaluate_every=10, progress=False)


def loss_at(w):
    return np.mean([0.5 * np.mean((x @ w - y) ** 2) for x, y in zip(XS, YS, strict=True)]) + GAMMA / 2 * w @ w


def distance(result):
    """The root mean square distance of z to the optimum in the second half of the rounds.

    In the norm of the losses' curvature, in which half its square is the loss above the optimum.
    """
    return np.sqrt(2 * np.nanmean(result.history["loss"][len(result.history["loss"]) // 2 :] - loss_at(BEST)))


@pytest.mark.parametrize("forgetting", [1.0, "auto", "returning"])
def test_where_nothing_is_forgotten_in_the_end_the_optimum_is_reached(forgetting):
    result = fa.simulate(PROBLEM, fa.fedadmm(LOCAL, 2.0, heard="only", forgetting=forgetting), **OPTIONS)
    assert np.linalg.norm(result.params - BEST) < 1e-12 < 1e-3 * np.linalg.norm(BEST)


def test_how_far_from_the_optimum_forgetting_leads():
    """A mean with weights g^age over randomly selected clients differs from the mean over all of them, and so does z.

    With p the cohort's share of the clients, its variance is that of a cohort's mean times (1 - g)^2 / (1 - (1 - p) g^2).
    """
    runs = [(fa.fedadmm(LOCAL, 2.0, heard="only", forgetting=factor), 0) for factor in FACTORS]
    found = [distance(result) for result in fa.simulate_many(PROBLEM, runs, **OPTIONS)]
    g = np.array(FACTORS)
    expected = (1 - g) / np.sqrt(1 - (1 - COHORT / M) * g**2)
    np.testing.assert_allclose(found / found[-1], expected, rtol=0.2)
    assert found[-1] > 0.3  # the cohort's average alone
