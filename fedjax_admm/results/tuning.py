"""What tuning found: a score for every setting, seed and rung, the best setting, a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.columns import COLUMNS, look_up
from .history import History, RunRecord
from .tables import Table

MOST_NOTES = 3  # on single runs
DIRECTIONS = ("minimize", "maximize")


@dataclass(frozen=True)
class Objective:
    """The number that settings are judged by.

    Attributes:
        column: A loss or a metric of the history.
        direction: "minimize" or "maximize".
        last: How many evaluations at the end its mean is taken over.

    >>> history = History([{"round": k, "loss": loss} for k, loss in enumerate((9.0, 3.0, np.nan, 2.0))])
    >>> Objective("loss", "minimize", last=2).score(history, until=3)
    2.5
    """

    column: str
    direction: str
    last: int = 1

    @property
    def worst(self) -> float:
        """The score of a run that diverged."""
        return math.inf if self.direction == "minimize" else -math.inf

    @property
    def title(self) -> str:
        """What a table calls it."""
        return self.column.replace("_", " ") + (f", last {self.last}" if self.last > 1 else "")

    def score(self, history: History, until: int) -> float:
        """A run's score after `until` rounds.

        Args:
            history: The run's, of so many rounds at least.
            until: The rounds that count.

        Returns:
            The mean of the last evaluations after training began.
        """
        values = history[self.column][1 : until + 1]
        values = values[np.isfinite(values)][-self.last :]
        return float(np.mean(values)) if values.size else self.worst

    def keep(self, scores: np.ndarray, number: int) -> list[int]:
        """The best settings, in their own order; of equal ones the first, and none that diverged.

        Args:
            scores: One per setting; NaN for one that does not take part.
            number: How many at most.

        >>> Objective("loss", "minimize").keep(np.array([3.0, np.nan, 1.0, np.inf, 1.0]), 2)
        [2, 4]
        """
        sign = 1 if self.direction == "minimize" else -1
        order = np.argsort(sign * scores, kind="stable")
        return sorted(int(k) for k in order[: max(0, number)] if np.isfinite(scores[k]))


def default_direction(column: str) -> str:
    """Less of a loss is better, and more of a metric.

    >>> default_direction("loss"), default_direction("accuracy")
    ('minimize', 'maximize')
    """
    return DIRECTIONS[0] if look_up(column).less_is_better else DIRECTIONS[1]


@dataclass(frozen=True)
class Tuning:
    """What `tune` returns.

    Attributes:
        settings: The settings that were tried, each name -> value.
        labels: A short name for each.
        seeds: The seeds that each setting ran with.
        objective: What the scores are.
        rungs: The rounds after which settings were scored; without halving only the last round.
        scores: [settings, seeds, rungs]; NaN where a setting was not run, inf or -inf where its run diverged.
        runs: label -> seed -> the run, as far as it got.
        diverged: label -> seed -> how it diverged.
        missing: What is not finished, if anything.
        algorithms: What `make_algorithm` returned for each setting; None if the tuning was read from its directory.

    >>> tuning = fa.tune(problem, make, {"penalty": [0.1, 1.0]}, rounds=50)  # doctest: +SKIP
    >>> tuning.best, tuning.best_algorithm  # doctest: +SKIP
    """

    settings: Sequence[Mapping[str, Any]]
    labels: Sequence[str]
    seeds: Sequence[int]
    objective: Objective
    rungs: Sequence[int]
    scores: np.ndarray
    runs: Mapping[str, Mapping[int, RunRecord]]
    diverged: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    missing: str = ""
    algorithms: Sequence[Any] | None = None

    @property
    def best(self) -> dict[str, Any]:
        """The best setting of those that ran longest; if several are equal, the first."""
        return dict(self.settings[self._best])

    @property
    def best_algorithm(self) -> Any:
        """The algorithm that `make_algorithm` returned for the best setting."""
        if self.algorithms is None:
            raise ValueError("a tuning that was read has no algorithms: call make_algorithm(**tuning.best)")
        return self.algorithms[self._best]

    @property
    def best_score(self) -> float:
        """Its score, the mean over seeds."""
        return float(self.final_scores[self._best])

    @property
    def final_scores(self) -> np.ndarray:
        """[settings] Each one's mean over seeds at the last rung that it reached with all seeds; NaN if at none."""
        means = self.scores.mean(axis=1)
        return np.array([means[k, rung] if rung >= 0 else np.nan for k, rung in enumerate(self.reached)])

    @property
    def reached(self) -> np.ndarray:
        """[settings] The last rung that each reached with all seeds, from 0; -1: none."""
        done = ~np.isnan(self.scores).any(axis=1)  # [settings, rungs]
        return np.max(np.where(done, np.arange(len(self.rungs)), -1), axis=1)

    def ranking(self) -> list[int]:
        """The numbers of the settings, best first: those that ran longer come before others, and those that diverged
        are last."""
        sign = 1 if self.objective.direction == "minimize" else -1
        scores = self.final_scores
        return sorted(
            range(len(self.settings)),
            key=lambda k: (not np.isfinite(scores[k]), -self.reached[k], sign * np.nan_to_num(scores[k], nan=0.0), k),
        )

    def table(self, most: int | None = None) -> Table:
        """The settings as a text table, best first; its `.markdown()`, `.csv()` and `.latex()` give other forms.

        The score is the mean over seeds +- its standard deviation, after the rounds that the setting ran for.
        Gradients and floats are those of its runs, as means over seeds.

        Args:
            most: How many settings at most; None: all.
        """
        names = list(dict.fromkeys(name for setting in self.settings for name in setting))
        header = ("place", *names, "rounds", self.objective.title, "gradients", "floats")
        order = self.ranking()[:most]
        return Table(header, tuple(self._cells(place, k, names) for place, k in enumerate(order, start=1)))

    def legend(self) -> Table:
        """What each column of the table is."""
        names = list(dict.fromkeys(name for setting in self.settings for name in setting))
        explained = [
            ("place", "1 is the best setting"),
            *((name, "what was tuned") for name in names),
            ("rounds", "after how many rounds the setting was scored last"),
            (self.objective.title, "the score: the mean over the seeds ± their standard deviation"),
            ("gradients", f"{COLUMNS['gradient_samples'].description}; of a run, the mean over the seeds"),
            ("floats", f"{COLUMNS['communicated_floats'].description}; of a run, the mean over the seeds"),
        ]
        return Table(("column", "what it is"), tuple(explained))

    def rows(self) -> list[dict[str, Any]]:
        """Every score: a dict for each setting, seed and rung that was run."""
        return [
            {"setting": k, **setting, "seed": seed, "rounds": rounds, "score": float(self.scores[k, s, rung])}
            for k, setting in enumerate(self.settings)
            for s, seed in enumerate(self.seeds)
            for rung, rounds in enumerate(self.rungs)
            if not np.isnan(self.scores[k, s, rung])
        ]

    def csv(self) -> str:
        """`rows` as comma-separated values, in full precision."""
        names = list(dict.fromkeys(name for row in self.rows() for name in row))
        cells = (tuple(_full(row.get(name, "")) for name in names) for row in self.rows())
        return Table(tuple(names), tuple(cells)).csv()

    def to_pandas(self) -> Any:
        """`rows` as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install 'fedjax_admm[plots]'") from None
        return pandas.DataFrame(self.rows())

    def plot(self, x: str | None = None, y: str | None = None, *, axes: Any = None) -> Any:
        """The score over one or two of the numbers that were tuned; returns matplotlib's axes.

        Args:
            x: A name in the settings; by default the first that has several values.
            y: Another, for a picture of two numbers: colours are scores; by default the second that has several values,
                if x is not given either.
            axes: Where to draw; by default in a new figure.
        """
        from ..show.plots import plot_response

        return plot_response(self, x, y, axes=axes)

    def notes(self) -> list[str]:
        """Sentences on what diverged, what is not finished, and how many settings each rung kept."""
        failed = [
            f"{label}, seed {seed}: {why}" for label, seeds in self.diverged.items() for seed, why in seeds.items()
        ]
        notes = [text.partition(";")[0] for text in failed[:MOST_NOTES]]
        notes += [f"and {len(failed) - MOST_NOTES} more runs that diverged"] if len(failed) > MOST_NOTES else []
        taking_part = [int(np.sum(~np.isnan(self.scores[:, :, rung]).all(axis=1))) for rung in range(len(self.rungs))]
        if len(self.rungs) > 1:
            steps = (f"{count} to round {rounds}" for count, rounds in zip(taking_part, self.rungs, strict=True))
            notes.append(f"successive halving: {', '.join(steps)}")
        if self.missing:
            notes.append(self.missing)
        return notes

    def text(self, width: int | None = None) -> str:
        """Table and notes; a table wider than `width` characters is continued below."""
        return "\n".join([self.table().text(width), *self.notes()])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    @property
    def _best(self) -> int:
        best = self.ranking()[0]
        if not np.isfinite(self.final_scores[best]):
            stand = "every setting diverged" if self.diverged else "no setting was run to a rung's end"
            raise ValueError(f"there is no best setting, {stand}: lower the learning rate, or try other numbers")
        return best

    def _cells(self, place: int, k: int, names: Sequence[str]) -> tuple[str, ...]:
        rung, setting = self.reached[k], self.settings[k]
        shown = [short(setting[name]) if name in setting else "-" for name in names]
        if rung < 0:
            return (str(place), *shown, "0", "-", "-", "-")
        diverged = len(self.diverged.get(self.labels[k], {}))
        score = f"diverged ({diverged} of {len(self.seeds)} seeds)"
        if np.isfinite(self.final_scores[k]):
            scores = self.scores[k, :, rung]
            spread = f" ± {np.std(scores, ddof=1):.4g}" if len(scores) > 1 and np.ptp(scores) > 0 else ""
            score = f"{self.final_scores[k]:.6g}{spread}"
        runs = self.runs.get(self.labels[k], {}).values()
        spent = (
            f"{np.mean([run.history[name].sum() for run in runs]):,.0f}" if runs else "-"
            for name in ("gradient_samples", "communicated_floats")
        )
        return (str(place), *shown, f"{self.rungs[rung]}", score, *spent)


def label_settings(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for each setting, all different.

    >>> label_settings([{"penalty": 0.1, "c": 1}, {"penalty": 1e-3, "c": 1}])
    ['penalty 0.1, c 1', 'penalty 0.001, c 1']
    """
    labels = [", ".join(f"{name} {short(value)}" for name, value in setting.items()) for setting in settings]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({k})" for k, label in enumerate(labels)]


def short(value: Any) -> str:
    """A value in a few letters: numbers to six digits, functions by name.

    >>> short(0.30000000000000004), short(None), short(math.sqrt)
    ('0.3', 'None', 'sqrt')
    """
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    text = str(getattr(value, "__name__", None) or value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _full(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float | np.floating) else str(value)
