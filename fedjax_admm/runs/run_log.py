"""The history as it grows, a row a round."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..core.columns import Round, columns_of_run
from ..core.vocabulary import Condition, Solves, State, StopReason
from ..engine.rounds import RoundInfo
from ..problems.evaluation import evaluated_columns
from ..results.history import DivergenceError, History
from .simulation import Simulation


class RunLog:
    """The history as it grows."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._floats_up = sim.algorithm.floats_up(sim.problem.num_params)
        self._floats_down = sim.algorithm.floats_down(sim.problem.num_params)
        self._rows: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self._unmeasured: dict[str, float] = {}
        self._told = 0  # rows that were taken
        self._columns = columns_of_run(_conditions(sim))

    def resume(self, rows: list[dict[str, float]]) -> None:
        """Goes on after these rows."""
        self._rows, self._told = list(rows), len(rows)
        evaluated = evaluated_columns(self._sim.problem)
        self._unmeasured = dict.fromkeys(evaluated, np.nan)
        last = max(k for k, row in enumerate(rows) if np.isfinite(row["loss"]))
        self._last = {name: rows[last][name] for name in evaluated}

    def take_new(self) -> list[dict[str, float]]:
        """The rows since it was last called."""
        new, self._told = self._rows[self._told :], len(self._rows)
        return new

    def evaluate(self, state: State) -> None:
        """Adds loss and metrics to the last row."""
        began = time.perf_counter()
        values = self._sim.evaluate(state)
        self.add_evaluation(values, lambda: state.server, time.perf_counter() - began)

    def add_evaluation(self, values: dict[str, float], server: Callable[[], Any], seconds: float) -> None:
        """Adds what was evaluated to the last row, or makes the first one, which needs the server's record."""
        self._last = values
        if not self._rows:
            self._unmeasured = dict.fromkeys(values, np.nan)
            self._rows.append(self._row(None) | {"penalty_mean": float(self._sim.algorithm.penalty_mean(server()))})
        self._rows[-1].update(values, eval_seconds=seconds)
        if not np.isfinite(self._last["loss"]):
            number = len(self._rows) - 1
            del self._rows[max(1, number) :]
            raise DivergenceError(number, "the loss", self.history())

    def add_rounds(self, cohorts: np.ndarray, infos: RoundInfo, ran: int, seconds: float) -> None:
        """Adds the rows of the first `ran` rounds of a dispatch with these `cohorts` [rounds, cohort]."""
        executed = infos.trips.astype(np.int64) * self._sim.width * self._sim.rows_per_trip
        for k in range(ran):
            info = jax.tree.map(lambda leaf, k=k: leaf[k], infos)
            solves = info.solves
            if not infos.finite[k]:
                all_failed = solves.count(StopReason.FAILED) == np.sum(solves.took_place)
                quantity = "every selected client's solve" if all_failed else "the server's parameters"
                raise DivergenceError(len(self._rows), quantity, self.history())
            self._rows.append(
                self._row(
                    Round(
                        number=len(self._rows),
                        info=info,
                        floats_down=self._floats_down,
                        floats_up=self._floats_up,
                        executed_samples=int(executed[k]),
                        seconds=seconds / ran,
                        simulated_seconds=self._simulated(cohorts[k], solves),
                    )
                )
            )

    def _simulated(self, cohort: np.ndarray, solves: Solves) -> float:
        if self._sim.client_time is None:
            return np.nan
        return self._sim.client_time.round_seconds(cohort, solves, self._floats_down, self._floats_up)

    def history(self) -> History:
        return History(self._rows)

    def summary(self) -> str:
        shown = self._last | {"epochs": self._rows[-1]["epochs_mean"]}
        return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())

    def _row(self, done: Round | None) -> dict[str, float]:
        """The record of a round; None: of round 0."""
        values = {
            column.name: column.start if done is None or column.of is None else column.of(done)
            for column in self._columns
        }
        return {"round": values.pop("round"), **self._unmeasured, **values}


def _conditions(sim: Simulation) -> set[Condition]:
    """What the run was given beside its algorithm."""
    faults, client_time = sim.faults, sim.client_time
    given = {
        Condition.FAULTS: faults is not None and faults.any,
        Condition.CLIENT_TIME: client_time is not None,
        Condition.DEADLINE: client_time is not None and client_time.deadline is not None,
    }
    return {condition for condition, there in given.items() if there}
