"""Pictures and the report's part of runs that evaluate clients, against the run's own numbers."""

from __future__ import annotations

import html
import re

import matplotlib
import numpy as np
import pytest
from test_report import Document

import fedjax_admm as fa
from fedjax_admm.results.comparison import key_figures
from fedjax_admm.show.report import clients, page

matplotlib.use("agg")
LOCAL = fa.LocalSolver(learning_rate=0.1, batch_size=5, max_epochs=2)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 4)).astype("f"), np.repeat(np.arange(3), 30)
    parts = [np.arange(start, end) for start, end in ((0, 8), (8, 33), (33, 55), (55, 62), (62, 90))]
    x[np.arange(90), y] += 1.5
    data = fa.FederatedData.from_arrays({"x": x, "y": y}, parts)
    model = fa.models.logistic((4,), classes=3)
    return fa.Problem(**fa.problems.classification(model), data=data, eval_data={"x": x, "y": y})


@pytest.fixture(scope="module")
def run(problem):
    return simulate(problem, fa.fedadmm_insa(LOCAL, penalty=0.1))


def simulate(problem, algorithm):
    return fa.simulate(problem, algorithm, 5, participation=2, evaluate_clients_every=2, progress=False)


def test_bands_are_percentiles_of_clients(run):
    axes = fa.plots.plot_clients(run, "personal_loss")
    values = run.client_metrics["personal_loss"]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 2, 4, 5])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.median(values, axis=1))
    for band, (low, high) in zip(axes.collections, ((10, 90), (25, 75)), strict=True):
        corners = band.get_paths()[0].vertices
        for k, round in enumerate([0, 2, 4, 5]):
            heights = corners[corners[:, 0] == round, 1]
            edges = np.percentile(values[k], [low, high])
            np.testing.assert_allclose([heights.min(), heights.max()], edges, rtol=1e-6)
    fa.plots.plot_clients(run, "loss", axes=axes)
    assert len(axes.lines) == 2 and axes.get_ylabel().startswith("loss at own models")


def test_points_are_clients(run, problem):
    metrics = run.client_metrics
    own, server = metrics["personal_accuracy"][-1], metrics["accuracy"][-1]
    axes = fa.plots.plot_personal(run)
    np.testing.assert_allclose(axes.collections[0].get_offsets(), np.stack([server, own], axis=1))
    assert axes.get_title().startswith(f"own model better for {np.mean(own > server):.0%}")
    assert (f"as good for {np.mean(own == server):.0%}" in axes.get_title()) == (own == server).any()
    assert axes.get_title().endswith(" of 5 clients")
    for draw, x in ((fa.plots.plot_client_sizes, [8, 25, 22, 7, 28]), (fa.plots.plot_client_labels, None)):
        axes = draw(run, "loss")
        labels = np.repeat(np.arange(3), 30)
        parts = ((0, 8), (8, 33), (33, 55), (55, 62), (62, 90))
        expected = [np.bincount(labels[a:b]).max() / (b - a) for a, b in parts] if x is None else x
        for points, name in zip(axes.collections, ("loss", "personal_loss"), strict=True):
            np.testing.assert_allclose(points.get_offsets(), np.stack([expected, metrics[name][-1]], axis=1))
    tuned = fa.personalize(run, problem, LOCAL, epochs=1)
    offsets = fa.plots.plot_personal(tuned, "loss").collections[0].get_offsets()
    np.testing.assert_allclose(offsets, np.stack([tuned.before["loss"], tuned.after["loss"]], axis=1))


def test_what_cannot_be_drawn_is_said(run, problem):
    plain = fa.simulate(problem, fa.fedprox(LOCAL, 0.1), 1, participation=2, progress=False)
    with pytest.raises(ValueError, match="evaluate_clients_every"):
        fa.plots.plot_clients(plain)
    with pytest.raises(ValueError, match="keeps clients' own models"):
        fa.plots.plot_personal(simulate(problem, fa.fedprox(LOCAL, 0.1)))
    with pytest.raises(ValueError, match="name must be one of loss, accuracy"):
        fa.plots.plot_clients(run, "speed")
    assert 'aria-labelledby="clients" hidden' in page("title", {"a": [plain]}, table=key_figures(plain))


def test_the_report_has_the_worst_clients(run):
    text = html.unescape(page("title", {"a": [run]}, table=key_figures(run)))
    (table,) = clients.worst_tables({"a": [run]}).values()
    assert table.header[:3] == ("client", "accuracy", "accuracy at own models")
    assert table.header[-5:] == ("rows", "labels", "selected", "penalty", "solves stopped by")
    order = [int(row[0]) for row in table.rows]
    accuracy = run.client_metrics["accuracy"][-1]
    assert sorted(order) == [0, 1, 2, 3, 4] and (np.diff(accuracy[order]) >= 0).all()
    for row in table.rows:
        mine = run.cohorts == int(row[0])
        assert int(row[-3]) == mine.sum()
        counts = dict(re.findall(r"(\w+) (\d+)", row[-1]))
        assert sum(map(int, counts.values())) == mine.sum()
        known = run.solves.new_penalty[mine]
        assert row[-2] == (f"{known[-1]:.4g}" if known.size else "-")
        assert "".join(f"<td>{cell}</td>" for cell in row[1:]) in text
    by_client = {int(row[0]): row[-4] for row in table.rows}
    assert by_client[0] == "0: 100%" and by_client[1] == "0: 88%, 1: 12%"
    assert text.count('<figure class="scatter">') == 3
    assert '"accuracy_mean"' in text and '"personal_accuracy_mean"' in text


def test_the_bands_of_the_report_are_deciles(run):
    (series,) = Document(page("title", {"a": [run]}, table=key_figures(run))).data["series"]
    drawn, history = series["y"]["personal_loss_mean"], run.history
    rounds = np.searchsorted(series["x"]["round"], [0, 2, 4, 5])
    for part, column in (("mean", "mean"), ("low", "best_decile"), ("high", "worst_decile")):
        values = np.array([drawn[part][k] for k in rounds])
        np.testing.assert_allclose(values, history[f"personal_loss_{column}"][[0, 2, 4, 5]], rtol=1e-6)
