"""The history as it grows, a row a round."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..algorithms import penalties
from ..core.vocabulary import Solves, State, StopReason
from ..engine.rounds import RoundInfo
from ..problems.evaluation import evaluated_columns
from ..results.history import DivergenceError, History
from .simulation import Simulation

# What the history counts, by what is configured: a column of clients for each reason.
FAULTS = (StopReason.DROPPED, StopReason.QUARANTINED, StopReason.CORRUPTED, StopReason.REJECTED)
AT_BOUND = "penalties_at_bound"
UNSENT = (StopReason.FAILED, StopReason.LATE)  # a failed solve has nothing to send, a late one is not waited for


class RunLog:
    """The history as it grows."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._floats_down, self._floats_up = sim.floats
        self._rows: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self._unmeasured: dict[str, float] = {}
        self._told = 0  # rows that were taken
        faults, time = sim.faults, sim.client_time
        self._reasons = (StopReason.FAILED, *(FAULTS if faults is not None and faults.any else ()))
        self._reasons += (StopReason.LATE,) if time is not None and time.deadline is not None else ()
        self._rule = getattr(sim.algorithm, "penalty_rule", penalties.constant())
        self._warned = False

    def resume(self, rows: list[dict[str, float]]) -> None:
        """Goes on after these rows."""
        self._rows, self._told = list(rows), len(rows)
        self._warned = any(row.get(AT_BOUND, 0) > 0 for row in rows)
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
        self.add_evaluation(values, lambda: state.penalty_mean, time.perf_counter() - began)

    def add_evaluation(self, values: dict[str, float], penalty_mean: Callable[[], Any], seconds: float) -> None:
        """Adds what was evaluated to the last row, or makes the first one, which needs the penalties' mean."""
        self._last = values
        if not self._rows:
            self._unmeasured = dict.fromkeys(values, np.nan)
            self._rows.append(self._row(0, penalty_mean=float(penalty_mean().value)))
        self._rows[-1].update(values, eval_seconds=seconds)
        if not np.isfinite(self._last["loss"]):
            number = len(self._rows) - 1
            del self._rows[max(1, number) :]
            raise DivergenceError(number, "the loss", self.history())

    def add_rounds(self, cohorts: np.ndarray, infos: RoundInfo, ran: int, seconds: float) -> None:
        """Adds the rows of the first `ran` rounds of a dispatch with these `cohorts` [rounds, cohort]."""
        executed = infos.trips.astype(np.int64) * self._sim.width * self._sim.rows_per_trip
        for k in range(ran):
            solves = jax.tree.map(lambda leaf, k=k: leaf[k], infos.solves)
            began = solves.took_place
            unsent = sum(_count(solves, reason) for reason in UNSENT)
            if not infos.finite[k]:
                all_failed = _count(solves, StopReason.FAILED) == np.sum(began)
                quantity = "every selected client's solve" if all_failed else "the server's parameters"
                raise DivergenceError(len(self._rows), quantity, self.history())
            samples = int(np.sum(solves.gradient_samples, dtype=np.int64))
            self._rows.append(
                self._row(
                    len(self._rows),
                    epochs_mean=float(np.mean(solves.epochs[began])) if began.any() else np.nan,
                    gradient_samples=samples,
                    criterion_samples=int(np.sum(solves.criterion_samples, dtype=np.int64)),
                    communicated_floats=int(
                        np.sum(began) * self._floats_down + (np.sum(began) - unsent) * self._floats_up
                    ),
                    penalty_mean=float(infos.penalty_mean[k]),
                    lane_efficiency=_share(infos.rows[k], executed[k]),
                    device_efficiency=_share(infos.trips[k], self._sim.devices * infos.longest[k]),
                    seconds=seconds / ran,
                    **{f"{reason}_clients": _count(solves, reason) for reason in self._reasons},
                    **self._simulated(cohorts[k], solves),
                    **self._at_bound(cohorts[k], solves),
                )
            )

    def _simulated(self, cohort: np.ndarray, solves: Solves) -> dict[str, float]:
        if self._sim.client_time is None:
            return {}
        seconds = self._sim.client_time.round_seconds(cohort, solves, self._floats_down, self._floats_up)
        return {"simulated_seconds": seconds}

    def _at_bound(self, cohort: np.ndarray, solves: Solves) -> dict[str, float]:
        """How many of the cohort's penalties are at a bound; the first time with a warning."""
        if penalties.bounds_of(self._rule) is None:
            return {}
        count = penalties.count_at_bound(self._rule, np.asarray(solves.new_penalty), cohort)
        if count and not self._warned:
            self._warned = True
            warnings.warn(
                f"round {len(self._rows)}: penalties are at their bound, where the rule cannot go on; the history's "
                f"{AT_BOUND} counts them: look at the criterion, or use residual_balancing(judge_idle=False)",
                stacklevel=2,
            )
        return {AT_BOUND: count}

    def history(self) -> History:
        return History(self._rows)

    def summary(self) -> str:
        shown = self._last | {"epochs": self._rows[-1]["epochs_mean"]}
        return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())

    def _row(self, round: int, **values: float) -> dict[str, float]:
        start = {
            "round": round, **self._unmeasured, "epochs_mean": 0.0, "gradient_samples": 0, "criterion_samples": 0,
            "communicated_floats": 0, "penalty_mean": np.nan, "lane_efficiency": np.nan, "device_efficiency": np.nan,
            "seconds": 0.0, "eval_seconds": 0.0, **{f"{reason}_clients": 0 for reason in self._reasons},
        }  # fmt: skip
        if self._sim.client_time is not None:
            start["simulated_seconds"] = 0.0
        if penalties.bounds_of(self._rule) is not None:
            start[AT_BOUND] = 0
        return start | values


def _count(solves: Solves, reason: StopReason) -> int:
    return int(np.sum(solves.stop_code == reason.code))


def _share(part: Any, whole: Any) -> float:
    return int(part) / int(whole) if whole else np.nan
