"""Who takes part in each round: drawn on the host from (seed, round) and from who is available then."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core import checks
from ..core.vocabulary import VACANT
from .availability import Always, Availability, ChosenBy, Moment, chosen_by

_STREAM = 0xC0407  # keeps these draws apart from anything else that is seeded with the run's seed


class Selection(NamedTuple):
    """Who takes part in one round."""

    ids: np.ndarray  # [cohort] int32, in ascending order if drawn; VACANT in the places after the last client
    available: int  # clients that were available


class Cohorts:
    """The cohort of any round.

    Args:
        participation: A fraction in (0, 1] of the clients or a whole number of them, drawn uniformly without
            replacement in each round; a part of `availability`, or a function (round, key) -> clients; or an integer
            array [rounds, cohort] or a list of lists that says who. There VACANT is an empty place, as in a run's
            `cohorts`.
        num_clients: How many clients there are.
        seed: The run's.

    >>> Cohorts(0.5, num_clients=4, seed=0)[7].shape
    (2,)
    >>> Cohorts([[3, 1], [2]], num_clients=4, seed=0)[1].tolist()
    [2, -1]
    """

    num_clients: int
    size: int  # places of a cohort
    schedule: list[np.ndarray] | None  # each round's clients, where they were given
    may_vary: bool  # whether cohorts may differ in size, or depend on who is available

    def __init__(self, participation: Any, num_clients: int, seed: int) -> None:
        self.num_clients, self._seed = num_clients, seed
        self.schedule, self._availability = None, Always()
        self.may_vary = True
        if isinstance(participation, Availability):
            self._availability = participation
        elif callable(participation):
            self._availability = chosen_by(participation)
        elif not isinstance(participation, (list, tuple)) and np.ndim(participation) == 0:
            participation = participation.item() if hasattr(participation, "item") else participation
            self._availability, self.may_vary = Always(participation), False
        else:
            participation, self.schedule, self.size = _read_schedule(participation, num_clients)
            self.may_vary = any(len(cohort) < self.size for cohort in self.schedule)
        self.setting = participation  # what was asked for, in one form
        if self.schedule is not None:
            return
        name = "cohort" if self.may_vary else "participation"
        self.size = _size(name, self._availability.cohort, num_clients)
        self._availability.check(num_clients)
        if isinstance(self._availability, ChosenBy):
            self.select(0)  # so that what does not fit is told before anything expensive

    def __getitem__(self, round: int) -> np.ndarray:
        """The clients of round `round`, from 0; see `select`."""
        return self.select(round).ids

    def select(self, round: int, seconds: float = 0.0) -> Selection:
        """Selects a round's clients.

        Args:
            round: The round, from 0.
            seconds: Simulated seconds at its start; only a trace asks for them.

        Returns:
            The clients, and how many were available.
        """
        if self.schedule is not None:
            self.check_rounds(round + 1)
            return self._padded(self.schedule[round], len(self.schedule[round]))
        available = self._availability.available(Moment(round, seconds, self.num_clients, self._seed))
        number = self.num_clients if available is None else len(available)
        rng = np.random.default_rng([_STREAM, self._seed, round])
        pool = self.num_clients if available is None else available
        return self._padded(np.sort(rng.choice(pool, min(self.size, number), replace=False)), number)

    def _padded(self, ids: np.ndarray, available: int) -> Selection:
        places = np.full(self.size, VACANT, np.int32)
        places[: len(ids)] = ids
        return Selection(places, available)

    @property
    def needs_clock(self) -> bool:
        """Whether a round's clients depend on the simulated seconds of the rounds before."""
        return self._availability.uses_clock

    def wait(self, seconds: float) -> float:
        """What a round takes in which nobody is available, in simulated seconds."""
        return self._availability.wait(seconds)

    def after(self, round: int) -> np.ndarray | None:
        """The clients of round `round`, None if there is no such round, or nobody knows them yet."""
        known = not self.needs_clock and (self.schedule is None or round < len(self.schedule))
        try:
            return self[round] if known else None
        except Exception:  # a function need not name anybody after the last round; in any other round it is told then
            return None

    def check_repeats(self, cohorts: np.ndarray) -> None:
        """A function must name the clients again that it named in the rounds with these cohorts [rounds, cohort]."""
        if isinstance(self._availability, ChosenBy):
            for round, ids in enumerate(cohorts):
                if not np.array_equal(self[round], ids):
                    raise ValueError(
                        f"participation names other clients in round {round} than the run that is there had: it must "
                        "return the same for the same round and key"
                    )

    def check_rounds(self, rounds: int, has_clock: bool = True) -> None:
        """Cohorts that are given must reach to the last round, and a trace needs simulated seconds."""
        if self.schedule is not None and rounds > len(self.schedule):
            raise ValueError(f"participation gives the cohorts of {len(self.schedule)} rounds, but rounds is {rounds}")
        if self.needs_clock and not has_clock:
            raise ValueError(
                "participation by a trace needs simulated seconds: give client_time=fa.ClientTime(...), which "
                "simulate and compare take"
            )


def _size(name: str, cohort: Any, num_clients: int) -> int:
    value = cohort.item() if hasattr(cohort, "item") else cohort
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= num_clients:
            raise ValueError(f"{name} as a number of clients must be 1 to {num_clients}, got {value}")
        return value
    if isinstance(value, str) or value is None:
        raise ValueError(
            f"{name} must be a fraction or a number of clients, a rule of fa.availability, a function (round, key) -> "
            f"clients, or a list with one list of clients per round, got {value!r}: 1.0 selects all clients"
        )
    fraction = checks.number(name, value, above=0)
    if fraction > 1:
        raise ValueError(
            f"{name} as a fraction must be at most 1, got {fraction:g}; a number of clients is a whole number"
        )
    return max(1, int(np.floor(fraction * num_clients + 0.5)))


def _read_schedule(participation: Any, num_clients: int) -> tuple[Any, list[np.ndarray], int]:
    """Cohorts that were given: as settings have them, an array or a list of lists; as arrays; and the places of each.

    A run's own `cohorts` have empty places. An array keeps its places, so that a run with them has the same shapes.
    """
    rounds = [np.asarray(cohort) for cohort in participation]
    wrong = next((f"shape {each.shape} for round {k}" for k, each in enumerate(rounds) if each.ndim != 1), "no round")
    if not rounds or wrong != "no round":
        raise ValueError(
            "participation as an array must be [rounds, cohort], and as a list have one list of clients per round ([] "
            f"for a round without any), got {wrong}"
        )
    cohorts = [
        checks.client_numbers(f"participation[{round}]", _without_vacant(cohort), num_clients, may_be_empty=True)
        for round, cohort in enumerate(rounds)
    ]
    places = max(1, *map(len, rounds))
    if all(len(cohort) == places for cohort in rounds):
        return np.stack(rounds).astype(np.int32), cohorts, places
    return [cohort.tolist() for cohort in cohorts], cohorts, places


def _without_vacant(ids: np.ndarray) -> np.ndarray:
    """Clients' numbers without the empty places of a run's cohorts."""
    return ids[ids != VACANT] if np.issubdtype(ids.dtype, np.integer) else ids
