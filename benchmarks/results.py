"""What the scripts that measure share: their arguments, and how results are kept.

Tables are CSV files with their origin above them, figures have several panels.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_admm as fa
from fedjax_admm.cli.flags import read_value
from fedjax_admm.core import checks
from fedjax_admm.core.columns import look_up
from fedjax_admm.core.environment import environment
from fedjax_admm.core.files import check_writable
from fedjax_admm.results import curves as run_curves
from fedjax_admm.results.tables import Table
from fedjax_admm.show.plots import figures
from fedjax_admm.storage.stored_run import StoredRun


def one_line_errors(main: Callable[[], None]) -> None:
    """Runs a script; of bad input and of what is missing it says one line, and ends with 2; stopped, with 1."""
    try:
        main()
    except fa.Interrupted as stopped:
        kept = f"; {stopped.run_dir} has it, and the same command goes on" if stopped.run_dir else ""
        print(f"{Path(sys.argv[0]).name}: stopped after round {stopped.round}{kept}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:  # a second one
        print(
            f"{Path(sys.argv[0]).name}: stopped at once; with --out, what was saved is kept",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # an orderly exit would wait for the round that is being computed
    except (ValueError, TypeError, FileNotFoundError, ImportError) as error:
        print(f"{Path(sys.argv[0]).name}: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def arguments_of(items: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE, as the arguments of an example."""
    pairs = [item.partition("=") for item in items]
    if bad := [item for item, (_, sign, _) in zip(items, pairs, strict=True) if not sign]:
        raise ValueError(f"--set must be NAME=VALUE, got {bad[0]!r}")
    return {name: read_value(text) for name, _, text in pairs}


def make(maker: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """An example with the arguments of `--set`."""
    known = inspect.signature(maker).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        for name in arguments:
            checks.choice("--set", name, tuple(known))
    return maker(**arguments)


def prefix(text: str) -> str:
    """For `--results`, before anything is run: where files can be written."""
    try:
        check_writable(Path(text).parent, repr(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def numbers(name: str, text: str, kind: Callable[[str], Any] = float) -> list[Any]:
    """Numbers between commas."""
    try:
        return [kind(item) for item in text.split(",")]
    except ValueError:
        raise ValueError(f"--{name} must be numbers with commas between them, got {text!r}") from None


def origin(runs: Sequence[fa.RunRecord] = ()) -> list[str]:
    """The command, the date, the versions and the machine, a line each; of runs on disk, what they were made with."""
    environments = [run.environment[-1] for run in runs if isinstance(run, StoredRun) and run.environment]
    told = environments[0] if environments else _now()
    days = sorted({each["started"][:10] for each in environments} or {told["started"][:10]})
    commits = dict.fromkeys(each["commit"] or "not recorded" for each in environments or [told])
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    given = [word for word in sys.argv[1:] if word != "--report"]  # without it, the same command makes the runs
    command = shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *given])
    return [
        f"python {command}",
        f"{' to '.join(days[:: max(1, len(days) - 1)])}, commit {', '.join(commits)}",
        f"Python {told['python']}, {versions}",
        f"{told['cores']} cores, {told['machine']}, {told['system']}; devices: {', '.join(told['devices'])}",
    ]


@functools.cache
def _now() -> dict[str, Any]:
    """As it is before the first file is written, which may be in the repository and change it."""
    return environment()


def write_csv(path: str | Path, values: str, notes: Sequence[str] = (), runs: Sequence[fa.RunRecord] = ()) -> None:
    """Comma-separated values under lines that begin with #: where they, or the runs, come from, and notes."""
    head = "".join(f"# {line}\n" for line in (*origin(runs), *notes))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(head + values, encoding="utf-8")


def stacked(tables: Mapping[Any, str], name: str = "penalty") -> str:
    """Tables as one, with the key of each, a penalty or what `name` says, in front."""
    lines = {key: text.splitlines() for key, text in tables.items()}
    header = next(iter(lines.values()))[0]
    rows = [
        f"{key if isinstance(key, str) else f'{key:g}'},{line}" for key, found in lines.items() for line in found[1:]
    ]
    return "\n".join([f"{name},{header}", *rows]) + "\n"


def every_round(runs: Mapping[str, Mapping[int, fa.RunRecord]], columns: Sequence[str]) -> str:
    """The numbers behind curves: a line for each round that was evaluated, of every label and seed.

    columns: of the history, a round's work summed up to there; or "epochs", of all clients, likewise.
    """
    lines = []
    for label, seeds in runs.items():
        for seed, run in seeds.items():
            found = {**run.history, "epochs": np.append(0, np.sum(run.epochs, axis=1, dtype=np.int64))}
            summed = [name == "epochs" or look_up(name).has_total for name in columns]
            values = [np.cumsum(found[name]) if add else found[name] for name, add in zip(columns, summed, strict=True)]
            for k in np.flatnonzero(np.isfinite(run.history["loss"])):
                lines.append((label, str(seed), str(k), *(f"{column[k]:.10g}" for column in values)))
    return Table(("method", "seed", "round", *columns), tuple(lines)).csv()


def every_run(comparisons: Iterable[fa.Comparison]) -> list[fa.RunRecord]:
    """All that was run for them."""
    return [run for each in comparisons for runs in each.runs.values() for run in runs.values()]


def draw(
    path: str | Path,
    rows: Mapping[str, Mapping[str, Any]],
    column: str,
    against: Sequence[str] = ("rounds", "gradients"),
    target: float | None = None,
    levels: Mapping[str, Mapping[str, float]] | None = None,
    level_name: str = "",
) -> None:
    """A row of panels for each title of `rows`, title -> label -> runs: `column` against each of `against`.

    target: a grey line in every panel. levels: title -> label -> a thin line in that label's colour, which the legend
    calls `level_name`.
    """
    scale = "log" if look_up(column).scale == "log" else "auto"
    grid = figures.new_axes(len(rows), len(against), (4.2, 3.0), sharey="row")
    labels = {
        label: index for index, label in enumerate(dict.fromkeys(name for runs in rows.values() for name in runs))
    }
    for line, (title, runs) in zip(grid, rows.items(), strict=True):
        for axes, horizontal in zip(line, against, strict=True):
            named = run_curves.named_runs(runs)
            quantity = run_curves.column(column)
            styles = {label: figures.style(labels[label]) for label in named}
            curves = quantity.curves(named, horizontal)
            figures.draw(axes, curves, quantity, styles, against=horizontal, scale=scale)
            if target is not None:
                axes.axhline(target, color="0.5", linewidth=0.8)
            for label, level in (levels or {}).get(title, {}).items():
                axes.axhline(level, **styles[label] | {"linewidth": 0.8}, label=f"{label}, {level_name}")
            if axes is not line[0]:
                axes.set_ylabel("")
        line[0].set_title(title, fontsize="medium", loc="left")
    figures.shared_legend(grid.flat)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    grid[0, 0].figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
