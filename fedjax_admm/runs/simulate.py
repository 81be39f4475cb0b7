"""`simulate`: the loop over a simulation's rounds, on disk if asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..algorithms.base import Algorithm
from ..core import checks, trees
from ..core.vocabulary import RunStatus, Solves, State
from ..engine import processes
from ..engine.devices import on_one_device
from ..engine.execution import Execution
from ..exchange.client_time import ClientTime
from ..exchange.faults import Faults
from ..problems.problem import Problem
from ..results.history import DivergenceError, Result
from ..storage.run_directory import (
    SETTINGS,
    NoDirectory,
    RunDirectory,
    as_folder,
    check_place,
)
from ..storage.settings import (
    describe,
    describe_algorithm,
    describe_conditions,
    describe_problem,
    digest,
)
from .collected_solves import CollectedSolves
from .history_builder import HistoryBuilder
from .interrupts import Interrupted, Interrupts
from .progress import Progress
from .simulation import Simulation, check_conditions

MOST_ROUNDS_A_DISPATCH = 64
SECONDS_A_DISPATCH = 1.0  # if a round is shorter: so that progress shows, rows are written and an interrupt is heard
PRECISION = ("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion")  # that results depend on


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    *,
    participation: Any = 1.0,
    seed: int = 0,
    initial_params: Any = None,
    evaluate_every: int = 1,
    run_dir: str | os.PathLike[str] | None = None,
    execution: Execution | None = None,
    faults: Faults | None = None,
    client_time: ClientTime | None = None,
    exchange: Any = (),
    progress: bool = True,
    on_round: Callable[[dict[str, float]], Any] | None = None,
    checkpoint_seconds: float = 60.0,
    label: str | None = None,
    rebuild: bool = False,
) -> Result:
    """Runs an algorithm on a problem.

    Args:
        problem: What the clients minimise.
        algorithm: How, such as `fedadmm_insa(...)`.
        rounds: How many rounds.
        participation: A fraction of the clients or a whole number of them, drawn uniformly in each round, or an
            integer array [rounds, cohort].
        seed: Fixes the initial parameters, the cohorts and the order of every epoch's rows. Two algorithms with the
            same seed start alike and select the same clients.
        initial_params: z^0 instead of `problem.init`'s.
        evaluate_every: The loss and the metrics are computed at round 0, at every so many rounds and at the last.
            Rounds between are dispatched together.
        run_dir: A directory for the run's settings, history, solves and checkpoints (see `run_directory`). An
            unfinished run there goes on, to the bit as if it had never stopped; a finished one is read. Other settings
            than those of the run that is there are refused. SIGTERM, as Ctrl-C does always, then ends it after the
            round.
        execution: Lanes, devices, and where the clients' state is kept.
        faults: Clients that drop out or send rubbish, and what the server does about it; see `Faults`.
        client_time: How fast clients are, for simulated seconds in the history, and a deadline; see `ClientTime`.
        exchange: Stages of your own between client and server, after those; see `Stage`.
        progress: Show a bar in a terminal or notebook, and a line every few seconds elsewhere, on stderr.
        on_round: Called with each new row of the history, a dict, for a logger of your own; see `loggers`. Of several
            processes only the first calls it.
        checkpoint_seconds: The least time between two checkpoints, besides the one at the end.
        label: What the algorithm is called in the run's directory and report; by default what its record says.
        rebuild: Where the run's records on disk are damaged, compute it again from the last checkpoint before the
            damage, or from round 0; otherwise damage is an error that says which rounds it is in.

    Returns:
        The final parameters, every client's state and the history.

    Raises:
        DivergenceError: The server's parameters or the loss stopped being finite; it has the history so far.
        Interrupted: The run was stopped: a KeyboardInterrupt with the run so far as its `result`.
        LostProcessError: Another process of the run is gone (see `initialize_distributed`).

    >>> import fedjax_admm as fa, numpy as np
    >>> data = fa.FederatedData.from_arrays({"x": np.eye(4), "y": np.ones(4)}, [[0, 1], [2, 3]])
    >>> def loss(w, batch):
    ...     return 0.5 * (batch["x"] @ w - batch["y"]) ** 2
    >>> problem = fa.Problem(init=lambda key: jnp.zeros(4), loss=loss, data=data)
    >>> local = fa.LocalSolver(learning_rate=0.5, max_epochs=5)
    >>> result = simulate(problem, fa.fedadmm_in(local, penalty=0.1), rounds=20)
    >>> bool(result.history["loss"][-1] < 0.01 * result.history["loss"][0])
    True
    """
    rounds = checks.integer("rounds", rounds, at_least=1)
    check_run(seed, evaluate_every, checkpoint_seconds, on_round, run_dir=run_dir)
    evaluate_every = int(evaluate_every)
    sim = Simulation(
        problem, algorithm, participation=participation, seed=seed, initial_params=initial_params,
        execution=execution, faults=faults, client_time=client_time, exchange=exchange,
    )  # fmt: skip
    sim.check_rounds(rounds)
    if run_dir is None:
        sim.check_folder()
    first = processes.is_first()
    run = _Run(sim, rounds, evaluate_every, progress and first, on_round if first else None)
    if run_dir is None:
        with processes.together(None), Interrupts(kept=False) as interrupts:
            return run(NoDirectory(), interrupts)
    settings = {
        "precision": {name: describe(getattr(jax.config, name)) for name in PRECISION},
        "problem": describe_problem(problem),
        "algorithm": describe_algorithm(algorithm, problem),
        "rounds": rounds,
        "participation": describe(sim.cohorts.setting),
        "seed": sim.seed,
        "initial_params": digest(initial_params),
        "evaluate_every": evaluate_every,
        "execution": sim.execution.settings(),
        **describe_conditions(faults, client_time, exchange),
        **({} if label is None else {"label": str(label)}),
    }
    real = trees.scalar_dtype(sim.shapes().params)
    with (
        processes.together(run_dir),
        RunDirectory(run_dir, settings, sim.resolved(), real, checkpoint_seconds, rebuild) as directory,
        Interrupts() as interrupts,
    ):
        sim.use(sim.execution.again(directory.execution), directory.path)
        return run(directory, interrupts)


def check_run(
    seed: int = 0,
    evaluate_every: int = 1,
    checkpoint_seconds: float = 0.0,
    on_round: Any = None,
    run_dir: Any = None,
    faults: Any = None,
    client_time: Any = None,
    **_: Any,
) -> None:
    """Those arguments of `simulate` that can be checked without a problem."""
    checks.integer("seed", seed, at_least=0)
    checks.integer("evaluate_every", evaluate_every, at_least=1)
    checks.number("checkpoint_seconds", checkpoint_seconds, at_least=0)
    if on_round is not None and not callable(on_round):
        raise ValueError(f"on_round must be a function of a row, got {on_round!r}")
    check_conditions(faults, client_time)
    if run_dir is not None:
        check_place(as_folder(run_dir), SETTINGS)


class _Run:
    """The loop over a simulation's rounds."""

    def __init__(
        self, sim: Simulation, rounds: int, evaluate_every: int, progress: bool, on_round: Callable | None
    ) -> None:
        self._sim, self._rounds, self._every, self._progress = sim, rounds, evaluate_every, progress
        self._on_round = on_round
        self._most = min(evaluate_every, MOST_ROUNDS_A_DISPATCH)

    def __call__(self, directory: RunDirectory | NoDirectory, interrupts: Interrupts) -> Result:
        sim, log = self._sim, HistoryBuilder(self._sim)
        restored, solves = directory.restore(sim.saved_shape()), CollectedSolves()
        if restored is None:
            state, done = sim.init(), 0
            self._evaluate(state, log)
            self._tell(directory, log, 0, None)
        else:
            state, done = sim.restored(restored.state), restored.round
            solves.add(restored.solves)
            log.resume(restored.rows)
        quick, stop = 1, False  # rounds that fit into SECONDS_A_DISPATCH; whether it is to stop
        with Progress(self._rounds, self._progress, done) as shown:
            while done < self._rounds and not stop:
                count = min(self._most, quick, self._rounds - done, self._every - done % self._every)
                state, new, seconds = self._dispatch(state, done, count, log, directory, interrupts)
                solves.add(new)
                done += count
                try:
                    if done % self._every == 0 or done == self._rounds:
                        self._evaluate(state, log)
                finally:  # a loss that is not finite ends the run; the rounds before it are told
                    self._tell(directory, log, done - count, new)
                shown.update(count, log.summary())
                quick = max(1, min(4 * count, int(SECONDS_A_DISPATCH / max(seconds / count, 1e-9))))
                quick, stop, due = processes.greatest(quick, interrupts.requested, directory.due())
                if (stop or due or done == self._rounds) and directory.save(done, partial(sim.saved, state)):
                    sim.was_saved(state)
        if done == self._rounds:
            directory.say(RunStatus.FINISHED)
        result = self._result(state, done, log, solves.solves())
        if stop:
            raise Interrupted(done, None if directory.path is None else str(directory.path), result)
        return result

    def _evaluate(self, state: State, log: HistoryBuilder) -> None:
        """Losses and metrics of a state, into the history."""
        began = time.perf_counter()
        values = self._sim.evaluate(state)
        log.add_evaluation(values, lambda: state.penalty_mean, time.perf_counter() - began)

    def _result(self, state: State, done: int, log: HistoryBuilder, solves: Solves) -> Result:
        """What there is after `done` rounds, with their solves [rounds, cohort]."""
        # The parameters are the result's own: its state may be given to another round.
        return Result(
            history=log.history(),
            cohorts=self._cohorts(0, done),
            solves=solves,
            num_clients=self._sim.problem.data.num_clients,
            params=jax.tree.map(jnp.copy, on_one_device(state.params)),
            state=processes.whole(state),
        )

    def _dispatch(
        self,
        state: State,
        done: int,
        count: int,
        log: HistoryBuilder,
        directory: RunDirectory | NoDirectory,
        interrupts: Interrupts,
    ) -> tuple[State, Solves, float]:
        """`count` rounds in one call of the device: the state, their solves [count, cohort] and the seconds."""
        block = self._cohorts(done, done + count)
        # Always of one shape, so that a shorter last block compiles nothing.
        padded = np.concatenate([block, np.repeat(block[-1:], self._most - count, axis=0)])
        began = time.perf_counter()
        state, infos, ran = self._sim.run_rounds(state, padded, count, interrupts.wait)
        infos, ran = interrupts.wait((infos, ran))
        seconds = time.perf_counter() - began
        solves = jax.tree.map(lambda leaf: leaf[:count], infos.solves)
        try:
            log.add_rounds(block, infos, int(ran), seconds)
        except DivergenceError:
            self._tell(directory, log, done, solves)
            raise
        return state, solves, seconds

    def _cohorts(self, start: int, end: int) -> np.ndarray:
        """The clients of rounds `start` to `end` [rounds, cohort]."""
        empty = np.empty((0, self._sim.cohorts.size), np.int32)
        return np.stack([self._sim.cohorts[k] for k in range(start, end)]) if end > start else empty

    def _tell(
        self, directory: RunDirectory | NoDirectory, log: HistoryBuilder, start: int, solves: Solves | None
    ) -> None:
        """New rows of the history to whoever listens."""
        rows = log.take_new()
        if not rows:
            return
        number = len(rows) if solves is not None else 0
        directory.record(rows, start, self._cohorts(start, start + number), _first(solves, number))
        if self._on_round is not None:
            for row in rows:
                self._on_round(dict(row))


def _first(solves: Solves | None, number: int) -> Solves | None:
    return None if solves is None else jax.tree.map(lambda leaf: leaf[:number], solves)
