"""What a run leaves: one record per round, and the result that carries them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core import checks
from ..core.columns import COLUMNS, Kind, documentation, look_up
from ..core.errors import SharedError
from ..core.notebook import html
from ..core.types import Params
from ..core.vocabulary import Solves, State
from .client_metrics import ClientMetrics


class History(Mapping[str, np.ndarray]):
    """Columns as NumPy arrays, one entry per round, round 0 (before any training) included.

    The metrics of the problem are columns too, after the losses. Losses and metrics are NaN in rounds that were not
    evaluated. Runs that evaluate clients also have statistics over clients of the loss and each metric, and of those
    at the clients' own parameters (`personal_loss` and so on): the columns `_mean`, `_std`, `_worst_decile`,
    `_best_decile` and `_worst`. Each client counts the same in them; `loss_worst_decile`, for example, is exceeded by
    the losses of a tenth of the clients. The other columns are listed below.

    Args:
        rows: One dict per round, column -> number.

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

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns that are the problem's metrics."""
        return tuple(name for name in self.evaluated if name not in COLUMNS)

    @property
    def evaluated(self) -> tuple[str, ...]:
        """The columns that are computed in the rounds that are evaluated: losses and metrics."""
        return tuple(name for name in self if look_up(name).kind is Kind.EVALUATED)

    @property
    def over_clients(self) -> tuple[str, ...]:
        """The columns that are statistics over clients, in rounds in which each of them is evaluated."""
        return tuple(name for name in self if look_up(name).kind is Kind.OVER_CLIENTS)

    @property
    def was_evaluated(self) -> np.ndarray:
        """Whether each round has a loss or a metric."""
        found = np.zeros(len(self["round"]), bool)
        for name in self.evaluated:
            found |= np.isfinite(self[name])
        return found

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


History.__doc__ = f"{History.__doc__}\n    Columns:\n{textwrap.indent(documentation(), 8 * ' ')}\n"


@dataclass(frozen=True)
class RunRecord:
    """What was recorded in a run: everything except the parameters and the clients' states.

    >>> run = fa.read_run("runs/one")  # doctest: +SKIP
    >>> run.history["loss"][-1], run.epoch_reduction  # doctest: +SKIP
    (1.499, 0.201)
    """

    history: History
    cohorts: np.ndarray  # [rounds, cohort]; -1 where no client was available, in the places after the last one
    solves: Solves  # [rounds, cohort] each
    num_clients: int
    client_metrics: ClientMetrics | None = field(default=None, kw_only=True)  # of runs that evaluate clients
    evaluated: Any = field(default="all", kw_only=True)  # what the loss is of; `simulate`'s evaluate

    @property
    def epochs(self) -> np.ndarray:
        """Local epochs [rounds, cohort]."""
        return np.asarray(self.solves.epochs)

    @property
    def epoch_reduction(self) -> float:
        """The share of epochs saved: 1 - epochs done / the most that these solves were allowed to do."""
        most = np.sum(self.solves.max_epochs, dtype=np.int64, where=self.solves.took_place)
        return 1 - float(np.sum(self.epochs, dtype=np.int64) / most) if most else 0.0

    def client_epochs(self) -> np.ndarray:
        """Epochs of every client in every round [rounds, clients]; NaN if it was not selected or was absent."""
        table = self._client_table(len(self.cohorts), np.nan)
        np.put_along_axis(table, self.cohorts, np.where(self.solves.took_place, self.epochs, np.nan), axis=1)
        return table[:, :-1]

    def selected(self) -> np.ndarray:
        """Whether each client was selected in each round [rounds, clients]."""
        table = self._client_table(len(self.cohorts), False)
        np.put_along_axis(table, self.cohorts, True, axis=1)
        return table[:, :-1]

    def _client_table(self, rows: int, fill: Any) -> np.ndarray:
        """[rows, clients + 1]: the last column is that of a cohort's empty places, VACANT being -1."""
        return np.full((rows, self.num_clients + 1), fill)

    def client_penalties(self) -> np.ndarray:
        """Every client's penalty after every round [rounds + 1, clients], round 0 included.

        A client's penalty changes only in its own solves. For clients that were never selected only the mean is known,
        from round 0 of the history.
        """
        rounds = len(self.cohorts)
        table = self._client_table(rounds + 1, np.nan)
        for k in reversed(range(rounds)):  # so that the first solve's penalty, the initial one, is what stays
            table[0, self.cohorts[k]] = self.solves.penalty[k]
        never = np.setdiff1d(np.arange(self.num_clients), self.cohorts)
        if never.size:
            known = np.nansum(table[0]) if never.size < self.num_clients else 0.0
            table[0, never] = (self.history["penalty_mean"][0] * self.num_clients - known) / never.size
        for k in range(rounds):
            table[k + 1] = table[k]
            table[k + 1, self.cohorts[k]] = self.solves.new_penalty[k]
        return table[:, :-1]

    def plot(
        self,
        column: str = "loss",
        *,
        against: str = "rounds",
        scale: str = "auto",
        axes: Any = None,
        label: str | None = None,
    ) -> Any:
        """A column of the history; returns matplotlib's axes. The arguments are `fa.plots.plot_column`'s.

        >>> run = RunRecord(History([{"round": 0, "loss": 2.0}, {"round": 1, "loss": 1.0}]), None, None, num_clients=10)
        >>> run.plot().get_xlabel()
        'round'
        """
        from ..show.plots import plot_column

        return plot_column(self, column, against=against, scale=scale, axes=axes, label=label)

    def __repr__(self) -> str:
        loss = self.history["loss"]
        known = loss[~np.isnan(loss)]  # NaN is a round that was not evaluated: a loss that is one ends the run
        shown = f"loss {known[0]:.6g} -> {known[-1]:.6g}" if known.size else "not evaluated"
        return f"{type(self).__name__}({checks.counted(len(self.cohorts), 'round')}, {shown})"

    def _repr_html_(self) -> str:
        return html(self)


@dataclass(frozen=True, repr=False)
class Result(RunRecord):
    """What `simulate` returns: everything that was recorded, and the final parameters and state.

    >>> result = fa.simulate(problem, algorithm, rounds=100)  # doctest: +SKIP
    >>> result.params, result.state.duals, result.history["loss"], result.solves.stop_reason  # doctest: +SKIP
    """

    params: Params  # z after the last round
    state: State  # all that the run carried: client_params, duals, penalties where kept


class DivergenceError(RuntimeError, SharedError):
    """The loss or the parameters of a run are no longer finite.

    Attributes:
        round: The round in which this happened; 0 is before any training.
        quantity: What is no longer finite.
        history: The history up to the previous round.

    >>> print(DivergenceError(3, "the loss", History([])))
    round 3: the loss became not finite; lower the learning rate, or try another penalty
    """

    round: int
    quantity: str
    history: History

    def __init__(self, round: int, quantity: str, history: History) -> None:
        self.round, self.quantity, self.history = round, quantity, history
        if round == 0:  # nothing was learned yet, so no rate or penalty can be at fault
            message = "is not finite before any training; look at the data, the labels and the initial parameters"
        else:
            message = "became not finite; lower the learning rate, or try another penalty"
        super().__init__(f"round {round}: {quantity} {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return DivergenceError, (self.round, self.quantity, self.history)
