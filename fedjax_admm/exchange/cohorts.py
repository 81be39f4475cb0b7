"""Who takes part in each round: drawn on the host from (seed, round) alone, at the cost of the cohort."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core import checks

_STREAM = 0xC0407  # keeps these draws apart from anything else that is seeded with the run's seed


class Cohorts:
    """The cohort of any round.

    Args:
        participation: A fraction in (0, 1] of the clients or a whole number of them, drawn uniformly without
            replacement in each round, or an integer array [rounds, cohort] that says who.
        num_clients: How many clients there are.
        seed: The run's.

    >>> Cohorts(0.5, num_clients=4, seed=0)[7].shape
    (2,)
    """

    num_clients: int
    size: int

    def __init__(self, participation: Any, num_clients: int, seed: int) -> None:
        self.num_clients, self._seed = num_clients, seed
        self.schedule: np.ndarray | None = None
        if not isinstance(participation, (list, tuple)) and np.ndim(participation) == 0:
            self._asked = participation.item() if hasattr(participation, "item") else participation
            self.size = _size(participation, num_clients)
        else:
            self.schedule = _read_schedule(participation, num_clients)
            self.size = self.schedule.shape[1]

    def __getitem__(self, round: int) -> np.ndarray:
        """The clients of round `round`, from 0: [cohort] int32, in ascending order if drawn."""
        if self.schedule is not None:
            self.check_rounds(round + 1)
            return self.schedule[round]
        rng = np.random.default_rng([_STREAM, self._seed, round])
        return np.sort(rng.choice(self.num_clients, self.size, replace=False)).astype(np.int32)

    @property
    def setting(self) -> Any:
        """What was asked for, in one form: a number of clients, a fraction, or the array."""
        return self.schedule if self.schedule is not None else self._asked

    def after(self, round: int) -> np.ndarray | None:
        """The clients of round `round`, None if there is no such round."""
        return None if self.schedule is not None and round >= len(self.schedule) else self[round]

    def check_rounds(self, rounds: int) -> None:
        """An array of cohorts must reach to the last round."""
        if self.schedule is not None and rounds > len(self.schedule):
            raise ValueError(f"participation gives the cohorts of {len(self.schedule)} rounds, but rounds is {rounds}")


def check_cohort(cohort: Any, num_clients: int, name: str = "cohort") -> np.ndarray:
    """One round's clients: [cohort] int32, each known and named once."""
    ids = np.asarray(cohort)
    if ids.size == 0:
        raise ValueError(f"{name} is empty: name one client at least")
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name} must be client numbers, integers [cohort], got {ids.dtype} of shape {ids.shape}")
    unknown = ids[(ids < 0) | (ids >= num_clients)]
    if unknown.size:
        raise ValueError(f"{name} names client {unknown[0]}, but the clients are 0 to {num_clients - 1}")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{name} names client {values[counts > 1][0]} twice: name each client once")
    return ids.astype(np.int32)


def _size(participation: Any, num_clients: int) -> int:
    value = participation.item() if hasattr(participation, "item") else participation
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= num_clients:
            raise ValueError(f"participation as a number of clients must be 1 to {num_clients}, got {value}")
        return value
    fraction = checks.number("participation", value, above=0)
    if fraction > 1:
        raise ValueError(
            f"participation as a fraction must be at most 1, got {fraction:g}; a number of clients is a whole number"
        )
    return max(1, int(np.floor(fraction * num_clients + 0.5)))


def _read_schedule(participation: Any, num_clients: int) -> np.ndarray:
    try:
        array = np.asarray(participation)
    except ValueError:
        raise ValueError("participation as an array must have as many clients in every round") from None
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"participation as an array must be [rounds, cohort], got shape {array.shape}")
    for round, cohort in enumerate(array):
        check_cohort(cohort, num_clients, f"participation[{round}]")
    return array.astype(np.int32)
