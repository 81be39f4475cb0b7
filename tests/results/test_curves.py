"""Curves of runs, from which plots, reports and notebooks draw: against plain NumPy."""

from __future__ import annotations

import re

import numpy as np
from test_report import Document, make_record, page

from fedjax_admm.core.notebook import html
from fedjax_admm.results import curves

SEVEN_DIGITS = 1e-6


def test_points_are_means_of_the_same_seeds():
    """A round that one seed did not evaluate has no point, and the curve ends with the shortest seed."""
    every, second = make_record(rounds=8, seed=0), make_record(rounds=6, seed=1, evaluate_every=2)
    second.history["loss"][:] *= 1.5
    every.history["loss"][4] = np.inf  # as a metric may be
    curve = curves.column("loss").curve([every, second], "gradients")
    assert curve.x.size == curve.y.size == 7
    assert np.isfinite(curve.y).tolist() == [True, False, True, False, False, False, True]
    known = curve.measured()
    losses = np.stack([run.history["loss"][[0, 2, 6]] for run in (every, second)])
    np.testing.assert_allclose(known.y, losses.mean(0))
    np.testing.assert_allclose(known.high - known.low, 2 * losses.std(0, ddof=1))
    spent = np.stack([np.cumsum(run.history["gradient_samples"])[[0, 2, 6]] for run in (every, second)])
    np.testing.assert_allclose(known.x, spent.mean(0))


def test_plots_reports_and_notebooks_draw_the_same_numbers():
    run = make_record(rounds=30, seed=3)
    (series,) = Document(page("title", {"a": [run]})).data["series"]
    line = run.plot("excess_loss").lines[0]
    np.testing.assert_allclose(series["y"]["excess_loss"]["mean"], line.get_ydata(), rtol=SEVEN_DIGITS)
    (points,) = re.findall(r'<polyline points="([^"]*)"', html(run))
    height = np.array([float(pair.split(",")[1]) for pair in points.split()])
    expected = np.log10(line.get_ydata())  # it spans more than a decade; upside down, in pixels
    np.testing.assert_allclose(
        (height - height[0]) / np.ptp(height), (expected[0] - expected) / np.ptp(expected), atol=1e-3
    )
