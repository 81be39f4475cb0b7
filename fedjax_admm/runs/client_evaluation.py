"""A run's evaluations of its clients: when they take place, what they gave, and the files that keep them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core import checks, trees
from ..core.vocabulary import State
from ..data.labels import count_labels
from ..problems.problem import Problem
from ..results.client_metrics import ClientMetrics, EvaluatedClients, evaluation_rounds, stack
from ..storage.client_files import ClientFiles, Evaluations
from .simulation import Simulation


def check_client_evaluation(every: Any, clients: Any) -> None:
    """Checks those arguments of `simulate` that say whether and whom to evaluate.

    Args:
        every: After how many rounds each; None for never.
        clients: "all", or how many.

    Raises:
        ValueError: They are something else.
    """
    if every is not None:
        checks.integer("evaluate_clients_every", every, at_least=1)
    elif clients != "all":
        raise ValueError(f"evaluate_clients={clients!r} needs evaluate_clients_every: give that too")


def describe_clients(problem: Problem, clients: np.ndarray) -> EvaluatedClients:
    """What clients hold.

    Args:
        problem: Theirs.
        clients: Whom to describe.

    Returns:
        Their rows, weights and labels.
    """
    data = problem.data
    return EvaluatedClients(
        clients=clients,
        sizes=np.asarray(data.sizes)[clients],
        evaluated_rows=np.asarray(problem.evaluated_data.sizes)[clients],
        weights=np.asarray(data.weights, np.float64)[clients],
        labels=count_labels(data, clients),
    )


class ClientEvaluation:
    """The evaluations of a run's clients.

    Args:
        sim: The run's.
        rounds: How many rounds it has.
        every: After how many rounds each.
        clients: "all", or how many.

    Raises:
        ValueError: A metric cannot be computed on clients' rows, or there are not so many clients.
    """

    def __init__(self, sim: Simulation, rounds: int, every: int, clients: Any) -> None:
        self._sim, self._clients = sim, clients
        self.every, self.quantities = every, sim.quantities()
        self._rounds = evaluation_rounds(rounds, every)
        self._done: Evaluations = {}
        self.about = describe_clients(sim.problem, sim.every_client(clients).clients)

    def is_due(self, done: int) -> bool:
        """Whether there is one after so many rounds."""
        return done in self._rounds

    def evaluate(self, state: State, done: int) -> Mapping[str, np.ndarray]:
        """Evaluates the clients after so many rounds: name -> [clients]."""
        self._done[done] = self._sim.evaluate_clients(state, self._clients)
        return self._done[done]

    def resume(self, evaluations: Evaluations) -> None:
        """Goes on after these evaluations."""
        self._done = dict(evaluations)

    def of(self, first: int, last: int) -> Evaluations:
        """The evaluations after the rounds from `first` to `last`."""
        return {round: values for round, values in self._done.items() if first <= round <= last}

    def metrics(self) -> ClientMetrics:
        """All so far."""
        rounds = sorted(self._done)
        return stack(rounds, self.about, [self._done[round] for round in rounds])

    def files(self, folder: Path) -> ClientFiles:
        """The files that keep them."""
        real = trees.scalar_dtype(self._sim.shapes().params)
        return ClientFiles(folder, self.about, self.quantities, self._rounds, real)
