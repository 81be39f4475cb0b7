"""Between what penalties stay."""

from __future__ import annotations

from typing import Any

import numpy as np

# Of rules that say nothing else. A sound run's penalties are some powers of ten around the loss's curvature; at these a
# penalty times parameters, times a client's weight, still has all its digits in single precision.
BOUNDS = (1e-12, 1e12)


class Bounded:
    """A rule with a lowest and a highest penalty."""

    lowest: Any
    highest: Any

    @property
    def bounds(self) -> tuple[Any, Any]:
        """Between what its penalties stay."""
        return self.lowest, self.highest


def bounds_of(rule: Any) -> tuple[Any, Any] | None:
    """The bounds of a rule.

    Args:
        rule: How a penalty changes.

    Returns:
        (lowest, highest) penalty; None if the rule changes nothing.

    >>> bounds_of(fa.penalties.residual_balancing(bounds=(0.1, 10)))
    (0.1, 10.0)
    """
    return getattr(rule, "bounds", BOUNDS)


def count_at_bound(rule: Any, penalties: np.ndarray, ids: np.ndarray) -> int:
    """Counts the penalties that are at a bound.

    Args:
        rule: How a penalty changes.
        penalties: Clients' penalties [ids].
        ids: The clients' numbers [ids].

    Returns:
        How many are at a bound of the rule; 0 if it has none.

    >>> count_at_bound(fa.penalties.residual_balancing(bounds=(0.1, 10)), np.float32([0.1, 1, 10]), np.arange(3))
    2
    """
    bounds = bounds_of(rule)
    if bounds is None:
        return 0
    # In the penalties' own precision, in which they were cut.
    lowest, highest = (np.asarray(bound, penalties.dtype) for bound in bounds)
    lowest, highest = (bound[ids] if bound.ndim else bound for bound in (lowest, highest))
    return int(np.sum((penalties <= lowest) | (penalties >= highest)))
