"""A queue of jobs worked off by a few lanes: the masked while_loop that leaves no lane idle.

`vmap` of a `while_loop` keeps every job's lane busy until the slowest job is done. Here W lanes each carry one
job, advance together by one unit of work a trip, and take the next job from the queue as soon as theirs is
finished. What a job is, only its `Program` knows; where it comes from and what becomes of it, only its `Desk`.

Three nested loops, so that rare and large work stays out of the frequent one: the innermost advances the lanes
until one of them reaches a turn (the end of a pass over its rows), the middle one takes the turns until a lane
is finished and a job waits, the outer one hands finished jobs over and refills. A finished lane for which no job is
left keeps its carry, unchanged, until all are done. The first jobs are taken by a refill like all others, for what
takes them is compiled once for each place where it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    retire: Callable[[Any], Any]  # carry -> one that is finished


class Desk(NamedTuple):
    """Where jobs come from and go to: a store, of any kind, that finished jobs change.

    The store is written before it is read, so that XLA can do both in place.
    """

    take: Callable[[Any, Array], Any]  # store, place in the queue -> job, for one lane
    hand_over: Callable[[Any, Any, Any, Array], Any]  # store, jobs, carries, which [lanes] are done -> store
    idle: Callable[[Any], Array]  # job -> whether there is nothing to do for it


_NONE_YET = -1


class _Lanes(NamedTuple):
    places: Array  # [lanes] each lane's job in the queue; _NONE_YET, or the queue's length or more: it has none
    jobs: Any  # [lanes, ...]
    carry: Any  # [lanes, ...]
    trips: Array  # units of work that each lane has executed, useful or not


def run(program: Program, desk: Desk, store: Any, count: Any, width: int) -> tuple[Any, Array]:
    """Works off the first `count` jobs of the queue in `width` lanes: the store after them, and the number of trips."""
    start, step, turn = jax.vmap(program.start), jax.vmap(program.step), jax.vmap(program.turn)
    at_turn, finished, retire = jax.vmap(program.at_turn), jax.vmap(program.finished), jax.vmap(program.retire)
    take, idle = jax.vmap(desk.take, in_axes=(None, 0)), jax.vmap(desk.idle)
    count = jnp.asarray(count, jnp.int32)

    def begin(store: Any, places: Array) -> tuple[Any, Any]:
        jobs = take(store, jnp.minimum(places, jnp.maximum(count - 1, 0)))
        carry = start(jobs)
        return jobs, trees.where(idle(jobs), retire(carry), carry)

    def advance(lanes: _Lanes) -> _Lanes:
        return lanes._replace(carry=step(lanes.jobs, lanes.carry), trips=lanes.trips + 1)

    def advance_to_turn(lanes: _Lanes) -> _Lanes:
        lanes = lax.while_loop(lambda lanes: ~jnp.any(at_turn(lanes.jobs, lanes.carry)), advance, lanes)
        due = at_turn(lanes.jobs, lanes.carry)
        return lanes._replace(carry=trees.where(due, turn(lanes.jobs, lanes.carry), lanes.carry))

    def hand_over_and_refill(lanes: _Lanes, store: Any, taken: Array) -> tuple[_Lanes, Any, Array]:
        first = lanes.places == _NONE_YET
        done = finished(lanes.carry) & (lanes.places < count) & ~first
        store = desk.hand_over(store, lanes.jobs, lanes.carry, done)
        free = done | first
        places = jnp.where(free, taken + jnp.cumsum(free, dtype=jnp.int32) - 1, lanes.places)
        filled = free & (places < count)
        # Lanes that go on read the job that they have once more: of a job under way nothing was written.
        jobs, carry = begin(store, places)
        carry = trees.where(filled, carry, lanes.carry)
        return _Lanes(places, jobs, carry, lanes.trips), store, taken + jnp.sum(free, dtype=jnp.int32)

    def nothing_to_hand_over(taken: Array, lanes: _Lanes) -> Array:
        done = finished(lanes.carry)
        return ~jnp.all(done) & ~(jnp.any(done & (lanes.places < count)) & (taken < count))

    def work(loop: tuple[_Lanes, Any, Array]) -> tuple[_Lanes, Any, Array]:
        lanes, store, taken = hand_over_and_refill(*loop)
        return lax.while_loop(partial(nothing_to_hand_over, taken), advance_to_turn, lanes), store, taken

    places = jnp.full(width, _NONE_YET, jnp.int32)
    jobs, carry = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(begin, store, places))
    lanes = _Lanes(places, jobs, retire(carry), jnp.int32(0))
    lanes, store, _ = lax.while_loop(lambda loop: jnp.any(loop[0].places < count), work, (lanes, store, jnp.int32(0)))
    return store, lanes.trips
