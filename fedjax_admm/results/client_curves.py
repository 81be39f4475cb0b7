"""Distributions over clients as curves and points: the numbers behind pictures of runs that evaluate their clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.client_statistics import PERSONAL, column_names
from ..core.columns import look_up
from . import curves
from .client_metrics import ClientMetrics
from .curves import Curve, Quantity
from .history import RunRecord
from .personalized import Personalized

QUARTILES = (25, 75)


@dataclass(frozen=True)
class Points:
    """A value of each client, and where it is drawn."""

    clients: np.ndarray  # [points]
    x: np.ndarray  # [points]
    y: np.ndarray  # [points]


def evaluated_clients(run: RunRecord) -> ClientMetrics:
    """A run's values of clients.

    Args:
        run: The run.

    Raises:
        ValueError: It did not evaluate its clients.
    """
    metrics = run.client_metrics
    if metrics is None or not len(metrics.rounds):
        raise ValueError("run must have evaluated its clients: simulate with evaluate_clients_every=")
    return metrics


def quantity_name(names: Sequence[str], name: str | None) -> str:
    """The quantity asked for, or the first metric, or the loss.

    >>> quantity_name(["loss", "accuracy", "personal_loss"], None)
    'accuracy'
    """
    if name is None:
        metrics = [each for each in names if each != "loss" and not each.startswith(PERSONAL)]
        return metrics[0] if metrics else "loss"
    if name not in names:
        raise ValueError(f"name must be one of {', '.join(names)}, got {name!r}")
    return name


def spread(name: str, percentiles: tuple[float, float]) -> Quantity:
    """The median over clients, with a band between two percentiles of them; over the clients of all seeds together."""

    def curve(records: Sequence[RunRecord], against: str) -> Curve:
        every = [evaluated_clients(record) for record in records]
        rounds = np.asarray(every[0].rounds)
        rounds = rounds[rounds < curves.num_rows(records)]
        if name not in every[0]:
            return Curve(np.empty(0), np.empty(0))
        values = np.concatenate([metrics[name][: len(rounds)] for metrics in every], axis=1)
        low, middle, high = np.nanpercentile(values, [percentiles[0], 50, percentiles[1]], axis=1)
        return Curve(curves.horizontal(records, against)[rounds], middle, low, high)

    band = f"{percentiles[0]}th to {percentiles[1]}th percentile"
    return Quantity(curve, f"{label_of(name)}, median of clients", band, may_be_log=look_up(name).less_is_better)


def deciles(name: str) -> Quantity:
    """The mean over clients, in a band from their worst to their best decile, as the history has them."""
    mean, _, worst, best, _ = column_names([name])

    def curve(records: Sequence[RunRecord], against: str) -> Curve:
        rows = curves.num_rows(records)
        y, one, other = (
            np.mean([np.asarray(record.history[column], float)[:rows] for record in records], axis=0)
            for column in (mean, worst, best)
        )
        return Curve(curves.horizontal(records, against), y, np.minimum(one, other), np.maximum(one, other))

    return Quantity(curve, f"{label_of(name)} of clients", "worst to best decile of clients", may_be_log=True)


def label_of(name: str) -> str:
    """A quantity in words.

    >>> label_of("personal_accuracy"), label_of("loss")
    ('accuracy at own models', 'loss')
    """
    words = name.removeprefix(PERSONAL).replace("_", " ")
    return f"{words} at own models" if name.startswith(PERSONAL) else words


def own_against_server(source: RunRecord | Personalized, name: str | None = None) -> tuple[str, str, Points]:
    """Each client's value at its own model over that at the server's.

    Args:
        source: A run, at its last evaluation of clients, or what `personalize` returned.
        name: The loss or a metric; by default the first metric, or the loss.

    Returns:
        The quantity, what the own model is, and the points.

    Raises:
        ValueError: The run's method keeps no own models.
    """
    if isinstance(source, Personalized):
        name = quantity_name(list(source.before), name)
        return name, "fine-tuned model", Points(source.clients, source.before[name], source.after[name])
    metrics = evaluated_clients(source)
    name = quantity_name([each for each in metrics if not each.startswith(PERSONAL)], name)
    if f"{PERSONAL}{name}" not in metrics:
        raise ValueError(
            "run must be of a method that keeps clients' own models, such as FedADMM: draw what fa.personalize returns"
        )
    return name, "own model", Points(metrics.clients, metrics[name][-1], metrics[f"{PERSONAL}{name}"][-1])


def say_better(name: str, model: str, points: Points) -> str:
    """For how many clients the own model is better, and as good, in words.

    Args:
        name: The loss or metric.
        model: What the own model is.
        points: Each client's value at it, over that at the server's.

    >>> three = Points(np.arange(4), np.array([0.5, 0.5, 0.5, np.nan]), np.array([0.9, 0.5, 0.4, np.nan]))
    >>> say_better("accuracy", "own model", three)
    'own model better for 33%, as good for 33% of 3 clients'
    """
    exist = np.isfinite(points.x) & np.isfinite(points.y)  # a client without rows has no values
    x, y = points.x[exist], points.y[exist]
    better = y < x if look_up(name).less_is_better else y > x
    equal = f", as good for {np.mean(x == y):.0%}" if (x == y).any() else ""
    return f"{model} better for {np.mean(better):.0%}{equal} of {len(x):,} clients"


def over_clients(run: RunRecord, x: np.ndarray, name: str | None) -> tuple[str, dict[str, Points]]:
    """Each client's last value over something that it holds.

    Args:
        run: The run.
        x: What it holds [clients].
        name: The loss or a metric; by default the first metric, or the loss.

    Returns:
        The quantity, and model -> points: the server's, and where there are such the clients' own.
    """
    metrics = evaluated_clients(run)
    name = quantity_name([each for each in metrics if not each.startswith(PERSONAL)], name)
    kinds = {"server's model": name, "own models": f"{PERSONAL}{name}"}
    return name, {
        label: Points(metrics.clients, x, metrics[each][-1]) for label, each in kinds.items() if each in metrics
    }
