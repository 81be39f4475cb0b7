"""The numbers that a page's curves are drawn from: one list per abscissa and per curve, thinned if they are many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.columns import AGAINST, COLUMNS, look_up
from ...results.history import RunRecord

Runs = Mapping[str, Sequence[RunRecord]]  # label -> a record per seed

LINEAR_PENALTIES = 50  # largest over smallest; beyond, a linear scale would show the largest alone
# A few hundred points fill a curve's width on a screen; the bound on all of them keeps the page below 2 MB.
MOST_POINTS, LEAST_POINTS, MOST_POINTS_IN_ALL = 1000, 50, 24_000


def chart_data(runs: Runs) -> tuple[dict[str, Any], list[str]]:
    """What page.js draws, and what has to be said about it."""
    columns = dict.fromkeys(name for records in runs.values() for name in records[0].history)
    shown = sorted(filter(lambda name: look_up(name).chart, columns), key=lambda name: look_up(name).chart)
    most = int(np.clip(MOST_POINTS_IN_ALL // (len(runs) * len(shown)), LEAST_POINTS, MOST_POINTS))
    everywhere = {name for name in columns if all(name in r.history for records in runs.values() for r in records)}
    abscissas = {each.name: each.total for each in AGAINST.values() if each.name in everywhere}
    series = [_series(label, records, abscissas, shown, most) for label, records in runs.items()]
    drawn = [name for name in shown if any(name in one["y"] for one in series)]
    charts = [_chart(name, [one["y"][name]["mean"] for one in series if name in one["y"]]) for name in drawn]
    remarks = []
    if any(len(records) > 1 for records in runs.values()):
        remarks.append("Lines are means over the seeds and bands one standard deviation to either side.")
    if "penalty_mean" in drawn:
        remarks.append("The penalty's band goes from the 10th to the 90th percentile of the clients.")
    if any(len({len(record.history["round"]) for record in records}) > 1 for records in runs.values()):
        remarks.append("Seeds of one label have different numbers of rounds: its curves end with the shortest.")
    longest = max(len(record.history["round"]) for records in runs.values() for record in records)
    if any(len(one["x"]["round"]) < one["rows"] for one in series):
        remarks.append(f"Thinned: curves have up to {longest:,} rounds, of which at most {most:,} are drawn.")
    return {"abscissas": abscissas, "charts": charts, "series": series}, remarks


def _chart(column: str, curves: Iterable[list]) -> dict[str, Any]:
    """A chart's title, what its band is, and whether it starts with a log scale."""
    label = look_up(column).label
    band, log = "deviation", look_up(column).scale == "log"
    if column == "penalty_mean":
        positive = [value for curve in curves for value in curve if value]
        band, log = "clients", bool(positive) and max(positive) > LINEAR_PENALTIES * min(positive)
    return {
        "column": column,
        "title": label[:1].upper() + label[1:] if column in COLUMNS else column,
        "log": log,
        "band": band,
    }


def _series(
    label: str, records: Sequence[RunRecord], abscissas: Iterable[str], columns: Iterable[str], most: int
) -> dict[str, Any]:
    """One label's numbers: a list per abscissa, and per column the mean and where there is one the band."""
    histories = [record.history for record in records]
    length = min(min(len(record.history["round"]), len(record.cohorts) + 1) for record in records)
    rows = _kept(np.isfinite(histories[0]["loss"][:length]), most)
    counts = {name: [np.cumsum(history[name])[rows] for history in histories] for name in abscissas}
    counts["round"] = [histories[0]["round"][rows]]
    curves = {name: _curve(histories, name, rows) for name in columns if all(name in history for history in histories)}
    for name, curve in curves.items():
        if rows[0] == 0 and not look_up(name).starts_measured:  # no solve has been done in round 0
            curves[name] = {key: [None, *values[1:]] for key, values in curve.items()}
    curves = {name: curve for name, curve in curves.items() if any(value is not None for value in curve["mean"])}
    if "penalty_mean" in curves:
        clients = np.concatenate([record.client_penalties()[rows] for record in records], axis=1)
        low, high = np.percentile(clients, [10, 90], axis=1)
        curves["penalty_mean"] |= {"low": _plain(low), "high": _plain(high)}
    x = {name: _plain(np.mean(values, axis=0)) for name, values in counts.items()}
    return {"label": label, "rows": length, "x": x, "y": curves}


def _kept(evaluated: np.ndarray, most: int) -> np.ndarray:
    """The rows to draw, at most so many and evenly spread: those with a loss, and others where there is room."""
    rows, others = np.flatnonzero(evaluated), np.flatnonzero(~evaluated)
    room = most - rows.size
    if room < 0:
        rows, others = _evenly(rows, most), others[:0]
    return np.sort(np.concatenate([rows, _evenly(others, min(room, others.size))]))


def _evenly(rows: np.ndarray, count: int) -> np.ndarray:
    return rows[np.linspace(0, rows.size - 1, max(count, 0)).round().astype(int)]


def _curve(histories: Sequence[Mapping[str, np.ndarray]], column: str, rows: np.ndarray) -> dict[str, list]:
    values = np.stack([np.asarray(history[column], float)[rows] for history in histories])
    values[~np.isfinite(values)] = np.nan
    mean = np.mean(values, axis=0)
    if len(histories) == 1:
        return {"mean": _plain(mean)}
    deviation = np.std(values, axis=0, ddof=1)
    return {"mean": _plain(mean), "low": _plain(mean - deviation), "high": _plain(mean + deviation)}


def _plain(values: np.ndarray) -> list:
    """For JSON: whole numbers as they are, others to 7 digits (more are not drawn), None for what is not finite."""

    def plain(value: float) -> float | int | None:
        if not np.isfinite(value):
            return None
        return int(value) if value == round(value) and abs(value) < 2**53 else float(f"{value:.7g}")

    return [plain(value) for value in np.asarray(values, float).tolist()]
