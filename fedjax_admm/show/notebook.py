"""How runs, data and algorithms show themselves in a notebook: HTML made of tables and one small curve."""

from __future__ import annotations

import dataclasses
from html import escape
from typing import Any

import numpy as np

from ..core.notebook import html
from ..core.record import display_name
from ..data.federated import FederatedData
from ..data.fields import field_kinds
from ..results.comparison import key_figures
from ..results.curves import Curve, column, evenly, is_wide
from ..results.history import RunRecord
from ..results.tables import Table

WIDTH, HEIGHT, MARGIN = 320, 150, 18  # of the curve, in pixels; the margin holds its text
MOST_POINTS = 400  # more than the curve's pixels would not be seen


@html.register
def run_html(run: RunRecord) -> str:
    """A run's key figures beside its loss."""
    if not len(run.cohorts):  # one on disk that has just begun
        return _frame(f"{type(run).__name__}, no round done yet")
    # Where the optimum is known, the loss above it shows what the loss itself would hide.
    name = "excess_loss" if "excess_loss" in run.history else "loss"
    curve = column(name).curve([run], "rounds").measured()
    return _frame(type(run).__name__, key_figures(run), _draw(curve, name.replace("_", " ")))


@html.register
def data_html(data: FederatedData) -> str:
    """The fields, and how the rows are spread over the clients."""
    sizes = np.asarray(data.sizes)
    rows = [("clients", f"{data.num_clients:,}"), ("rows, of all clients", f"{data.num_positions:,}")]
    if data.index is not None:
        rows.append(("rows that clients share", "yes"))
    spread = (f"{value:,.12g}" for value in (sizes.min(), np.median(sizes), sizes.max()))
    rows.append(("rows per client: least, median, most", ", ".join(spread)))
    rows += [(f"field {name}".rstrip(), kind) for name, kind in field_kinds(data.fields).items()]
    return _frame(type(data).__name__, Table(("quantity", "value"), tuple(rows)))


@html.register(object)
def record_html(record: Any) -> str:
    """A record's numbers and words, those of its parts by the names under which they can be read."""
    return _frame(display_name(record), Table(("field", "value"), tuple(_fields(record, ""))))


def _fields(record: Any, prefix: str) -> list[tuple[str, str]]:
    rows = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        name = f"{prefix}{field.name}"
        if isinstance(value, dict):
            rows += [(f"{name}[{word!r}]", _short(item)) for word, item in value.items()]
            continue
        rows.append((name, _short(value)))
        if dataclasses.is_dataclass(value):
            rows += _fields(value, f"{name}.")
    return rows


def _short(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    if callable(value):
        return getattr(value, "__qualname__", None) or repr(value)
    if isinstance(value, str) or value is None:
        return str(value)
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{array.item():g}" if np.issubdtype(array.dtype, np.number) else str(array)
    rounds = f" in each of {len(array)} rounds" if array.ndim == 2 else ""  # a schedule [rounds, clients]
    return f"{array.min():g} to {array.max():g}, one for each of {array.shape[-1]} clients{rounds}"


def _frame(title: str, table: Table | None = None, beside: str = "") -> str:
    """A title over a table, and what stands to its right."""
    head = f"<strong>{escape(title)}</strong>"
    if table is None:
        return f"<div>{head}</div>"
    parts = f"<div>{table._repr_html_()}</div>{beside}"
    return f'<div>{head}<div style="display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start">{parts}</div></div>'


def _draw(curve: Curve, name: str) -> str:
    """A line as SVG, with the values at its ends; nothing if there is no line to draw.

    >>> _draw(Curve(np.arange(2), np.array([3.0, 1.0])), "loss").count("<polyline")
    1
    """
    x, y = curve.x, curve.y
    if y.size < 2:
        return ""
    logarithmic = is_wide(y)
    chosen = evenly(np.arange(y.size), MOST_POINTS)
    height = np.log10(y) if logarithmic else y
    right = _scale(x[chosen], MARGIN, WIDTH - MARGIN)
    down = _scale(-height[chosen], 2 * MARGIN, HEIGHT - MARGIN)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(right, down, strict=True))
    scale = ", logarithmic" if logarithmic else ""
    title = f"{name}{scale}: {y[0]:.4g} in round {x[0]:g} to {y[-1]:.4g} in round {x[-1]:g}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'fill="none" stroke="currentColor" font-size="11">'
        f'<text x="{MARGIN}" y="{MARGIN - 4}" fill="currentColor" stroke="none">{escape(title)}</text>'
        f'<polyline points="{points}" stroke-width="1.5"/></svg>'
    )


def _scale(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values from their least, at `low`, to their greatest, at `high`."""
    span = values.max() - values.min()
    return np.full(values.shape, (low + high) / 2) if span == 0 else low + (values - values.min()) / span * (high - low)
