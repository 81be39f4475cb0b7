"""The conditions under which a round's clients work: faults and a deadline, as the round sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from ..core import trees
from ..core.vocabulary import AWAY, OFFENCES, Clients, Solves, StopReason
from .client_time import ClientTime
from .faults import Faults


class Outcome(NamedTuple):
    """What the server has of the cohort after its solves."""

    params: Any  # [cohort, ...] what it takes for each client's u; the former value where it takes nothing
    ok: Array  # [cohort] bool: it takes something
    stop_code: Array  # [cohort]
    any_solved: Array | None = None  # a solve was sound or none took place, else the run diverges; None: any(ok)
    clipped: Array | None = None  # [cohort] bool


class Conditions(NamedTuple):
    """What can go wrong in a round; at least one of them is there."""

    faults: Faults | None
    client_time: ClientTime | None  # with a deadline; without one it does not change a round

    @classmethod
    def of(cls, faults: Faults | None, client_time: ClientTime | None, dtype: Any) -> Conditions | None:
        """With numbers in `dtype`; None if nothing can go wrong."""
        faults = faults if faults is not None and faults.any else None
        client_time = client_time if client_time is not None and client_time.deadline is not None else None
        return None if faults is client_time is None else trees.cast_floats(cls(faults, client_time), dtype)

    def no_offences(self, number: int) -> Array | None:
        """Every client's count at the start [number], where there is quarantine."""
        counts = self.faults is not None and self.faults.quarantine_after is not None
        return jnp.zeros((number,), jnp.int32) if counts else None

    def away(self, key: Array, round: Array, ids: Array, offences: Array | None) -> Array | None:
        """Why clients `ids` do nothing in this round, a stop code [ids], -1 for those that do; None if all do."""
        if self.faults is None:
            return None
        dropped, quarantined = self.faults.away(key, round, ids, offences)
        code = jnp.where(dropped, StopReason.DROPPED.code, -1)
        return jnp.where(quarantined, StopReason.QUARANTINED.code, code)

    def outcome(
        self,
        key: Array,
        round: Array,
        cohort: Clients,
        away: Array | None,
        z: Any,
        solved: Outcome,
        gradients: Array,
        floats: int,
    ) -> Outcome:
        """What comes of solves that took so many `gradients` [cohort] and would move so many `floats`.

        `solved` is how they ended by themselves, with anything for clients that are away.
        """
        here = jnp.ones_like(solved.ok) if away is None else away < 0
        ok, code = solved.ok & here, solved.stop_code if away is None else jnp.where(here, solved.stop_code, away)
        any_solved = jnp.any(ok) | ~jnp.any(here)
        if self.client_time is not None:
            dtype = self.client_time.deadline.dtype
            seconds = self.client_time.seconds(cohort.ids, gradients.astype(dtype), jnp.asarray(floats, dtype))
            late = ok & (seconds > self.client_time.deadline)
            ok, code = ok & ~late, jnp.where(late, StopReason.LATE.code, code)
        if self.faults is None:
            return Outcome(solved.params, ok, code, any_solved)
        got = self.faults.received(key, round, cohort.ids, z, solved.params)
        code = jnp.where(ok & got.corrupted, StopReason.CORRUPTED.code, code)
        code = jnp.where(ok & ~got.accepted, StopReason.REJECTED.code, code)
        ok &= got.accepted
        return Outcome(trees.where(ok, got.params, solved.params), ok, code, any_solved, got.clipped)

    def remembered(self, last_epochs: Array, offences: Array | None, solves: Solves) -> tuple[Array, Array | None]:
        """Of the cohort after a round, [cohort]: the epochs of the last solve, and the offences."""
        done = jnp.where(_is_one_of(solves, AWAY), last_epochs, jnp.maximum(solves.epochs, 1))
        return done, None if offences is None else offences + _is_one_of(solves, OFFENCES).astype(jnp.int32)


def _is_one_of(solves: Solves, reasons: tuple[StopReason, ...]) -> Array:
    return jnp.isin(solves.stop_code, jnp.asarray([reason.code for reason in reasons], solves.stop_code.dtype))
