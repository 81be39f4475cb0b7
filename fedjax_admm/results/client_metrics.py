"""What a run knows of each of its clients: their losses and metrics, evaluation by evaluation, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EvaluatedClients:
    """Whom a run evaluates, and on what.

    Attributes:
        clients: Their numbers [clients], ascending: all of them, or a sample.
        sizes: Rows that each has to train on [clients].
        evaluated_rows: Rows that each is evaluated on [clients].
        labels: Of the rows to train on, how many have each label [clients, labels]; None where rows have none.
        weights: Their alpha_i [clients].
    """

    clients: np.ndarray
    sizes: np.ndarray
    evaluated_rows: np.ndarray
    weights: np.ndarray
    labels: np.ndarray | None = None

    def label_share(self) -> np.ndarray | None:
        """The share of each client's rows that have its most frequent label [clients]; None without labels.

        >>> one = EvaluatedClients(np.arange(1), np.array([4]), np.array([4]), np.ones(1), np.array([[1, 3]]))
        >>> one.label_share().tolist()
        [0.75]
        """
        return None if self.labels is None else self.labels.max(axis=1) / np.maximum(1, self.labels.sum(axis=1))


class ClientMetrics(Mapping[str, np.ndarray]):
    """Every client's loss and metrics, as arrays [evaluations, clients].

    "loss" is f_i at the server's parameters, including the regularizer, and "personal_loss" is f_i at the client's own
    parameters, if the method keeps them. Metrics are named in the same way. NaN stands for a client without rows.

    Args:
        rounds: The rounds after which clients were evaluated [evaluations].
        about: Whom they are of.
        values: name -> [evaluations, clients].

    >>> about = EvaluatedClients(np.arange(2), np.array([1, 3]), np.array([1, 3]), np.array([0.25, 0.75]))
    >>> metrics = ClientMetrics(np.array([0, 10]), about, {"loss": np.array([[2.0, 2.0], [1.0, 0.5]])})
    >>> metrics["loss"][-1].tolist(), metrics.rounds.tolist(), metrics.worst("loss", 1).tolist()
    ([1.0, 0.5], [0, 10], [0])
    """

    def __init__(self, rounds: np.ndarray, about: EvaluatedClients, values: Mapping[str, np.ndarray]) -> None:
        self.rounds, self.about, self._values = np.asarray(rounds), about, dict(values)

    @property
    def clients(self) -> np.ndarray:
        """The clients' numbers [clients], ascending."""
        return self.about.clients

    @property
    def sizes(self) -> np.ndarray:
        """Rows that each client has to train on [clients]."""
        return self.about.sizes

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._values:
            raise KeyError(f"no values {name!r} of clients: there are {', '.join(self._values)}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def worst(self, name: str, number: int, less_is_better: bool = True) -> np.ndarray:
        """The positions [number] of the worst clients at the last evaluation, the worst first.

        Args:
            name: A loss or metric.
            number: How many.
            less_is_better: Whether smaller values of it are better.
        """
        last = np.nan_to_num(self[name][-1], nan=-np.inf if less_is_better else np.inf)
        return np.argsort(-last if less_is_better else last, kind="stable")[:number]

    def __repr__(self) -> str:
        counts = f"{len(self.rounds)} evaluations of {len(self.clients)} clients"
        return f"ClientMetrics({counts}: {', '.join(self)})"


def stack(rounds: Sequence[int], about: EvaluatedClients, values: Sequence[Mapping[str, np.ndarray]]) -> ClientMetrics:
    """The metrics of evaluations that were done one by one.

    Args:
        rounds: After which rounds.
        about: Whom they are of.
        values: name -> [clients], for each of the rounds.

    Returns:
        Them together.
    """
    names: Any = values[0] if values else ()
    return ClientMetrics(
        np.array(rounds, int), about, {name: np.stack([one[name] for one in values]) for name in names}
    )


def evaluation_rounds(rounds: int, every: int) -> list[int]:
    """After which rounds there is an evaluation: before the first, after each so many, and after the last.

    >>> evaluation_rounds(5, 2)
    [0, 2, 4, 5]
    """
    return sorted({*range(0, rounds + 1, every), rounds})
