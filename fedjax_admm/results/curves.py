"""Runs as curves: the numbers behind plots, reports and notebook displays, before anything is drawn."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import checks
from ..core.columns import AGAINST, look_up
from .history import RunRecord

Runs = RunRecord | Sequence[RunRecord] | Mapping[Any, RunRecord | Sequence[RunRecord]]
NamedRuns = Mapping[str, Sequence[RunRecord]]  # label -> its seeds

SEEDS = "± one s.d. of seeds"  # what a band is, where it is that of the seeds
PERCENTILES = (10, 90)  # of the clients' penalties, the band's edges
LOG_FROM = 10  # largest over smallest value from which on an automatic scale is logarithmic


@dataclass(frozen=True)
class Curve:
    """A line and, where there is something to spread over, the band around it; NaN where nothing was measured."""

    x: np.ndarray  # [points]
    y: np.ndarray  # [points]
    low: np.ndarray | None = None  # [points]
    high: np.ndarray | None = None  # [points]

    @property
    def has_band(self) -> bool:
        """Whether there is a band that can be seen."""
        return self.low is not None and bool(np.any(self.high > self.low))

    def at(self, points: np.ndarray) -> Curve:
        """The curve at some of its points.

        Args:
            points: Their indices, or whether each point is one of them.
        """
        low, high = (None if edge is None else edge[points] for edge in (self.low, self.high))
        return Curve(self.x[points], self.y[points], low, high)

    def measured(self) -> Curve:
        """The curve without the points at which nothing was measured."""
        return self.at(np.isfinite(self.y))


@dataclass(frozen=True)
class Quantity:
    """What a panel shows."""

    curve: Callable[[Sequence[RunRecord], str], Curve]  # (one label's seeds, against) -> a point for each round
    label: str  # the vertical axis
    band: str  # what the band is
    may_be_log: bool  # whether an automatic scale may be logarithmic

    def curves(self, named: NamedRuns, against: str) -> dict[str, Curve]:
        """The curves of runs.

        Args:
            named: label -> one record per seed.
            against: What the horizontal axis counts.

        Returns:
            label -> measured points, without the runs that have none.

        Raises:
            ValueError: No run has a value of it.
        """
        every = {label: self.curve(records, against).measured() for label, records in named.items()}
        measured = {label: curve for label, curve in every.items() if curve.y.size}
        if not measured:
            raise ValueError(f"runs must have values of '{self.label}' in one run at least, got none: draw another")
        return measured


def named_runs(runs: Any) -> NamedRuns:
    """label -> seeds, from any of the forms of `Runs`; a run without a label has an empty one."""
    named = {}
    for label, value in (runs if isinstance(runs, Mapping) else {"": runs}).items():
        records = [value] if isinstance(value, RunRecord) else value
        if not isinstance(records, Sequence) or not records or not all(isinstance(one, RunRecord) for one in records):
            where = f" for {label!r}" if label != "" else ""
            raise ValueError(
                "runs must be a run (what fa.simulate returns), or a mapping of labels to a run or to a list of "
                f"runs, one per seed, got {reprlib.repr(value)}{where}"
            )
        lengths = sorted({len(record.history["round"]) - 1 for record in records})
        if len(lengths) > 1:
            raise ValueError(f"runs must have seeds of equal length, got {lengths} rounds for {label!r}: cut or split")
        named[str(label)] = list(records)
    if not named:
        raise ValueError(f"runs must have one run at least, got {runs!r}")
    return named


def metrics(named: NamedRuns) -> tuple[str, ...]:
    """The metrics that all runs have, in the first one's order."""
    histories = [record.history for records in named.values() for record in records]
    return tuple(name for name in histories[0].metrics if all(name in history for history in histories))


def column(name: str) -> Quantity:
    """A column of the history: mean over seeds, with one standard deviation (of the sample) either side."""
    about = look_up(name)

    def curve(records: Sequence[RunRecord], against: str) -> Curve:
        for record in records:
            checks.choice("column", name, tuple(record.history))
        rows = num_rows(records)
        table = np.stack([np.asarray(record.history[name], float)[:rows] for record in records])  # [seeds, rows]
        # Only where every seed was measured, so that all points are means of the same seeds.
        table[:, ~np.isfinite(table).all(axis=0)] = np.nan
        if not about.starts_measured:
            table[:, 0] = np.nan
        x, mean = horizontal(records, against), table.mean(axis=0)
        if len(records) == 1:
            return Curve(x, mean)
        spread = table.std(axis=0, ddof=1)
        return Curve(x, mean, mean - spread, mean + spread)

    return Quantity(curve, about.label, SEEDS, may_be_log=about.scale != "linear")


def metric(name: str) -> Quantity:
    """A metric, as `column`."""
    return Quantity(column(name).curve, f"{name} on evaluation data", SEEDS, may_be_log=False)


def penalty() -> Quantity:
    """The mean over all clients, with the band that leaves a tenth of them out on either side.

    With several seeds, over the clients of all of them together.
    """

    def curve(records: Sequence[RunRecord], against: str) -> Curve:
        rows = num_rows(records)
        clients = np.concatenate([record.client_penalties()[:rows] for record in records], axis=1)
        known = np.isfinite(clients).all(axis=1)  # nowhere for an algorithm without a penalty
        mean, low, high = np.full((3, rows), np.nan)
        mean[known] = clients[known].mean(axis=1)
        low[known], high[known] = np.percentile(clients[known], PERCENTILES, axis=1)
        return Curve(horizontal(records, against), mean, low, high)

    label = look_up("penalty_mean").label
    return Quantity(curve, label, "{}th to {}th percentile".format(*PERCENTILES), may_be_log=True)


def horizontal(records: Sequence[RunRecord], against: str) -> np.ndarray:
    """Where each round is drawn [rows]; the mean over seeds, whose counts differ."""
    about, rows = AGAINST[against], num_rows(records)
    if not all(about.name in record.history for record in records):
        needs = f"against={against!r} needs the column {about.name}"
        raise ValueError(f"{needs}, which a run lacks: simulate with client_time=")
    values = [record.history[about.name][:rows] for record in records]
    return np.mean([np.cumsum(value) if about.has_total else value for value in values], axis=0)


def num_rows(records: Sequence[RunRecord]) -> int:
    """The rounds that all seeds have, round 0 included; of a run that diverged, those whose solves are known."""
    lengths = [len(record.history["round"]) for record in records]
    return min([*lengths, *(len(record.cohorts) + 1 for record in records if record.cohorts is not None)])


def is_wide(values: np.ndarray, ratio: float = LOG_FROM) -> bool:
    """Whether values span so much that a linear scale would flatten most of them.

    >>> is_wide(np.array([0.1, 1.0])), is_wide(np.array([0.0, 1.0]))
    (True, False)
    """
    return bool(values.size and values.min() > 0 and values.max() >= ratio * values.min())


def evenly(points: np.ndarray, most: int) -> np.ndarray:
    """At most so many of these points, evenly spread, the first and the last among them.

    >>> evenly(np.arange(9), 3).tolist(), evenly(np.arange(2), 3).tolist()
    ([0, 4, 8], [0, 1])
    """
    number = max(0, min(most, points.size))
    return points[np.linspace(0, points.size - 1, number).round().astype(int)]
