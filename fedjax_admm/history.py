"""What a run leaves: a row a round, and the result that carries it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .records import Solves, State


class History(Mapping[str, np.ndarray]):
    """Columns as NumPy arrays, a row a round, round 0 (before any training) included.

    round, loss, each metric; epochs_mean over the round's cohort; gradient_samples, the per-example gradients of
    the round, of which criterion_samples were the criterion's; communicated_floats; penalty_mean over all
    clients; lane_efficiency, useful over executed samples; seconds of training (in the first round also of
    compiling) and eval_seconds; failed_clients, whose solve was not finite. Loss and metrics are NaN in rounds
    that were not evaluated.

    >>> history = History([{"round": 0, "loss": 2.0}, {"round": 1, "loss": 1.0}])
    >>> history["loss"].tolist()
    [2.0, 1.0]
    """

    def __init__(self, rows: list[dict[str, float]]) -> None:
        self._columns = {name: np.array([row[name] for row in rows]) for name in (rows[0] if rows else ())}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._columns:
            raise KeyError(f"no column {name!r}: there are {', '.join(self._columns)}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        rows = len(self["round"]) if self._columns else 0
        return f"History({rows} rows: {', '.join(self._columns)})"

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas needs pandas: pip install 'fedjax_admm[plots]'") from None
        return pandas.DataFrame(self._columns)


@dataclass(frozen=True)
class Result:
    """What `simulate` returns."""

    params: Any  # z after the last round
    state: State  # all that the run carried: client_params, duals, penalties where kept
    cohorts: np.ndarray  # [rounds, cohort]
    solves: Solves  # [rounds, cohort] each
    history: History

    @property
    def epochs(self) -> np.ndarray:
        """Local epochs [rounds, cohort]."""
        return np.asarray(self.solves.epochs)

    def plot(self, column: str = "loss", *, axes: Any = None, label: str | None = None) -> Any:
        """A column of the history against the rounds; returns matplotlib's axes."""
        from .plots import plot_column

        return plot_column(self.history, column, axes=axes, label=label)

    def __repr__(self) -> str:
        rounds = len(self.cohorts)
        loss = self.history["loss"]
        return f"Result({rounds} rounds, loss {loss[0]:.6g} -> {loss[-1]:.6g})"


class DivergenceError(RuntimeError):
    """A run produced something that is not finite.

    round: in which round (from 1); quantity: what; history: up to the round before.
    """

    def __init__(self, round: int, quantity: str, history: History) -> None:
        self.round, self.quantity, self.history = round, quantity, history
        super().__init__(
            f"round {round}: {quantity} became not finite; lower the learning rate, or try another penalty. "
            "The history up to the round before is in this exception's `history`."
        )

    def __reduce__(self) -> tuple:
        return DivergenceError, (self.round, self.quantity, self.history)
