"""A queue of jobs worked off by a few lanes: the masked while_loop that leaves no lane idle.

`vmap` of a `while_loop` keeps every job's lane busy until the slowest job is done. Here W lanes each carry one
job, advance together by one unit of work a trip, and take the next job from the queue as soon as theirs is
finished. What a job is, only its `Program` knows.

Three nested loops, so that rare and large work stays out of the frequent one: the innermost advances the lanes
until one of them reaches a turn (the end of a pass over its rows), the middle one takes the turns until a lane
is finished and a job waits, the outer one hands results over and refills. A finished lane for which no job is
left keeps its carry, unchanged, until the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..core import trees


class Program(NamedTuple):
    """What a lane does with a job. Each function is for one lane and is vmapped over them."""

    start: Callable[[Any], Any]  # job -> carry
    step: Callable[[Any, Any], Any]  # job, carry -> carry: one unit of work; leaves a finished carry as it is
    at_turn: Callable[[Any, Any], Array]  # job, carry -> whether `turn` is due
    turn: Callable[[Any, Any], Any]  # job, carry -> carry
    finished: Callable[[Any], Array]  # carry -> whether the job is done
    result: Callable[[Any], Any]  # carry -> what is kept of it
    retire: Callable[[Any], Any]  # carry -> one that is finished, for a lane that has no job


class _Lanes(NamedTuple):
    slots: Array  # [lanes] which job each lane has
    jobs: Any  # [lanes, ...] those jobs' data
    carry: Any  # [lanes, ...]
    trips: Array  # units of work that each lane has executed, useful or not


def run(program: Program, jobs: Any, order: Array, count: Any, width: int) -> tuple[Any, Array]:
    """Works off those of `jobs` (leaves [jobs, ...]) that the first `count` entries of `order` name, in `width` lanes.

    Returns the results, leaves [jobs, ...] in the jobs' own order and zeros for those not named, and the number of
    trips.
    """
    num_jobs = jax.tree.leaves(jobs)[0].shape[0]
    width = min(width, order.shape[0])
    start, step, turn = jax.vmap(program.start), jax.vmap(program.step), jax.vmap(program.turn)
    at_turn, finished, result = jax.vmap(program.at_turn), jax.vmap(program.finished), jax.vmap(program.result)

    def advance(lanes: _Lanes) -> _Lanes:
        return lanes._replace(carry=step(lanes.jobs, lanes.carry), trips=lanes.trips + 1)

    def advance_to_turn(lanes: _Lanes) -> _Lanes:
        lanes = lax.while_loop(lambda lanes: ~jnp.any(at_turn(lanes.jobs, lanes.carry)), advance, lanes)
        due = at_turn(lanes.jobs, lanes.carry)
        return lanes._replace(carry=trees.where(due, turn(lanes.jobs, lanes.carry), lanes.carry))

    def refill(loop: tuple[_Lanes, Any, Array]) -> tuple[_Lanes, Any, Array]:
        lanes, results, taken = loop
        done = finished(lanes.carry)
        turn_in_queue = taken + jnp.cumsum(done, dtype=jnp.int32) - 1
        fill = done & (turn_in_queue < count)
        results = _hand_over(results, result(lanes.carry), jnp.where(fill, lanes.slots, num_jobs))
        slots = jnp.where(fill, order[jnp.minimum(turn_in_queue, order.shape[0] - 1)], lanes.slots)
        new_jobs = trees.take(jobs, slots)
        carry = trees.where(fill, start(new_jobs), lanes.carry)
        return _Lanes(slots, new_jobs, carry, lanes.trips), results, taken + jnp.sum(fill, dtype=jnp.int32)

    def work_and_refill(loop: tuple[_Lanes, Any, Array]) -> tuple[_Lanes, Any, Array]:
        lanes, results, taken = loop

        def nothing_to_hand_over(lanes: _Lanes) -> Array:
            done = finished(lanes.carry)
            return ~jnp.all(done) & ~(jnp.any(done) & (taken < count))

        return refill((lax.while_loop(nothing_to_hand_over, advance_to_turn, lanes), results, taken))

    has_job = jnp.arange(width, dtype=jnp.int32) < count
    first = trees.take(jobs, order[:width])
    carry = start(first)
    carry = trees.where(has_job, carry, jax.vmap(program.retire)(carry))
    lanes = _Lanes(jnp.where(has_job, order[:width], num_jobs), first, carry, jnp.int32(0))
    results = jax.tree.map(lambda leaf: jnp.zeros((num_jobs, *leaf.shape[1:]), leaf.dtype), result(lanes.carry))
    lanes, results, _ = lax.while_loop(
        lambda loop: ~jnp.all(finished(loop[0].carry)), work_and_refill, (lanes, results, jnp.int32(width))
    )
    return _hand_over(results, result(lanes.carry), lanes.slots), lanes.trips


def _hand_over(results: Any, values: Any, slots: Array) -> Any:
    """Writes lanes' values to their jobs' slots; a slot beyond the last job is dropped."""
    return jax.tree.map(lambda r, v: r.at[slots].set(v, mode="drop", wrap_negative_indices=False), results, values)
