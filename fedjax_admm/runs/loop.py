"""The loop over a simulation's rounds, with all who hear of each: history, directory, progress and a function."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.vocabulary import RunStatus, Solves, State
from ..engine import processes
from ..engine.devices import on_one_device
from ..results.history import DivergenceError, Result
from ..storage.run_directory import NoDirectory, RunDirectory
from .client_evaluation import ClientEvaluation
from .collected_solves import CollectedSolves
from .history_builder import HistoryBuilder
from .interrupts import Interrupted, Interrupts
from .kept import KeptRun
from .progress import Progress
from .simulation import Simulation

MOST_ROUNDS_A_DISPATCH = 64
SECONDS_A_DISPATCH = 1.0  # if a round is shorter: so that progress shows, rows are written and an interrupt is heard
Directory = RunDirectory | NoDirectory | KeptRun


class Evaluation(NamedTuple):
    """What is evaluated, and when."""

    on: Any  # what the loss is computed on
    every: int
    clients: ClientEvaluation | None

    def is_due(self, done: int, rounds: int) -> bool:
        """Whether the loss and the metrics are evaluated after so many rounds."""
        return done % self.every == 0 or done == rounds

    def until_next(self, done: int) -> int:
        """Rounds until anything is evaluated."""
        others = () if self.clients is None else (self.clients.every,)
        return min(every - done % every for every in (self.every, *others))


class Loop:
    """A simulation's rounds, one after the other. Called, it runs them."""

    def __init__(
        self,
        sim: Simulation,
        rounds: int,
        evaluation: Evaluation,
        progress: bool,
        on_round: Callable | None,
        until: int,
    ) -> None:
        first = processes.is_first()
        self._sim, self._rounds, self._evaluation, self._progress = sim, rounds, evaluation, progress and first
        self._on_round, self._wants_state = on_round if first else None, _wants_state(on_round)
        self._until, least = min(until, rounds), evaluation.until_next(0)
        # A clock must stand still before it is known who is available next.
        alone = self._wants_state or sim.cohorts.needs_clock
        self._most = 1 if alone else min(least, MOST_ROUNDS_A_DISPATCH)
        self._cohorts: list[np.ndarray] = []  # of the rounds done, each [cohort]

    def __call__(self, directory: Directory, interrupts: Interrupts) -> Result:
        sim, clients = self._sim, self._evaluation.clients
        log = HistoryBuilder(sim, self._evaluation.on, () if clients is None else clients.quantities)
        restored, solves = directory.restore(sim.saved_shape()), CollectedSolves()
        if restored is None:
            state, done = sim.init(), 0
            self._evaluate(state, log, 0)
            self._tell(directory, log, 0, None, state)
        else:
            state, done = sim.restored(restored.state), restored.round
            solves.add(restored.solves)
            log.resume(restored.rows)
            if clients is not None:
                clients.resume(restored.evaluations)
            self._cohorts = list(restored.cohorts)
            sim.cohorts.check_repeats(restored.cohorts)
        quick, stop = 1, False  # rounds that fit into SECONDS_A_DISPATCH; whether it is to stop
        with Progress(self._until, self._progress, done) as shown:
            while done < self._until and not stop:
                count = min(self._most, quick, self._until - done, self._evaluation.until_next(done))
                state, new, seconds = self._dispatch(state, done, count, log, directory, interrupts)
                solves.add(new)
                done += count
                try:
                    self._evaluate(state, log, done)
                finally:  # a loss that is not finite ends the run; the rounds before it are told
                    self._tell(directory, log, done - count, new, state)
                shown.update(count, log.summary())
                quick = max(1, min(4 * count, int(SECONDS_A_DISPATCH / max(seconds / count, 1e-9))))
                quick, stop, due = processes.greatest(quick, interrupts.requested, directory.due())
                if (stop or due or done == self._until) and directory.save(done, partial(sim.saved, state)):
                    sim.was_saved(state)
        if done == self._rounds:
            directory.say(RunStatus.FINISHED)
        elif done == self._until and not stop:
            directory.say(RunStatus.INTERRUPTED, f"paused after round {done} of {self._rounds}")
        result = self._result(state, done, log, solves.solves())
        if stop:
            raise Interrupted(done, None if directory.path is None else str(directory.path), result)
        return result

    def _evaluate(self, state: State, log: HistoryBuilder, done: int) -> None:
        """Losses and metrics of a state, into the history, where they are due."""
        if self._evaluation.is_due(done, self._rounds):
            began = time.perf_counter()
            values = self._sim.evaluate(state, self._evaluation.on)
            log.add_evaluation(values, lambda: state.penalty_mean, time.perf_counter() - began)
        clients = self._evaluation.clients
        if clients is not None and clients.is_due(done):
            began = time.perf_counter()
            log.add_clients(clients.evaluate(state, done), time.perf_counter() - began)

    def _result(self, state: State, done: int, log: HistoryBuilder, solves: Solves) -> Result:
        """What there is after `done` rounds, with their solves [rounds, cohort]."""
        # The parameters are the result's own: its state may be given to another round.
        return Result(
            history=log.history(),
            cohorts=np.stack(self._cohorts),
            solves=solves,
            num_clients=self._sim.problem.data.num_clients,
            client_metrics=None if self._evaluation.clients is None else self._evaluation.clients.metrics(),
            evaluated=self._evaluation.on,
            params=jax.tree.map(jnp.copy, on_one_device(state.params)),
            state=processes.whole(state),
        )

    def _dispatch(
        self,
        state: State,
        done: int,
        count: int,
        log: HistoryBuilder,
        directory: Directory,
        interrupts: Interrupts,
    ) -> tuple[State, Solves, float]:
        """`count` rounds in one call of the device: the state, their solves [count, cohort] and the seconds."""
        selected = [self._sim.cohorts.select(k, log.clock) for k in range(done, done + count)]
        block = np.stack([each.ids for each in selected])
        self._cohorts += list(block)
        # Always of one shape, so that a shorter last block compiles nothing.
        padded = np.concatenate([block, np.repeat(block[-1:], self._most - count, axis=0)])
        began = time.perf_counter()
        state, infos, ran = self._sim.run_rounds(state, padded, count, interrupts.wait)
        infos, ran = interrupts.wait((infos, ran))
        seconds = time.perf_counter() - began
        solves = jax.tree.map(lambda leaf: leaf[:count], infos.solves)
        try:
            log.add_rounds(selected, infos, int(ran), seconds)
        except DivergenceError:
            self._tell(directory, log, done, solves, state)
            raise
        return state, solves, seconds

    def _tell(
        self,
        directory: Directory,
        log: HistoryBuilder,
        start: int,
        solves: Solves | None,
        state: State,
    ) -> None:
        """New rows of the history to whoever listens."""
        rows = log.take_new()
        if not rows:
            return
        number = len(rows) if solves is not None else 0
        clients, last = self._evaluation.clients, int(rows[-1]["round"])
        evaluations = {} if clients is None else clients.of(int(rows[0]["round"]), last)
        cohorts = np.array(self._cohorts[start : start + number], np.int32)
        directory.record(rows, start, cohorts, _first(solves, number), evaluations)
        if self._on_round is None:
            return
        for row in rows:
            if self._wants_state:
                self._on_round(dict(row), dataclasses.replace(state, params=on_one_device(state.params)))
            else:
                self._on_round(dict(row))


def _wants_state(on_round: Any) -> bool:
    """Whether a function must be given two arguments."""
    if on_round is None:
        return False
    try:
        parameters = inspect.signature(on_round).parameters.values()
    except (TypeError, ValueError):  # of a function that Python cannot look into
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is inspect.Parameter.empty for each in parameters) == 2


def _first(solves: Solves | None, number: int) -> Solves | None:
    return None if solves is None else jax.tree.map(lambda leaf: leaf[:number], solves)
