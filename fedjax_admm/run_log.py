"""The history as it grows, a row a round."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from .evaluation import evaluated_columns
from .history import DivergenceError, History
from .records import State, StopReason
from .rounds import RoundInfo
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
        self.add_evaluation(values, state.server, time.perf_counter() - began)

    def add_evaluation(self, values: dict[str, float], server: Any, seconds: float) -> None:
        """Adds what was evaluated to the last row, or makes the first one."""
        self._last = values
        if not self._rows:
            self._unmeasured = dict.fromkeys(values, np.nan)
            self._rows.append(self._row(0, penalty_mean=float(self._sim.algorithm.penalty_mean(server))))
        self._rows[-1].update(values, eval_seconds=seconds)
        if not np.isfinite(self._last["loss"]):
            number = len(self._rows) - 1
            del self._rows[max(1, number) :]
            raise DivergenceError(number, "the loss", self.history())

    def add_rounds(self, infos: RoundInfo, ran: int, seconds: float) -> None:
        """Adds the rows of the first `ran` rounds of a dispatch."""
        executed = infos.trips.astype(np.int64) * self._sim.width * self._sim.rows_per_trip
        for k in range(ran):
            solves = jax.tree.map(lambda leaf, k=k: leaf[k], infos.solves)
            failed = int(np.sum(solves.stop_code == StopReason.FAILED.code))
            cohort = solves.epochs.size
            if not infos.finite[k]:
                all_failed = failed == cohort
                quantity = "every selected client's solve" if all_failed else "the server's parameters"
                raise DivergenceError(len(self._rows), quantity, self.history())
            samples = int(np.sum(solves.gradient_samples, dtype=np.int64))
            self._rows.append(
                self._row(
                    len(self._rows),
                    epochs_mean=float(np.mean(solves.epochs)),
                    gradient_samples=samples,
                    criterion_samples=int(np.sum(solves.criterion_samples, dtype=np.int64)),
                    # A failed solve has nothing to send.
                    communicated_floats=cohort * self._floats_down + (cohort - failed) * self._floats_up,
                    penalty_mean=float(infos.penalty_mean[k]),
                    lane_efficiency=int(infos.rows[k]) / int(executed[k]),
                    seconds=seconds / ran,
                    failed_clients=failed,
                )
            )

    def history(self) -> History:
        return History(self._rows)

    def summary(self) -> str:
        shown = self._last | {"epochs": self._rows[-1]["epochs_mean"]}
        return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())

    def _row(self, round: int, **values: float) -> dict[str, float]:
        start = {
            "round": round, **self._unmeasured, "epochs_mean": 0.0, "gradient_samples": 0, "criterion_samples": 0,
            "communicated_floats": 0, "penalty_mean": np.nan, "lane_efficiency": np.nan, "seconds": 0.0,
            "eval_seconds": 0.0, "failed_clients": 0,
        }  # fmt: skip
        return start | values
