"""The commands about a run, a comparison or a tuning that is on disk: resume and report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..runs.resume import resume, resume_comparison, resume_tuning
from ..show.report import write_report
from ..storage.comparison_directory import CELLS, read_comparison
from ..storage.stored_run import read_run
from ..storage.tuning_directory import TUNING
from . import output
from .application import app
from .failures import carry_past_typer

Directory = Annotated[str, typer.Argument(metavar="DIR", help="The directory that --out named.")]


@app.command("resume")
@carry_past_typer
def _resume(
    directory: Directory,
    progress: Annotated[bool, typer.Option(help="Show a bar, or a line every few seconds.")] = True,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="A module of your own (with its submodules) that the run needs. It is imported, which runs its code. "
            "May be repeated.",
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="If records are damaged, go back to before the damage.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(help="More rounds than the runs were to have; they are continued up to these.")
    ] = None,
) -> None:
    """Resumes the run, the comparison or the tuning in DIR; a finished one with more --rounds is continued.

    No module that DIR names is imported unless --trust names it too.

    Example:

    fedjax-admm resume runs/first
    """
    choices: dict[str, Any] = {"trust": trust or (), "progress": progress} | (
        {} if rounds is None else {"rounds": rounds}
    )
    if (Path(directory) / CELLS).exists():
        complete = not rebuild and rounds is None and not any(read_comparison(directory).missing.values())
        output.show_comparison(resume_comparison(directory, rebuild=rebuild, **choices), directory, complete)
        return
    if (Path(directory) / TUNING).exists():
        if rebuild:
            raise ValueError(f"--rebuild is for single runs: give it with one of the runs in {directory}")
        output.show_tuning(resume_tuning(directory, **choices), directory)
        return
    before = None if rebuild else output.rounds_if_complete(directory)
    result, stored = resume(directory, rebuild=rebuild, **choices), read_run(directory)
    output.show_run(result, directory, stored.title, stored.note, before)


@app.command("report")
@carry_past_typer
def _report(
    directory: Directory,
    output: Annotated[str | None, typer.Option(help="The file; by default report.html in DIR.")] = None,
) -> None:
    """Writes one HTML page about the run, the comparison or the tuning in DIR: tables, curves, settings, machine.

    Example:

    fedjax-admm report runs/first
    """
    print(write_report(directory, output))
