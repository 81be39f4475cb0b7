"""The numbers that a page's curves are drawn from: one list per abscissa and per curve, thinned if they are many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...core.client_statistics import split_name
from ...core.columns import AGAINST, COLUMNS, look_up
from ...results import client_curves, curves
from ...results.curves import Curve, NamedRuns
from ...results.history import RunRecord

LINEAR_PENALTIES = 50  # largest over smallest; beyond, a linear scale would show the largest alone
# A few hundred points fill a curve's width on a screen; the bound on all of them keeps the page below 2 MB.
MOST_POINTS, LEAST_POINTS, MOST_POINTS_IN_ALL = 1000, 50, 24_000


def chart_data(runs: NamedRuns) -> tuple[dict[str, Any], list[str]]:
    """What page.js draws, and what has to be said about it."""
    columns = dict.fromkeys(name for records in runs.values() for name in records[0].history)
    spreads = [name for name in columns if (parts := split_name(name)) and name not in COLUMNS and parts[1] == "mean"]
    shown = sorted(filter(lambda name: look_up(name).chart, columns), key=lambda name: look_up(name).chart) + spreads
    most = int(np.clip(MOST_POINTS_IN_ALL // (len(runs) * len(shown)), LEAST_POINTS, MOST_POINTS))
    everywhere = {name for name in columns if all(name in r.history for records in runs.values() for r in records)}
    against = {word: each for word, each in AGAINST.items() if each.name in everywhere}
    series = [_series(label, records, against, shown, most) for label, records in runs.items()]
    drawn = [name for name in shown if any(name in one["y"] for one in series)]
    charts = [_chart(name, [one["y"][name]["mean"] for one in series if name in one["y"]]) for name in drawn]
    remarks = []
    if any(len(records) > 1 for records in runs.values()):
        remarks.append("Lines are means over the seeds and bands one standard deviation to either side.")
    if "penalty_mean" in drawn:
        remarks.append("The penalty's band goes from the 10th to the 90th percentile of the clients.")
    if any(name in drawn for name in spreads):
        remarks.append("Lines over clients are their means, and bands go from their worst to their best decile.")
    if any(len({len(record.history["round"]) for record in records}) > 1 for records in runs.values()):
        remarks.append("Seeds of one label have different numbers of rounds: its curves end with the shortest.")
    longest = max(len(record.history["round"]) for records in runs.values() for record in records)
    if any(len(one["x"]["round"]) < one["rows"] for one in series):
        remarks.append(f"Thinned: curves have up to {longest:,} rounds, of which at most {most:,} are drawn.")
    abscissas = {each.name: each.total for each in against.values()}
    return {"abscissas": abscissas, "charts": charts, "series": series}, remarks


def _chart(column: str, lines: Iterable[list]) -> dict[str, Any]:
    """A chart's title, what its band is, and whether it starts with a log scale."""
    label = look_up(column).label
    title = label[:1].upper() + label[1:] if column in COLUMNS else label  # a metric keeps its user's spelling
    band, log = "deviation", look_up(column).scale == "log"
    if column == "penalty_mean":
        positive = np.array([value for line in lines for value in line if value])
        band, log = "clients", curves.is_wide(positive, LINEAR_PENALTIES)
    elif (parts := split_name(column)) is not None and column not in COLUMNS:
        title = client_curves.label_of(parts[0]) + ", over clients"
        title, band, log = title[:1].upper() + title[1:], "clients", False
    return {"column": column, "title": title, "log": log, "band": band}


def _series(
    label: str, records: Sequence[RunRecord], abscissas: Iterable[str], columns: Iterable[str], most: int
) -> dict[str, Any]:
    """One label's numbers: a list per abscissa, and per column the mean and where there is one the band."""
    history = records[0].history
    evaluated = history.was_evaluated | np.any([np.isfinite(history[name]) for name in history.over_clients], axis=0)
    evaluated = evaluated[: curves.num_rows(records)]
    rows = _choose_rows(evaluated, most)
    x = {AGAINST[word].name: _plain(curves.horizontal(records, word)[rows]) for word in abscissas}
    common = (name for name in columns if all(name in record.history for record in records))
    lines = {name: _quantity(name).curve(records, "rounds").at(rows) for name in common}
    y = {name: _lists(line) for name, line in lines.items() if np.isfinite(line.y).any()}
    return {"label": label, "rows": evaluated.size, "x": x, "y": y}


def _quantity(column: str) -> curves.Quantity:
    if column == "penalty_mean":
        return curves.penalty()
    parts = None if column in COLUMNS else split_name(column)
    return curves.column(column) if parts is None else client_curves.deciles(parts[0])


def _choose_rows(evaluated: np.ndarray, most: int) -> np.ndarray:
    """The rows to draw, at most so many and evenly spread: those with a loss, and others where there is room."""
    rows = curves.evenly(np.flatnonzero(evaluated), most)
    return np.sort(np.concatenate([rows, curves.evenly(np.flatnonzero(~evaluated), most - rows.size)]))


def _lists(curve: Curve) -> dict[str, list]:
    parts = {"mean": curve.y, "low": curve.low, "high": curve.high}
    return {name: _plain(values) for name, values in parts.items() if values is not None}


def _plain(values: np.ndarray) -> list:
    """For JSON: whole numbers as they are, others to 7 digits (more are not drawn), None for what is not finite."""

    def plain(value: float) -> float | int | None:
        if not np.isfinite(value):
            return None
        return int(value) if value == round(value) and abs(value) < 2**53 else float(f"{value:.7g}")

    return [plain(value) for value in np.asarray(values, float).tolist()]
