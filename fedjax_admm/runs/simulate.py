"""`simulate`: the loop over a simulation's rounds, on disk if asked for."""

from __future__ import annotations

import dataclasses
import inspect
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

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
from ..problems.evaluated_rows import check_evaluate
from ..problems.problem import Problem
from ..results.history import DivergenceError, Result
from ..storage.run_directory import NoDirectory, RunDirectory
from ..storage.run_files import SETTINGS, as_folder, check_place
from ..storage.settings import (
    describe,
    describe_algorithm,
    describe_conditions,
    describe_evaluation,
    describe_problem,
    digest,
)
from .client_evaluation import ClientEvaluation, check_client_evaluation
from .collected_solves import CollectedSolves
from .history_builder import HistoryBuilder
from .interrupts import Interrupted, Interrupts
from .kept import KeptRun
from .progress import Progress
from .simulation import Simulation, check_conditions

MOST_ROUNDS_A_DISPATCH = 64
SECONDS_A_DISPATCH = 1.0  # if a round is shorter: so that progress shows, rows are written and an interrupt is heard
Directory = RunDirectory | NoDirectory | KeptRun
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
    evaluate: Any = "all",
    evaluate_clients_every: int | None = None,
    evaluate_clients: Any = "all",
    run_dir: str | os.PathLike[str] | None = None,
    execution: Execution | None = None,
    faults: Faults | None = None,
    client_time: ClientTime | None = None,
    exchange: Any = (),
    progress: bool = True,
    on_round: Callable[..., Any] | None = None,
    checkpoint_seconds: float = 60.0,
    label: str | None = None,
    rebuild: bool = False,
) -> Result:
    """Runs an algorithm on a problem.

    Args:
        problem: What the clients minimise.
        algorithm: How they minimise it, such as `fedadmm_insa(...)`.
        rounds: How many rounds.
        participation: Which clients take part in each round: a fraction or a whole number of them, drawn uniformly; a
            rule that says who is available, such as `fa.availability.probability(0.3, cohort=40)`; a function (round,
            key) -> clients; an integer array [rounds, cohort], such as the `cohorts` of another run; or a list with one
            list of clients per round.
        seed: Determines the initial parameters, the cohorts and the order of the rows in each epoch. Two algorithms
            with the same seed start at the same point and select the same clients.
        initial_params: z^0 instead of `problem.init`'s.
        evaluate_every: Compute the loss and the metrics every this many rounds, and at round 0 and the last. The
            rounds in between run as one call, which is faster for small models.
        evaluate: What the loss is computed on, since this can take longer than a round: "all" rows of the clients; a
            number of rows (a random sample, the same in every round and every run); "test" (no loss, only the metrics
            on `eval_data`); or None (nothing). What is not computed is NaN in the history.
        evaluate_clients_every: Also compute each client's loss and metrics every this many rounds, and at round 0 and
            the last. They are computed on the problem's `client_eval_data` or the client's own rows, at the server's
            parameters and, if the method keeps them, at the client's own. The result has them as `client_metrics`; the
            history has their mean, standard deviation and deciles over clients, and `client_eval_seconds`. None:
            never.
        evaluate_clients: Which clients are evaluated: "all", or a number of them (a random sample, the same in every
            round and every run).
        run_dir: A directory for the run's settings, history, solves and checkpoints. An unfinished run there is
            resumed, with bit for bit the results of a run that never stopped; a finished one is read, and continued if
            `rounds` is larger. Other settings than those of the run in the directory are refused. SIGTERM then ends
            the run after the current round, as Ctrl-C always does.
        execution: Lanes, devices, and where data and the clients' states are kept; see `Execution`.
        faults: Simulated clients that drop out or send something wrong, and how the server reacts; see `Faults`.
        client_time: How fast clients are, for simulated seconds in the history, and the deadline of a round; see
            `ClientTime`.
        exchange: Your own stages between client and server, which follow those two; see `Stage`.
        progress: Show progress on stderr: a bar in a terminal or notebook, otherwise a line every few seconds.
        on_round: A function that is called with each new record of the history, a dict, such as a logger; see
            `loggers`. If it takes two arguments it also gets the `State` after the round, with the parameters and the
            clients' states. Rounds are then started one by one, and the next one reuses the state's memory, so copy
            what you keep. With several processes, only the first calls it.
        checkpoint_seconds: The least time between two checkpoints, besides the one at the end.
        label: The algorithm's name in the run's directory and report; by default that of its record.
        rebuild: If the run's records on disk are damaged, compute the run again from the last checkpoint before the
            damage, or from round 0. Without this, damage is an error that names the rounds.

    Returns:
        The final parameters, every client's state and the history.

    Raises:
        DivergenceError: The server's parameters or the loss are no longer finite; the error has the history so far.
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
    return simulate_until(
        rounds, problem, algorithm, rounds, participation=participation, seed=seed, initial_params=initial_params,
        evaluate_every=evaluate_every, evaluate=evaluate, evaluate_clients_every=evaluate_clients_every,
        evaluate_clients=evaluate_clients, run_dir=run_dir, execution=execution, faults=faults, client_time=client_time,
        exchange=exchange, progress=progress, on_round=on_round, checkpoint_seconds=checkpoint_seconds, label=label,
        rebuild=rebuild,
    )  # fmt: skip


def simulate_until(
    until: int,
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    *,
    kept: KeptRun | None = None,
    participation: Any = 1.0,
    seed: int = 0,
    initial_params: Any = None,
    evaluate_every: int = 1,
    evaluate: Any = "all",
    evaluate_clients_every: int | None = None,
    evaluate_clients: Any = "all",
    run_dir: str | os.PathLike[str] | None = None,
    execution: Execution | None = None,
    faults: Faults | None = None,
    client_time: ClientTime | None = None,
    exchange: Any = (),
    progress: bool = True,
    on_round: Callable[..., Any] | None = None,
    checkpoint_seconds: float = 60.0,
    label: str | None = None,
    rebuild: bool = False,
) -> Result:
    """`simulate`, which pauses after some of the rounds; the same call with a later `until` goes on.

    Args:
        until: After which round it pauses, a multiple of `evaluate_every`; or ends if that is the last.
        problem: What the clients minimise.
        algorithm: How.
        rounds: The rounds of the whole run.
        kept: Where the run is kept meanwhile if it has no `run_dir`; None: nowhere.

    The other arguments are `simulate`'s.

    Returns:
        The run so far.
    """
    rounds = checks.integer("rounds", rounds, at_least=1)
    chosen = {
        "evaluate": evaluate, "evaluate_clients_every": evaluate_clients_every, "evaluate_clients": evaluate_clients,
    }  # fmt: skip
    check_run(seed, evaluate_every, checkpoint_seconds, on_round, run_dir=run_dir, **chosen)
    evaluate_every = int(evaluate_every)
    sim = Simulation(
        problem, algorithm, participation=participation, seed=seed, initial_params=initial_params,
        execution=execution, faults=faults, client_time=client_time, exchange=exchange,
    )  # fmt: skip
    sim.check_rounds(rounds)
    if run_dir is None:
        sim.check_folder()
    check_evaluate(evaluate, sim.problem)
    clients = None
    if evaluate_clients_every is not None:
        clients = ClientEvaluation(sim, rounds, int(evaluate_clients_every), evaluate_clients)
    run = _Run(sim, rounds, _Evaluation(evaluate, evaluate_every, clients), progress, on_round, until)
    if run_dir is None:
        with processes.together(None), Interrupts(kept=False) as interrupts:
            return run(NoDirectory() if kept is None else kept, interrupts)
    conditions = describe_conditions(faults, client_time, exchange) | describe_evaluation(chosen)
    settings = describe_run(
        sim, describe_problem(problem), algorithm, rounds, evaluate_every, initial_params, conditions, label
    )
    real, files = trees.scalar_dtype(sim.shapes().params), None if clients is None else clients.files
    with (
        processes.together(run_dir),
        RunDirectory(run_dir, settings, sim.resolved(), real, checkpoint_seconds, rebuild, files) as directory,
        Interrupts() as interrupts,
    ):
        sim.use(sim.execution.again(directory.execution), directory.path)
        return run(directory, interrupts)


def describe_run(
    sim: Simulation,
    problem: Any,
    algorithm: Algorithm,
    rounds: int,
    evaluate_every: int,
    initial_params: Any = None,
    conditions: Mapping[str, Any] = {},
    label: str | None = None,
) -> dict[str, Any]:
    """A run's settings, as its directory has them.

    Args:
        sim: Its simulation.
        problem: The problem, described.
        algorithm: As it was given.
        rounds: How many rounds the run has.
        evaluate_every: Rounds between two evaluations.
        initial_params: z^0, if it was given.
        conditions: Faults, the clients' time, stages and what is evaluated, described.
        label: What the algorithm is called.

    Returns:
        What JSON can hold.
    """
    return {
        "precision": {name: describe(getattr(jax.config, name)) for name in PRECISION},
        "problem": problem,
        "algorithm": describe_algorithm(algorithm, sim.problem),
        "rounds": rounds,
        "participation": describe(sim.cohorts.setting),
        "seed": sim.seed,
        "initial_params": digest(initial_params),
        "evaluate_every": evaluate_every,
        "execution": sim.execution.settings(),
        **conditions,
        **({} if label is None else {"label": str(label)}),
    }


def check_run(
    seed: int = 0,
    evaluate_every: int = 1,
    checkpoint_seconds: float = 0.0,
    on_round: Any = None,
    run_dir: Any = None,
    faults: Any = None,
    client_time: Any = None,
    evaluate: Any = "all",
    evaluate_clients_every: Any = None,
    evaluate_clients: Any = "all",
    **_: Any,
) -> None:
    """Those arguments of `simulate` that can be checked without a problem."""
    checks.integer("seed", seed, at_least=0)
    checks.integer("evaluate_every", evaluate_every, at_least=1)
    check_evaluate(evaluate)
    check_client_evaluation(evaluate_clients_every, evaluate_clients)
    checks.number("checkpoint_seconds", checkpoint_seconds, at_least=0)
    if on_round is not None:
        checks.function("on_round", on_round, "(row) or (row, state)", arguments=(1, 2))
    check_conditions(faults, client_time)
    if run_dir is not None:
        check_place(as_folder(run_dir), SETTINGS)


class _Evaluation(NamedTuple):
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


class _Run:
    """The loop over a simulation's rounds."""

    def __init__(
        self,
        sim: Simulation,
        rounds: int,
        evaluation: _Evaluation,
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
