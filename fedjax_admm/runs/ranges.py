"""Ranges of numbers for `tune`: values evenly spaced in them, or numbers drawn from them.

>>> log(0.01, 1.0, 3)
[0.01, 0.1, 1.0]
>>> fa.tune(problem, make, {"penalty": fa.ranges.log(0.01, 10.0)}, rounds=50, draws=24)  # doctest: +SKIP
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import checks

__all__ = ["linear", "log", "whole"]
KINDS = ("linear", "log", "whole")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Attributes:
        low: The least.
        high: The greatest.
        kind: How they are spread: "linear", "log" or "whole".
    """

    low: float
    high: float
    kind: str

    def at(self, share: float) -> float | int:
        """The number that this share of the range is below.

        >>> Range(1.0, 100.0, "linear").at(0.5), Range(1, 3, "whole").at(0.99)
        (50.5, 3)
        """
        if self.kind == "log":
            return math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        if self.kind == "linear":
            return self.low + share * (self.high - self.low)
        return int(self.low) + min(int(share * (self.high - self.low + 1)), int(self.high - self.low))


def linear(low: float, high: float, number: int | None = None) -> Any:
    """From `low` to `high`, all equally likely.

    Args:
        low: The least.
        high: The greatest.
        number: How many evenly spaced values; None: a range to draw from.

    Returns:
        A list of values, or a range.

    >>> linear(0.0, 1.0, 3)
    [0.0, 0.5, 1.0]
    """
    low, high = _ordered(low, high)
    return Range(low, high, "linear") if number is None else np.linspace(low, high, _several(number)).tolist()


def log(low: float, high: float, number: int | None = None) -> Any:
    """From `low` to `high`, every factor equally likely: for learning rates and penalties.

    Args:
        low: The least, above 0.
        high: The greatest.
        number: How many values, each the same factor above the one before; None: a range to draw from.

    Returns:
        A list of values, or a range.

    >>> log(0.001, 1.0, 4)
    [0.001, 0.01, 0.1, 1.0]
    """
    low, high = _ordered(checks.number("low", low, above=0), high)
    return Range(low, high, "log") if number is None else np.geomspace(low, high, _several(number)).tolist()


def whole(low: int, high: int) -> Range:
    """The whole numbers from `low` to `high`, both included, all equally likely, to draw from.

    Args:
        low: The least.
        high: The greatest.

    Returns:
        The range.

    >>> whole(1, 20).at(0.0)
    1
    """
    least, most = _ordered(low, high)
    if least != int(least) or most != int(most):
        raise ValueError(f"low and high must be whole numbers, got {least:g} and {most:g}")
    return Range(int(least), int(most), "whole")


def _ordered(low: Any, high: Any) -> tuple[float, float]:
    low, high = checks.number("low", low), checks.number("high", high)
    if low >= high:
        raise ValueError(f"low must be below high, got {low:g} and {high:g}")
    return low, high


def _several(number: Any) -> int:
    return checks.integer("number", number, at_least=2)
