"""What a round writes besides the clients' rows: every solve's entry, and the sums that the server gets."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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


class Ledger(NamedTuple):
    """What a round writes besides the rows."""

    solves: Solves  # [cohort]
    tally: Tally


class Store(NamedTuple):
    """What finished jobs change."""

    rows: dict[str, Any]  # leaves [addresses, ...]
    ledger: Ledger


@record
class RoundInfo:
    """What a round leaves behind besides the state."""

    solves: Solves  # [cohort]
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
        solves = empty_solves((rounds, cohort), dtype)
        return cls(solves, whole, whole, rows, real, finite=true, renewed=~true, communicated=true)


def empty_solves(shape: tuple[int, ...], dtype: Any) -> Solves:
    """Room for so many solves."""
    whole, real = jnp.zeros(shape, jnp.int32), jnp.zeros(shape, dtype)
    kinds = {"epochs": whole, "max_epochs": whole, "gradient_samples": whole, "criterion_samples": whole}
    kinds["stop_code"] = whole.astype(jnp.int8)
    return Solves(**{field.name: kinds.get(field.name, real) for field in dataclasses.fields(Solves)})


def no_solve(shape: tuple[int, ...], dtype: Any) -> Solves:
    """What is told of places that no client took."""
    empty = jax.tree.map(
        lambda leaf: jnp.full_like(leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        empty_solves(shape, dtype),
    )
    return dataclasses.replace(empty, stop_code=jnp.full_like(empty.stop_code, StopReason.NOBODY.code))


def gather_ledger(ledger: Ledger, number: int) -> tuple[Ledger, Array]:
    """All devices' ledgers as one, and the most trips that any of them did."""
    if number == 1:
        return ledger, ledger.tally.trips
    tally = dataclasses.replace(ledger.tally, messages=ledger.tally.messages.value)
    each = devices.each_one(tally.trips, number)
    # Devices meet once for each dtype, so whole numbers go together: the solves', whose bits are added, and the counts.
    entries = dataclasses.replace(ledger.solves, stop_code=ledger.solves.stop_code.astype(jnp.int32))
    whole, real = _split_by_kind((tally, each))
    bits, whole, real = devices.summed((devices.as_bits(entries), devices.as_bits(whole), real))
    tally, each = _joined(devices.from_bits(whole, _split_by_kind((tally, each))[0]), real)
    entries = devices.from_bits(bits, entries)
    entries = dataclasses.replace(entries, stop_code=entries.stop_code.astype(jnp.int8))
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
