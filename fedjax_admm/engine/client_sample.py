"""Which clients are evaluated: all, or a random sample of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import checks

_SEED = 0  # the sample is the same in every round and every run


def check_sample(number: int, most: Any, name: str = "evaluate_clients") -> None:
    """Checks whom to evaluate.

    Args:
        number: How many clients there are.
        most: "all", or how many of them.
        name: The argument's, for messages.
    """
    if isinstance(most, str):
        if most != "all":
            raise ValueError(f"{name} must be 'all' or a number of clients, got {most!r}")
    elif checks.integer(name, most, at_least=1) > number:
        raise ValueError(f"{name} must be at most the number of clients, {number}, got {most}: use 'all'")


def sample_of(number: int, most: Any) -> np.ndarray:
    """The clients to evaluate: all of `number`, or a fixed random sample of them, ascending.

    >>> sample_of(4, "all").tolist(), len(sample_of(1000, 10))
    ([0, 1, 2, 3], 10)
    """
    if most == "all":
        return np.arange(number, dtype=np.int32)
    return np.sort(np.random.default_rng(_SEED).choice(number, int(most), replace=False)).astype(np.int32)
