"""Runs as curves: the numbers of a picture, before anything is drawn."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import checks
from ...core.columns import AGAINST, look_up
from ...results.history import RunRecord

Runs = RunRecord | Sequence[RunRecord] | Mapping[Any, RunRecord | Sequence[RunRecord]]
NamedRuns = dict[str, list[RunRecord]]  # label -> its seeds

SEEDS = "± one s.d. of seeds"  # what a band is, where it is that of the seeds
PERCENTILES = (10, 90)  # of the clients' penalties, the band's edges


@dataclass(frozen=True)
class Curve:
    """A line and, where there is something to spread over, the band around it."""

    x: np.ndarray  # [points]
    y: np.ndarray  # [points]
    low: np.ndarray | None = None  # [points]
    high: np.ndarray | None = None  # [points]

    @property
    def has_band(self) -> bool:
        return self.low is not None and bool(np.any(self.high > self.low))


@dataclass(frozen=True)
class Quantity:
    """What a panel shows."""

    curve: Callable[[list[RunRecord], str], Curve]  # (one label's seeds, against) -> curve
    label: str  # the vertical axis
    band: str  # what the band is
    may_be_log: bool  # whether an automatic scale may be logarithmic

    def curves(self, named: NamedRuns, against: str) -> dict[str, Curve]:
        """label -> curve, without the runs that have no value of it."""
        every = {label: self.curve(records, against) for label, records in named.items()}
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

    def curve(records: list[RunRecord], against: str) -> Curve:
        for record in records:
            checks.choice("column", name, tuple(record.history))
        table = np.stack([record.history[name] for record in records])  # [seeds, rounds + 1]
        # Only where every seed was measured, so that all points are means of the same seeds.
        measured = np.asarray(np.isfinite(table).all(axis=0))
        measured[0] &= look_up(name).starts_measured
        x, table = _horizontal(records, against)[measured], table[:, measured]
        mean = table.mean(axis=0)
        if len(records) == 1:
            return Curve(x, mean)
        spread = table.std(axis=0, ddof=1)
        return Curve(x, mean, mean - spread, mean + spread)

    return Quantity(curve, look_up(name).label, SEEDS, may_be_log=look_up(name).scale != "linear")


def metric(name: str) -> Quantity:
    """A metric, as `column`."""
    return Quantity(column(name).curve, f"{name} on evaluation data", SEEDS, may_be_log=False)


def penalty() -> Quantity:
    """The mean over all clients, with the band that leaves a tenth of them out on either side.

    With several seeds, over the clients of all of them together.
    """

    def curve(records: list[RunRecord], against: str) -> Curve:
        clients = np.concatenate([record.client_penalties() for record in records], axis=1)
        known = np.isfinite(clients).all(axis=1)  # nowhere for an algorithm without a penalty
        x, clients = _horizontal(records, against)[known], clients[known]
        low, high = np.percentile(clients, PERCENTILES, axis=1)
        return Curve(x, clients.mean(axis=1), low, high)

    return Quantity(
        curve, look_up("penalty_mean").label, "{}th to {}th percentile".format(*PERCENTILES), may_be_log=True
    )


def _horizontal(records: list[RunRecord], against: str) -> np.ndarray:
    """Where each row of the history is drawn [rounds + 1]; the mean over seeds, whose counts differ."""
    column = AGAINST[against]
    if not all(column.name in record.history for record in records):
        raise ValueError(
            f"against={against!r} needs the column {column.name}, which a run lacks: simulate with client_time="
        )
    values = [record.history[column.name] for record in records]
    rows = [np.cumsum(value) if column.has_total else value for value in values]
    return np.mean(rows, axis=0)
