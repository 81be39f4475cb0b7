"""The response: what a tuning's scores were over one or two of the numbers that were tuned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import checks
from ...results.curves import is_wide
from ...results.tuning import Tuning, short
from . import figures

MOST_CELLS = 400  # of a table of colours; more distinct values are points
FAR = 5  # times the median's distance from the best: what is worse is only said to be so
MOST_WORDS = 64  # cells that have their score written into them


def plot_response(tuning: Tuning, x: str | None = None, y: str | None = None, *, axes: Any = None) -> Any:
    """Plots a tuning's scores against one or two of its numbers; returns matplotlib's axes.

    A score is the mean over seeds at the last rung that its setting reached. If settings differ only in other numbers,
    the line and the colours show the best. Settings that did not run to the last rung are drawn hollow, small or in
    italics, and those that diverged as a cross.

    Args:
        tuning: What `fa.tune` returned.
        x: A name in the settings; by default the first that has several values.
        y: Another, for a picture of two; by default the second that has several values, if x is not given either.
        axes: Where to draw; by default in a new figure.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> make = lambda penalty: example.algorithm("fedadmm", penalty=penalty)
    >>> grid = {"penalty": [0.1, 1.0]}
    >>> plot_response(fa.tune(example.problem, make, grid, progress=False, **example.run_settings)).get_xlabel()
    'penalty'
    """
    x, y = _names(tuning, x, y)
    axes = figures.one_axes(axes)
    chosen = [k for k in range(len(tuning.settings)) if not np.isnan(tuning.final_scores[k])]
    if not chosen:
        raise ValueError("tuning must have one setting with a score at least, got none")
    if y is None:
        _draw_line(axes, tuning, chosen, x)
    else:
        _draw_colours(axes, tuning, chosen, x, y)
    return axes


def _names(tuning: Tuning, x: str | None, y: str | None) -> tuple[str, str | None]:
    names = list(dict.fromkeys(name for setting in tuning.settings for name in setting))
    several = [name for name in names if len({short(setting.get(name)) for setting in tuning.settings}) > 1]
    known = tuple(names)
    if x is None and y is None:
        return (several or names)[0], several[1] if len(several) > 1 else None
    if y is not None:
        checks.choice("y", y, tuple(name for name in known if name != x))
    first = next((name for name in [*several, *names] if name != y), names[0])
    return first if x is None else checks.choice("x", x, known), y


def _places(values: Sequence[Any]) -> tuple[np.ndarray, list[str] | None]:
    """Where values are on an axis: numbers at themselves, others one after the other, with their names."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return np.array(values, float), None
    words = list(dict.fromkeys(map(short, values)))
    return np.array([words.index(short(value)) for value in values], float), words


def _set_axis(axes: Any, which: str, name: str, places: np.ndarray, words: list[str] | None) -> None:
    getattr(axes, f"set_{which}label")(name.replace("_", " "))
    if words is not None:
        getattr(axes, f"set_{which}ticks")(range(len(words)), words)
    elif places.min() > 0 and is_wide(places):
        getattr(axes, f"set_{which}scale")("log")
        figures.log_ticks(getattr(axes, f"{which}axis"), places)


def _draw_line(axes: Any, tuning: Tuning, chosen: list[int], x: str) -> None:
    values, words = _places([tuning.settings[k].get(x) for k in chosen])
    scores, went = tuning.final_scores[chosen], tuning.reached[chosen] == tuning.reached.max()
    best, edge = _range(tuning, scores)
    near, failed = np.abs(scores - best) <= np.abs(edge - best), ~np.isfinite(scores)
    if len(tuning.seeds) > 1:
        for value, k in zip(values[near], np.array(chosen)[near], strict=True):
            seeds = tuning.scores[k, :, tuning.reached[k]]
            axes.plot(np.full(len(seeds), value), seeds, "_", color=figures.SKY, zorder=1)
    places = np.unique(values[near])
    if words is None and (places.size < near.sum() or _varies_alone(tuning, x)):  # else the line would be of noise
        pick = np.min if tuning.objective.direction == "minimize" else np.max
        line = [pick(scores[(values == place) & near]) for place in places]
        axes.plot(places, line, color=figures.BLUE, linewidth=1.5)
    if not near.all():  # what is far worse would flatten all else
        margin = 0.05 * (edge - best)
        axes.set_ylim(*sorted((best - margin, edge + 2 * margin)) if margin else (best - 1, best + 1))
    shown = np.where(near, scores, edge + 0.05 * (edge - best))
    for mask, marker, style in (
        (near & went, "o", {"color": figures.BLUE}),
        (near & ~went, "o", {"color": figures.BLUE, "mfc": "white", "label": "dropped earlier"}),
        (~near & ~failed, "^" if edge > best else "v", {"color": figures.ORANGE, "label": "far worse"}),
        (failed, "x", {"color": figures.VERMILION, "label": "diverged"}),
    ):
        if mask.any():
            axes.plot(values[mask], shown[mask], marker, linestyle="none", **style)
    _set_axis(axes, "x", x, values, words)
    axes.set_ylabel(tuning.objective.title)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(**figures.LEGEND | {"handlelength": 1})


def _varies_alone(tuning: Tuning, x: str) -> bool:
    others = [{name: short(value) for name, value in setting.items() if name != x} for setting in tuning.settings]
    return all(other == others[0] for other in others)


def _range(tuning: Tuning, scores: np.ndarray) -> tuple[float, float]:
    """The best score, and the worst that is at most `FAR` times as far from it as the median."""
    finite = scores[np.isfinite(scores)]
    if not finite.size:
        return 0.0, 1.0
    best = finite.min() if tuning.objective.direction == "minimize" else finite.max()
    distances = np.abs(finite - best)
    near = distances <= max(FAR * np.median(distances), distances[distances > 0].min(initial=np.inf))
    return float(best), float(finite[near][np.argmax(distances[near])])


def _draw_colours(axes: Any, tuning: Tuning, chosen: list[int], x: str, y: str) -> None:
    (across, words_x), (up, words_y) = (_places([tuning.settings[k].get(name) for k in chosen]) for name in (x, y))
    columns, lines = np.unique(across), np.unique(up)
    cells = {(a, b) for a, b in zip(across, up, strict=True)}
    colours = "viridis_r" if tuning.objective.direction == "minimize" else "viridis"  # light is good
    if len(cells) < len(columns) * len(lines) / 2 or len(columns) * len(lines) > MOST_CELLS:
        image = _draw_points(axes, tuning, chosen, across, up, colours)
        _set_axis(axes, "x", x, across, words_x)
        _set_axis(axes, "y", y, up, words_y)
    else:
        image = _draw_cells(axes, tuning, chosen, across, up, colours)
        axes.set_xticks(range(len(columns)), words_x or [short(float(value)) for value in columns])
        axes.set_yticks(range(len(lines)), words_y or [short(float(value)) for value in lines])
        axes.set_xlabel(x.replace("_", " "))
        axes.set_ylabel(y.replace("_", " "))
    if image is not None:
        bar = axes.figure.colorbar(image, ax=axes, label=tuning.objective.title)
        bar.ax.yaxis.set_major_formatter("{x:g}")
        bar.ax.yaxis.set_minor_formatter("{x:g}")


def _draw_points(axes: Any, tuning: Tuning, chosen: list[int], across: Any, up: Any, colours: str) -> Any:
    scores = tuning.final_scores[chosen]
    finite = np.isfinite(scores)
    axes.plot(across[~finite], up[~finite], "x", color=figures.VERMILION)
    if not finite.any():
        return None
    order = np.flatnonzero(finite)
    sizes = np.where(tuning.reached[chosen] == tuning.reached.max(), 70, 25)
    norm = _norm(tuning, scores)
    return axes.scatter(
        across[order], up[order], c=scores[order], s=sizes[order], cmap=colours, norm=norm, edgecolors="0.3",
        linewidths=0.5,
    )  # fmt: skip


def _draw_cells(axes: Any, tuning: Tuning, chosen: list[int], across: Any, up: Any, colours: str) -> Any:
    columns, lines = np.unique(across), np.unique(up)
    table, rungs = np.full((len(lines), len(columns)), np.nan), np.full((len(lines), len(columns)), -1)
    for k in reversed(tuning.ranking()):  # the best is what stays
        if k in chosen:
            at = chosen.index(k)
            cell = np.searchsorted(lines, up[at]), np.searchsorted(columns, across[at])
            table[cell], rungs[cell] = tuning.final_scores[k], tuning.reached[k]
    axes.grid(False)
    image = axes.imshow(
        np.ma.masked_invalid(table), cmap=colours, norm=_norm(tuning, table), origin="lower", aspect="auto"
    )
    if table.size <= MOST_WORDS:
        for (i, j), score in np.ndenumerate(table):
            _write(axes, image, i, j, score, dropped=rungs[i, j] < tuning.reached.max())
    return image


def _write(axes: Any, image: Any, i: int, j: int, score: float, dropped: bool) -> None:
    if np.isnan(score):
        return
    if np.isinf(score):
        axes.text(j, i, "\N{MULTIPLICATION SIGN}", ha="center", va="center", color=figures.VERMILION, fontsize="large")
        return
    dark = np.mean(image.cmap(image.norm(score))[:3]) < 0.5
    style = "italic" if dropped else "normal"
    axes.text(j, i, f"{score:.4g}", ha="center", va="center", color="w" if dark else "k", fontsize="small", style=style)


def _norm(tuning: Tuning, scores: np.ndarray) -> Any:
    """Colours for the scores that are near the best; what is far worse has the last colour."""
    from matplotlib.colors import LogNorm, Normalize

    low, high = sorted(_range(tuning, scores))
    return LogNorm(low, high) if low > 0 and is_wide(np.array([low, high])) else Normalize(low, high)
