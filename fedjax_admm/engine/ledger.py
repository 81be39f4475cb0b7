"""What a round writes besides the clients' rows: every solve's entry, and the sums that the server gets."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core.record import record
from ..core.sums import RunningSum
from ..core.vocabulary import Solves, StopReason
from . import devices


@record
class Tally:
    """What the server has of a round so far. In a sweep everything but `rows` and `trips` has an axis [runs]."""

    messages: RunningSum  # sum of alpha_i * message_i, over clients whose message came
    weight: Array  # sum of alpha_i, over the same
    count: Array  # how many they are
    sound: Array  # clients whose solve was finite
    present: Array  # clients that took part
    penalty_change: Array  # of the mean of all clients' penalties
    rows: Array  # rows whose gradient was computed, line searches apart; as a real number, which holds any cohort's
    trips: Array  # of the lanes loop


class Entries(NamedTuple):
    """Solves as two arrays, their fields side by side: whatever writes or moves them is one kernel for each array, not
    for each field, and kernels are what takes the compiler's time.

    They stay so until the host asks for fields. A finished job's lane writes its entry where the program returns it,
    and nothing as large as the cohort is computed from them: it would be held besides. Zeros are a place that no
    client took; so places need not be filled with what is told of those, and devices' entries can be added.
    """

    real: Array  # [..., fields that are real numbers]
    whole: Array  # [..., the others], int32

    @classmethod
    def of(cls, solves: Solves, dtype: Any) -> Entries:
        """From solves [...]."""

        taken = dataclasses.replace(solves, stop_code=jnp.asarray(solves.stop_code, jnp.int32) - StopReason.NOBODY.code)

        def stacked(names: list[str], kind: Any) -> Array:
            return jnp.stack([jnp.asarray(getattr(taken, name), kind) for name in names], axis=-1)

        return cls(stacked(_REAL, dtype), stacked(_WHOLE, jnp.int32))

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: Any) -> Entries:
        """Room for so many."""
        return cls(jnp.zeros((*shape, len(_REAL)), dtype), jnp.zeros((*shape, len(_WHOLE)), jnp.int32))

    def flat(self) -> Entries:
        """Along one axis."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), self)

    @property
    def epochs(self) -> Array:
        """[...], as in `solves`."""
        return self.whole[..., _WHOLE.index("epochs")]

    @property
    def stop_code(self) -> Array:
        """[...], as in `solves`."""
        return (self.whole[..., _WHOLE.index("stop_code")] + StopReason.NOBODY.code).astype(np.int8)

    @property
    def solves(self) -> Solves:
        """What they were made of, on the host; NaN and zeros for places that no client took."""
        entries = jax.device_get(self)
        whole = {name: entries.whole[..., k] for k, name in enumerate(_WHOLE)} | {"stop_code": entries.stop_code}
        vacant, real = whole["stop_code"] == StopReason.NOBODY.code, entries.real
        if vacant.any():
            real = np.where(vacant[..., None], np.nan, real)
        return Solves(**{name: real[..., k] for k, name in enumerate(_REAL)}, **whole)


_WHOLE = ["epochs", "max_epochs", "gradient_samples", "criterion_samples", "stop_code"]
_REAL = [field.name for field in dataclasses.fields(Solves) if field.name not in _WHOLE]


class Ledger(NamedTuple):
    """What a round writes besides the rows."""

    entries: Entries  # of the solves [slots]
    tally: Tally


class Store(NamedTuple):
    """What finished jobs change."""

    rows: dict[str, Any]  # leaves [addresses, ...]
    ledger: Ledger


@record
class RoundInfo:
    """What a round leaves behind besides the state."""

    entries: Entries  # of the solves [cohort]
    trips: Array  # trips of the lanes loop, of all devices together
    longest: Array  # of one device, the most
    rows: Array  # rows whose gradient those trips computed, line searches apart
    penalty_mean: Array
    finite: Array  # whether the server's parameters are, and any client's
    renewed: Array  # whether the server's sums are formed anew after it
    communicated: Array  # whether server and clients exchanged anything

    @classmethod
    def empty(cls, rounds: int, cohort: int, dtype: Any) -> RoundInfo:
        """Room for the infos [rounds, ...] of several rounds."""
        whole, real, true = jnp.zeros(rounds, jnp.int32), jnp.zeros(rounds, dtype), jnp.ones(rounds, bool)
        rows = jnp.zeros(rounds, jnp.float32)
        entries = Entries.empty((rounds, cohort), dtype)
        return cls(entries, whole, whole, rows, real, finite=true, renewed=~true, communicated=true)

    @functools.cached_property
    def solves(self) -> Solves:
        """What the clients did [..., cohort], on the host."""
        return self.entries.solves

    def without_entries(self) -> RoundInfo:
        """The others alone, where the entries are elsewhere."""
        return dataclasses.replace(self, entries=None)


def gather_ledger(ledger: Ledger, number: int) -> tuple[Ledger, Array]:
    """All devices' ledgers as one, and the most trips that any of them did."""
    if number == 1:
        return ledger, ledger.tally.trips
    tally = dataclasses.replace(ledger.tally, messages=ledger.tally.messages.value)
    each = devices.each_one(tally.trips, number)
    # Devices meet once for each dtype, so whole numbers go together: the solves', whose bits are added, and the counts.
    entries = ledger.entries
    whole, real = _split_by_kind((tally, each))
    bits, whole, real = devices.summed((devices.as_bits(entries), devices.as_bits(whole), real))
    tally, each = _joined(devices.from_bits(whole, _split_by_kind((tally, each))[0]), real)
    entries = devices.from_bits(bits, entries)
    tally = dataclasses.replace(tally, messages=RunningSum.of(tally.messages))
    return Ledger(entries, tally), jnp.max(each)


def _split_by_kind(tree: Any) -> tuple[Any, Any]:
    """The tree's whole numbers, and its others; None in the places of the rest."""

    def is_whole(leaf: Array) -> bool:
        return jnp.issubdtype(leaf.dtype, jnp.integer)

    whole = jax.tree.map(lambda leaf: leaf if is_whole(leaf) else None, tree)
    return whole, jax.tree.map(lambda leaf: None if is_whole(leaf) else leaf, tree)


def _joined(one: Any, other: Any) -> Any:
    """What `_split_by_kind` split."""
    return jax.tree.map(lambda a, b: b if a is None else a, one, other, is_leaf=lambda leaf: leaf is None)
