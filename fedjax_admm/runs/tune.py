"""`tune`: many settings of an algorithm on one problem, and which is the best."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from ..algorithms import contract
from ..core import checks
from ..core.columns import LOSSES
from ..engine import processes
from ..engine.execution import steps_are_small
from ..problems.evaluation import evaluated_columns
from ..problems.problem import Problem
from ..results.climb import Found, climb
from ..results.history import DivergenceError, RunRecord
from ..results.tuning import DIRECTIONS, Objective, Tuning, default_direction, label_settings
from ..storage.run_files import as_folder
from ..storage.settings import CONDITIONS
from ..storage.tuning_directory import TuningPlan, write_tuning_plan
from .compare import check_seeds
from .interrupts import Interrupted
from .kept import KeptRun
from .progress import Progress
from .search import calling, make_algorithms, make_rungs, make_settings
from .simulate import check_run, simulate, simulate_until
from .simulation import Simulation
from .sweeps import structure, sweep_until

AT_ONCE = 8  # runs in one program: more gain nothing (`benchmarks/tune.py --at-once`)
SWEPT = ("participation", "initial_params", "evaluate_every", "execution")  # what `sweep_until` takes besides
USUAL = (None, (), "all")  # what others of `simulate`'s arguments are if nobody gives them
OWN = (
    "problem",
    "algorithm",
    "rounds",
    "seed",
    "run_dir",
    "label",
    "rebuild",
)  # of `simulate`, which tune gives itself
Pair = tuple[int, int]  # a setting's number and a seed


def tune(
    problem: Problem,
    make_algorithm: Callable[..., Any],
    grid: Any,
    rounds: int,
    *,
    seeds: Sequence[int] = (0,),
    objective: str = "loss",
    direction: str | None = None,
    last: int = 1,
    draws: int | None = None,
    draws_seed: int = 0,
    halving: int | None = None,
    min_rounds: int = 1,
    at_once: int | str = "auto",
    run_dir: Any = None,
    progress: bool = True,
    **settings: Any,
) -> Tuning:
    """Runs an algorithm with many settings, and reports which is best.

    A setting that diverges gets the worst score, and the others continue.

    Args:
        problem: The problem of all runs.
        make_algorithm: Called with a setting as keyword arguments, `make_algorithm(penalty=0.1, ...)`; returns the
            algorithm.
        grid: name -> values, of which every combination is tried; or a list of settings, each name -> value. With
            `draws` a name may also have a range: `ranges.log(1e-3, 1.0)`, `ranges.linear`, `ranges.whole`.
        rounds: How many rounds a whole run has.
        seeds: Each setting runs with each of them; its score is the mean.
        objective: What a setting's score is: "loss", "excess_loss" or a metric.
        direction: "minimize" or "maximize"; by default losses are minimized and metrics maximized.
        last: The score is the mean over this many evaluations at the end.
        draws: Try this many settings, drawn evenly from the values and ranges, instead of all combinations.
        draws_seed: The seed of these draws.
        halving: Successive halving by this factor: with 3, all settings run for a few rounds, the best third of them
            for three times as many, and so on up to `rounds`. Settings continue from where they were. None: all
            settings run to the end.
        min_rounds: With halving, no setting is dropped before this round.
        at_once: How many runs are compiled as one program (see `simulate_many`), if their algorithms differ only in
            numbers. "auto": several, if the model is so small that overhead takes most of the time; otherwise, and if
            `simulate_many` cannot run them, 1, one after the other.
        run_dir: A directory for the tuning, with one run directory for each setting and seed. A tuning that is already
            there continues: finished runs are read, interrupted ones are resumed, and if `rounds` is larger than
            before, all go on. With halving more rounds are refused, since settings would have been dropped at other
            rounds. Another tuning in the same directory is refused.
        progress: Show progress on stderr: a bar in a terminal or notebook, otherwise a line every few seconds.
        settings: `simulate`'s other arguments, such as participation and evaluate_every.

    Returns:
        The scores; `best` and `best_algorithm`, `table()` and `plot()`.

    Raises:
        ValueError: An argument is wrong, or `make_algorithm` raises; the message names the setting.
        Interrupted: The tuning was stopped; `result` is the tuning so far.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> make = lambda penalty: example.algorithm("fedadmm", penalty=penalty)
    >>> tuning = tune(example.problem, make, {"penalty": [0.1, 1.0]}, progress=False, **example.run_settings)
    >>> tuning.best["penalty"] in (0.1, 1.0), tuning.scores.shape
    (True, (2, 1, 1))
    """
    if not isinstance(problem, Problem):
        raise ValueError(f"problem must be a fedjax_admm.Problem, got {type(problem).__name__}")
    rounds, seeds = checks.integer("rounds", rounds, at_least=1), check_seeds(seeds)
    _check_names(settings)
    check_run(run_dir=None, **settings)
    judged = check_objective(problem, objective, direction, last, settings.get("evaluate", "all"))
    tried = make_settings(grid, draws, draws_seed)
    halving = None if halving is None else checks.integer("halving", halving, at_least=2)
    every = int(settings.get("evaluate_every", 1))
    rungs = make_rungs(rounds, len(tried), halving, checks.integer("min_rounds", min_rounds, at_least=1), every)
    search = {"seeds": seeds, "objective": vars(judged), "rungs": rungs, "halving": halving}
    algorithms = make_algorithms(make_algorithm, tried)
    labelled = dict(zip(label_settings(tried), tried, strict=True))
    return run_search(problem, labelled, algorithms, search, run_dir, at_once, progress, settings)


def run_search(
    problem: Problem,
    labelled: Mapping[str, Mapping[str, Any]],
    algorithms: Sequence[Any],
    search: Mapping[str, Any],
    run_dir: Any,
    at_once: int | str,
    progress: bool,
    shared: Mapping[str, Any],
) -> Tuning:
    """`tune` with its algorithms made.

    Args:
        problem: The problem of all runs.
        labelled: label -> setting, what the algorithms were made of.
        algorithms: One for each setting.
        search: seeds, objective, rungs and halving, as a plan has them.
        run_dir: The tuning's directory, or None.
        at_once: How many runs are one program, or "auto".
        progress: Whether to show any.
        shared: `simulate`'s other arguments, the same for all runs.

    Returns:
        The tuning.
    """
    labels, settings = list(labelled), list(labelled.values())
    rounds = search["rungs"][-1]
    groups = _group(algorithms, settings)
    trials = [  # whatever `simulate` would refuse is refused here, before any run begins
        calling(partial(_first_simulation, problem, algorithms[group[0]], rounds, shared), settings[group[0]])
        for group in groups
    ]
    if isinstance(at_once, str):
        checks.choice("at_once", at_once, ("auto",))
    else:
        checks.integer("at_once", at_once, at_least=1)
    plan = None
    if run_dir is not None:
        plan = write_tuning_plan(
            as_folder(run_dir), problem, labelled, algorithms, search["seeds"],
            Objective(**search["objective"]), search["rungs"], search["halving"], {"rounds": rounds, **shared},
        )  # fmt: skip
    elif len(search["rungs"]) > 1 and trials[0].execution.population == "disk":
        raise ValueError('halving with population="disk" needs a run_dir, where a run that pauses has its rows')
    runner = _Runner(problem, algorithms, labels, rounds, plan, progress, shared)
    pairs = [(k, seed) for k in range(len(settings)) for seed in search["seeds"]]
    runner.plan_programs(groups, trials, at_once, pairs, keep=plan is None and len(search["rungs"]) > 1)
    look = partial(climb, settings, labels, search, algorithms=algorithms)
    try:
        return look(runner.run)
    except KeyboardInterrupt as error:  # to go on with the whole tuning
        if plan is not None and not isinstance(error, Interrupted):
            raise  # at once; it is on disk
        done = error.round if isinstance(error, Interrupted) else 0
        raise Interrupted(done, None if plan is None else str(plan.folder), look(runner.known)) from error


def check_objective(problem: Problem, column: Any, direction: Any, last: Any, evaluate: Any = "all") -> Objective:
    """What settings are judged by, of what runs evaluate.

    Args:
        problem: The problem.
        column: A loss or a metric.
        direction: "minimize", "maximize" or None.
        last: How many evaluations at the end.
        evaluate: What runs evaluate; see `simulate`.

    Returns:
        The objective.
    """
    column = checks.choice("objective", column, evaluated_columns(problem))
    without = {None: evaluated_columns(problem), "test": LOSSES, "all": ()}.get(evaluate, ("excess_loss",))
    if column in without:
        raise ValueError(f"objective {column!r} is not evaluated with evaluate={evaluate!r}: choose another of the two")
    checks.choice("direction", direction, (*DIRECTIONS, None))
    return Objective(column, direction or default_direction(column), checks.integer("last", last, at_least=1))


def _check_names(settings: Mapping[str, Any]) -> None:
    """No argument that neither tune nor `simulate` has."""
    known = set(inspect.signature(simulate).parameters) - set(OWN)
    own = [name for name, each in inspect.signature(tune).parameters.items() if each.kind is each.KEYWORD_ONLY]
    for name in settings:
        if name not in known:
            others = sorted(known - set(own))
            raise TypeError(f"tune has no argument {name!r}: there are {', '.join(own)}, {', '.join(others)}")


def _group(algorithms: Sequence[Any], settings: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The settings' numbers, together those whose algorithms differ in numbers alone."""
    groups: dict[Any, list[int]] = {}
    for k, (algorithm, setting) in enumerate(zip(algorithms, settings, strict=True)):
        calling(partial(contract.check_parts, algorithm), setting)
        leaves, shapes = structure(algorithm)
        groups.setdefault((leaves, tuple(shapes)), []).append(k)
    return list(groups.values())


def _first_simulation(problem: Problem, algorithm: Any, rounds: int, shared: Mapping[str, Any]) -> Simulation:
    names = ("participation", "initial_params", "execution", *CONDITIONS)
    sim = Simulation(problem, algorithm, **{name: shared[name] for name in names if name in shared})
    sim.check_rounds(rounds)
    return sim


class _Runner:
    """Runs settings from rung to rung, several as one program or one after the other."""

    def __init__(
        self,
        problem: Problem,
        algorithms: Sequence[Any],
        labels: Sequence[str],
        rounds: int,
        plan: TuningPlan | None,
        progress: bool,
        shared: Mapping[str, Any],
    ) -> None:
        self._problem, self._algorithms, self._labels, self._rounds = problem, algorithms, labels, rounds
        self._plan, self._progress, self._shared = plan, progress, shared
        self._kept: dict[Pair, KeptRun] | None = None
        self._found: dict[Pair, RunRecord | DivergenceError] = {}

    def plan_programs(
        self, groups: list[list[int]], trials: Sequence[Simulation], at_once: Any, pairs: Sequence[Pair], keep: bool
    ) -> None:
        """Says for how many runs a program has places.

        Args:
            groups: Settings that may share a program.
            trials: A simulation of each group.
            at_once: The most places, or "auto".
            pairs: All runs.
            keep: Whether runs go on from memory.
        """
        self._groups = groups
        self._places = [
            min(self._most(trial, at_once), sum(k in group for k, _ in pairs))
            for trial, group in zip(trials, groups, strict=True)
        ]
        self._kept = {pair: KeptRun() for pair in pairs} if keep else None

    def _most(self, sim: Simulation, at_once: Any) -> int:
        """How many runs like this one are to be one program."""
        execution = sim.execution
        apart = any(name not in SWEPT and value not in USUAL for name, value in self._shared.items())
        alone = execution.population != "device" or execution.placement == "home" or sim.data == "host"
        if apart or alone or processes.several():
            return 1
        if at_once == "auto":
            return AT_ONCE if steps_are_small(sim.problem, sim.rows_per_trip) else 1
        return int(at_once)

    def known(self, wanted: Sequence[Pair], until: int) -> Found:
        """Those of the wanted runs that have so many rounds, without running any."""
        return {pair: run for pair in wanted if (run := self._look_up(pair, until)) is not None}

    def _look_up(self, pair: Pair, until: int) -> RunRecord | DivergenceError | None:
        run = self._found.get(pair)
        if isinstance(run, DivergenceError) or (run is not None and len(run.cohorts) >= until):
            return run
        if self._plan is not None and (stored := self._plan.stored(self._labels[pair[0]], pair[1], until)) is not None:
            self._found[pair] = stored
            return stored
        return None

    def run(self, wanted: Sequence[Pair], until: int) -> Found:
        """Runs what of the wanted is not done to round `until`.

        Args:
            wanted: Settings' numbers and seeds.
            until: After which round they are judged.

        Returns:
            All of them.
        """
        if self._kept is not None:  # states are large: of settings that were dropped none stays
            self._kept = {pair: self._kept[pair] for pair in wanted}
        known = self.known(wanted, until)
        open_ = [(batch, places) for batch, places in self._batches(wanted) if any(pair not in known for pair in batch)]
        left, show = sum(len(batch) for batch, _ in open_), self._progress and processes.is_first()
        if show and left:
            print(f"{checks.counted(left, 'run')} to round {until} of {self._rounds}", file=sys.stderr, flush=True)
        with Progress(left, show, unit="run") as shown:
            for batch, places in open_:
                ended = self._run_at_once(batch, places, until) if places > 1 else self._run_alone(batch[0], until)
                self._found |= dict(zip(batch, ended, strict=True))
                if self._kept is not None and until == self._rounds:
                    self._kept |= {pair: KeptRun() for pair in batch}
                shown.update(len(batch), self._labels[batch[-1][0]])
        return self.known(wanted, until)

    def _batches(self, wanted: Sequence[Pair]) -> Iterator[tuple[list[Pair], int]]:
        """The runs that are computed together, each time with the places of their program."""
        for members, places in zip(self._groups, self._places, strict=True):
            mine = [pair for pair in wanted if pair[0] in members]
            for start in range(0, len(mine), places):
                yield mine[start : start + places], places

    def _run_alone(self, pair: Pair, until: int) -> list[RunRecord | DivergenceError]:
        (k, seed), label = pair, self._labels[pair[0]]
        try:
            result = simulate_until(
                until, self._problem, self._algorithms[k], self._rounds, seed=seed, progress=False,
                kept=None if self._kept is None else self._kept[pair],
                run_dir=None if self._plan is None else self._plan.place(label, seed), label=label, **self._shared,
            )  # fmt: skip
            return [_record(result)]
        except DivergenceError as error:
            return [error]
        except Interrupted as error:
            self._found[pair] = _record(error.result)
            raise

    def _run_at_once(self, batch: list[Pair], places: int, until: int) -> list[RunRecord | DivergenceError]:
        try:
            results = sweep_until(
                until, self._problem, [(self._algorithms[k], seed) for k, seed in batch], self._rounds, places=places,
                kept=None if self._kept is None else [self._kept[pair] for pair in batch],
                run_dirs=None if self._plan is None else [self._plan.place(self._labels[k], s) for k, s in batch],
                labels=[self._labels[k] for k, _ in batch], progress=False,
                **{name: self._shared[name] for name in SWEPT if name in self._shared},
            )  # fmt: skip
        except Interrupted as error:
            self._found |= dict(zip(batch, map(_record, error.result), strict=True))
            raise
        return [_record(result) for result in results]


def _record(run: Any) -> Any:
    """Without the states, which may be large; an error as it is."""
    if isinstance(run, DivergenceError):
        return run
    return RunRecord(**{each.name: getattr(run, each.name) for each in fields(RunRecord)})
