"""The paper's Figures 1 to 5, from one's own runs."""

from __future__ import annotations

import math
import reprlib
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core import checks
from ...results import curves
from ...results.curves import NamedRuns, Quantity
from . import figures
from .figures import Panel, Style
from .panels import metric_name

AVG, ADMM, IN, INSA = "FedAvg", "FedADMM", "FedADMM-In", "FedADMM-InSa"
COLORS = {AVG: figures.BLACK, ADMM: figures.VERMILION, IN: figures.GREEN, INSA: figures.BLUE}
# The initial penalties that each figure shows. The paper does not say which Figure 4 has: those of Figure 3 are
# assumed, which fit its claim that FedADMM-InSa is the most accurate (at 1, Table 2 has FedADMM ahead).
PENALTIES = {1: (1,), 2: (0.1, 1), 3: (5, 10), 4: (5, 10), 5: (0.1, 1, 2, 5, 10)}

Key = tuple[str, float | None]  # algorithm, penalty; FedAvg has None


def paper_figure(number: int, runs: Mapping[Any, Any], *, penalties: Sequence[float] | None = None) -> Any:
    """Plots a figure of the paper in the same layout; returns matplotlib's figure.

    * Figure 1 has FedADMM-In beside FedADMM and FedAvg: loss, or accuracy where there is a metric, over epochs.
    * Figure 2 has FedADMM-InSa beside FedADMM and FedAvg in Example 1: loss, penalty, epochs.
    * Figures 3 and 4 have the same in Examples 2 and 3: loss, accuracy, penalty, epochs.
    * Figure 5 has FedADMM over FedADMM-InSa from each initial penalty: loss, accuracy, penalty.

    The penalty is the mean over all clients, epochs are the mean over the active ones.

    Args:
        number: The figure's, from 1 to 5.
        runs: (algorithm, penalty) -> run, or a list of runs, one per seed. Algorithms are named as in the paper or as
            in `fa` ("FedADMM-InSa", "fedadmm_insa"); The penalty of FedAvg is ignored and may be None. For Figure 1
            also title -> such a mapping, one column per example: {"Linear regression": {...}, ...}.
        penalties: Which initial penalties to show instead of the paper's: 1; 0.1 and 1; 5 and 10; 5 and 10 (assumed:
            the paper does not name Figure 4's); 0.1, 1, 2, 5 and 10.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=5)
    >>> run = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), progress=False, **example.run_settings)
    >>> runs = {("FedAvg", None): run, ("FedADMM", 1.0): run, ("FedADMM-InSa", 1.0): run}  # yours are three
    >>> figure = paper_figure(2, runs, penalties=[1.0])
    >>> [axes.get_title() for axes in figure.axes]
    ['(a) Training loss', '(b) Average penalty', '(c) Average local epochs']
    """
    if number not in tuple(PENALTIES):
        raise ValueError(f"number must be 1, 2, 3, 4 or 5, got {number!r}")
    chosen = PENALTIES[number] if penalties is None else penalties
    shown = [checks.number("penalties", p, above=0) for p in np.ravel(chosen).tolist()]
    if not shown:
        raise ValueError(f"penalties must have one entry at least, got {penalties!r}: leave it out for the paper's")
    if number == 1:
        return _criterion(runs, shown)
    return _penalties(runs, shown) if number == 5 else _comparison(runs, shown, with_metric=number > 2)


def _criterion(runs: Mapping[Any, Any], shown: Sequence[float]) -> Any:
    """A column for each example, its result over its epochs."""
    nested = isinstance(runs, Mapping) and runs and all(isinstance(value, Mapping) for value in runs.values())
    keys = [(AVG, None), *((algorithm, p) for algorithm in (ADMM, IN) for p in shown)]
    examples = {title: _select(value, keys) for title, value in (runs if nested else {"": runs}).items()}
    results = [Panel(title, _result(named), named) for title, named in examples.items()]
    epochs = [Panel(title, curves.column("epochs_mean"), named) for title, named in examples.items()]
    return figures.figure(_add_letters(results + epochs), len(examples), _styles(keys))


def _comparison(runs: Mapping[Any, Any], shown: Sequence[float], *, with_metric: bool) -> Any:
    """Three algorithms in one example."""
    keys = [(AVG, None), *((algorithm, p) for algorithm in (ADMM, INSA) for p in shown)]
    named = _select(runs, keys)
    panels = [Panel("Training loss", curves.column("loss"), named)]
    if with_metric:
        panels.append(_metric_panel("Test", named))
    panels.append(Panel("Average penalty", curves.column("penalty_mean"), named))
    panels.append(Panel("Average local epochs", curves.column("epochs_mean"), named))
    return figures.figure(_add_letters(panels), 2 if with_metric else 3, _styles(keys))


def _penalties(runs: Mapping[Any, Any], shown: Sequence[float]) -> Any:
    """A row for each of two algorithms, a line for each initial penalty."""
    labels = [f"initial penalty {p:g}" for p in shown]
    panels = []
    for algorithm in (ADMM, INSA):
        selected = _select(runs, [(algorithm, p) for p in shown])
        named = dict(zip(labels, selected.values(), strict=True))
        panels.append(Panel(f"{algorithm}: loss", curves.column("loss"), named))
        panels.append(_metric_panel(f"{algorithm}:", named))
        panels.append(Panel(f"{algorithm}: penalty", curves.column("penalty_mean"), named))
    styles = {label: figures.style(index) for index, label in enumerate(labels)}
    return figures.figure(_add_letters(panels), 3, styles, sharey="col")  # the rows are there to be compared


def _result(named: NamedRuns) -> Quantity:
    """The metric if there is one, else the loss: what the paper's Table 2 reports of its examples."""
    return curves.metric(metric_name(named)) if curves.metrics(named) else curves.column("loss")


def _metric_panel(prefix: str, named: NamedRuns) -> Panel:
    name = metric_name(named)
    return Panel(f"{prefix} {name}", curves.metric(name), named)


def _add_letters(panels: Sequence[Panel]) -> list[Panel]:
    """The panels' titles with (a), (b) and so on before them."""
    letters = string.ascii_lowercase
    return [replace(panel, title=f"({letter}) {panel.title}") for letter, panel in zip(letters, panels, strict=False)]


def _styles(keys: Iterable[Key]) -> dict[str, Style]:
    """An algorithm's colour, and a dash of its own for each line."""
    return {_label(key): figures.style(index) | {"color": COLORS[key[0]]} for index, key in enumerate(keys)}


def _label(key: Key) -> str:
    algorithm, penalty = key
    return algorithm if penalty is None else f"{algorithm}, penalty {penalty:g}"


def _select(runs: Mapping[Any, Any], keys: Iterable[Key]) -> NamedRuns:
    """label -> seeds for every key, or an error that names those that are not there."""
    items = _check_keys(runs)
    selected = {key: next((run for other, run in items if _matches(other, key)), None) for key in keys}
    missing = [key for key, run in selected.items() if run is None]
    if missing:
        present = ", ".join(str(key) for key, _ in items) or "nothing"
        wanted = ", ".join(map(str, missing))
        raise ValueError(f"runs must have {wanted} for this figure, got {present}: run what is missing")
    return curves.named_runs({_label(key): run for key, run in selected.items()})


def _check_keys(runs: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    if not isinstance(runs, Mapping):
        raise ValueError(f"runs must map (algorithm, penalty) to a run or to a list of runs, got {reprlib.repr(runs)}")
    for key in runs:
        if not isinstance(key, tuple) or len(key) != 2:
            raise ValueError(f"runs must have keys (algorithm, penalty), got {key!r}: use ('FedADMM', 1.0) or alike")
    return list(runs.items())


def _matches(key: tuple[Any, Any], wanted: Key) -> bool:
    """Whether a user's key is this one; FedAvg's penalty may be anything, since it has none."""
    (name, penalty), (algorithm, value) = key, wanted
    same = _plain(str(name)) == _plain(algorithm)
    return same and (value is None or (penalty is not None and math.isclose(penalty, value, rel_tol=1e-6)))


def _plain(name: str) -> str:
    """fedadmm_insa, fedadmm-insa and FedADMM-InSa are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())
