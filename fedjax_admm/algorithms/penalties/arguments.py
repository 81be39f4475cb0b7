"""Arguments that several rules have, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import checks


def check_bounds(bounds: Any) -> tuple[Any, Any]:
    """A pair of penalties, checked."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ValueError(f"bounds must be a pair, (lowest, highest) penalty, got {bounds!r}")
    lowest, highest = (checks.number("bounds", bound, above=0, per_client=True) for bound in bounds)
    if not np.all(np.less(lowest, highest)):
        raise ValueError(f"bounds must be (lowest, highest) with the lowest below the highest, got {bounds!r}")
    return lowest, highest


def check_judge_idle(judge_idle: Any) -> bool:
    if not isinstance(judge_idle, bool):
        raise ValueError(f"judge_idle must be True or False, got {judge_idle!r}")
    return judge_idle


def check_until(until: Any) -> Any:
    return None if until is None else checks.integer("until", until, at_least=1, per_client=True)
