"""Runs several algorithms over several seeds; on disk, a cell is a run directory, and a comparison can go on."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from ..algorithms.base import Algorithm
from ..algorithms.contract import check_parts
from ..core import checks
from ..core.client_statistics import PERSONAL, column_names
from ..engine import processes
from ..problems.evaluation import evaluated_columns
from ..problems.measures import Measures
from ..problems.problem import Problem
from ..results.comparison import Comparison
from ..results.history import DivergenceError, RunRecord
from ..storage.comparison_directory import write_plan, write_tables
from ..storage.run_files import as_folder
from ..storage.settings import CONDITIONS
from .interrupts import Interrupted
from .simulate import check_run, simulate
from .simulation import Simulation


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

    If a run diverges, the table notes it and the other runs continue.

    Args:
        problem: The problem of all runs.
        algorithms: label -> algorithm.
        rounds: How many rounds each run has.
        seeds: Runs with the same seed start at the same point and select the same clients and rows.
        run_dir: A directory with one run directory for each algorithm and seed and, at the end, the tables of all runs
            in it, as text, CSV, Markdown and LaTeX. Runs that are finished there are read, interrupted ones are
            resumed, and a later call may add algorithms and seeds. If `rounds` is larger than before, all runs go on,
            with bit for bit the results of a comparison that had as many rounds from the start.
        baseline: The label that ratios and differences refer to; by default the first. A run_dir remembers it, until
            another one is given.
        targets: Pairs such as ("accuracy", 0.8): the comparison also reports the work until they were reached (see
            `Comparison.to_target`). A run_dir remembers them, and a later call may add more.
        settings: `simulate`'s other arguments.

    Returns:
        The runs, and the table of them.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> algorithms = {name: example.algorithm(name) for name in ("fedavg", "fedadmm_insa")}
    >>> compare(example.problem, algorithms, progress=False, **example.run_settings).table().header[:3]
    ('algorithm', 'seeds', 'loss, final')
    """
    if not isinstance(algorithms, Mapping) or not algorithms:
        got = "{}" if algorithms == {} else type(algorithms).__name__
        such = '{"FedAvg": fa.fedavg(local)}'
        raise ValueError(f"algorithms must be label -> algorithm, at least one, got {got}: give such as {such}")
    algorithms = {str(label): algorithm for label, algorithm in algorithms.items()}
    labels = tuple(algorithms)
    checks.choice("baseline", labels[0] if baseline is None else baseline, labels)
    seeds = check_seeds(seeds)
    rounds = checks.integer("rounds", rounds, at_least=1)
    _check_settings(problem, algorithms, rounds, settings)
    targets = check_targets(targets, problem, settings)
    plan = None
    if run_dir is not None:
        shared = {"rounds": rounds} | settings
        plan = write_plan(as_folder(run_dir), problem, algorithms, seeds, baseline, targets, shared)
        baseline, targets = plan.baseline, plan.targets
    baseline = baseline if baseline in labels else labels[0]
    runs: dict[str, dict[int, RunRecord]] = {label: {} for label in labels}
    missing = {label: dict.fromkeys(seeds, "not begun") for label in labels}
    try:
        for seed in seeds:
            for label, algorithm in algorithms.items():
                place = None if plan is None else plan.place(label, seed)
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
        if plan is not None and not isinstance(error, Interrupted):
            raise  # at once; it is on disk
        done = error.round if isinstance(error, Interrupted) else 0
        place = None if plan is None else str(plan.folder)
        raise Interrupted(done, place, Comparison(runs, missing, baseline, targets)) from error
    if plan is not None and processes.is_first():
        write_tables(plan.folder)
    return Comparison(runs, missing, baseline, targets)


def check_seeds(seeds: Any) -> list[int]:
    """Seeds, as different whole numbers."""
    if not isinstance(seeds, (Sequence, np.ndarray, range)) or isinstance(seeds, str):
        raise ValueError(f"seeds must be a list of numbers, such as [0, 1, 2], got {seeds!r}")
    numbers = [checks.integer("seeds", seed, at_least=0) for seed in seeds]
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"seeds must be different numbers, at least one, got {numbers}")
    return numbers


def check_targets(targets: Any, problem: Problem, settings: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Pairs of a column that is evaluated and a number; with clients evaluated, their statistics too."""
    if not isinstance(targets, Sequence) or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in targets):
        raise ValueError(f'targets must be pairs such as ("accuracy", 0.8), got {targets!r}')
    known = evaluated_columns(problem)
    if settings.get("evaluate_clients_every") is not None:
        names = Measures.of(problem).names
        known += column_names([*names, *(f"{PERSONAL}{name}" for name in names)])
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
    for label, algorithm in algorithms.items():
        check_parts(algorithm, f"algorithms[{label!r}]")
        Simulation(problem, algorithm, **shared).check_rounds(rounds)


def _record(result: RunRecord) -> RunRecord:
    """Without the states, which may be large."""
    return RunRecord(**{field.name: getattr(result, field.name) for field in fields(RunRecord)})
