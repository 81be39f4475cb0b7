"""Pictures of runs that evaluate their clients: `simulate(evaluate_clients_every=...)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...results import client_curves, curves
from ...results.client_curves import Points
from ...results.curves import PERCENTILES, Runs
from ...results.history import RunRecord
from ...results.personalized import Personalized
from . import figures

_MANY = 2000  # points, from which on each is smaller and lighter


def plot_clients(
    runs: Runs, name: str | None = None, *, against: str = "rounds", scale: str = "auto", axes: Any = None
) -> Any:
    """Plots how a loss or metric is spread over clients: the median, and bands with half and with eight tenths of the
    clients.

    With several seeds, over the clients of all of them together. Returns matplotlib's axes.

    Args:
        name: "loss", a metric, or one of them for clients' own models, such as "personal_loss"; by default the first
            metric.

    The other arguments are `plot_column`'s.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> algorithm, settings = example.algorithm("fedadmm_insa"), example.run_settings | {"progress": False}
    >>> run = fa.simulate(example.problem, algorithm, evaluate_clients_every=2, **settings)
    >>> fa.plots.plot_clients(run, "personal_loss").get_ylabel().splitlines()[0]
    'loss at own models, median of clients'
    """
    named = curves.named_runs(runs)
    first = client_curves.evaluated_clients(next(iter(named.values()))[0])
    name = client_curves.quantity_name(list(first), name)
    before, kept = (0, "") if axes is None else (len(axes.lines), axes.get_ylabel())  # what is there stays
    outer, inner = (client_curves.spread(name, edges) for edges in (PERCENTILES, client_curves.QUARTILES))
    axes = figures.plot(named, outer, against=against, scale=scale, axes=axes)
    drawn = dict(zip(outer.curves(named, against), axes.lines[before:], strict=True))
    for label, curve in inner.curves(named, against).items():
        axes.fill_between(curve.x, curve.low, curve.high, color=drawn[label].get_color(), alpha=0.2, linewidth=0)
    axes.set_ylabel(kept or f"{outer.label}\nbands: the middle 80 % and 50 %")
    return axes


def plot_personal(source: RunRecord | Personalized, name: str | None = None, *, axes: Any = None) -> Any:
    """Plots each client's own model against the server's, at the last evaluation; returns matplotlib's axes.

    Args:
        source: One run of a method that keeps clients' own models, or what `personalize` returned.
        name: "loss" or a metric; by default the first metric.
        axes: Where to draw; by default in a new figure.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> algorithm, settings = example.algorithm("fedadmm_insa"), example.run_settings | {"progress": False}
    >>> run = fa.simulate(example.problem, algorithm, evaluate_clients_every=2, **settings)
    >>> fa.plots.plot_personal(run).get_xlabel()
    "loss at the server's model"
    """
    if not isinstance(source, (RunRecord, Personalized)):
        raise ValueError(f"source must be one run, or what fa.personalize returned, got {source!r}")
    name, model, points = client_curves.own_against_server(source, name)
    axes = figures.one_axes(axes)
    ends = [np.nanmin([points.x, points.y]), np.nanmax([points.x, points.y])]
    axes.plot(ends, ends, color="0.5", linewidth=1, linestyle="--", label="as good")
    _scatter(axes, points, "clients", figures.BLUE)
    axes.set_xlabel(f"{client_curves.label_of(name)} at the server's model")
    axes.set_ylabel(f"{client_curves.label_of(name)} at the {model}")
    axes.set_title(client_curves.say_better(name, model, points), fontsize="medium")
    axes.legend(**figures.LEGEND)
    return axes


def plot_client_sizes(run: RunRecord, name: str | None = None, *, axes: Any = None) -> Any:
    """Plots each client's loss or metric against its number of rows, at the last evaluation; returns matplotlib's
    axes.

    Args:
        run: One run.
        name: "loss" or a metric, which is also drawn for clients' own models; by default the first metric.
        axes: Where to draw; by default in a new figure.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> algorithm, settings = example.algorithm("fedadmm_insa"), example.run_settings | {"progress": False}
    >>> run = fa.simulate(example.problem, algorithm, evaluate_clients_every=2, **settings)
    >>> fa.plots.plot_client_sizes(run).get_xlabel()
    'rows of the client'
    """
    sizes = client_curves.evaluated_clients(_one(run)).sizes
    axes = _over(run, sizes, name, axes)
    axes.set_xlabel("rows of the client")
    if curves.is_wide(sizes):
        axes.set_xscale("log")
        figures.log_ticks(axes.xaxis, sizes)
    return axes


def plot_client_labels(run: RunRecord, name: str | None = None, *, axes: Any = None) -> Any:
    """Plots each client's loss or metric against the share of its most frequent label, at the last evaluation.

    Clients with only one label are at the right. The data needs a field "y" with labels. Returns matplotlib's axes.

    The arguments are `plot_client_sizes`'s.

    >>> fa.plots.plot_client_labels(run).get_xlabel()  # doctest: +SKIP
    "share of the client's most frequent label"
    """
    share = client_curves.evaluated_clients(_one(run)).about.label_share()
    if share is None:
        raise ValueError("run must be on data with a field 'y' of labels, whole numbers: there is nothing to draw over")
    axes = _over(run, share, name, axes)
    axes.set_xlabel("share of the client's most frequent label")
    return axes


def _one(run: RunRecord) -> RunRecord:
    if not isinstance(run, RunRecord):
        raise ValueError(f"run must be one run (what fa.simulate returns), got {run!r}: draw them one by one")
    return run


def _over(run: RunRecord, x: np.ndarray, name: str | None, axes: Any) -> Any:
    name, kinds = client_curves.over_clients(run, x, name)
    axes = figures.one_axes(axes)
    for (label, points), color in zip(kinds.items(), (figures.BLUE, figures.VERMILION), strict=False):
        _scatter(axes, points, label, color)
    axes.set_ylabel(f"{client_curves.label_of(name)} of the client")
    if len(kinds) > 1:
        axes.legend(**figures.LEGEND | {"handlelength": 1})
    return axes


def _scatter(axes: Any, points: Points, label: str, color: str) -> None:
    many = len(points.x) > _MANY
    axes.scatter(
        points.x, points.y, s=6 if many else 14, alpha=0.25 if many else 0.55, color=color, linewidth=0, label=label,
        rasterized=many,
    )  # fmt: skip
