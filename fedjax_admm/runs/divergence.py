"""Who decides that a run has diverged: these two functions, one after each round and one after each evaluation.

The engine tells of each round whether the server's parameters and at least one client's are finite
(`RoundInfo.finite`); what else could be wrong with a solve concerns its client alone, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..core.vocabulary import StopReason
from ..engine.ledger import RoundInfo


def divergence_of_round(info: RoundInfo) -> str | None:
    """What stopped being finite in a round.

    Args:
        info: What the engine left of the round, of NumPy.

    Returns:
        The words for it in a `DivergenceError`; None if the run goes on.
    """
    if info.finite:
        return None
    all_failed = info.solves.count(StopReason.FAILED) == np.sum(info.solves.took_place)
    return "every selected client's solve" if all_failed else "the server's parameters"


def divergence_of_evaluation(values: Mapping[str, float]) -> str | None:
    """What was evaluated to something that is not finite; a metric may be, for it is the user's.

    Args:
        values: Losses and metrics by their columns' names, as far as they were evaluated.

    Returns:
        The words for it in a `DivergenceError`; None if the run goes on.
    """
    return None if np.isfinite(values.get("loss", 0.0)) else "the loss"
