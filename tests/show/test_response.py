"""The picture of a tuning: settings that were drawn, in words, dropped or diverged."""

import numpy as np
import pytest

import fedjax_admm as fa
from fedjax_admm.results.tuning import Objective


def tuning(settings, scores, rungs=(4,), direction="minimize"):
    """One without runs; the scores are [settings, rungs] of one seed."""
    scores = np.asarray(scores, float).reshape(len(settings), 1, len(rungs))
    labels = [str(k) for k in range(len(settings))]
    return fa.Tuning(settings, labels, [0], Objective("loss", direction), rungs, scores, runs={})


def drawn(number):
    rng = np.random.default_rng(0)
    return [{"rate": float(rate), "penalty": float(10**beta)} for rate, beta in rng.uniform(-2, 2, (number, 2))]


def test_drawn_settings_are_points_with_their_scores():
    settings, scores = drawn(12), np.arange(12.0)
    scores[3] = np.inf
    axes = tuning(settings, scores).plot("rate", "penalty")
    [points] = axes.collections
    np.testing.assert_allclose(points.get_array(), np.delete(scores, 3))
    np.testing.assert_allclose(points.get_offsets()[:, 0], np.delete([each["rate"] for each in settings], 3))
    [cross] = [line for line in axes.lines if len(line.get_xdata())]
    assert (cross.get_xdata(), cross.get_ydata()) == ([settings[3]["rate"]], [settings[3]["penalty"]])
    assert axes.get_yscale() == "log" and axes.get_xscale() == "linear"
    assert axes.figure.axes[1].get_ylabel() == "loss"


def test_without_a_finite_score_nothing_has_a_colour():
    axes = tuning(drawn(12), np.full(12, np.inf)).plot("rate", "penalty")
    assert not axes.collections and len(axes.figure.axes) == 1


def test_what_was_dropped_is_smaller():
    scores = np.array([[1.0, 0.5], [2.0, np.nan], [3.0, np.nan], [1.5, 0.7]])
    [points] = tuning(drawn(4), scores, rungs=(2, 4)).plot("rate", "penalty").collections
    sizes = points.get_sizes()
    assert sizes[0] == sizes[3] > sizes[1] == sizes[2]


def test_words_are_in_the_order_of_the_settings():
    settings = [{"rule": rule, "rate": rate} for rule in ("spectral", "constant") for rate in (0.1, 0.2)]
    axes = tuning(settings, [1.0, 2.0, np.inf, 4.0]).plot("rule", "rate")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["spectral", "constant"]
    assert sorted(text.get_text() for text in axes.texts) == ["1", "2", "4", "\N{MULTIPLICATION SIGN}"]
    axes = tuning([{"rule": "spectral"}, {"rule": "constant"}], [1.0, 2.0]).plot()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["spectral", "constant"]


def test_one_number_marks_what_is_far_worse_or_diverged():
    settings = [{"rate": rate} for rate in (0.1, 0.2, 0.3, 0.4, 0.5)]
    axes = tuning(settings, [1.0, 1.1, 1.2, 100.0, np.inf]).plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["far worse", "diverged"]
    assert axes.get_ylim()[1] < 2
    axes = tuning(settings, np.full(5, np.inf)).plot()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["diverged"]


def test_there_must_be_a_score():
    with pytest.raises(ValueError, match="tuning must have one setting with a score at least, got none"):
        tuning(drawn(2), np.full(2, np.nan)).plot()
