"""What the commands print: results on stdout, and on stderr what is going on."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from ..core import checks, environment
from ..core.vocabulary import RunStatus
from ..engine import processes
from ..results.comparison import Comparison, explain_key_figures, key_figures
from ..results.history import Result
from ..results.tables import Table
from ..results.tuning import Tuning, short
from ..storage.comparison_directory import read_comparison, write_forms
from ..storage.run_files import SETTINGS, read_run_settings, read_status


class EveryRunDivergedError(RuntimeError):
    """A comparison without a result."""


def show_run(
    result: Result, out: Any, title: str, note: str | None, before: int | None = None, explain: bool = False
) -> None:
    """Prints a run's title and key figures.

    Args:
        result: The run.
        out: Its directory; None if it is not kept.
        title: What it is of.
        note: A sentence about it, if there is anything to say.
        before: Rounds of the complete run that was there before the command.
        explain: Whether to say what each figure is.
    """
    if not processes.is_first():
        return
    if before is not None and before == len(result.cohorts):
        _say(f"{out} is already complete: {checks.counted(before, 'round')}")
    print(f"{title}\n\n{key_figures(result)}")
    if explain:
        print(f"\n{_without_header(explain_key_figures(result))}")
    if note is not None:
        print(f"\n{note}")
    if (peak := environment.peak_memory()) is not None:
        print(f"\nmemory of this process, at most: {peak / 2**30:.2f} GiB")
    if out is not None:
        print(f"\nin {out}; for pictures: fedjax-admm report {shlex.quote(str(out))}")


def show_comparison(comparison: Comparison, out: Any, complete: bool = False, explain: bool = False) -> None:
    """Prints a comparison's tables.

    Args:
        comparison: What the command computed.
        out: Its directory, if there is one. All that is in it is shown: the command may have added to it.
        complete: Whether it was complete before the command.
        explain: Whether to say what each column is.

    Raises:
        EveryRunDivergedError: There is nothing to compare.
    """
    diverged = None if comparison.by_label() else next(iter(comparison.notes()), "").partition(";")[0]
    if processes.is_first():
        if complete:
            _say(f"{out} is already complete")
        if out is not None:
            comparison = read_comparison(out)
        # In a file or a pipe a row is one line, however long.
        print(comparison.text(shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
        if explain and comparison.by_label():
            print(f"\n{_without_header(comparison.legend())}")
        if out is not None and comparison.by_label():
            print(f"\nin {out}: table.txt, .csv, .md, .tex; for pictures: fedjax-admm report {shlex.quote(str(out))}")
    if diverged is not None:  # every run of this command: in every process the same
        raise EveryRunDivergedError(f"every run diverged ({diverged}): lower the learning rate, or try other penalties")


def show_tuning(tuning: Tuning, out: Any, explain: bool = False) -> None:
    """Prints a tuning's table and its best setting, and writes them into its directory.

    Args:
        tuning: What the command computed.
        out: Its directory; None if it is not kept.
        explain: Whether to say what each column is.
    """
    best = tuning.best  # an error if every setting diverged, in every process the same
    if not processes.is_first():
        return
    print(tuning.text(shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    if explain:
        print(f"\n{_without_header(tuning.legend())}")
    print("\nbest: " + ", ".join(f"{name} {short(value)}" for name, value in best.items()))
    if out is not None:
        forms = {"table.txt": tuning.text(), "table.md": tuning.table().markdown(), "scores.csv": tuning.csv()}
        write_forms(forms, out)
        print(f"\nin {out}: {', '.join(forms)}; for pictures: fedjax-admm report {shlex.quote(str(out))}")


def rounds_if_complete(directory: Any) -> int | None:
    """The rounds of the finished run in a directory; None where there is none."""
    if directory is None or not (Path(directory) / SETTINGS).exists():
        return None
    rounds = read_run_settings(directory)["rounds"]
    return rounds if read_status(Path(directory))["status"] == RunStatus.FINISHED else None


def _without_header(legend: Table) -> str:
    """One line for each entry: its name, and what it is."""
    return "\n".join(f"{name}: {text}" for name, text in legend.rows)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
