"""One function for each picture.

`runs` is a run (what `fa.simulate` returns), a mapping of labels to runs, or a mapping of labels to lists of runs, one
per seed. Over several seeds, the mean is drawn, with a band of one standard deviation on either side. Rounds that were
not evaluated are left out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core import checks
from ...core.columns import AGAINST, LOSSES
from ...results import curves
from ...results.curves import Runs
from ...results.history import RunRecord
from . import figures
from .figures import Panel


def plot_column(
    runs: Runs,
    column: str,
    *,
    against: str = "rounds",
    scale: str = "auto",
    axes: Any = None,
    label: str | None = None,
) -> Any:
    """Plots a column of the history; returns matplotlib's axes.

    Args:
        runs: A run, label -> run, or label -> list of runs, one per seed; for several seeds their mean is drawn, with
            a band of one standard deviation.
        column: The column's name.
        against: What the horizontal axis shows: "rounds", or the totals so far of "gradients" (per example, over all
            clients, including those of the criterion), "floats" (sent) or "time" (simulated seconds, for runs with a
            client time).
        scale: The scale of the vertical axis: "linear", "log", or "auto", which is logarithmic for losses and
            penalties that span more than a factor of ten.
        axes: The axes to draw in, in addition to what they show already; by default those of a new figure.
        label: The name of a single run.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> run = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), progress=False, **example.run_settings)
    >>> plot_column(run, "gradient_samples").get_ylabel()
    'per-example gradients per round'
    """
    named = curves.named_runs(runs if label is None else {label: runs})
    return figures.plot(named, curves.column(column), against=against, scale=scale, axes=axes)


def plot_loss(
    runs: Runs, *, column: str = "loss", against: str = "rounds", scale: str = "auto", axes: Any = None
) -> Any:
    """Plots the global loss; returns matplotlib's axes.

    Args:
        column: "loss", or "excess_loss", the loss above the optimum, if that is known.

    The other arguments are `plot_column`'s.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> run = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), progress=False, **example.run_settings)
    >>> plot_loss({"InSa": run}, against="floats").get_xlabel()
    'floats communicated so far'
    """
    checks.choice("column", column, LOSSES)
    return plot_column(runs, column, against=against, scale=scale, axes=axes)


def plot_metric(
    runs: Runs, name: str | None = None, *, against: str = "rounds", scale: str = "auto", axes: Any = None
) -> Any:
    """Plots a metric of the problem; returns matplotlib's axes.

    Args:
        name: Which metric; by default the first one.

    The other arguments are `plot_column`'s.

    >>> history = fa.History([{"round": 0, "accuracy": 0.1}, {"round": 1, "accuracy": 0.9}])
    >>> run = fa.RunRecord(history, cohorts=None, solves=None, num_clients=10)
    >>> plot_metric(run, "accuracy").get_ylabel()
    'accuracy on evaluation data'
    """
    named = curves.named_runs(runs)
    quantity = curves.metric(metric_name(named, name))
    return figures.plot(named, quantity, against=against, scale=scale, axes=axes)


def plot_penalty(runs: Runs, *, against: str = "rounds", scale: str = "auto", axes: Any = None) -> Any:
    """Plots the penalty: the mean over all clients, selected or not, with a band from the 10th to the 90th percentile.

    Runs without a penalty are left out. With several seeds, mean and percentiles are over the clients of all.
    Returns matplotlib's axes. The arguments are `plot_column`'s.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> run = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), progress=False, **example.run_settings)
    >>> len(plot_penalty(run).lines)
    1
    """
    return figures.plot(curves.named_runs(runs), curves.penalty(), against=against, scale=scale, axes=axes)


def plot_epochs(runs: Runs, *, against: str = "rounds", scale: str = "auto", axes: Any = None) -> Any:
    """Plots local epochs: the mean over each round's active clients; returns matplotlib's axes.

    The arguments are `plot_column`'s.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> run = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), progress=False, **example.run_settings)
    >>> bool(np.all(plot_epochs(run).lines[0].get_ydata() == run.epochs.mean(axis=1)))
    True
    """
    return plot_column(runs, "epochs_mean", against=against, scale=scale, axes=axes)


def overview(runs: Runs, *, column: str = "loss", against: str = "rounds") -> Any:
    """Plots loss, every metric, penalty and epochs in one figure, which is returned.

    The penalty is left out where no run has one. The arguments are `plot_loss`'s.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> run = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), progress=False, **example.run_settings)
    >>> [axes.get_title() for axes in overview({"InSa": run}).axes]
    ['Loss', 'Penalty', 'Local epochs']
    """
    checks.choice("against", against, tuple(AGAINST))
    checks.choice("column", column, LOSSES)
    named = curves.named_runs(runs)
    panels = [Panel("Loss", curves.column(column), named)]
    panels += [Panel(name.capitalize(), curves.metric(name), named) for name in curves.metrics(named)]
    if any(np.isfinite(record.history["penalty_mean"]).any() for records in named.values() for record in records):
        panels.append(Panel("Penalty", curves.penalty(), named))
    panels.append(Panel("Local epochs", curves.column("epochs_mean"), named))
    columns = len(panels) if len(panels) <= 3 else math.ceil(math.sqrt(len(panels)))
    styles = {label: figures.style(index) for index, label in enumerate(named)}
    return figures.figure(panels, columns, styles, against)


def heat_map(run: RunRecord, *, axes: Any = None) -> Any:
    """Plots the local epochs of every client (vertical) in every round (horizontal), white if it was not selected.

    Args:
        run: One run.
        axes: Where to draw; by default in a new figure.

    Returns:
        Matplotlib's axes.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> run = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), progress=False, **example.run_settings)
    >>> heat_map(run).images[0].get_array().shape
    (4, 5)
    """
    if not isinstance(run, RunRecord):
        raise ValueError(f"run must be one run (what fa.simulate returns), got {run!r}: draw them one by one")
    axes = figures.one_axes(axes)
    axes.grid(False)
    epochs = run.client_epochs().T
    clients, rounds = epochs.shape
    image = axes.imshow(
        epochs,
        cmap="cividis_r",  # its lightness is monotone, so that it can be read in grey and by the colour-blind
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        vmin=0,
        vmax=int(np.max(run.solves.max_epochs)),
        extent=(0.5, rounds + 0.5, -0.5, clients - 0.5),
    )
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    bar = axes.figure.colorbar(image, ax=axes, label="local epochs (white: not selected)")
    for axis in (axes.xaxis, axes.yaxis, bar.ax.yaxis):
        figures.whole_ticks(axis)
    return axes


def metric_name(named: curves.NamedRuns, name: str | None = None) -> str:
    """The metric asked for, or the first that all runs have."""
    names = curves.metrics(named)
    if not names:
        raise ValueError("runs must have a metric in common, got none: give the problem metrics and eval_data")
    return names[0] if name is None else checks.choice("name", name, names)
