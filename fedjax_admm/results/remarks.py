"""Runs of which the server used nothing: what to say of them, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.vocabulary import StopReason
from ..exchange.client_time import ClientTime
from ..storage.settings import CannotRecreate, recreate, recreate_algorithm
from .history import RunRecord


def note(run: RunRecord, fastest: float | None = None) -> str | None:
    """A sentence about a run that used no solve at all, with the remedy for what befell most; None for any other.

    fastest: the simulated seconds of the shortest solve, where they are known.
    """
    solves = np.size(run.solves.stop_code)
    counts = {reason: run.solves.count(reason) for reason in StopReason if reason.fate.remedy}
    if not solves or sum(counts.values()) < solves:
        return None
    told = ", ".join(f"{number:,} {reason}" for reason, number in counts.items() if number)
    worked = {reason: number for reason, number in counts.items() if number and reason is not StopReason.DROPPED}
    most = max(worked or counts, key=lambda reason: counts[reason])  # some drop out in any run with dropout
    known = f" (the shortest solve took {fastest:.4g} simulated s)" if fastest and most is StopReason.LATE else ""
    return f"no client's solve was ever used ({told}), so nothing was learned: {most.fate.remedy}{known}"


def fastest(run: RunRecord, client_time: ClientTime | None, algorithm: Any, num_params: int) -> float | None:
    """The simulated seconds of the shortest solve that took place; None without a client time."""
    here = run.solves.took_place
    if client_time is None or not here.any():
        return None
    floats = algorithm.floats_down(num_params) + algorithm.floats_up(num_params)
    seconds = client_time.seconds(run.cohorts, np.asarray(run.solves.gradient_samples, np.float64), floats)
    return float(np.min(np.asarray(seconds)[here]))


def note_of_stored(run: RunRecord, settings: Mapping[str, Any]) -> str | None:
    """The note about a run on disk with these settings."""
    try:
        time, algorithm = recreate(settings.get("client_time")), recreate_algorithm(settings["algorithm"])
        return note(run, fastest(run, time, algorithm, settings["problem"]["parameters"]))
    except CannotRecreate:  # an algorithm of the user's
        return note(run)
