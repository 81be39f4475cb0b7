"""The history's columns: the one place that says what each is, how it is shown and how it follows from a round.

A new column is an entry here. Tables, pictures, the report, notebooks and the documentation of `History` read it; the
problem's metrics are columns too, under names of the user's, and have no entry.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .client_statistics import STATISTICS, split_name
from .vocabulary import Condition, Solves, StopReason


class FinishedRound(NamedTuple):
    """What is known of a round that is done, from which its columns follow.

    Attributes:
        number: The round's number, from 1.
        info: What the engine left of it, of NumPy: its solves [cohort] and its other counts.
        floats_down: Floats that each client receives.
        floats_up: Floats that each client sends.
        executed_samples: Per-example gradients that the lanes computed, idle ones included.
        devices: How many shared its work.
        seconds: Seconds that it took.
        simulated_seconds: What it would have taken on clients of the given speeds; NaN without a client time.
        penalties_at_bound: How many of its clients' penalties are at a bound of their rule.
        available: Clients that were available when it began.
    """

    number: int
    info: Any
    floats_down: int
    floats_up: int
    executed_samples: int
    devices: int
    seconds: float
    simulated_seconds: float
    penalties_at_bound: int
    available: int = 0

    @property
    def solves(self) -> Solves:
        """The round's solves [cohort]."""
        return self.info.solves

    def clients_selected(self) -> int:
        """The cohort's clients, those that dropped out and the like included."""
        return int(np.sum(~self.solves.vacant))

    def epochs_mean(self) -> float:
        """The mean over the clients that worked; NaN if none did."""
        worked = self.solves.took_place
        return float(np.mean(self.solves.epochs[worked])) if worked.any() else np.nan

    def communicated_floats(self) -> int:
        """Down to each client that worked, up from each that sent."""
        sent = self.solves.count(*(reason for reason in StopReason if reason.fate.sent))
        return int(np.sum(self.solves.took_place) * self.floats_down + sent * self.floats_up)

    def lane_efficiency(self) -> float:
        """The share of the executed samples that some client needed; NaN if none were executed."""
        return int(self.info.rows) / self.executed_samples if self.executed_samples else np.nan

    def device_efficiency(self) -> float:
        """The mean trips of the lanes loop over devices, as a share of the most; NaN if there were none."""
        most = self.devices * int(self.info.longest)
        return int(self.info.trips) / most if most else np.nan


class Kind(enum.Enum):
    """What a column's numbers are."""

    NUMBER = "the round's number"
    EVALUATED = "computed from the server's parameters; NaN in rounds that are not evaluated"
    OVER_CLIENTS = "a statistic over clients; NaN in rounds in which clients are not evaluated"
    AFTER = "the value after the round; in round 0, before any training"
    MEAN = "a mean or a share in this round; sums over rounds have no meaning"
    WORK = "what the round took; may be summed over rounds"
    CLIENTS = "a number of selected clients; may be summed over rounds"


@dataclass(frozen=True)
class Column:
    """One column of the history.

    Attributes:
        name: In the history, its files and everything that asks for a column.
        label: On the axis of a picture and above a chart.
        description: One line for the documentation.
        kind: What its numbers are.
        of: The round's number in this column; None for what is evaluated, which others compute.
        start: Its number in round 0, and in rounds that are not evaluated.
        needs: The condition without which a run does not have it.
        less_is_better: Of what is evaluated, whether less or more of it is better.
        scale: "log" where a logarithmic scale is the usual one, "auto" where it depends on the numbers, else "linear".
        chart: Its place among the charts of a report; 0: it has none.
        brief: Whether comparisons tell only its mean at the end: of a loss but for a constant.
        total: What its sum over rounds is called in tables; "" where tables do not have it.
        short: The same in a narrow header, if it differs.
        against: The word for its sum as a horizontal axis, `plot(against=...)`; "" where it is none.
        so_far: What that axis is called.
    """

    name: str
    label: str
    description: str
    kind: Kind
    of: Callable[[FinishedRound], float] | None = None
    start: float = 0
    needs: Condition | None = None
    less_is_better: bool = False
    scale: str = "linear"
    chart: int = 0
    brief: bool = False
    total: str = ""
    short: str = ""
    against: str = ""
    so_far: str = ""

    @property
    def starts_measured(self) -> bool:
        """Whether round 0, in which no client works, has a value of it."""
        return self.kind not in (Kind.MEAN, Kind.WORK, Kind.CLIENTS)

    @property
    def has_total(self) -> bool:
        """Whether it counts what one round took, so that sums over rounds have a meaning."""
        return self.kind in (Kind.WORK, Kind.CLIENTS)


def _clients(reason: StopReason) -> Column:
    return Column(
        f"{reason}_clients",
        label=reason.fate.label,
        description=f"clients whose solve ended as {reason}: {reason.fate.meaning}",
        kind=Kind.CLIENTS,
        of=lambda round: round.solves.count(reason),
        needs=reason.fate.needs,
        total=f"{reason} solves",
    )


def _reason_columns() -> list[Column]:
    """Those that every run has first, then by condition: the order in which files have them."""
    order = (None, *Condition)
    counted = sorted(
        (reason for reason in StopReason if not (reason.fate.sound or reason.fate.vacant)),
        key=lambda r: order.index(r.fate.needs),
    )
    return [_clients(reason) for reason in counted]


# In the history's order; metrics come after the losses. Files have this order: a new entry goes to the end.
_TABLE = (
    Column(
        "round",
        label="round",
        description="the round's number, 0 before any training",
        kind=Kind.NUMBER,
        of=lambda round: round.number,
        total="rounds",
        against="rounds",
        so_far="round",
    ),
    Column(
        "loss",
        label="global loss",
        description="F(z), the weighted loss over all clients' rows, including the regularizer",
        kind=Kind.EVALUATED,
        start=np.nan,
        less_is_better=True,
        scale="auto",
        chart=1,
    ),
    Column(
        "excess_loss",
        label="global loss above the optimum",
        description="F(z) minus the problem's optimal loss, if that is known",
        kind=Kind.EVALUATED,
        start=np.nan,
        less_is_better=True,
        scale="log",
        chart=2,
        brief=True,
    ),
    Column(
        "epochs_mean",
        label="epochs, mean of active clients",
        description="local epochs, as the mean over the clients that worked in the round",
        kind=Kind.MEAN,
        of=FinishedRound.epochs_mean,
        start=0.0,
        chart=5,
    ),
    Column(
        "gradient_samples",
        label="per-example gradients per round",
        description="per-example gradients that the clients computed, including those of the stopping criterion",
        kind=Kind.WORK,
        of=lambda round: int(np.sum(round.solves.gradient_samples, dtype=np.int64)),
        total="gradients",
        against="gradients",
        so_far="per-example gradients computed so far",
    ),
    Column(
        "criterion_samples",
        label="gradients for the criterion per round",
        description="those of the gradients that were computed only to check the stopping criterion",
        kind=Kind.WORK,
        of=lambda round: int(np.sum(round.solves.criterion_samples, dtype=np.int64)),
        total="of the criterion",
        short="of criterion",
    ),
    Column(
        "communicated_floats",
        label="floats communicated per round",
        description="numbers sent from the server to clients and back",
        kind=Kind.WORK,
        of=FinishedRound.communicated_floats,
        total="floats",
        against="floats",
        so_far="floats communicated so far",
    ),
    Column(
        "penalty_mean",
        label="penalty, mean of all clients",
        description="the mean of the penalties over all clients; NaN for an algorithm without penalties per client",
        kind=Kind.AFTER,
        of=lambda round: float(round.info.penalty_mean),
        start=np.nan,
        scale="auto",
        chart=4,
    ),
    Column(
        "lane_efficiency",
        label="useful share of executed samples",
        description="the share of the computed per-example gradients that some client needed; the rest is idle lanes",
        kind=Kind.MEAN,
        of=FinishedRound.lane_efficiency,
        start=np.nan,
    ),
    Column(
        "seconds",
        label="training per round, seconds",
        description="seconds of training; in the first round after each start also of compiling",
        kind=Kind.WORK,
        of=lambda round: round.seconds,
        start=0.0,
    ),
    Column(
        "eval_seconds",
        label="evaluation, seconds",
        description="seconds of evaluating after the round",
        kind=Kind.AFTER,
        start=0.0,
    ),
    *_reason_columns(),
    Column(
        "simulated_seconds",
        label="simulated seconds per round",
        description="how long the round would take with clients of the given speeds",
        kind=Kind.WORK,
        of=lambda round: round.simulated_seconds,
        start=0.0,
        needs=Condition.CLIENT_TIME,
        total="simulated seconds",
        against="time",
        so_far="simulated seconds so far",
    ),
    Column(
        "penalties_at_bound",
        label="active clients whose penalty is at its bound",
        description="clients of the round whose penalty is then at a bound of its rule; 0 in a healthy run",
        kind=Kind.CLIENTS,
        of=lambda round: round.penalties_at_bound,
        needs=Condition.PENALTY_RULE,
    ),
    Column(
        "device_efficiency",
        label="mean over most work of a device",
        description="the devices' mean work divided by that of the busiest device, for which the others wait",
        kind=Kind.MEAN,
        of=FinishedRound.device_efficiency,
        start=np.nan,
    ),
    Column(
        "client_eval_seconds",
        label="evaluation of clients, seconds",
        description="seconds of evaluating each client after the round",
        kind=Kind.AFTER,
        start=0.0,
        needs=Condition.CLIENTS_EVALUATED,
    ),
    Column(
        "clients_available",
        label="clients available",
        description="clients that were available when the round began",
        kind=Kind.MEAN,
        of=lambda round: round.available,
        needs=Condition.AVAILABILITY,
        chart=6,
    ),
    Column(
        "clients_selected",
        label="clients selected",
        description="clients in the round's cohort",
        kind=Kind.MEAN,
        of=FinishedRound.clients_selected,
        needs=Condition.AVAILABILITY,
        chart=7,
    ),
)

COLUMNS = {column.name: column for column in _TABLE}
AGAINST = {column.against: column for column in _TABLE if column.against}
LOSSES = tuple(column.name for column in _TABLE if column.kind is Kind.EVALUATED)


def is_reserved(name: str) -> bool:
    """Whether no metric may be called so: "regularizer", a part of the loss, is none either.

    >>> is_reserved("loss"), is_reserved("personal_loss_std"), is_reserved("accuracy")
    (True, True, False)
    """
    return name in COLUMNS or name == "regularizer" or split_name(name) is not None or name.startswith("personal_")


def look_up(name: str) -> Column:
    """What is known of a column; one without an entry is a metric of the problem, of which more is better.

    >>> look_up("loss").less_is_better, look_up("accuracy").less_is_better
    (True, False)
    >>> look_up("accuracy_worst_decile").label
    'accuracy, worst decile of clients'
    """
    if name in COLUMNS:
        return COLUMNS[name]
    return _over_clients(name) or Column(name, label=name, description="a metric", kind=Kind.EVALUATED, chart=3)


def _over_clients(name: str) -> Column | None:
    """The column of a statistic over clients; None if the name is none of those."""
    parts = split_name(name)
    if parts is None:
        return None
    quantity, statistic = parts
    about, each = look_up(quantity.removeprefix("personal_")), STATISTICS[statistic]
    return Column(
        name,
        label=f"{quantity.replace('_', ' ')}, {each.label} of clients",
        description=each.description,
        kind=Kind.OVER_CLIENTS,
        start=np.nan,
        less_is_better=about.less_is_better or not each.keeps_direction,
        scale="auto" if about.less_is_better else "linear",
    )


def columns_of_run(conditions: Collection[Condition]) -> tuple[Column, ...]:
    """The columns of a run under these conditions, without what its problem decides: losses and metrics."""
    return tuple(
        column
        for column in COLUMNS.values()
        if column.kind is not Kind.EVALUATED and (column.needs is None or column.needs in conditions)
    )


def documentation() -> str:
    """A line for each column: its name, when it is there, and what it is.

    >>> print(documentation().splitlines()[0])
    round: the round's number, 0 before any training
    """
    lines = []
    for column in COLUMNS.values():
        condition = f" (with {column.needs})" if column.needs else ""
        lines.append(f"{column.name}{condition}: {column.description}")
    return "\n".join(lines)
