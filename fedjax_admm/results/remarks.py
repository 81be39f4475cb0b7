"""Runs of which the server used nothing: what to say of them, and what would help."""

from __future__ import annotations

import numpy as np

from ..core.vocabulary import StopReason
from .history import RunRecord

UNUSED = (StopReason.FAILED, StopReason.DROPPED, StopReason.QUARANTINED, StopReason.LATE, StopReason.REJECTED)
REMEDIES = {
    StopReason.FAILED: "lower the learning rate",
    StopReason.DROPPED: "lower dropout",
    StopReason.QUARANTINED: "corrupt fewer clients, or raise clip_norm or quarantine_after",
    StopReason.LATE: "raise the deadline",
    StopReason.REJECTED: "corrupt fewer clients, or raise clip_norm",
}


def note(run: RunRecord, fastest: float | None = None) -> str | None:
    """A sentence about a run that used no solve at all, with the remedy for what befell most; None for any other.

    fastest: the simulated seconds of the shortest solve, where they are known.
    """
    codes = np.asarray(run.solves.stop_code)
    counts = {reason: int(np.sum(codes == reason.code)) for reason in UNUSED}
    if not codes.size or sum(counts.values()) < codes.size:
        return None
    told = ", ".join(f"{number:,} {reason}" for reason, number in counts.items() if number)
    worked = {reason: number for reason, number in counts.items() if number and reason is not StopReason.DROPPED}
    most = max(worked or counts, key=lambda reason: counts[reason])  # some drop out in any run with dropout
    known = f" (the shortest solve took {fastest:.4g} simulated s)" if fastest and most is StopReason.LATE else ""
    return f"no client's solve was ever used ({told}), so nothing was learned: {REMEDIES[most]}{known}"
