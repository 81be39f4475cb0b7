"""How measured results are kept: tables as CSV with their origin above them, and figures of several panels."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fedjax_admm as fa
from fedjax_admm.environment import environment
from fedjax_admm.plots import figures


def origin() -> list[str]:
    """The command, the date, the versions and the machine, a line each."""
    told = environment()
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    command = shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    return [
        f"python {command}",
        f"{datetime.now(UTC):%Y-%m-%d}, commit {told['commit']}",
        f"Python {told['python']}, {versions}",
        f"{told['cores']} cores, {told['machine']}, {told['system']}; devices: {', '.join(told['devices'])}",
    ]


def write_csv(path: str | Path, values: str, notes: Sequence[str] = ()) -> None:
    """Comma-separated values under lines that begin with #: where they come from, and notes."""
    head = "".join(f"# {line}\n" for line in (*origin(), *notes))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(head + values, encoding="utf-8")


def draw(
    path: str | Path,
    rows: Mapping[str, Mapping[str, Any]],
    column: str,
    against: Sequence[str] = ("rounds", "gradients"),
    target: float | None = None,
) -> None:
    """A row of panels for each title of `rows`, title -> label -> runs: `column` against each of `against`."""
    scale = "log" if column == "excess_loss" else "auto"
    grid = figures.new_axes(len(rows), len(against), (4.2, 3.0), sharey="row")
    labels = {
        label: index for index, label in enumerate(dict.fromkeys(name for runs in rows.values() for name in runs))
    }
    for line, (title, runs) in zip(grid, rows.items(), strict=True):
        for axes, horizontal in zip(line, against, strict=True):
            named = fa.plots.curves.named_runs(runs)
            quantity = fa.plots.curves.column(column)
            styles = {label: figures.style(labels[label]) for label in named}
            curves = quantity.curves(named, horizontal)
            figures.draw(axes, curves, quantity, styles, against=horizontal, scale=scale)
            if target is not None:
                axes.axhline(target, color="0.5", linewidth=0.8)
            if axes is not line[0]:
                axes.set_ylabel("")
        line[0].set_title(title, fontsize="medium", loc="left")
    figures.shared_legend(grid.flat)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    grid[0, 0].figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
