"""A tuning on disk: tuning.json says which settings there are, and each has a run directory for each seed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..algorithms.base import Algorithm
from ..core.environment import versions
from ..core.files import DamagedFileError, read_json, write_json
from ..core.vocabulary import RunStatus
from ..engine import processes
from ..problems.problem import Problem
from ..results.climb import climb
from ..results.history import DivergenceError, History, RunRecord
from ..results.tuning import DIRECTIONS, Objective, Tuning
from .comparison_directory import comparable_problem, describe_shared
from .lengthening import refuse_uneven_ends
from .parts import CannotRecreate
from .run_files import SETTINGS, check_place, read_status
from .settings import describe, describe_algorithm, describe_problem, recreate, refuse_differences
from .stored_run import read_run

TUNING = "tuning.json"
MOST_OF_A_NAME = 60  # letters of a folder


@dataclass(frozen=True)
class TuningPlan:
    """What a tuning is to do, as its directory has it.

    Attributes:
        folder: The directory.
        cells: label -> its folder, the described setting and algorithm.
        search: seeds, objective, rungs and halving.
        problem: The problem, described.
        shared: The settings of all runs, described.
        versions: That wrote it.
    """

    folder: Path
    cells: Mapping[str, Mapping[str, Any]]
    search: Mapping[str, Any]
    problem: Mapping[str, Any]
    shared: Mapping[str, Any]
    versions: Mapping[str, str]

    @property
    def rounds(self) -> int:
        """The rounds of a whole run, the last rung."""
        return self.search["rungs"][-1]

    def of_rounds_as(self, other: TuningPlan) -> TuningPlan:
        """The same plan with the rounds and rungs of another."""
        search = {**self.search, "rungs": other.search["rungs"]}
        return replace(self, search=search, shared={**self.shared, "rounds": other.shared.get("rounds")})

    def place(self, label: str, seed: int) -> Path:
        """The run directory of a setting and a seed; it need not be there yet.

        Args:
            label: The setting's.
            seed: The run's.

        Returns:
            The directory.

        Raises:
            ValueError: If it is outside of the tuning's directory.
        """
        place = self.folder / self.cells[label]["folder"] / f"seed-{seed}"
        if not place.resolve().is_relative_to(self.folder.resolve()):
            raise ValueError(f"{self.folder / TUNING}: the folder of {label!r} leads outside: name a folder in it")
        return place

    @property
    def objective(self) -> Objective:
        """What settings are judged by."""
        return Objective(**self.search["objective"])

    def stored(self, label: str, seed: int, rounds: int) -> RunRecord | DivergenceError | None:
        """A run that has so many rounds on disk, or the error that ended it; None where there is neither.

        Args:
            label: The setting's.
            seed: The run's.
            rounds: After which it was, or is to be, judged.
        """
        place = self.place(label, seed)
        if not (place / SETTINGS).exists():
            return None
        status = read_status(place)
        if status["status"] == RunStatus.DIVERGED:
            return DivergenceError(status["round"], status["quantity"], History([]))
        try:
            run = read_run(place)
        except DamagedFileError:
            raise
        except ValueError:  # no round is done yet
            return None
        return run if len(run.cohorts) >= rounds else None


def read_tuning_plan(folder: Path) -> TuningPlan:
    """Reads what the tuning in a directory is to do.

    Args:
        folder: The directory.

    Returns:
        The plan; every run's place is inside of the directory.

    Raises:
        ValueError: If there is no tuning, or a folder leads outside.
        DamagedFileError: If tuning.json is not what was written.
    """
    file = folder / TUNING
    if not file.is_file():
        raise ValueError(f"{str(folder)!r} has no tuning: it needs a {TUNING}")
    written = read_json(file)
    if not _is_plan(written):
        raise DamagedFileError(f"{file} is damaged: it is not what tune wrote")
    plan = TuningPlan(folder, **written)
    for label in plan.cells:
        for seed in plan.search["seeds"]:
            plan.place(label, seed)
    return plan


def _is_plan(written: Any) -> bool:
    kinds = ("cells", "search", "problem", "shared", "versions")
    if not isinstance(written, dict) or written.keys() != set(kinds):
        return False
    if not all(isinstance(written[name], dict) for name in kinds):
        return False
    cells, search = written["cells"].values(), written["search"]
    whole = [search.get("seeds"), search.get("rungs")]
    objective = search.get("objective")
    return (
        all(isinstance(numbers, list) and numbers and all(type(n) is int for n in numbers) for numbers in whole)
        and type(search.get("halving")) in (int, type(None))
        and isinstance(objective, dict)
        and objective.keys() == {"column", "direction", "last"}
        and isinstance(objective["column"], str)
        and objective["direction"] in DIRECTIONS
        and type(objective["last"]) is int
        and bool(cells)
        and all(isinstance(cell, dict) and isinstance(cell.get("folder"), str) for cell in cells)
        and all(isinstance(cell.get(name), dict) for cell in cells for name in ("setting", "algorithm"))
    )


def write_tuning_plan(
    folder: Path,
    problem: Problem,
    settings: Mapping[str, Mapping[str, Any]],
    algorithms: Sequence[Algorithm],
    seeds: Sequence[int],
    objective: Objective,
    rungs: Sequence[int],
    halving: int | None,
    shared: Mapping[str, Any],
) -> TuningPlan:
    """Writes down what a tuning is to do, or finds that its directory has the same one, perhaps of fewer rounds.

    Args:
        folder: The directory, new or with the same tuning. Without halving it may have fewer rounds.
        problem: The problem of all runs.
        settings: label -> setting.
        algorithms: One for each.
        seeds: Each setting runs with each.
        objective: What settings are judged by.
        rungs: Rounds after which they are.
        halving: One of so many settings is kept.
        shared: `simulate`'s arguments, the same for all runs.

    Returns:
        The plan.

    Raises:
        ValueError: If the directory has another tuning, or cannot be used.
    """
    check_place(folder, TUNING)
    search = {"seeds": list(seeds), "objective": asdict(objective), "rungs": list(rungs), "halving": halving}
    cells = {
        label: {"folder": name, "setting": describe(setting), "algorithm": describe_algorithm(algorithm, problem)}
        for (label, setting), algorithm, name in zip(settings.items(), algorithms, _folders(settings), strict=True)
    }
    plan = TuningPlan(folder, cells, search, describe_problem(problem), describe_shared(shared), versions())
    if (folder / TUNING).exists():
        before = read_tuning_plan(folder)
        longer = plan.rounds > before.rounds
        _refuse_another(before, plan.of_rounds_as(before) if longer else plan)
        if not longer:
            return before
        _check_longer(before)
    try:
        if processes.is_first():
            folder.mkdir(parents=True, exist_ok=True)
            written = {name: value for name, value in vars(plan).items() if name != "folder"}
            write_json(folder / TUNING, written)
    except OSError as error:
        raise ValueError(f"run_dir {str(folder)!r} cannot be used ({error.strerror}): choose another") from None
    return plan


def _check_longer(before: TuningPlan) -> None:
    """Runs can go on, but not a search that has dropped settings at rounds that follow from the number of rounds."""
    if before.search["halving"] is not None:
        raise ValueError(
            f"run_dir {str(before.folder)!r} has a tuning with halving over {before.rounds} rounds, and cannot be"
            " made longer: with more it would have judged settings, and dropped them, at others; give another directory"
        )
    seeds = before.search["seeds"]
    refuse_uneven_ends(before.folder, (before.place(label, seed) for label in before.cells for seed in seeds))


def _folders(labels: Mapping[str, Any]) -> list[str]:
    """A folder for each setting, in the settings' order."""
    names = (re.sub(r"[^A-Za-z0-9.=-]+", "-", label).strip("-.")[:MOST_OF_A_NAME] for label in labels)
    return [f"{k:03d}-{name}" for k, name in enumerate(names)]


def _refuse_another(before: TuningPlan, plan: TuningPlan) -> None:
    """Refuses a plan that differs from the one before, and tells where: in values if in these, else in algorithms."""
    grids = [_values(each) for each in (before, plan)]
    nothing = {f"grid {name}": None for name in grids[0] | grids[1]}
    stored, current = (
        {"problem": comparable_problem(each.problem), **each.search, **each.shared, **nothing}
        | {f"grid {name}": values for name, values in grid.items()}
        for each, grid in zip((before, plan), grids, strict=True)
    )
    if before.cells.keys() == plan.cells.keys():
        for each, settings in ((before, stored), (plan, current)):
            settings |= {f"algorithm of {label}": cell["algorithm"] for label, cell in each.cells.items()}
    elif grids[0] == grids[1]:  # the same values, otherwise put together
        stored["settings"], current["settings"] = list(before.cells), list(plan.cells)
    refuse_differences(plan.folder, "tuning", stored, current, before.versions)


def _values(plan: TuningPlan) -> dict[str, list]:
    """name -> the values that the settings have, in their order."""
    values: dict[str, list] = {}
    for cell in plan.cells.values():
        for name, value in cell["setting"].items():
            known = values.setdefault(name, [])
            known += [value] if value not in known else []
    return values


def recreate_settings(plan: TuningPlan) -> list[dict[str, Any]]:
    """The settings; a value that cannot be made again is its description."""

    def value(described: Any) -> Any:
        try:
            return recreate(described)
        except CannotRecreate:
            return str(described.get("opaque", described)) if isinstance(described, Mapping) else described

    return [{name: value(each) for name, each in cell["setting"].items()} for cell in plan.cells.values()]


def read_tuning(path: Any) -> Tuning:
    """Reads the tuning in a directory, as far as it is done.

    Args:
        path: The directory.

    Returns:
        The tuning, without its algorithms.

    Raises:
        ValueError: If there is no tuning, or one of its folders leads outside of the directory.
        DamagedFileError: If a file is damaged.

    >>> print(fa.read_tuning("runs/tuned"))  # doctest: +SKIP
    """
    plan = read_tuning_plan(Path(path))
    labels = list(plan.cells)

    def stored(wanted: Sequence[tuple[int, int]], until: int) -> dict[tuple[int, int], Any]:
        found = {(k, seed): plan.stored(labels[k], seed, until) for k, seed in wanted}
        return {pair: run for pair, run in found.items() if run is not None}

    return climb(recreate_settings(plan), labels, plan.search, stored)
