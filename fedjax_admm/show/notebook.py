"""How runs, data and algorithms show themselves in a notebook: HTML made of tables and one small curve."""

from __future__ import annotations

import dataclasses
import html
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..core.record import display_name
from ..results.tables import Table

if TYPE_CHECKING:
    from ..data.federated import FederatedData
    from ..results.history import RunRecord

WIDTH, HEIGHT, MARGIN = 320, 150, 18  # of the curve, in pixels; the margin holds its text
LOG_FROM = 10  # largest over smallest value from which on the curve's scale is logarithmic
MOST_POINTS = 400  # more than the curve's pixels would not be seen


def run_html(run: RunRecord) -> str:
    """A run's key figures beside its loss."""
    from ..results.comparison import key_figures  # which needs `history`, where runs are

    if not len(run.cohorts):  # one on disk that has just begun
        return _framed(f"{type(run).__name__}, no round done yet")
    # Where the optimum is known, the loss above it shows what the loss itself would hide.
    column = "excess_loss" if "excess_loss" in run.history else "loss"
    curve = _curve(run.history["round"], run.history[column], column.replace("_", " "))
    return _framed(type(run).__name__, key_figures(run), curve)


def data_html(data: FederatedData) -> str:
    """The fields, and how the rows are spread over the clients."""
    sizes = np.asarray(data.sizes)
    rows = [("clients", f"{data.num_clients:,}"), ("rows, of all clients", f"{data.num_positions:,}")]
    if data.index is not None:
        rows.append(("rows that clients share", "yes"))
    spread = (f"{value:,.12g}" for value in (sizes.min(), np.median(sizes), sizes.max()))
    rows.append(("rows a client: least, median, most", ", ".join(spread)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(data.fields):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        rows.append((f"field {name}".rstrip(), f"{leaf.dtype} {list(leaf.shape)}"))
    return _framed(type(data).__name__, Table(("quantity", "value"), tuple(rows)))


def record_html(record: Any) -> str:
    """A record's numbers and words, those of its parts by the names under which they can be read."""
    return _framed(display_name(record), Table(("field", "value"), tuple(_fields(record, ""))))


def _fields(record: Any, prefix: str) -> list[tuple[str, str]]:
    rows = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        name = f"{prefix}{field.name}"
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


def _framed(title: str, table: Table | None = None, beside: str = "") -> str:
    """A title over a table, and what stands to its right."""
    head = f"<strong>{html.escape(title)}</strong>"
    if table is None:
        return f"<div>{head}</div>"
    parts = f"<div>{table._repr_html_()}</div>{beside}"
    return f'<div>{head}<div style="display:flex;flex-wrap:wrap;gap:2em;align-items:flex-start">{parts}</div></div>'


def _curve(x: np.ndarray, y: np.ndarray, name: str) -> str:
    """A line as SVG, with the values at its ends; nothing if there is no line to draw.

    >>> _curve(np.arange(3), np.array([3.0, np.nan, 1.0]), "loss").count("<polyline")
    1
    """
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if y.size < 2:
        return ""
    logarithmic = bool(y.min() > 0 and y.max() >= LOG_FROM * y.min())
    chosen = np.unique(np.linspace(0, y.size - 1, min(y.size, MOST_POINTS)).round().astype(int))
    height = np.log10(y) if logarithmic else y
    right = _scaled(x[chosen], MARGIN, WIDTH - MARGIN)
    down = _scaled(-height[chosen], 2 * MARGIN, HEIGHT - MARGIN)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(right, down, strict=True))
    scale = ", logarithmic" if logarithmic else ""
    title = f"{name}{scale}: {y[0]:.4g} in round {x[0]:g} to {y[-1]:.4g} in round {x[-1]:g}"
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'fill="none" stroke="currentColor" font-size="11">'
        f'<text x="{MARGIN}" y="{MARGIN - 4}" fill="currentColor" stroke="none">{html.escape(title)}</text>'
        f'<polyline points="{points}" stroke-width="1.5"/></svg>'
    )


def _scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Values from their least, at `low`, to their greatest, at `high`."""
    span = values.max() - values.min()
    return np.full(values.shape, (low + high) / 2) if span == 0 else low + (values - values.min()) / span * (high - low)
