"""A report of one or several runs as one HTML page that needs nothing but a browser.

The page's frame, look and behaviour are in page.html, page.css and page.js beside this file; they and all values
are written into the page. The browser draws the curves from the embedded numbers (`charts.py`); the heat maps are
PNG images (`heatmap.py`).
"""

from __future__ import annotations

import base64
import io
import json
import string
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ...core.files import read_json, write_whole
from ...core.vocabulary import AWAY, VACANT, RunStatus, StopReason
from ...results.comparison import Comparison, explain_key_figures, key_figures
from ...results.curves import NamedRuns
from ...results.tables import Table
from ...results.tuning import Tuning
from ...storage.comparison_directory import CELLS, read_comparison
from ...storage.stored_run import StoredRun, read_run
from ...storage.tuning_directory import TUNING, read_tuning
from ..plots.figures import close
from . import charts, clients, heatmap

MOST_NAMES = 6  # labels that the first sentence names
MOST_CURVES = 8  # settings of a tuning that have curves and maps


def write_report(directory: Any, output: Any = None) -> Path:
    """Writes the page about the run, the comparison or the tuning in a directory.

    Args:
        directory: The directory.
        output: The file; by default `report.html` in the directory.

    Returns:
        The file.
    """
    folder = Path(directory)
    kinds = {CELLS: _comparison_page, TUNING: _tuning_page}
    text = next((write for mark, write in kinds.items() if (folder / mark).exists()), _run_page)(folder)
    file = folder / "report.html" if output is None else Path(output)
    try:
        if file.is_dir() or not file.parent.is_dir():
            raise ValueError(f"output must be a file in a folder that is there, got {str(file)!r}: give another")
        write_whole(file, lambda out: out.write(text.encode(errors="replace")))
    except OSError as error:
        raise ValueError(f"output {str(file)!r} cannot be written ({error.strerror}): give another") from None
    return file


def _run_page(folder: Path) -> str:
    run = read_run(folder)
    done = len(run.cohorts)
    notes = [] if run.status == RunStatus.FINISHED else [f"{run.status}: {done} of {run.rounds} rounds are here"]
    notes += [run.message] if run.message else []
    notes += [] if run.note is None else [run.note]
    environment = {f"start {k + 1}": one for k, one in enumerate(run.environment)} | {"execution": run.execution}
    return page(
        folder.resolve().name,
        {run.title: [run]},
        table=key_figures(run),
        legend=explain_key_figures(run),
        settings=run.settings,
        environment=environment,
        notes=notes,
    )


def _comparison_page(folder: Path) -> str:
    comparison = read_comparison(folder)
    runs = comparison.by_label()
    if not runs:
        stand = "; ".join(comparison.notes()[:MOST_NAMES])
        raise ValueError(f"the comparison in {str(folder)!r} has no finished run: {stand}")
    first = next(run for seeds in comparison.runs.values() for run in seeds.values())
    assert isinstance(first, StoredRun)
    settings = {"comparison": read_json(folder / CELLS), "first run": first.settings}
    return page(
        folder.resolve().name,
        runs,
        problem=first.problem_name,
        table=comparison.table(),
        legend=comparison.legend(),
        settings=settings,
        environment=first.environment[-1] if first.environment else {},
        notes=comparison.notes(),
        more=_more_tables(comparison),
    )


def _tuning_page(folder: Path) -> str:
    tuning = read_tuning(folder)
    best = [tuning.labels[k] for k in tuning.ranking()[:MOST_CURVES] if tuning.runs.get(tuning.labels[k])]
    if not best:
        raise ValueError(f"the tuning in {str(folder)!r} has no finished run: {'; '.join(tuning.notes()[:MOST_NAMES])}")
    runs = {label: list(tuning.runs[label].values()) for label in best}
    first = runs[best[0]][0]
    assert isinstance(first, StoredRun)
    notes = [f"the best setting: {best[0]}", *tuning.notes()]
    if len(best) < len(tuning.labels):
        notes.append(f"curves and maps are of the best {len(best)} of {len(tuning.labels)} settings; the table has all")
    return page(
        folder.resolve().name,
        runs,
        problem=first.problem_name,
        table=tuning.table(),
        legend=tuning.legend(),
        settings={"tuning": read_json(folder / TUNING), "best, first run": first.settings},
        environment=first.environment[-1] if first.environment else {},
        notes=notes,
        picture=_response(tuning),
    )


def _response(tuning: Tuning) -> str:
    """The picture of the response, drawn by matplotlib; nothing where that is not installed."""
    file = io.BytesIO()
    try:
        axes = tuning.plot()
    except ImportError:
        return ""
    axes.figure.savefig(file, format="png", dpi=110)
    close(axes.figure)
    data = base64.b64encode(file.getvalue()).decode()
    text = f"{tuning.objective.title} over {axes.get_xlabel()}, {axes.get_ylabel()}"
    caption = "The response: hollow, small or in italics what was dropped before the last rung, a cross what diverged"
    image = f'<img alt="{escape(text)}" src="data:image/png;base64,{data}" style="max-width: 100%">'
    return f"<h3>Response</h3><figure><figcaption>{caption}</figcaption>{image}</figure>"


def _more_tables(comparison: Comparison) -> dict[str, Table]:
    """heading -> a table that stands below the figures."""
    tables = {f"Work {heading}": work for heading, work in comparison.target_tables().items()}
    if any(run.history.over_clients for runs in comparison.by_label().values() for run in runs):
        tables["Clients, each of which counts alike: mean of the last 10 evaluations"] = comparison.table(clients=True)
    return tables


def page(
    title: str,
    runs: NamedRuns,
    *,
    table: Table,
    legend: Table | None = None,
    settings: Mapping[str, Any] = {},
    environment: Mapping[str, Any] = {},
    notes: Sequence[str] = (),
    more: Mapping[str, Table] = {},
    problem: str | None = None,
    picture: str = "",
) -> str:
    """The whole HTML document.

    Args:
        title: The page's title.
        runs: label -> one record per seed; a single run is one label with one record.
        table: The figures, as text.
        legend: What each column or line of the table is.
        settings: Nested values, shown as a tree.
        environment: Likewise.
        notes: Sentences for the top of the page, such as "diverged in round 7".
        more: heading -> a table to stand below the figures, such as the work until a target.
        problem: Its name, where the labels do not say it.
        picture: HTML to stand below the tables.

    >>> data = fa.FederatedData.from_arrays({"x": np.eye(4), "y": np.ones(4)}, [[0, 1], [2, 3]])
    >>> def loss(w, batch):
    ...     return 0.5 * (batch["x"] @ w - batch["y"]) ** 2
    >>> problem = fa.Problem(init=lambda key: jnp.zeros(4), loss=loss, data=data)
    >>> result = fa.simulate(problem, fa.fedavg(fa.LocalSolver(learning_rate=0.1, max_epochs=3)), rounds=2)
    >>> page("A small run", {"FedAvg": [result]}, table=key_figures(result)).splitlines()[0]
    '<!doctype html>'
    """
    if not runs or not all(runs.values()):
        raise ValueError(f"runs must have at least one label, and each at least one record, got {dict(runs)!r}")
    data, remarks = charts.chart_data(runs)
    largest = heatmap.largest(runs)
    tables = clients.worst_tables(runs)
    evaluated = clients.figures(runs)
    evaluated += "".join(f"<h3>{escape(heading)}</h3>{_scrolling(heading, worst)}" for heading, worst in tables.items())
    values = {
        "title": escape(title),
        "sentence": escape(_sentence(runs, problem)),
        "notes": _items(notes),
        "table": _scrolling("results", table)
        + ("" if legend is None else _definitions("What this table shows", legend))
        + "".join(f"<h3>{escape(heading)}</h3>{_scrolling(heading, other)}" for heading, other in more.items())
        + picture,
        "remarks": _items(remarks),
        "colours": ", ".join(heatmap.COLOURS[:: len(heatmap.COLOURS) // 6]),
        "largest": f"{largest:,}",
        "away": _AWAY if heatmap.any_away(runs) else "",
        "heatmaps": heatmap.figures(runs, largest),
        "stops": _stops(runs),
        "no_clients": "" if evaluated else "hidden",
        "clients": evaluated,
        "settings": _tree(settings),
        "environment": _tree(environment),
        "data": _script_json(data | {"heat": _heat(largest)}),
        "style": style(),
        "script": _part("page.js"),
    }
    return string.Template(_part("page.html")).substitute(values)


_AWAY = (
    f'<span class="entry"><i class="away" style="background: {heatmap.AWAY_COLOUR}"></i> '
    f"selected, but away ({' or '.join(reason for reason in AWAY if not reason.fate.vacant)})</span>"
)


def style() -> str:
    """The page's look, with a class for each stop reason."""
    return _part("page.css") + "".join(f".{reason} {{ background: {_fill(reason)}; }}\n" for reason in StopReason)


def _fill(reason: StopReason) -> str:
    colour = f"var(--{reason.fate.colour})"
    return f"repeating-linear-gradient(45deg, {colour} 0 2px, transparent 2px 4px)" if reason.fate.hatched else colour


def _heat(largest: int) -> dict[str, Any]:
    return {"largest": largest, "colours": heatmap.COLOURS, "away": heatmap.AWAY_COLOUR}


def _part(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that no HTML parser takes for the end of its <script>, and without NaN, which is not JSON."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _sentence(runs: NamedRuns, problem: str | None) -> str:
    records = [record for seeds in runs.values() for record in seeds]
    what = ", ".join(runs) if len(runs) <= MOST_NAMES else f"{len(runs)} settings"
    seeds = _range(map(len, runs.values()))
    rounds = _range(len(record.cohorts) for record in records)
    selected = [np.sum(record.cohorts != VACANT, axis=1) for record in records if len(record.cohorts)]
    cohort = _range(np.concatenate(selected).tolist() if selected else [record.cohorts.shape[1] for record in records])
    clients = _range(record.num_clients for record in records)
    of_seeds = "" if seeds == "1" else f" ({seeds} seeds each)"
    what += f" on {problem}" if problem else ""
    return f"{what}{of_seeds}: {rounds} rounds done, {cohort} of {clients} clients selected in each."


def _range(values: Iterable[int]) -> str:
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _scrolling(name: str, table: Table) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table: {escape(name)}">{_table(table)}</div>'


def _definitions(heading: str, legend: Table) -> str:
    """Names and what they are, to unfold."""
    entries = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in legend.rows)
    return f"<details><summary>{escape(heading)}</summary><dl>{entries}</dl></details>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in table.header)
    body = (
        f'<tr><th scope="row">{escape(str(first))}</th>' + "".join(f"<td>{_cell(str(cell))}</td>" for cell in rest)
        for first, *rest in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{'</tr>'.join(body)}</tr></tbody></table>"


def _cell(text: str) -> str:
    """A deviation goes below its mean, else a comparison over seeds would be wider than a screen."""
    mean, sign, deviation = text.partition(" ± ")
    return f"{escape(mean)} <small>± {escape(deviation)}</small>" if sign else escape(text)


def _stops(runs: NamedRuns) -> str:
    """How often solves ended for which reason: a bar and the counts for each label."""
    every = {code for records in runs.values() for record in records for code in np.unique(record.solves.stop_code)}
    # What cannot happen in every run is shown where it happened.
    possible = (reason for reason in StopReason if not reason.fate.vacant)
    shown = [reason for reason in possible if reason.fate.needs is None or reason.code in every]
    rows = []
    for label, records in runs.items():
        reasons = np.concatenate([record.solves.stop_reason[~record.solves.vacant] for record in records])
        counts = {str(reason): int(np.sum(reasons == reason)) for reason in shown}
        bar = "".join(f'<i class="{reason}" style="flex-grow:{count}"></i>' for reason, count in counts.items())
        cells = (f"<td>{n:,} <small>{n / max(reasons.size, 1):.1%}</small></td>" for n in counts.values())
        rows.append(
            f'<tr><th scope="row">{escape(label)}</th><td><div class="bar">{bar}</div></td>{"".join(cells)}</tr>'
        )
    head = "".join(f'<th scope="col"><i class="key {reason}"></i> {reason}</th>' for reason in shown)
    return (
        f'<table class="stops"><thead><tr><th></th><th></th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _items(sentences: Iterable[str]) -> str:
    return "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)


def _tree(values: Any) -> str:
    """Nested mappings as lists that fold; a long list folds too."""
    if isinstance(values, Mapping):
        return f"<ul>{''.join(f'<li>{_entry(str(key), value)}</li>' for key, value in values.items())}</ul>"
    if isinstance(values, list | tuple):
        return f"<code>{escape(', '.join(map(str, values)))}</code>"
    return f"<code>{escape(str(values))}</code>"


def _entry(key: str, value: Any) -> str:
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value):
        value = {str(index): item for index, item in enumerate(value)}
    if isinstance(value, Mapping) and value:
        return f"<details open><summary>{escape(key)}</summary>{_tree(value)}</details>"
    if isinstance(value, list | tuple) and len(value) > 12:
        return f"<details><summary>{escape(key)}: {len(value)} values</summary>{_tree(value)}</details>"
    return f"<span>{escape(key)}</span> {_tree(value)}"
