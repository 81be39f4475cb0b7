"""Runs several algorithms over several seeds; on disk, a cell is a run directory, and a comparison can go on."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms.base import Algorithm
from ..core import checks
from ..core.environment import versions
from ..core.files import DamagedFileError, read_json, write_json
from ..engine import processes
from ..engine.execution import Execution
from ..problems.evaluation import evaluated_columns
from ..problems.problem import Problem
from ..results.comparison import Comparison
from ..results.history import DivergenceError, RunRecord
from ..storage.run_directory import SETTINGS, as_folder, check_place, read_run, read_status
from ..storage.settings import (
    CONDITIONS,
    CannotRecreate,
    describe,
    describe_algorithm,
    describe_conditions,
    describe_problem,
    differences,
    digest,
    recreate,
    recreate_algorithm,
    without_computations,
)
from .interrupts import Interrupted
from .simulate import check_run, remake_problem, simulate
from .simulation import Simulation

CELLS = "comparison.json"


def compare(
    problem: Problem,
    algorithms: Mapping[str, Algorithm],
    rounds: int,
    *,
    seeds: Sequence[int] = (0,),
    run_dir: Any = None,
    baseline: str | None = None,
    targets: Sequence[tuple[str, float]] = (),
    **settings: Any,
) -> Comparison:
    """Runs every algorithm with every seed.

    algorithms: label -> algorithm.
    seeds: runs of one seed start alike and select the same clients and rows.
    run_dir: a directory with a run directory for each cell; cells that are done there are read, interrupted
        ones go on, and a later call may add algorithms and seeds.
    baseline: the label that ratios and differences refer to; by default the first. In a run_dir it is kept, and one
        that is given later replaces it.
    targets: pairs such as ("accuracy", 0.8): the comparison also tells the work until they were reached (see
        `Comparison.to_target`). In a run_dir they are kept, and a later call may add some.
    settings: `simulate`'s other arguments.

    A run that diverges is noted in the table, and the others go on.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> algorithms = {name: example.algorithm(name) for name in ("fedavg", "fedadmm_insa")}
    >>> compare(example.problem, algorithms, progress=False, **example.run_settings).table().header[:3]
    ('algorithm', 'seeds', 'loss final')
    """
    if not isinstance(algorithms, Mapping) or not algorithms:
        raise ValueError(f"algorithms must be label -> algorithm, at least one, got {algorithms!r}")
    algorithms = {str(label): algorithm for label, algorithm in algorithms.items()}
    labels = tuple(algorithms)
    checks.choice("baseline", labels[0] if baseline is None else baseline, labels)
    seeds = checked_seeds(seeds)
    rounds = checks.integer("rounds", rounds, at_least=1)
    _check_settings(problem, algorithms, rounds, settings)
    targets = checked_targets(targets, problem)
    folder = None if run_dir is None else as_folder(run_dir)
    told = {"seeds": seeds, "rounds": rounds, "targets": targets} | settings
    cells, kept, targets = _plan(folder, problem, algorithms, baseline, told)
    baseline = kept if kept in labels else labels[0]
    runs: dict[str, dict[int, RunRecord]] = {label: {} for label in labels}
    missing = {label: dict.fromkeys(seeds, "not begun") for label in labels}
    try:
        for seed in seeds:
            for label, algorithm in algorithms.items():
                place = None if folder is None else folder / cells[label] / f"seed-{seed}"
                if settings.get("progress", True) and processes.is_first():
                    print(f"{label}, seed {seed}", file=sys.stderr, flush=True)
                missing[label][seed] = "interrupted"
                try:
                    result = simulate(problem, algorithm, rounds, seed=seed, run_dir=place, label=label, **settings)
                    runs[label][seed] = _record(result)
                    del missing[label][seed]
                except DivergenceError as error:
                    missing[label][seed] = str(error)
                except Interrupted as error:
                    if error.round == rounds:  # in its last round
                        runs[label][seed] = _record(error.result)
                        del missing[label][seed]
                    raise
    except KeyboardInterrupt as error:  # to go on with the whole comparison
        if folder is not None and not isinstance(error, Interrupted):
            raise  # at once; it is on disk
        done = error.round if isinstance(error, Interrupted) else 0
        place = None if folder is None else str(folder)
        raise Interrupted(done, place, Comparison(runs, missing, baseline, targets)) from error
    return Comparison(runs, missing, baseline, targets)


def checked_seeds(seeds: Any) -> list[int]:
    """Seeds, as different whole numbers."""
    if not isinstance(seeds, (Sequence, np.ndarray, range)) or isinstance(seeds, str):
        raise ValueError(f"seeds must be a list of numbers, got {seeds!r}")
    found = [checks.integer("seeds", seed, at_least=0) for seed in seeds]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"seeds must be different numbers, at least one, got {found}")
    return found


def checked_targets(targets: Any, problem: Problem) -> list[tuple[str, float]]:
    """Pairs of a column that is evaluated and a number."""
    if not isinstance(targets, Sequence) or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in targets):
        raise ValueError(f'targets must be pairs such as ("accuracy", 0.8), got {targets!r}')
    known = evaluated_columns(problem)
    return [(checks.choice("target", column, known), checks.number("target", value)) for column, value in targets]


def _check_settings(
    problem: Problem, algorithms: Mapping[str, Algorithm], rounds: int, settings: Mapping[str, Any]
) -> None:
    """Whatever `simulate` would refuse in one of the cells, before the first one begins."""
    known = set(inspect.signature(simulate).parameters) - {"problem", "algorithm", "rounds", "seed", "run_dir", "label"}
    for name in settings:
        if name not in known:
            own = "seeds, run_dir, baseline, targets"
            raise TypeError(f"compare has no argument {name!r}: there are {own}, {', '.join(sorted(known))}")
    check_run(**settings)
    names = ("participation", "initial_params", "execution", *CONDITIONS)
    shared = {name: settings[name] for name in names if name in settings}
    for algorithm in algorithms.values():
        Simulation(problem, algorithm, **shared).check_rounds(rounds)


def read_comparison(path: Any) -> Comparison:
    """The comparison in a directory, as far as it is done.

    >>> print(fa.read_comparison("runs/two"))  # doctest: +SKIP
    """
    folder = Path(path)
    plan = _read_plan(folder)
    runs: dict[str, dict[int, RunRecord]] = {label: {} for label in plan["cells"]}
    missing: dict[str, dict[int, str]] = {label: {} for label in plan["cells"]}
    for label, cell in plan["cells"].items():
        for seed in plan["seeds"]:
            place = folder / cell["folder"] / f"seed-{seed}"
            status = read_status(place) if (place / SETTINGS).exists() else {"status": "not begun"}
            if status["status"] == "finished":
                runs[label][seed] = read_run(place)
            else:
                missing[label][seed] = status.get("message") or status["status"]
    return Comparison(runs, missing, plan["baseline"], _targets(plan))


def resume_comparison(path: Any, **settings: Any) -> Comparison:
    """Goes on with the comparison in a directory, from what it says about itself."""
    plan = _read_plan(Path(path))
    problem = remake_problem(plan["problem"]["recipe"], settings.get("progress", True))
    algorithms = {label: recreate_algorithm(cell["algorithm"]) for label, cell in plan["cells"].items()}
    kept = recreate(plan["settings"])
    if kept.pop("initial_params") is not None:
        raise CannotRecreate("initial_params", path)
    settings = kept | {"execution": Execution(**kept["execution"]), "seeds": plan["seeds"]} | settings
    return compare(problem, algorithms, run_dir=path, baseline=plan["baseline"], **settings)


def _targets(plan: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(column, value) for column, value in plan.get("targets", [])]  # a former version did not keep them


def _read_plan(folder: Path) -> dict[str, Any]:
    if not (folder / CELLS).is_file():
        raise ValueError(f"{str(folder)!r} has no comparison: it needs a {CELLS}")
    plan = read_json(folder / CELLS)
    if not isinstance(plan, dict) or not {"cells", "settings", "baseline", "problem"} <= set(plan):
        raise DamagedFileError(f"{folder / CELLS} is damaged: it is not what compare wrote")
    return plan


def _plan(
    folder: Path | None,
    problem: Problem,
    algorithms: Mapping[str, Algorithm],
    baseline: str | None,
    settings: Mapping[str, Any],
) -> tuple[dict[str, str], str, list[tuple[str, float]]]:
    """label -> the cell's folder, the baseline and all targets; written down, with what was there and how to go on."""
    if folder is None:
        return {}, next(iter(algorithms)) if baseline is None else baseline, settings["targets"]
    check_place(folder, CELLS)
    kept = {
        "rounds": settings["rounds"],
        "participation": describe(settings.get("participation", 1.0)),
        "evaluate_every": int(settings.get("evaluate_every", 1)),
        "initial_params": digest(settings.get("initial_params")),
        "execution": (settings.get("execution") or Execution()).settings(),
        **describe_conditions(*(settings.get(name) for name in CONDITIONS)),
    }
    told = {"versions": versions(), "problem": describe_problem(problem), "settings": kept}
    known: dict[str, Any] = {"cells": {}, "seeds": []}
    if (folder / CELLS).exists():
        known = _read_plan(folder)
        _refuse_differences(folder, known, told)
    cells = dict(known["cells"])
    for label, algorithm in algorithms.items():
        name = re.sub(r"[^A-Za-z0-9.=-]+", "-", label).strip("-.") or "cell"
        while label not in cells and any(cell["folder"] == name for cell in cells.values()):
            name += "-"
        described = describe_algorithm(algorithm, problem)
        if label in cells:
            comparable = _comparable(cells[label])
            _refuse(folder, differences(comparable(cells[label]["algorithm"]), comparable(described), label))
        place = cells.get(label, {}).get("folder", name)
        cells[label] = {"folder": place, "versions": told["versions"], "algorithm": described}
    seeds = sorted({*known["seeds"], *settings["seeds"]})
    targets = list(dict.fromkeys([*_targets(known), *settings["targets"]]))
    kept_baseline: str = known.get("baseline", next(iter(algorithms))) if baseline is None else baseline
    plan = {"baseline": kept_baseline, "seeds": seeds, "targets": targets, **told, "cells": cells}
    try:
        if processes.is_first():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / CELLS, plan)
    except OSError as error:
        raise ValueError(f"run_dir {str(folder)!r} cannot be used ({error.strerror}): choose another") from None
    return {label: cell["folder"] for label, cell in cells.items()}, kept_baseline, targets


def _comparable(described: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """What these versions can compare of a description by its own. With others each run warns by itself."""
    return dict if described.get("versions", versions()) == versions() else without_computations


def _refuse_differences(folder: Path, there: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """All cells are of one problem and have the same rounds and the like."""
    comparable = _comparable(there)

    def shared(plan: Mapping[str, Any]) -> dict[str, Any]:
        problem = comparable(plan["problem"])
        problem = {name: value for name, value in problem.items() if name not in ("recipe", "optimal_loss")}
        return {"problem": problem, **dict.fromkeys(CONDITIONS), **plan["settings"]}

    _refuse(folder, differences(shared(there), shared(now)))


def _refuse(folder: Path, differing: Iterable[str]) -> None:
    found = list(differing)
    if found:
        shown = "; ".join(found[:4])
        raise ValueError(f"run_dir {str(folder)!r} has a comparison with other settings ({shown}): give another one")


def _record(result: RunRecord) -> RunRecord:
    """Without the states, which may be large."""
    return RunRecord(**{field.name: getattr(result, field.name) for field in fields(RunRecord)})
