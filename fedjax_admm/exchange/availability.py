"""Rules for `participation=` that say which clients are available in a round: at random, in turns, or at recorded
times.

    fa.simulate(problem, algorithm, rounds=100, participation=fa.availability.probability(0.3, cohort=40))

The cohort is drawn from the available clients. If fewer are available than `cohort` asks for, all of them take part;
if none is, the round changes nothing. Cohorts of different sizes are padded internally, so nothing is recompiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from ..core import checks, randomness
from ..core.vocabulary import VACANT

_STREAM = 0xA7A11  # keeps these draws apart from anything else that is seeded with the run's seed


class Moment(NamedTuple):
    """What availability may depend on."""

    round: int  # from 0
    seconds: float  # simulated, at the round's start; 0 without a client time
    num_clients: int
    seed: int  # the run's


class Availability:
    """Who is available, and how many of them are selected at most."""

    cohort: Any
    uses_clock: ClassVar[bool] = False  # whether it depends on the simulated seconds

    def available(self, moment: Moment) -> np.ndarray | None:
        """The clients [available], in ascending order; None: all of them."""
        raise NotImplementedError

    def check(self, num_clients: int) -> None:
        """Raises ValueError if what was given per client does not fit their number."""

    def wait(self, seconds: float) -> float:
        """Simulated seconds from a time at which nobody is available until somebody is; 0 if that never happens."""
        return 0.0


@dataclass(frozen=True)
class Always(Availability):
    """Made by `always`."""

    cohort: Any = 1.0

    def available(self, moment: Moment) -> None:
        return None


@dataclass(frozen=True)
class Probability(Availability):
    """Made by `probability`."""

    probability: Any
    cohort: Any = 1.0

    def __post_init__(self) -> None:
        checked = checks.number("probability", self.probability, at_least=0, at_most=1, per_client=True)
        object.__setattr__(self, "probability", checked)

    def available(self, moment: Moment) -> np.ndarray:
        rng = np.random.default_rng([_STREAM, moment.seed, moment.round])
        return np.flatnonzero(rng.random(moment.num_clients) < self.probability)

    def check(self, num_clients: int) -> None:
        checks.client_axis("probability", self.probability, num_clients)


@dataclass(frozen=True)
class Periodic(Availability):
    """Made by `periodic`."""

    period: Any
    on: Any
    offset: Any = None
    cohort: Any = 1.0

    def __post_init__(self) -> None:
        for name in ("period", "on"):
            checked = checks.integer(name, getattr(self, name), at_least=1, per_client=True)
            object.__setattr__(self, name, checked)
        if self.offset is not None:
            checked = checks.integer("offset", self.offset, at_least=0, per_client=True)
            object.__setattr__(self, "offset", checked)
        if np.any(np.greater(self.on, self.period)):
            raise ValueError(f"on must be at most the period, {self.period}, got {self.on}: give rounds of the period")

    def available(self, moment: Moment) -> np.ndarray:
        everyone = np.arange(moment.num_clients)
        offset = everyone * self.period // moment.num_clients if self.offset is None else self.offset
        return np.flatnonzero(np.broadcast_to((moment.round - offset) % self.period < self.on, everyone.shape))

    def check(self, num_clients: int) -> None:
        for name in ("period", "on", "offset"):
            checks.client_axis(name, 0 if getattr(self, name) is None else getattr(self, name), num_clients)


@dataclass(frozen=True)
class Trace(Availability):
    """Made by `trace`."""

    intervals: Any
    period: Any = None
    cohort: Any = 1.0
    _owners: np.ndarray = field(init=False, repr=False, compare=False)  # [intervals] whose each is
    _times: np.ndarray = field(init=False, repr=False, compare=False)  # [intervals, 2] on and off

    uses_clock: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.intervals, (Sequence, np.ndarray)) or isinstance(self.intervals, str):
            raise ValueError(f"intervals must be a list of (on, off) times per client, got {self.intervals!r}")
        each = [_pairs(client, pairs) for client, pairs in enumerate(self.intervals)]
        if not sum(map(len, each)):
            raise ValueError("intervals must have a time for one client at least, got none")
        times = np.concatenate(each)
        if self.period is not None:
            period = checks.number("period", self.period, above=0)
            object.__setattr__(self, "period", period)
            if times.max() > period:
                raise ValueError(f"intervals must end within the period, {period:g}, got {times.max():g}")
        object.__setattr__(self, "intervals", [pairs.tolist() for pairs in each])
        object.__setattr__(self, "_owners", np.repeat(np.arange(len(each)), [len(pairs) for pairs in each]))
        object.__setattr__(self, "_times", times)

    def available(self, moment: Moment) -> np.ndarray:
        now = self._local(moment.seconds)
        on, off = self._times.T
        return np.unique(self._owners[(on <= now) & (now < off)])

    def check(self, num_clients: int) -> None:
        if len(self.intervals) != num_clients:
            raise ValueError(
                f"intervals has {len(self.intervals)} entries for {num_clients} clients: give each client a list of "
                "(on, off) times, [] for one that is never available"
            )

    def wait(self, seconds: float) -> float:
        now, on = self._local(seconds), self._times[:, 0]
        later = on[on > now]
        if not later.size and self.period is None:
            return 0.0
        until = later.min() - now if later.size else on.min() + self.period - now
        return float(max(until, np.spacing(seconds)))  # rounding must not stop the clock

    def _local(self, seconds: float) -> float:
        return seconds if self.period is None else seconds % self.period


@dataclass(frozen=True)
class ChosenBy(Availability):
    """Made by `chosen_by`."""

    function: Callable[[int, Any], Any]
    cohort: Any = 1.0

    def available(self, moment: Moment) -> np.ndarray:
        key = jax.random.fold_in(jax.random.fold_in(randomness.root_key(moment.seed), _STREAM), moment.round)
        chosen = np.asarray(self.function(moment.round, key))
        if chosen.dtype == bool and chosen.shape == (moment.num_clients,):
            return np.flatnonzero(chosen)
        name = f"participation(round={moment.round}, key)"
        if np.issubdtype(chosen.dtype, np.integer):
            chosen = chosen[chosen != VACANT]  # the empty places of a run's cohorts
        return np.sort(checks.client_numbers(name, chosen, moment.num_clients, may_be_empty=True))


def always(cohort: Any = 1.0) -> Availability:
    """Everyone is available in every round; `participation=0.2` is `always(cohort=0.2)`.

    Args:
        cohort: How many are selected: a fraction of the clients or a whole number of them, drawn uniformly.

    Returns:
        The part for `participation=`.

    >>> fa.simulate(problem, algorithm, 10, participation=fa.availability.always(cohort=0.2))  # doctest: +SKIP
    """
    return Always(cohort)


def probability(probability: Any, cohort: Any = 1.0) -> Availability:
    """Each client is available in each round with a given probability, independently of other rounds and clients.

    Args:
        probability: A number in [0, 1], or one per client [clients].
        cohort: How many of those available are selected at most: a fraction of all clients or a whole number of them,
            drawn uniformly; by default all that are available.

    Returns:
        The part for `participation=`.

    >>> part = probability([0.0, 1.0, 1.0])
    >>> part.available(Moment(round=0, seconds=0.0, num_clients=3, seed=0)).tolist()
    [1, 2]
    """
    return Probability(probability, cohort)


def periodic(period: Any, on: Any, offset: Any = None, cohort: Any = 1.0) -> Availability:
    """Each client is available for some rounds of every period.

    Args:
        period: Rounds of a period, one number or one per client [clients].
        on: For how many of these rounds a client is available, one number or one per client [clients].
        offset: The round in which a client first becomes available, one number or one per client [clients]. By default
            the clients are spread evenly over the period, in their order, and the first ones begin in round 0.
        cohort: How many of those available are selected at most; see `probability`.

    Returns:
        The part for `participation=`.

    >>> part = periodic(period=2, on=1)
    >>> [part.available(Moment(round, 0.0, num_clients=4, seed=0)).tolist() for round in range(3)]
    [[0, 1], [2, 3], [0, 1]]
    """
    return Periodic(period, on, offset, cohort)


def trace(intervals: Sequence[Any], period: Any = None, cohort: Any = 1.0) -> Availability:
    """Clients are available at recorded times of the simulated clock.

    It needs `client_time=fa.ClientTime(...)`, which says how long a round takes. Clients that are available when a
    round begins may be selected, and finish the round. If none is, the round only waits for the next client.

    Args:
        intervals: For each client a list of pairs (on, off) in simulated seconds from the run's start, [] for a client
            that is never available.
        period: Seconds after which the intervals repeat, such as a day; None: they do not.
        cohort: How many of those available are selected at most; see `probability`.

    Returns:
        The part for `participation=`.

    >>> part = trace([[(0, 10)], [(5, 20), (30, 40)]])
    >>> [part.available(Moment(0, seconds, num_clients=2, seed=0)).tolist() for seconds in (0, 5, 10, 25)]
    [[0], [0, 1], [1], []]
    >>> part.wait(25)
    5.0
    """
    return Trace(intervals, period, cohort)


def chosen_by(function: Callable[[int, Any], Any], cohort: Any = 1.0) -> Availability:
    """The clients that a function names; `participation=function` is the same with the default `cohort`.

    Args:
        function: (round, key) -> client numbers, or a mask [clients]; the round counts from 0, and the key is a
            `jax.random` key of the run's seed and the round. It must always return the same clients for the same
            arguments.
        cohort: How many of those named are selected at most; see `probability`. Records reserve memory for this many
            clients in every round, so set it if the function names few of very many clients.

    Returns:
        The part for `participation=`.

    >>> part = chosen_by(lambda round, key: [round % 3])
    >>> part.available(Moment(round=4, seconds=0.0, num_clients=3, seed=0)).tolist()
    [1]
    """
    checks.function("participation", function, "(round, key) -> clients", arguments=(2,))
    return ChosenBy(function, cohort)


def _pairs(client: int, pairs: Any) -> np.ndarray:
    """A client's times [intervals, 2], checked."""
    try:
        array = np.asarray(pairs, np.float64)
        times = array.reshape(0, 2) if array.size == 0 else array
    except (TypeError, ValueError):
        times = np.zeros((1, 1))
    if times.ndim != 2 or times.shape[-1] != 2:
        raise ValueError(f"intervals[{client}] must be pairs (on, off) of seconds, got {pairs!r}")
    bad = ~((times[:, 0] >= 0) & (times[:, 0] < times[:, 1]))
    if bad.any():
        on, off = times[bad][0]
        raise ValueError(f"intervals[{client}] must have 0 <= on < off, got ({on:g}, {off:g})")
    return times
