"""`personalize`: the server's model fine-tuned on each client's rows, in the lanes that rounds are computed in."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..algorithms import criteria
from ..algorithms.base import broadcast_params
from ..algorithms.criteria import Criterion
from ..algorithms.local_solver import LocalSolver
from ..core import checks
from ..core.client_statistics import PERSONAL
from ..core.record import record
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from ..engine.client_sample import check_sample
from ..engine.every_client import OWN
from ..engine.execution import Execution
from ..engine.population import StoredClients
from ..problems.problem import Problem
from ..results.history import Result
from ..results.personalized import Personalized
from .client_evaluation import describe_clients
from .simulation import Simulation


@record
class FineTuning:
    """A round of it leaves the server's parameters as they are, and with each client those that it ended at."""

    local: LocalSolver
    criterion: Criterion

    broadcast = broadcast_params

    def init(self, params: Params, clients: Clients) -> Any:
        return ()

    def start(self, params: Params, client: Client) -> Rows:
        return {OWN: params}

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        return Subproblem()

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        return jnp.zeros(()), {OWN: solution.params}

    def aggregate(self, params: Params, server: Any, received: Received, round: Round) -> tuple[Params, Any]:
        return params, server


def personalize(
    result: Result,
    problem: Problem,
    local: LocalSolver,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    clients: Any = "all",
    seed: int = 0,
    execution: Execution | None = None,
) -> Personalized:
    """Fine-tunes the server's model on each client's rows, and evaluates every client before and after.

    Clients train as in a round, on `problem.data`, and are evaluated on `client_eval_data`. Without that they are
    evaluated on the rows that they trained on, which makes fine-tuned and own models look too good.

    Args:
        result: What `simulate` returned. If its method keeps clients' own models, those are evaluated too.
        problem: The problem of that run.
        local: How a client trains.
        epochs: How many epochs each client does; by default `local.max_epochs`.
        steps: How many optimizer steps each client does, instead of epochs.
        clients: "all", or a number of them: a random sample, the same as in `simulate(evaluate_clients=...)`.
        seed: The seed of the order of rows.
        execution: Lanes, devices, and where the fine-tuned models are kept: with population="host" or "disk" they do
            not have to fit on the device.

    Returns:
        Every client's loss and metrics.

    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> algorithm = example.algorithm("fedadmm_insa")
    >>> result = fa.simulate(example.problem, algorithm, progress=False, **example.run_settings)
    >>> personalized = personalize(result, example.problem, algorithm.local, steps=5)
    >>> bool((personalized.after["loss"] < personalized.before["loss"]).all())
    True
    """
    if not isinstance(result, Result):
        raise ValueError(f"result must be what fa.simulate returned, got {type(result).__name__}")
    if not isinstance(local, LocalSolver):
        raise ValueError(f"local must be a fa.LocalSolver, got {local!r}")
    if not isinstance(problem, Problem):
        raise ValueError(f"problem must be a fa.Problem, got {type(problem).__name__}")
    number = problem.data.num_clients
    if result.num_clients != number:
        raise ValueError(f"problem has {number} clients, and result is of {result.num_clients}: give the run's problem")
    check_sample(number, clients, "clients")
    problem = problem.on_device()
    whole: Any = criteria.run_to_maximum()
    algorithm = FineTuning(_limited(local, problem, epochs, steps), whole)
    sim = Simulation(problem, algorithm, seed=seed, initial_params=result.params, execution=execution)
    every = sim.every_client(clients)
    sim = Simulation(
        problem, algorithm, participation=every.clients[None], seed=seed, initial_params=result.params,
        execution=execution,
    )  # fmt: skip
    state, solves = sim.round(sim.init())
    found = sim.evaluate_clients(state, clients)
    return Personalized(
        before={name: values for name, values in found.items() if not name.startswith(PERSONAL)},
        after=_own(found),
        own=_own(sim.every_client(clients).at_own(_gathered(result.state.clients))),
        about=describe_clients(problem, every.clients),
        epochs=np.asarray(solves.epochs),
        client_params=state.clients[OWN],
    )


def _own(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(PERSONAL): of for name, of in values.items() if name.startswith(PERSONAL)}


def _gathered(clients: Any) -> Any:
    """The own models that a run left, wherever it left them, as arrays that go to any devices."""
    if isinstance(clients, StoredClients) or OWN not in clients:
        return clients
    return {OWN: jax.tree.map(np.asarray, clients[OWN])}


def _limited(local: LocalSolver, problem: Problem, epochs: int | None, steps: int | None) -> LocalSolver:
    """The solver that does so many epochs, or so many steps, and no more."""
    if epochs is not None and steps is not None:
        raise ValueError(f"give epochs or steps, not both, got epochs={epochs} and steps={steps}")
    if steps is None:
        number = local.max_epochs if epochs is None else checks.integer("epochs", epochs, at_least=1)
        return dataclasses.replace(local, max_epochs=number)
    number = int(cast(int, checks.integer("steps", steps, at_least=1)))
    each = np.asarray(local.steps_per_epoch(problem.data.sizes))
    return dataclasses.replace(
        local,
        max_epochs=-(-number // each),
        optimizer=functools.partial(_make_stopping, local.optimizer, number),
    )


def _make_stopping(
    factory: Callable[..., Any], steps: int, learning_rate: Any, **options: Any
) -> optax.GradientTransformation:
    """An optimizer that stands still after so many steps: an epoch may have more."""

    def goes_on(step: Any, **_: Any) -> Any:
        return step < steps

    return optax.conditionally_mask(factory(learning_rate, **options), goes_on)
