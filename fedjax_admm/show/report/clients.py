"""The report's part on clients, of runs that evaluate them: how they are spread, and the worst of them in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from ...core.client_statistics import PERSONAL
from ...core.columns import look_up
from ...core.vocabulary import STOP_REASONS
from ...results import client_curves
from ...results.client_curves import Points, label_of
from ...results.client_metrics import ClientMetrics
from ...results.curves import NamedRuns, evenly, is_wide
from ...results.history import RunRecord
from ...results.tables import Table

WORST = 10  # clients in the table
MOST_POINTS = 1500  # of a picture
MOST_LABELS = 3  # of a client, in the table
MOST_RUNS = 6  # of a page, of which there are pictures
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 420, 270, 52, 14, 12, 42  # of a picture


def figures(runs: NamedRuns) -> str:
    """Pictures of each label's first seed, at its last evaluation of clients; "" if no run evaluated any."""
    shown = [(label, records[0]) for label, records in runs.items() if _evaluated(records[0])]
    parts = []
    for label, run in shown[:MOST_RUNS]:
        heading = f"<h3>{escape(label)}</h3>" if len(runs) > 1 else ""
        parts.append(f'{heading}<div class="grid">{"".join(_pictures(run))}</div>')
    if len(shown) > MOST_RUNS:
        parts.append(f"<p>Pictures of the first {MOST_RUNS} of {len(shown)} runs.</p>")
    return "".join(parts)


def worst_tables(runs: NamedRuns) -> dict[str, Table]:
    """A heading -> the worst clients of each label's first seed, at its last evaluation."""
    tables = {}
    for label, records in runs.items():
        if _evaluated(records[0]):
            of = f", {label}" if len(runs) > 1 else ""
            tables[f"Worst clients{of}, after round {records[0].client_metrics.rounds[-1]}"] = _worst(records[0])  # pyright: ignore[reportOptionalMemberAccess]
    return tables


def _evaluated(run: RunRecord) -> bool:
    return run.client_metrics is not None and len(run.client_metrics.rounds) > 0


def _worst(run: RunRecord) -> Table:
    """The clients for whom the server's model is worst, and what may be why."""
    metrics = client_curves.evaluated_clients(run)
    names = [name for name in metrics if not name.startswith(PERSONAL)]
    first = client_curves.quantity_name(names, None)
    places = metrics.worst(first, WORST, look_up(first).less_is_better)
    header = ["client"]
    for name in (first, *(name for name in names if name != first)):
        header += [label_of(each) for each in (name, f"{PERSONAL}{name}") if each in metrics]
    with_labels, with_penalty = metrics.about.labels is not None, bool(np.isfinite(run.history["penalty_mean"][-1]))
    header += ["rows", *["labels"] * with_labels, "selected", *["penalty"] * with_penalty, "solves stopped by"]
    rows = []
    for place in places:
        client = int(metrics.clients[place])
        row = [f"{client}"]
        for name in (first, *(name for name in names if name != first)):
            row += [f"{metrics[each][-1][place]:.4g}" for each in (name, f"{PERSONAL}{name}") if each in metrics]
        mine = run.cohorts == client
        row += [f"{metrics.sizes[place]:,}", *([_labels(metrics, place)] if with_labels else []), f"{int(mine.sum())}"]
        if with_penalty:
            known = np.asarray(run.solves.new_penalty)[mine]
            row.append(f"{known[-1]:.4g}" if known.size else "-")
        rows.append((*row, _stops(np.asarray(run.solves.stop_code)[mine])))
    return Table(tuple(header), tuple(rows))


def _labels(metrics: ClientMetrics, place: int) -> str:
    """A client's most frequent labels, with their shares of its rows."""
    assert metrics.about.labels is not None
    counts = metrics.about.labels[place]
    order = [k for k in np.argsort(-counts, kind="stable") if counts[k]]
    words = [f"{k}: {counts[k] / counts.sum():.0%}" for k in order[:MOST_LABELS]]
    return ", ".join([*words, *[f"{len(order) - MOST_LABELS} more"] * (len(order) > MOST_LABELS)])


def _stops(codes: np.ndarray) -> str:
    counts = {str(reason): int(np.sum(codes == reason.code)) for reason in STOP_REASONS}
    return ", ".join(f"{reason} {number}" for reason, number in counts.items() if number) or "-"


def _pictures(run: RunRecord) -> list[str]:
    metrics = client_curves.evaluated_clients(run)
    names = [name for name in metrics if not name.startswith(PERSONAL)]
    name = client_curves.quantity_name(names, None)
    pictures = []
    if f"{PERSONAL}{name}" in metrics:
        _, model, points = client_curves.own_against_server(run, name)
        pictures.append(
            _picture(
                client_curves.say_better(name, model, points).capitalize(),
                {model: points},
                f"{label_of(name)} at the server's model",
                f"{label_of(name)} at the own model",
                diagonal=True,
            )
        )
    held = [(metrics.sizes, "rows of the client")]
    share = metrics.about.label_share()
    if share is not None:
        held.append((share, "share of the client's most frequent label"))
    for x, words in held:
        if np.ptp(x) > 0:
            _, kinds = client_curves.over_clients(run, x, name)
            pictures.append(_picture(f"{label_of(name).capitalize()} by {words}", kinds, words, label_of(name)))
    return pictures


def _picture(title: str, kinds: dict[str, Points], across: str, up: str, *, diagonal: bool = False) -> str:
    """A figure of points as SVG."""
    every = list(kinds.values())
    x = np.concatenate([points.x for points in every]).astype(float)
    y = np.concatenate([points.y for points in every]).astype(float)
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return ""
    ends = [x[finite], y[finite]]
    if diagonal:
        ends = [np.concatenate(ends)] * 2
    wide = not diagonal and is_wide(ends[0])
    horizontal, vertical = _Axis(ends[0], LEFT, WIDTH - RIGHT, wide), _Axis(ends[1], HEIGHT - BOTTOM, TOP, False)
    lines = [
        f'<line class="gridline" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>'
        for at, text in horizontal.ticks()
    ]
    lines += [
        f'<line class="gridline" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
        for at, text in vertical.ticks()
    ]
    if diagonal:
        low, high = float(ends[0].min()), float(ends[0].max())
        corners = (horizontal.at(low), vertical.at(low), horizontal.at(high), vertical.at(high))
        lines.append('<path class="cross" d="M{:.1f},{:.1f}L{:.1f},{:.1f}"/>'.format(*corners))
    for index, points in enumerate(every):
        chosen = evenly(np.flatnonzero(np.isfinite(points.x) & np.isfinite(points.y)), MOST_POINTS)
        places = zip(horizontal.at(points.x[chosen]), vertical.at(points.y[chosen]), strict=True)
        lines.append(f'<path class="points s{index}" d="{"".join(f"M{a:.1f},{b:.1f}h0" for a, b in places)}"/>')
    lines.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(across)}</text>'
        f'<text x="13" y="{(TOP + HEIGHT - BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 13 {(TOP + HEIGHT - BOTTOM) / 2})">{escape(up)}</text>'
    )
    most = max(len(points.x) for points in every)
    words = [f'<span><i class="key points s{index}"></i> {escape(label)}</span>' for index, label in enumerate(kinds)]
    small = " ".join(words) if len(kinds) > 1 else ""
    small += f" {MOST_POINTS:,} of {most:,} clients" if most > MOST_POINTS else ""
    text = f"{title}: {up} over {across}"
    return (
        f'<figure class="scatter"><figcaption>{escape(title)} <small>{small}</small></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(text)}">{"".join(lines)}</svg></figure>'
    )


class _Axis:
    """Where values are on one side of a picture."""

    def __init__(self, values: np.ndarray, start: float, end: float, logarithmic: bool) -> None:
        self._log, self._start, self._end = logarithmic, start, end
        low, high = float(values.min()), float(values.max())
        if logarithmic:
            low, high = math.log10(low), math.log10(high)
        margin = 0.04 * (high - low) or 0.5
        self._low, self._high = low - margin, high + margin

    def at(self, values: np.ndarray | float) -> np.ndarray:
        """Values in pixels."""
        height = np.log10(values) if self._log else np.asarray(values, float)
        return self._start + (height - self._low) / (self._high - self._low) * (self._end - self._start)

    def ticks(self) -> Sequence[tuple[float, str]]:
        """Where there are marks, and what they say."""
        if self._log:
            decades = range(math.floor(self._low), math.ceil(self._high) + 1)
            few = (1,) if len(decades) > 4 else (1, 2, 5)
            marks = [digit * 10.0**k for k in decades for digit in few]
            inside = [mark for mark in marks if self._low <= math.log10(mark) <= self._high]
        else:
            rough = (self._high - self._low) / 5
            unit = 10.0 ** math.floor(math.log10(rough))
            step = next(unit * k for k in (1, 2, 5, 10) if unit * k >= rough)
            first = math.ceil(self._low / step)
            inside = [step * k for k in range(first, math.floor(self._high / step) + 1)]
        return [(float(self.at(mark)), f"{mark:,.6g}") for mark in inside]
