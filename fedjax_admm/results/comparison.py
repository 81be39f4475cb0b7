"""Several algorithms on the same problem, clients, rows and starts; over seeds; as a table and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import checks
from ..core.client_statistics import STATISTICS as STATISTICS_OVER_CLIENTS
from ..core.client_statistics import split_name
from ..core.columns import COLUMNS, Column, Kind, look_up
from ..core.vocabulary import StopReason
from .history import History, RunRecord
from .remarks import note as unused_note
from .tables import Table

LAST = 10  # evaluations that the mean at the end is taken over
EPOCHS_SAVED = "the share of the local epochs that clients were allowed to train and did not need"


@dataclass(frozen=True)
class Comparison:
    """Runs by algorithm and seed.

    Runs with the same seed share initial parameters, cohorts and order of rows, so differences to the baseline are
    paired by seed.

    >>> comparison = fa.compare(problem, {"FedADMM": one, "InSa": other}, rounds=100, seeds=[0, 1])  # doctest: +SKIP
    >>> print(comparison.table().markdown())  # doctest: +SKIP
    """

    runs: Mapping[str, Mapping[int, RunRecord]]  # label -> seed -> run
    missing: Mapping[str, Mapping[int, str]]  # label -> seed -> why: not begun, unfinished, diverged
    baseline: str
    targets: Sequence[tuple[str, float]] = ()  # column of the history and value that the work is told until

    def statistics(self) -> list[dict[str, Any]]:
        """One dict of numbers per algorithm: means and standard deviations (`_std`) over the seeds that finished.

        For loss and metrics: `_final`, `_last` (mean of the last ten evaluations, or of all if fewer), `_best` (least
        loss, greatest metric) and `_last_difference` (to the baseline, paired by seed). `gradients_ratio`,
        `floats_ratio` and, with a client time, `time_ratio` are relative to the baseline's.
        """
        return [self._row(label) for label in self.runs]

    def csv(self) -> str:
        """The statistics as comma-separated values, in full precision."""
        rows = self.statistics()
        return Table(tuple(rows[0]), tuple(tuple(str(value) for value in row.values()) for row in rows)).csv()

    def table(self, clients: bool = False) -> Table:
        """The comparison as a text table; its `.markdown()` and `.latex()` give other forms, and `legend` explains the
        columns.

        Args:
            clients: Show the statistics over clients instead, for runs that evaluate them: "loss worst decile" and so
                on, as means over the last ten evaluations of clients.
        """
        if clients:
            return self._clients_table()
        columns = self._evaluated()
        header = tuple(name for name, _ in self._explained())
        return Table(header, tuple(self._cells(row, columns) for row in self.statistics()))

    def legend(self) -> Table:
        """What each column of the tables is."""
        explained = dict(self._explained())
        if self.targets:
            work = [("reached", "how many of the seeds reached the target; the work is the mean over those")]
            work += [(each.short or each.total, f"until then: {each.description}") for each in self._work()]
            explained |= {name: text for name, text in work if name not in explained}
        return Table(("column", "what it is"), tuple(explained.items()))

    def _explained(self) -> list[tuple[str, str]]:
        """The table's columns, and what each is."""
        explained = [
            ("algorithm", "the method, with its initial penalty"),
            ("seeds", "how many runs, one per seed, the row is the mean of; ± is their standard deviation"),
        ]
        for name in self._evaluated():
            shown, about = name.replace("_", " "), look_up(name)
            number = self._last_number(name)
            last = f"last {number}"
            words = (last,) if about.brief else ("final", last, "best", "difference")
            meanings = {
                "final": f"{about.description}; after the last round",
                last: f"{about.description}; the mean over the last {number} evaluations",
                "best": f"the {'lowest' if about.less_is_better else 'highest'} {shown} of all evaluations",
                "difference": f"{shown}, {last}, minus that of {self.baseline}; the mean over the seeds",
            }
            explained += [(f"{shown}, {word}", meanings[word]) for word in words]
        gradients, *others = self._ratios()
        baseline = f"relative to {self.baseline}'s"
        return [
            *explained,
            ("epochs saved", EPOCHS_SAVED),
            (gradients.against, f"{gradients.description}; {baseline}"),
            ("of criterion", "the share of these gradients that was computed only to check when to stop"),
            *((each.against, f"{each.description}; {baseline}") for each in others),
        ]

    def _last_number(self, name: str) -> str:
        """Over how many evaluations a column's mean at the end is taken: fewer than LAST where there are fewer."""
        runs = [run for runs in self.runs.values() for run in runs.values()]
        numbers = sorted({min(LAST, _read_measured(name, run).size) for run in runs}) or [LAST]
        return " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))

    def _clients_table(self) -> Table:
        columns = self._over_clients()
        if not columns:
            raise ValueError("no run of the comparison evaluated its clients: give compare evaluate_clients_every")
        rows = []
        for label, runs in self.runs.items():
            cells = (
                _with_spread([_last(name, run) for run in runs.values() if name in run.history]) for name in columns
            )
            rows.append((label, f"{len(runs)}", *cells))
        return Table(("algorithm", "seeds", *(name.replace("_", " ") for name in columns)), tuple(rows))

    def to_target(self, column: str, target: float) -> Table:
        """The work until a column of the history first reached the target, in the rounds that were evaluated.

        The columns are means over the seeds that reached it, each a sum over all clients: rounds, local epochs,
        per-example gradients, how many of those the criterion took, floats and, with a client time, simulated seconds.

        Args:
            column: "loss" or "excess_loss" (which have to fall to the target), a metric (which has to rise to it), or
                a statistic of one of them over clients, such as "accuracy_worst_decile".
            target: The number.

        >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
        >>> algorithms = {name: example.algorithm(name) for name in ("fedavg", "fedadmm_insa")}
        >>> comparison = fa.compare(example.problem, algorithms, progress=False, **example.run_settings)
        >>> comparison.to_target("loss", 100.0).rows[0]
        ('fedavg', '1 of 1', '0', '0', '0', '0', '0')
        """
        if not self.by_label():
            raise ValueError("no run of the comparison is done: there is no work to tell")
        checks.choice("column", column, (*self._evaluated(), *self._over_clients()))
        target = checks.number("target", target)
        work = {"round": "rounds", "epochs": "epochs"}
        work |= {each.name: each.short or each.total for each in self._work()}
        rows = []
        for label, runs in self.runs.items():
            spent = [sums for run in runs.values() if (sums := _work_to(run, column, target, work)) is not None]
            means = np.mean(spent, axis=0) if spent else [np.nan] * len(work)
            cells = ("-" if np.isnan(mean) else f"{mean:,.0f}" if mean >= 1000 else f"{mean:.4g}" for mean in means)
            rows.append((label, f"{len(spent)} of {len(runs) + len(self.missing.get(label, {}))}", *cells))
        return Table(("algorithm", "reached", *work.values()), tuple(rows))

    def target_tables(self) -> dict[str, Table]:
        """The work until each of `targets`, by a heading such as "until accuracy is 0.8"."""
        shown = self.targets if self.by_label() else ()
        return {
            f"until {column.replace('_', ' ')} is {value:g}": self.to_target(column, value) for column, value in shown
        }

    def notes(self) -> list[str]:
        """Sentences on what is missing from the table, in which runs the server used nothing, and what the mean at the
        end is taken over."""
        every = ((label, seed, why) for label, seeds in self.missing.items() for seed, why in seeds.items())
        notes = [f"{label}, seed {seed}: {why.partition(';')[0]}" for label, seed, why in every]
        unused = ((label, seed, unused_note(run)) for label, seeds in self.runs.items() for seed, run in seeds.items())
        notes += [f"{label}, seed {seed}: {text}" for label, seed, text in unused if text is not None]
        return notes + self._sparse()

    def _sparse(self) -> list[str]:
        run = next((run for runs in self.runs.values() for run in runs.values()), None)
        if run is None:
            return []
        rounds = run.history["round"][1:][run.history.was_evaluated[1:]][-LAST:]
        if rounds.size < 2 or rounds[-1] - rounds[0] == rounds.size - 1:
            return []
        return [
            f"last {rounds.size}: the mean over the last {rounds.size} evaluations, rounds {rounds[0]:g} to "
            f"{rounds[-1]:g}"
        ]

    def plot(self, against: str = "rounds") -> Any:
        """Loss, metrics, penalties and epochs of all algorithms; returns matplotlib's figure."""
        from ..show.plots import overview

        return overview(self.by_label(), against=against)

    def by_label(self) -> dict[str, list[RunRecord]]:
        """label -> its runs, one per seed; algorithms that diverged with every seed are left out."""
        return {label: list(runs.values()) for label, runs in self.runs.items() if runs}

    def text(self, width: int | None = None) -> str:
        """Table, notes and the work until the targets; a table wider than `width` characters is continued below."""
        parts = ["\n".join([self.table().text(width), *self.notes()])]
        parts += [f"{heading}:\n{work.text(width)}" for heading, work in self.target_tables().items()]
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """The tables in Markdown."""
        return self._written(Table.markdown, "Work {}:")

    def latex(self) -> str:
        """The tables in LaTeX, for the package booktabs."""
        return self._written(Table.latex, "% work {}")

    def _written(self, form: Callable[[Table], str], heading: str) -> str:
        works = (f"{heading.format(text)}\n\n{form(work)}" for text, work in self.target_tables().items())
        return "\n\n".join([form(self.table()), *works])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        works = (f"<p>{heading}</p>{work._repr_html_()}" for heading, work in self.target_tables().items())
        return self.table()._repr_html_() + "".join(works)

    def _evaluated(self) -> list[str]:
        return next((list(run.history.evaluated) for runs in self.runs.values() for run in runs.values()), [])

    def _over_clients(self) -> list[str]:
        """The statistics over clients that any run has."""
        every = (run for runs in self.runs.values() for run in runs.values())
        return list(dict.fromkeys(name for run in every for name in run.history.over_clients))

    def _work(self) -> list[Column]:
        """What the runs' work is told in: columns that all of them have."""
        every = [run.history for runs in self.runs.values() for run in runs.values()]
        counted = (each for each in COLUMNS.values() if each.kind is Kind.WORK and each.total)
        return [each for each in counted if each.needs is None or (every and all(each.name in one for one in every))]

    def _ratios(self) -> list[Column]:
        """Those of `_work` that are told relative to the baseline's: per-example gradients first."""
        return [each for each in self._work() if each.against]

    def _row(self, label: str) -> dict[str, Any]:
        runs, base = self.runs[label], self.runs.get(self.baseline, {})
        row: dict[str, Any] = {"algorithm": label, "seeds": len(runs), "missing": len(self.missing.get(label, {}))}
        paired = [seed for seed in runs if seed in base]

        def add(name: str, values: Sequence[float]) -> None:
            row[name] = float(np.mean(values)) if len(values) else np.nan
            row[f"{name}_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else np.nan

        for name in self._evaluated():
            for statistic, of in STATISTICS.items():
                add(f"{name}_{statistic}", [of(name, run) for run in runs.values()])
            add(f"{name}_last_difference", [_last(name, runs[seed]) - _last(name, base[seed]) for seed in paired])
        for name in self._over_clients():
            add(f"{name}_last", [_last(name, run) for run in runs.values() if name in run.history])
        add("epochs", [float(np.sum(run.epochs, dtype=np.int64)) for run in runs.values()])
        add("epoch_reduction", [run.epoch_reduction for run in runs.values()])
        for each in self._ratios():
            add(each.against, [run.history[each.name].sum() for run in runs.values()])
            sums = [(runs[seed].history[each.name].sum(), base[seed].history[each.name].sum()) for seed in paired]
            add(f"{each.against}_ratio", [own / other for own, other in sums])
        spent = [
            (run.history["criterion_samples"].sum(), run.history["gradient_samples"].sum()) for run in runs.values()
        ]
        add("criterion_gradients", [criterion for criterion, _ in spent])
        add("criterion_share", [criterion / gradients for criterion, gradients in spent])
        return row

    def _cells(self, row: Mapping[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
        def cell(name: str, form: str = ".4f", scale: float = 1.0, unit: str = "") -> str:
            mean, deviation = row[name] * scale, row[f"{name}_std"] * scale
            if np.isnan(mean):
                return "-"
            if abs(mean) >= 1e7:  # of a run on its way to divergence
                form = form.replace("f", "e")
            spread = "" if np.isnan(deviation) or deviation == 0 else f" ± {deviation:{form.lstrip('+')}}"
            return f"{mean:{form}}{spread}{unit}"

        cells = [row["algorithm"], f"{row['seeds']}" + (f" ({row['missing']} missing)" if row["missing"] else "")]
        for name in columns:
            if look_up(name).brief:
                cells.append(cell(f"{name}_last"))
                continue
            cells += [cell(f"{name}_{statistic}") for statistic in STATISTICS]
            is_baseline = row["algorithm"] == self.baseline
            cells.append("baseline" if is_baseline else cell(f"{name}_last_difference", "+.4f"))
        gradients, *others = (cell(f"{each.against}_ratio", ".2f", unit=" x") for each in self._ratios())
        share = cell("criterion_share", ".0f", 100, " %")
        return (*cells, cell("epoch_reduction", ".1f", 100, " %"), gradients, share, *others)


def _with_spread(values: Sequence[float]) -> str:
    """A mean over seeds, with their deviation if there are several."""
    if not values or np.isnan(np.mean(values)):
        return "-"
    spread = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread}"


def _read_measured(name: str, run: RunRecord) -> np.ndarray:
    """What was measured after training began; NaN if nothing was."""
    values = run.history[name][1:]
    values = values[np.isfinite(values)]
    return values if values.size else np.array([np.nan])


def _last(name: str, run: RunRecord) -> float:
    return float(np.mean(_read_measured(name, run)[-LAST:]))


def _best(name: str, run: RunRecord) -> float:
    values = _read_measured(name, run)
    return float(np.min(values) if look_up(name).less_is_better else np.max(values))


def first_at(run: RunRecord, column: str, target: float) -> int | None:
    """The first round that was at the target, None if there was none, or the run does not have the column."""
    if column not in run.history:
        return None
    values = run.history[column]
    reached = np.flatnonzero(values <= target if look_up(column).less_is_better else values >= target)
    return int(run.history["round"][reached[0]]) if reached.size else None


def _work_to(run: RunRecord, column: str, target: float, names: Iterable[str]) -> list[float] | None:
    """The work until the target, in each of `names`; None if it was not reached."""
    end = first_at(run, column, target)
    if end is None:
        return None
    own = {"round": end, "epochs": np.sum(run.epochs[:end], dtype=np.int64)}
    return [float(own[name] if name in own else run.history[name][: end + 1].sum()) for name in names]


def key_figures(run: RunRecord) -> Table:
    """One run in a few numbers."""
    history = run.history
    rows = [("rounds", f"{len(run.cohorts)}")]
    for name in history.evaluated:
        shown = name.replace("_", " ")
        number = min(LAST, _read_measured(name, run).size)
        words = {"final": "final", "last": f"mean of the last {number}", "best": "best"}
        rows += [(f"{shown}, {word}", f"{STATISTICS[key](name, run):.6g}") for key, word in words.items()]
    rows.append(("local epochs saved", f"{100 * run.epoch_reduction:.1f} %"))
    counted = [each for each in COLUMNS.values() if each.has_total and each.total and each.name in history]
    rows += [_total(each, history) for each in counted if each.kind is Kind.WORK]
    if any(each.needs for each in counted):  # then how the others ended is worth a line each
        sound = (reason for reason in StopReason if reason.fate.sound)
        rows += [(f"solves that ended by {reason}", f"{run.solves.count(reason)}") for reason in sound]
    rows += [_total(each, history) for each in counted if each.kind is Kind.CLIENTS]
    if np.isfinite(history["penalty_mean"][-1]):
        rows.append(("penalty, mean over clients", f"{history['penalty_mean'][-1]:.4g}"))
    rows += _over_clients_rows(run)
    if run.evaluated != "all":
        rows.append(
            ("loss evaluated on", WHERE.get(run.evaluated) or f"{run.evaluated:,} rows, the same in every round")
        )
    rows.append(("seconds", f"{history['seconds'].sum():.1f} + {history['eval_seconds'].sum():.1f} of evaluation"))
    if "client_eval_seconds" in history:
        rows.append(("seconds of evaluating clients", f"{history['client_eval_seconds'].sum():.1f}"))
    return Table(("quantity", "value"), tuple(rows))


def explain_key_figures(run: RunRecord) -> Table:
    """What each of a run's key figures is."""
    rows = [(name.replace("_", " "), look_up(name).description) for name in run.history.evaluated]
    rows.append(("local epochs saved", EPOCHS_SAVED))
    counted = [each for each in COLUMNS.values() if each.has_total and each.total and each.name in run.history]
    rows += [(each.total, each.description) for each in counted if each.name != "round"]
    if np.isfinite(run.history["penalty_mean"][-1]):
        rows.append(("penalty, mean over clients", COLUMNS["penalty_mean"].description))
    rows += [("seconds", "of training, including compiling, and of evaluation")]
    return Table(("quantity", "what it is"), tuple(rows))


def _over_clients_rows(run: RunRecord) -> list[tuple[str, str]]:
    """A line for each loss and metric that every client has: how it is spread over them at the last evaluation."""
    shown = ("worst", "worst_decile", "mean", "best_decile")
    quantities = dict.fromkeys(parts[0] for name in run.history.over_clients if (parts := split_name(name)))
    words = ", ".join(STATISTICS_OVER_CLIENTS[each].label for each in shown)
    return [
        (
            f"{quantity.replace('_', ' ')} of clients: {words}",
            ", ".join(f"{_last_known(f'{quantity}_{each}', run):.4g}" for each in shown),
        )
        for quantity in quantities
    ]


def _total(column: Column, history: History) -> tuple[str, str]:
    total = history[column.name].sum()
    return column.total, f"{total:,}" if np.issubdtype(total.dtype, np.integer) else f"{total:.6g}"


def _last_known(name: str, run: RunRecord) -> float:
    """The last evaluation's value."""
    return float(_read_measured(name, run)[-1])


WHERE = {"test": "nothing: only test rows are evaluated", None: "nothing"}
STATISTICS = {"final": _last_known, "last": _last, "best": _best}
