"""Runs of which the server used nothing: what to say of them, and what would help."""

from __future__ import annotations

import numpy as np

from ..core.vocabulary import StopReason
from .history import RunRecord

_COMMON = (StopReason.DROPPED, StopReason.NOBODY)  # some drop out in any run with dropout, and others are not there


def note(run: RunRecord, fastest: float | None = None) -> str | None:
    """A sentence about a run that used no solve at all, with the remedy for what befell most; None for any other.

    Args:
        run: The run.
        fastest: The simulated seconds of the shortest solve, where they are known.
    """
    solves = np.size(run.solves.stop_code)
    counts = {reason: run.solves.count(reason) for reason in StopReason if reason.fate.remedy}
    if not solves or sum(counts.values()) < solves:
        return None
    tally = ", ".join(f"{number:,} {reason}" for reason, number in counts.items() if number)
    worked = {reason: number for reason, number in counts.items() if number and reason not in _COMMON}
    most = max(worked or counts, key=lambda reason: counts[reason])
    shortest = f" (the shortest solve took {fastest:.4g} simulated s)" if fastest and most is StopReason.LATE else ""
    return f"no client's solve was ever used ({tally}), so nothing was learned: {most.fate.remedy}{shortest}"
