"""A comparison on disk: comparison.json says which cells there are, and a cell has a run directory for each seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algorithms.base import Algorithm
from ..core.environment import versions
from ..core.files import DamagedFileError, read_json, write_json, write_whole
from ..core.vocabulary import RunStatus
from ..engine import processes
from ..engine.execution import Execution
from ..problems.problem import Problem
from ..results.comparison import Comparison
from ..results.history import RunRecord
from .description import describe
from .differences import refuse_differences
from .digests import digest
from .lengthening import refuse_uneven_ends
from .run_files import SETTINGS, check_place, read_status
from .settings import CONDITIONS, describe_algorithm, describe_conditions, describe_evaluation, describe_problem
from .stored_run import read_run

CELLS = "comparison.json"


@dataclass(frozen=True)
class Plan:
    """What a comparison is to do, as its directory has it."""

    folder: Path
    cells: Mapping[str, Mapping[str, Any]]  # label -> folder, versions and the described algorithm
    seeds: Sequence[int]
    baseline: str
    targets: Sequence[tuple[str, float]]
    problem: Mapping[str, Any]  # described
    settings: Mapping[str, Any]  # described: rounds and the like, the same for all cells
    versions: Mapping[str, str]

    @property
    def rounds(self) -> int:
        """How many rounds each run is to have."""
        return self.settings["rounds"]

    def place(self, label: str, seed: int) -> Path:
        """The run directory of a cell.

        Args:
            label: The cell's algorithm.
            seed: The cell's seed.

        Returns:
            The directory, which need not be there yet.

        Raises:
            ValueError: If it is outside of the comparison's directory.
        """
        name = self.cells[label]["folder"]
        place = self.folder / name / f"seed-{seed}"
        if not place.resolve().is_relative_to(self.folder.resolve()):
            raise ValueError(
                f"{self.folder / CELLS}: the folder {name!r} of {label!r}, seed {seed}, leads outside of "
                f"{str(self.folder)!r}: move the runs into it, and name a folder in it"
            )
        return place


def read_plan(folder: Path) -> Plan:
    """Reads what the comparison in a directory is to do.

    Args:
        folder: The comparison's directory.

    Returns:
        The plan; every cell's place is inside of the directory.

    Raises:
        ValueError: If there is no comparison, or a cell's folder leads outside.
        DamagedFileError: If comparison.json is not what was written.
    """
    file = folder / CELLS
    if not file.is_file():
        raise ValueError(f"{str(folder)!r} has no comparison: it needs a {CELLS}")
    written = read_json(file)
    if not _is_plan(written):
        raise DamagedFileError(f"{file} is damaged: it is not what compare wrote")
    plan = Plan(
        folder=folder,
        cells=written["cells"],
        seeds=written["seeds"],
        baseline=written["baseline"],
        targets=[(column, value) for column, value in written.get("targets", [])],
        problem=written["problem"],
        settings=written["settings"],
        versions=written.get("versions", versions()),
    )
    for label in plan.cells:
        for seed in plan.seeds:
            plan.place(label, seed)
    return plan


def _is_plan(written: Any) -> bool:
    kinds = {"cells": dict, "settings": dict, "problem": dict, "baseline": str, "seeds": list}
    if not isinstance(written, dict) or not all(isinstance(written.get(name), kind) for name, kind in kinds.items()):
        return False
    cells, targets = written["cells"].values(), written.get("targets", [])
    return (
        all(isinstance(cell, dict) and isinstance(cell.get("folder"), str) for cell in cells)
        and all(isinstance(cell.get("algorithm"), dict) for cell in cells)
        and all(isinstance(part.get("versions", {}), dict) for part in (written, *cells))
        and all(type(number) is int for number in (written["settings"].get("rounds"), *written["seeds"]))
        and isinstance(targets, list)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in targets)
    )


def read_comparison(path: Any) -> Comparison:
    """Reads the comparison in a directory, as far as it is done.

    Args:
        path: The comparison's directory.

    Returns:
        The comparison, with what is not done, or damaged, among its `missing`.

    Raises:
        ValueError: If there is no comparison, or one of its folders leads outside of the directory.
        DamagedFileError: If comparison.json is damaged.

    >>> print(fa.read_comparison("runs/two"))  # doctest: +SKIP
    """
    plan = read_plan(Path(path))
    runs: dict[str, dict[int, RunRecord]] = {label: {} for label in plan.cells}
    missing: dict[str, dict[int, str]] = {label: {} for label in plan.cells}
    for label in plan.cells:
        for seed in plan.seeds:
            place = plan.place(label, seed)
            status = read_status(place) if (place / SETTINGS).exists() else {"status": "not begun"}
            if status["status"] != RunStatus.FINISHED:
                missing[label][seed] = status.get("message") or status["status"]
                continue
            try:
                run = read_run(place)
            except DamagedFileError as error:  # the other runs are shown
                missing[label][seed] = str(error)
                continue
            if run.rounds == plan.rounds:
                runs[label][seed] = run
            else:  # the comparison or this run was made longer
                missing[label][seed] = f"finished with {run.rounds} rounds, the comparison has {plan.rounds}"
    return Comparison(runs, missing, plan.baseline, plan.targets)


def write_tables(path: Any) -> None:
    """Writes what is done of a comparison as table.txt, .csv, .md and .tex into its directory, if anything is.

    Args:
        path: The comparison's directory.
    """
    comparison = read_comparison(path)
    if not comparison.by_label():
        return
    forms = {
        "table.txt": comparison.text(),
        "table.csv": comparison.csv(),
        "table.md": comparison.markdown(),
        "table.tex": comparison.latex(),
    }
    write_forms(forms, path)


def write_forms(forms: Mapping[str, str], path: Any) -> None:
    """Writes texts into a directory.

    Args:
        forms: File name -> text.
        path: The directory.
    """
    for name, text in forms.items():
        data = (text.rstrip("\n") + "\n").encode()
        write_whole(Path(path) / name, lambda file, data=data: file.write(data))


def write_plan(
    folder: Path,
    problem: Problem,
    algorithms: Mapping[str, Algorithm],
    seeds: Sequence[int],
    baseline: str | None,
    targets: Sequence[tuple[str, float]],
    settings: Mapping[str, Any],
) -> Plan:
    """Writes down what a comparison is to do, beside what its directory has already.

    Args:
        folder: The comparison's directory, new or with a comparison of the same problem and settings; the rounds may
            be more than there, if all runs that are there go on.
        problem: The problem of all cells.
        algorithms: label -> algorithm.
        seeds: The seeds to add.
        baseline: A label; None keeps the former one, or takes the first.
        targets: Pairs of a column and a value, to add.
        settings: `simulate`'s arguments, the same for all cells.

    Returns:
        The plan with all cells, those of before too.

    Raises:
        ValueError: If the directory has a comparison with other settings, or cannot be used.
    """
    check_place(folder, CELLS)
    described = {"problem": describe_problem(problem), "settings": describe_shared(settings)}
    before = read_plan(folder) if (folder / CELLS).exists() else None
    if before is not None:
        longer = described["settings"]["rounds"] > before.rounds
        stored, current = _shared(before.problem, before.settings), _shared(**described)
        as_before = current | ({"rounds": before.rounds} if longer else {})
        refuse_differences(folder, "comparison", stored, as_before, before.versions)
        if longer:
            _check_longer(before, algorithms, seeds)
    plan = Plan(
        folder=folder,
        cells=_add_cells(folder, {} if before is None else before.cells, problem, algorithms),
        seeds=sorted({*(() if before is None else before.seeds), *seeds}),
        baseline=baseline if baseline is not None else next(iter(algorithms)) if before is None else before.baseline,
        targets=list(dict.fromkeys([*(() if before is None else before.targets), *targets])),
        versions=versions(),
        **described,
    )
    try:
        if processes.is_first():
            folder.mkdir(parents=True, exist_ok=True)
            names = ("baseline", "seeds", "targets", "versions", "problem", "settings", "cells")
            write_json(folder / CELLS, {name: getattr(plan, name) for name in names})
    except OSError as error:
        raise ValueError(f"run_dir {str(folder)!r} cannot be used ({error.strerror}): choose another") from None
    return plan


def _check_longer(before: Plan, algorithms: Mapping[str, Algorithm], seeds: Sequence[int]) -> None:
    """A comparison is made longer as a whole: its tables are of runs of the same length."""
    left = [f"algorithm {label!r}" for label in before.cells if label not in algorithms]
    left += [f"seed {seed}" for seed in before.seeds if seed not in seeds]
    if left:
        raise ValueError(
            f"run_dir {str(before.folder)!r} has a comparison of {before.rounds} rounds, which can only be made longer "
            f"as a whole, and these of it were not given: {', '.join(left)}: give them too"
        )
    refuse_uneven_ends(before.folder, (before.place(label, seed) for label in before.cells for seed in before.seeds))


def _shared(problem: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What all cells must agree in: the problem as such, since its recipe may have an algorithm's learning rate."""
    return {"problem": comparable_problem(problem), **settings}


def comparable_problem(problem: Mapping[str, Any]) -> dict[str, Any]:
    """A described problem as such: the call that made it may have named an algorithm's learning rate."""
    return {k: v for k, v in problem.items() if k not in ("recipe", "optimal_loss")}


def describe_shared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`simulate`'s arguments that all runs of several have in common.

    Args:
        settings: The arguments, defaults left out.

    Returns:
        What JSON can hold.
    """
    return {
        "rounds": settings["rounds"],
        "participation": describe(settings.get("participation", 1.0)),
        "evaluate_every": int(settings.get("evaluate_every", 1)),
        "initial_params": digest(settings.get("initial_params")),
        "execution": (settings.get("execution") or Execution()).settings(),
        **describe_conditions(*(settings.get(name) for name in CONDITIONS)),
        **describe_evaluation(settings),
    }


def _add_cells(
    folder: Path, before: Mapping[str, Any], problem: Problem, algorithms: Mapping[str, Algorithm]
) -> dict[str, Any]:
    """The cells that were there, which must have the same algorithms if they are given again, and the new ones."""
    cells = dict(before)
    for label, algorithm in algorithms.items():
        described = describe_algorithm(algorithm, problem)
        if label in before:
            stored, current = ({f"algorithm {label}": one} for one in (before[label]["algorithm"], described))
            refuse_differences(folder, "comparison", stored, current, before[label].get("versions", versions()))
            name = before[label]["folder"]
        else:
            name = re.sub(r"[^A-Za-z0-9.=-]+", "-", label).strip("-.") or "cell"
            while any(cell["folder"] == name for cell in cells.values()):
                name += "-"
        cells[label] = {"folder": name, "versions": versions(), "algorithm": described}
    return cells
