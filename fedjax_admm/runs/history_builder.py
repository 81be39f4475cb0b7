"""The history as it grows: one record per round, whose columns are those of `core.columns`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..algorithms import penalties
from ..algorithms.penalties.bounds import bounds_of, count_at_bound
from ..core.client_statistics import column_names, summarize
from ..core.columns import FinishedRound, columns_of_run, look_up
from ..core.vocabulary import Condition, Solves
from ..engine.ledger import RoundInfo
from ..exchange.cohorts import Selection
from ..problems.evaluation import evaluated_columns
from ..results.history import DivergenceError, History
from .divergence import divergence_of_evaluation, divergence_of_round
from .simulation import Simulation


class HistoryBuilder:
    """Keeps the history of a run, and ends it with an error if the run has diverged (`divergence`).

    Args:
        sim: The run's.
        on: What the loss is computed on; see `simulate`.
        quantities: What is evaluated of each client.
    """

    def __init__(self, sim: Simulation, on: Any = "all", quantities: Sequence[str] = ()) -> None:
        self._sim = sim
        self._floats = sim.floats
        self._columns = columns_of_run(_conditions(sim) | ({Condition.CLIENTS_EVALUATED} if quantities else set()))
        self._over_clients = column_names(quantities)
        self._rule = _penalty_rule(sim)
        self._warned = False  # of penalties at their bound
        # A loss of some rows is above no known optimum.
        self._evaluated = tuple(name for name in evaluated_columns(sim.problem) if on == "all" or name != "excess_loss")
        self._records: list[dict[str, float]] = []
        self._last: Mapping[str, float] = {}  # what was evaluated last
        self._evaluated_in = 0  # the round of that
        self._taken = 0  # records that `take_new` has returned
        self.clock = 0.0  # simulated seconds of all rounds so far

    def resume(self, records: list[dict[str, float]]) -> None:
        """Goes on after these records."""
        self._records, self._taken = list(records), len(records)
        evaluated = (record for record in reversed(records) if any(np.isfinite(record[n]) for n in self._evaluated))
        last = next(evaluated, {})
        self._evaluated_in = int(last.get("round", 0))
        self._last = {name: value for name, value in last.items() if name in self._evaluated}
        self._last = {name: value for name, value in self._last.items() if not np.isnan(value)}
        for record in records:
            self._add_to_clock(record)
        self._warned = any(record.get("penalties_at_bound", 0) > 0 for record in records)

    def take_new(self) -> list[dict[str, float]]:
        """The records since it was last called."""
        new, self._taken = self._records[self._taken :], len(self._records)
        return new

    def add_evaluation(self, values: Mapping[str, float], penalty_mean: Callable[[], Any], seconds: float) -> None:
        """Adds what was evaluated to the last record, or makes the first one.

        Args:
            values: Losses and metrics by their columns' names.
            penalty_mean: Returns the state's mean penalty before any training, for the first record.
            seconds: What evaluating took.

        Raises:
            DivergenceError: The run has diverged; the history is without its last round.
        """
        self._last = values
        if not self._records:
            self._records.append(self._record(None))
            self._records[0]["penalty_mean"] = float(penalty_mean().value)
        self._evaluated_in = len(self._records) - 1
        self._records[-1].update(values, eval_seconds=seconds)
        if (quantity := divergence_of_evaluation(values)) is not None:
            number = len(self._records) - 1
            del self._records[max(1, number) :]
            raise DivergenceError(number, quantity, self.history())

    def add_clients(self, values: Mapping[str, np.ndarray], seconds: float) -> None:
        """Adds what clients were evaluated to to the last record.

        Args:
            values: Losses and metrics -> [clients].
            seconds: What evaluating them took.
        """
        statistics = summarize(values, lambda name: look_up(name).less_is_better)
        self._records[-1].update(statistics, client_eval_seconds=seconds)

    def add_rounds(self, selected: Sequence[Selection], infos: RoundInfo, ran: int, seconds: float) -> None:
        """Adds the records of rounds that were dispatched together.

        Args:
            selected: Who took part in each.
            infos: What the engine left of them [rounds, ...], of NumPy.
            ran: How many of them took place: the first ones.
            seconds: What they took together.

        Raises:
            DivergenceError: The run has diverged; the history has the rounds before.
        """
        executed = infos.trips.astype(np.int64) * self._sim.width * self._sim.rows_per_trip
        for k in range(ran):
            info = jax.tree.map(lambda leaf, k=k: leaf[k], infos)
            if (quantity := divergence_of_round(info)) is not None:
                raise DivergenceError(len(self._records), quantity, self.history())
            down, up = self._floats if info.communicated else (0, 0)
            done = FinishedRound(
                number=len(self._records),
                info=info,
                floats_down=down,
                floats_up=up,
                executed_samples=int(executed[k]),
                devices=self._sim.devices,
                seconds=seconds / ran,
                simulated_seconds=self._simulated_seconds(selected[k].ids, info.solves, down, up),
                penalties_at_bound=self._count_at_bound(selected[k].ids, info.solves),
                available=selected[k].available,
            )
            self._records.append(self._record(done))
            self._add_to_clock(self._records[-1])

    def history(self) -> History:
        """The history so far."""
        return History(self._records)

    def summary(self) -> str:
        """The last evaluation and the last round's epochs, for the progress bar."""
        shown = [f"{name} {value:.4g}" for name, value in self._last.items()]
        if shown and self._evaluated_in != len(self._records) - 1:  # of an earlier round: say of which
            shown[-1] += f" (round {self._evaluated_in})"
        return ", ".join([*shown, f"epochs {self._records[-1]['epochs_mean']:.4g}"])

    def _simulated_seconds(self, cohort: np.ndarray, solves: Solves, floats_down: int, floats_up: int) -> float:
        if self._sim.client_time is None:
            return np.nan
        if solves.vacant.all():
            return self._sim.cohorts.wait(self.clock)
        return self._sim.client_time.round_seconds(cohort, solves, floats_down, floats_up)

    def _add_to_clock(self, record: Mapping[str, float]) -> None:
        """One record after the other, so that a run that was resumed has the same bits."""
        self.clock += record.get("simulated_seconds", 0.0)

    def _count_at_bound(self, cohort: np.ndarray, solves: Solves) -> int:
        """How many of the cohort's penalties are at a bound; the first time with a warning."""
        count = count_at_bound(self._rule, np.asarray(solves.new_penalty), cohort)
        if count and not self._warned:
            self._warned = True
            warnings.warn(
                f"round {len(self._records)}: penalties are at their bound, where the rule cannot go on; the history's "
                "penalties_at_bound counts them: look at the criterion, or use residual_balancing(judge_idle=False)",
                stacklevel=2,
            )
        return count

    def _record(self, done: FinishedRound | None) -> dict[str, float]:
        """The record of a round that is not evaluated yet; None: of round 0."""
        values = {
            column.name: column.start if done is None or column.of is None else column.of(done)
            for column in self._columns
        }
        evaluated = dict.fromkeys(self._evaluated, np.nan)
        return {"round": values.pop("round"), **evaluated, **values, **dict.fromkeys(self._over_clients, np.nan)}


def _conditions(sim: Simulation) -> set[Condition]:
    """What the run has of what others lack."""
    faults, client_time = sim.faults, sim.client_time
    holds = {
        Condition.FAULTS: faults is not None and faults.any,
        Condition.CLIENT_TIME: client_time is not None,
        Condition.DEADLINE: client_time is not None and client_time.deadline is not None,
        Condition.AVAILABILITY: sim.cohorts.may_vary,
        Condition.PENALTY_RULE: bounds_of(_penalty_rule(sim)) is not None,
    }
    return {condition for condition, is_so in holds.items() if is_so}


def _penalty_rule(sim: Simulation) -> penalties.PenaltyRule:
    return getattr(sim.algorithm, "penalty_rule", penalties.constant())
