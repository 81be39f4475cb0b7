"""`simulate`: a problem and an algorithm, for some rounds, on disk if asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ..algorithms.base import Algorithm
from ..core import checks, trees
from ..engine import processes
from ..engine.execution import Execution
from ..exchange.client_time import ClientTime
from ..exchange.faults import Faults
from ..problems.evaluated_rows import check_evaluate
from ..problems.problem import Problem
from ..results.history import Result
from ..storage.description import describe
from ..storage.digests import digest
from ..storage.run_directory import NoDirectory, RunDirectory
from ..storage.run_files import SETTINGS, as_folder, check_place
from ..storage.settings import describe_algorithm, describe_conditions, describe_evaluation, describe_problem
from .arguments import check_conditions
from .client_evaluation import ClientEvaluation, check_client_evaluation
from .interrupts import Interrupts
from .kept import KeptRun
from .loop import Evaluation, Loop
from .simulation import Simulation

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
    run = Loop(sim, rounds, Evaluation(evaluate, evaluate_every, clients), progress, on_round, until)
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
