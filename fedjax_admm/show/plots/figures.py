"""Curves drawn by matplotlib: styles, axes and legends, the same for every picture.

Colours are Okabe and Ito's, which colour-blind readers can tell apart, without their yellow, too light for a line.
Line styles differ as well, so that a picture can be read in grey.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import checks
from ...core.columns import AGAINST
from ...results.curves import Curve, NamedRuns, Quantity, is_wide

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
COLORS = (BLUE, VERMILION, GREEN, BLACK, PURPLE, ORANGE, SKY)
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (9, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 2)))
GRID = {"color": "0.9", "linewidth": 0.6}
LEGEND = {"frameon": False, "handlelength": 3}  # long enough to show the dashes
SCALES = ("auto", "linear", "log")
PANEL = (3.6, 3.0)  # inches
LEGEND_ROW = 0.2

Style = dict[str, Any]


@dataclass(frozen=True)
class Panel:
    """One part of a figure."""

    title: str
    quantity: Quantity
    named: NamedRuns


def pyplot() -> Any:
    """matplotlib.pyplot, or what to install."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plot needs matplotlib: pip install 'fedjax_admm[plots]'") from None
    return plt


def close(figure: Any) -> None:
    """Frees a figure that nobody is to see."""
    pyplot().close(figure)


def style(index: int) -> Style:
    """The line of the index-th run: no two of the first 49 are alike."""
    return {"color": COLORS[index % 7], "linestyle": DASHES[(index + index // 7) % 7], "linewidth": 1.5}


def new_axes(rows: int, columns: int, size: tuple[float, float], **options: Any) -> np.ndarray:
    """Axes [rows, columns] of a new figure of panels of this size."""
    figsize = (size[0] * columns, size[1] * rows)
    every = pyplot().subplots(rows, columns, squeeze=False, figsize=figsize, layout="constrained", **options)[1]
    for axes in every.flat:  # set here rather than by rcParams, which belong to the user
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, **GRID)
        axes.set_axisbelow(True)
    return every


def plot(runs: NamedRuns, quantity: Quantity, *, against: str, scale: str, axes: Any) -> Any:
    """A quantity in the given axes, or in new ones, with its legend."""
    checks.choice("scale", scale, SCALES)
    curves = quantity.curves(runs, checks.choice("against", against, tuple(AGAINST)))
    axes = one_axes(axes, wider_by=max(map(_inches, curves)))
    start = len(axes.lines)  # a second run in the same axes looks different from the first
    styles = {label: style(start + index) for index, label in enumerate(runs)}
    draw(axes, curves, quantity, styles, against=against, scale=scale)
    _legend(axes)
    return axes


def one_axes(axes: Any, wider_by: float = 0.0) -> Any:
    """The user's axes, or new ones."""
    if axes is None:
        return new_axes(1, 1, (5 + wider_by, 3.5))[0, 0]
    if not hasattr(axes, "fill_between"):
        raise ValueError(f"axes must be None or matplotlib's axes, one of them, got {axes!r}")
    return axes


def draw(
    axes: Any, curves: dict[str, Curve], quantity: Quantity, styles: dict[str, Style], *, against: str, scale: str
) -> None:
    """Lines, bands and the names of both axes."""
    from matplotlib import ticker

    for label, curve in curves.items():
        marker = "o" if curve.y.size == 1 else ""  # a line of one point would not be seen
        axes.plot(curve.x, curve.y, label=label, marker=marker, **styles[label])
        if curve.has_band:
            axes.fill_between(curve.x, curve.low, curve.high, color=styles[label]["color"], alpha=0.15, linewidth=0)
    banded = any(curve.has_band for curve in curves.values())
    axes.set_ylabel(quantity.label + (f"\nband: {quantity.band}" if banded else ""))
    axes.set_xlabel(AGAINST[against].so_far)
    _set_scale(axes, scale, quantity.may_be_log)
    if against == "rounds":
        whole_ticks(axes.xaxis)
    else:
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))  # 20M: as digits they would run together


def figure(
    panels: Sequence[Panel], columns: int, styles: dict[str, Style], against: str = "rounds", **options: Any
) -> Any:
    """A figure of panels, row by row, with one legend under all of them."""
    every = [panel.quantity.curves(panel.named, against) for panel in panels]  # before there is a figure, if it fails
    grid = new_axes(math.ceil(len(panels) / columns), columns, PANEL, **options)
    for axes, panel, curves in zip(grid.flat, panels, every, strict=False):
        draw(axes, curves, panel.quantity, styles, against=against, scale="auto")
        axes.set_title(panel.title, fontsize="medium")
        axes.yaxis.label.set_fontsize("small")  # a panel is not tall
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    shared_legend(grid.flat[: len(panels)])
    return grid[0, 0].figure


def whole_ticks(axis: Any) -> None:
    """Ticks at whole numbers, unless a user has set ticks of another kind."""
    from matplotlib import ticker

    locator = axis.get_major_locator()
    if isinstance(locator, ticker.MaxNLocator):
        locator.set_params(integer=True)


def _set_scale(axes: Any, scale: str, may_be_log: bool) -> None:
    """Logarithmic if asked for, or where the lines span so much that a linear one would flatten most of them."""
    together = axes.get_shared_y_axes().get_siblings(axes)
    values = np.concatenate([line.get_ydata() for each in together for line in each.lines])
    if scale == "linear" or (scale == "auto" and not (may_be_log and is_wide(values))):
        axes.set_yscale("linear")
        return
    axes.set_yscale("log")
    log_ticks(axes.yaxis, values)


def log_ticks(axis: Any, values: np.ndarray) -> None:
    """Ticks of a logarithmic axis over these values, above 0."""
    from matplotlib import ticker

    if values.max() < 1000 * values.min():  # powers of ten alone would be one or two ticks
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")  # 0.1 rather than 10^-1
    axis.set_minor_formatter(ticker.NullFormatter())


def _legend(axes: Any) -> None:
    """Beside the axes, where it covers nothing; inside if the figure's layout would not make room for it."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    constrained = isinstance(axes.figure.get_layout_engine(), ConstrainedLayoutEngine)
    place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if constrained else {"loc": "best"}
    axes.legend(handles, labels, **place, **LEGEND)


def shared_legend(every: Iterable[Any]) -> None:
    """One legend under the panels, in as many columns as fit."""
    every = list(every)
    handles = {}
    for axes in every:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    figure = every[0].figure
    fit = max(1, int(figure.get_figwidth() / max(map(_inches, handles))))
    rows = math.ceil(len(handles) / fit)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * rows)  # not at the panels' cost
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=math.ceil(len(handles) / rows),  # rows of about equal length
        fontsize="small",
        **LEGEND,
    )


def _inches(label: str) -> float:
    """About what a label takes in a legend, its line included."""
    return 0.75 + 0.07 * len(label) if label else 0.0
