"""Several runs as one program: seeds, penalties or other numbers of one algorithm along a leading axis.

Small runs leave a device half idle: a short queue of clients, and a call of the device for a few milliseconds of work.
Together their clients are one queue, and they share the data, the compiled program and the calls.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..algorithms.base import Algorithm
from ..core import checks, trees
from ..core.vocabulary import VACANT, RunStatus, State
from ..engine import placement, processes
from ..engine.devices import everywhere, on_one_device, replicated
from ..engine.execution import Execution
from ..engine.ledger import RoundInfo
from ..engine.population.rows import row_bytes
from ..engine.rounds import Layout, Setup
from ..engine.sweep import sweep_rounds
from ..exchange.cohorts import Selection
from ..problems.evaluation import evaluate_many
from ..problems.problem import Problem
from ..results.history import DivergenceError, Result
from ..storage.run_directory import NoDirectory, Restored, RunDirectory
from ..storage.run_files import as_folder
from ..storage.settings import describe_problem
from .collected_solves import CollectedSolves
from .history_builder import HistoryBuilder
from .interrupts import Interrupted, Interrupts
from .kept import KeptRun
from .loop import MOST_ROUNDS_A_DISPATCH, Directory
from .progress import Progress
from .simulate import check_run, describe_run
from .simulation import Simulation


def simulate_many(
    problem: Problem,
    runs: Sequence[tuple[Algorithm, int]],
    rounds: int,
    *,
    participation: Any = 1.0,
    initial_params: Any = None,
    evaluate_every: int = 1,
    run_dirs: Sequence[Any] | None = None,
    execution: Execution | None = None,
    progress: bool = True,
) -> list[Result | DivergenceError]:
    """Like `simulate`, for all pairs (algorithm, seed) of `runs` in one program; returns the results in the order of
    `runs`.

    The algorithms may differ only in their numbers (penalty, c, learning rate, maximum of epochs, ...). The clients'
    states of all runs are on the device, so this is for many small runs. If a run diverges, the list has its
    `DivergenceError` instead of a result; the other runs continue. The `seconds` and the efficiencies in the histories
    are those of all runs together. Ctrl-C ends the runs after a round, and `Interrupted` has the list so far as its
    `result`.

    Args:
        problem: The problem of all runs.
        runs: Pairs (algorithm, seed).
        rounds: How many rounds each has.
        run_dirs: A directory for each run, with the files that `simulate` would write, written when the runs end.
            Interrupted runs are resumed, all of them from the last round that all have.

    The other arguments are `simulate`'s.

    >>> import fedjax_admm as fa
    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> runs = [(example.algorithm("fedadmm", penalty=penalty), seed) for penalty in (0.1, 1.0) for seed in (0, 1)]
    >>> results = simulate_many(example.problem, runs, progress=False, **example.run_settings)
    >>> [len(result.history["loss"]) for result in results]
    [4, 4, 4, 4]
    """
    return sweep_until(
        rounds, problem, runs, rounds, participation=participation, initial_params=initial_params,
        evaluate_every=evaluate_every, run_dirs=run_dirs, execution=execution, progress=progress,
    )  # fmt: skip


def sweep_until(
    until: int,
    problem: Problem,
    runs: Sequence[tuple[Algorithm, int]],
    rounds: int,
    *,
    places: int | None = None,
    kept: Sequence[KeptRun] | None = None,
    labels: Sequence[str] | None = None,
    participation: Any = 1.0,
    initial_params: Any = None,
    evaluate_every: int = 1,
    run_dirs: Sequence[Any] | None = None,
    execution: Execution | None = None,
    progress: bool = True,
) -> list[Result | DivergenceError]:
    """`simulate_many`, which pauses after some of the rounds; the same call with a later `until` goes on.

    Args:
        until: After which round the runs pause, or end if that is the last.
        problem: The problem of all runs.
        runs: Pairs (algorithm, seed).
        rounds: How many rounds each has.
        places: For how many runs the program is; fewer leave places empty, which costs nothing and compiles nothing.
        kept: Where each run is kept meanwhile if there are no `run_dirs`; None: nowhere.
        labels: What each run is called in its directory.

    The other arguments are `simulate_many`'s.

    Returns:
        The runs so far.
    """
    rounds = checks.integer("rounds", rounds, at_least=1)
    check_run(evaluate_every=evaluate_every)
    every, pairs = int(evaluate_every), _checked(runs)
    folders = _checked_folders(run_dirs, len(pairs))
    shared = dict(participation=participation, initial_params=initial_params, execution=execution)
    if execution is not None and execution.data == "host":
        raise ValueError("data must be 'auto' or 'device' for runs at once, got 'host': use compare for such data")
    on_device = problem.on_device() if isinstance(problem, Problem) else problem  # once for all runs
    sims = [Simulation(on_device, algorithm, seed=seed, **shared) for algorithm, seed in pairs]
    sims[0].check_rounds(rounds)
    sweep = _Sweep(sims, max(places or 0, len(sims)))
    with contextlib.ExitStack() as stack:
        if folders is None:
            keepers: Sequence[Directory | DivergenceError] = kept or [NoDirectory() for _ in sims]
        else:
            described = describe_problem(problem)
            keepers = [
                _open(stack, folder, sim, algorithm, described, rounds, every, initial_params, label)
                for folder, sim, (algorithm, _), label in zip(
                    folders, sims, pairs, labels or [None] * len(sims), strict=True
                )
            ]
        members = [_Member(sim, keeper) for sim, keeper in zip(sims, keepers, strict=True)]
        with Interrupts(kept=folders is not None) as interrupts:
            return _run(sweep, members, min(until, rounds), rounds, every, progress, interrupts)


def _run(
    sweep: _Sweep,
    members: Sequence[_Member],
    until: int,
    rounds: int,
    every: int,
    progress: bool,
    interrupts: Interrupts,
) -> list[Result | DivergenceError]:
    """The rounds of all members from where they stand to `until`."""
    done, before = _common_round(members)
    states = sweep.states(before)
    most, shown_of = min(every, MOST_ROUNDS_A_DISPATCH), f"{len(members)} runs, first "
    if done == 0:
        _evaluate(sweep.problem, states, members)
    with Progress(until, progress, done) as shown:
        while done < until:
            count = min(every - done % every, MOST_ROUNDS_A_DISPATCH, until - done)
            began = time.perf_counter()
            selected = [member.select(done, done + count) for member in members]
            states, infos = sweep.run(states, np.stack([ids for _, ids in selected]), most, interrupts.wait)
            for r, member in enumerate(members):
                mine = jax.tree.map(lambda leaf, r=r: leaf[r], infos)
                member.add_rounds(selected[r][0], mine, count, time.perf_counter() - began)
            done += count
            if done % every == 0 or done == until:
                _evaluate(sweep.problem, states, members)
            shown.update(count, shown_of + members[0].log.summary())
            if interrupts.requested:
                break
    states = on_one_device(states)
    results = [member.end(done, rounds, partial(trees.take, states, r)) for r, member in enumerate(members)]
    if interrupts.requested:
        raise Interrupted(done, None, results)
    return results


def _open(
    stack: contextlib.ExitStack,
    folder: Any,
    sim: Simulation,
    algorithm: Algorithm,
    problem: Any,
    rounds: int,
    every: int,
    initial_params: Any,
    label: str | None,
) -> RunDirectory | DivergenceError:
    """A run's directory, or the error that ended the run there."""
    settings = describe_run(sim, problem, algorithm, rounds, every, initial_params, label=label)
    real = trees.scalar_dtype(sim.shapes().params)
    try:
        return stack.enter_context(RunDirectory(folder, settings, sim.resolved(), real, seconds=np.inf))
    except DivergenceError as error:
        return error


def _common_round(members: Sequence[_Member]) -> tuple[int, list[Any]]:
    """The last round that all members have been saved at, and what each had there; None at the beginning."""
    standing = [member.restore() for member in members]
    while len(rounds := {_round(one) for one, member in zip(standing, members, strict=True) if not member.error}) > 1:
        standing = [
            one if _round(one) == min(rounds) else member.restore(min(rounds))
            for one, member in zip(standing, members, strict=True)
        ]
    for one, member in zip(standing, members, strict=True):
        member.begin(one)
    return (min(rounds) if rounds else 0), standing


def _round(restored: Restored | None) -> int:
    return 0 if restored is None else restored.round


class _Member:
    """One of the runs: its history, where it is kept, and the error that ended it."""

    def __init__(self, sim: Simulation, keeper: Directory | DivergenceError) -> None:
        self.sim, self.log = sim, HistoryBuilder(sim)
        self.error = keeper if isinstance(keeper, DivergenceError) else None
        self._directory = NoDirectory() if isinstance(keeper, DivergenceError) else keeper
        self._ended = self.error is not None  # before this call
        self._solves, self._cohorts = CollectedSolves(), []
        self._saved = self._written = 0  # rounds of the directory's state, and of its records

    def restore(self, at_most: int | None = None) -> Restored | None:
        return self._directory.restore(self.sim.shapes(), at_most)

    def begin(self, restored: Restored | None) -> None:
        if restored is not None:
            self.log.resume(restored.rows)
            self._solves.add(restored.solves)
            self._cohorts = list(restored.cohorts)
            self.sim.cohorts.check_repeats(restored.cohorts)
            self._saved = self._written = restored.round

    def select(self, start: int, end: int) -> tuple[list[Selection], np.ndarray]:
        """Who takes part in rounds, and whom the program solves [rounds, cohort]: nobody of a run that has ended."""
        selected = [self.sim.cohorts.select(k) for k in range(start, end)]
        ids = np.stack([each.ids for each in selected])
        return selected, ids if self.error is None else np.full_like(ids, VACANT)

    def add_rounds(self, selected: Sequence[Selection], infos: RoundInfo, count: int, seconds: float) -> None:
        self._solves.add(infos.solves)
        self._cohorts += [each.ids for each in selected]
        self._unless_ended(self.log.add_rounds, selected, infos, count, seconds)

    def add_evaluation(self, *values: Any) -> None:
        self._unless_ended(self.log.add_evaluation, *values)

    def _unless_ended(self, add: Callable, *values: Any) -> None:
        if self.error is None:
            try:
                add(*values)
            except DivergenceError as error:
                self.error = error

    def end(self, done: int, rounds: int, state: Callable[[], State]) -> Result | DivergenceError:
        """Writes what the run did, and says how it stands: `done` of its `rounds`."""
        if self.error is not None:
            if not self._ended:
                self._write()
                where = {"round": self.error.round, "quantity": self.error.quantity}
                self._directory.say(RunStatus.DIVERGED, str(self.error), **where)
            return self.error
        self._write()
        if done > self._saved:
            self._directory.save(done, state)
        if done == rounds:
            self._directory.say(RunStatus.FINISHED)
        else:
            self._directory.say(RunStatus.INTERRUPTED, f"paused after round {done} of {rounds}")
        own = state()
        return Result(
            history=self.log.history(),
            cohorts=np.stack(self._cohorts),
            solves=self._solves.solves(),
            num_clients=self.sim.problem.data.num_clients,
            params=jax.tree.map(jnp.copy, own.params),
            state=own,
        )

    def _write(self) -> None:
        """The records that the directory does not have yet."""
        rows, start = self.log.take_new(), self._written
        if rows and rows[0]["round"] == 0:
            self._directory.record(rows[:1], 0, np.empty((0, self.sim.cohorts.size), np.int32), None, {})
            rows = rows[1:]
        if rows:
            end = start + len(rows)
            solves = jax.tree.map(lambda leaf: leaf[start:end], self._solves.solves())
            self._directory.record(rows, start, np.stack(self._cohorts[start:end]), solves, {})
            self._written = end


def _evaluate(problem: Problem, states: State, members: Sequence[_Member]) -> None:
    began = time.perf_counter()
    states = on_one_device(states)
    values = evaluate_many(problem, states.params)
    for r, member in enumerate(members):
        member.add_evaluation(values[r], partial(trees.take, states.penalty_mean, r), time.perf_counter() - began)


def _checked(runs: Any) -> list[tuple[Algorithm, int]]:
    """Pairs of an algorithm and a seed whose algorithms differ in numbers alone."""
    pairs = list(runs) if isinstance(runs, Iterable) else []
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(
            f"runs must be pairs (algorithm, seed), at least one, such as [(algorithm, 0), (algorithm, 1)], got "
            f"{checks.short(runs)}"
        )
    first = structure(pairs[0][0])
    for k, (algorithm, _) in enumerate(pairs):
        if structure(algorithm) != first:
            raise ValueError(
                f"runs[{k}] differs from runs[0] in more than numbers ({algorithm!r} and {pairs[0][0]!r}): "
                "simulate those apart, or use compare"
            )
    return pairs


def _checked_folders(run_dirs: Any, runs: int) -> list[Any] | None:
    """A directory for each run, all different; or None."""
    if run_dirs is None:
        return None
    folders = [] if isinstance(run_dirs, str | os.PathLike) else [as_folder(folder) for folder in run_dirs]
    if len(folders) != runs or len({folder.absolute() for folder in folders}) < runs:
        raise ValueError(f"run_dirs must be {runs} different directories, one for each run, got {run_dirs!r}")
    if processes.several():
        raise ValueError("run_dirs must be None with several processes: give simulate a run_dir, run by run")
    return folders


def structure(algorithm: Any) -> Any:
    """What runs at once must agree in: everything but the numbers' values."""
    leaves, tree = jax.tree.flatten(algorithm)
    return tree, [jnp.shape(leaf) for leaf in leaves]


class _Sweep:
    """The program for simulations whose rounds are run together, with places for so many."""

    def __init__(self, sims: Sequence[Simulation], places: int) -> None:
        first, self.problem = sims[0], sims[0].problem
        if first.execution.population != "device":
            raise ValueError(f"population must be 'device' for runs at once, got {first.execution.population!r}")
        if first.execution.placement == "home":
            raise ValueError(
                "placement must be 'auto' or 'dealt' for runs at once, got 'home': their jobs are one queue"
            )
        jobs = places * first.cohorts.size
        self._mesh = first.execution.devices(jobs)
        devices = 1 if self._mesh is None else self._mesh.size
        width = first.execution.width(jobs, devices, first.problem, first.rows_per_trip, first.lane_bytes)
        share = placement.share_of_block(jobs, devices, width, row_bytes(first.shapes().clients))
        self._layout = Layout(width, first.rows_per_trip, devices, share, sum(first.floats))
        for sim in sims:
            sim.width, sim.mesh = width, self._mesh  # what the history's efficiencies refer to
        self._sims = [*sims, *[sims[-1]] * (places - len(sims))]
        self._empty = places - len(sims)
        stacked = _stack([(sim.setup.algorithm, sim.setup.exchange) for sim in self._sims])
        problem, (algorithms, exchanges) = replicated((first.problem, stacked), self._mesh)
        self._setup = Setup(problem, algorithms, exchanges, _stack([sim.setup.key for sim in self._sims]))

    def states(self, restored: Sequence[Restored | None]) -> State:
        """The states [places, ...] of runs that were restored, or are at their beginning."""
        own = [
            sim.init_on_one_device() if one is None else on_one_device(one.state)
            for sim, one in zip(self._sims, restored, strict=False)
        ]
        return everywhere(_stack([*own, *own[-1:] * self._empty]), self._mesh)

    def run(self, states: State, cohorts: np.ndarray, most: int, wait: Callable[[Any], Any]) -> tuple[State, RoundInfo]:
        """The rounds with `cohorts` [runs, rounds, cohort], at most `most`: states and infos [places, rounds, ...]."""
        count = cohorts.shape[1]
        cohorts = np.concatenate([cohorts, np.full((self._empty, *cohorts.shape[1:]), VACANT, cohorts.dtype)])
        padded = np.concatenate([cohorts, np.repeat(cohorts[:, -1:], most - count, axis=1)], axis=1)
        states, infos = sweep_rounds(
            self._setup, states, jnp.asarray(padded), jnp.int32(count),
            layout=self._layout, mesh=self._mesh,
        )  # fmt: skip
        return states, jax.tree.map(lambda leaf: leaf[:, :count], wait(infos))


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
