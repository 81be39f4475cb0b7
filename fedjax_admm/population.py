"""Where the clients' stacked state lives: on the device, with rounds between a gather and a scatter of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from . import trees
from .algorithms.base import Algorithm
from .problem import Problem
from .records import State
from .rounds import RoundInfo, clients_of, cohort_round


@partial(jax.jit, static_argnames=("width", "rows_per_trip"), donate_argnames=("state",))
def device_rounds(
    problem: Problem,
    algorithm: Algorithm,
    state: State,
    key: Array,
    cohorts: Array,
    count: Array,
    *,
    width: int,
    rows_per_trip: int,
) -> tuple[State, RoundInfo, Array]:
    """The first `count` of the rounds with these `cohorts` [rounds, cohort], on a stacked state on the device.

    Ends early after a round that leaves something not finite. Returns the state, the rounds' infos [rounds, ...]
    and how many rounds were done.
    """
    dtype = trees.scalar_dtype(state.params)

    def one_round(state: State, ids: Array) -> tuple[State, RoundInfo]:
        cohort = clients_of(problem, ids, dtype)
        rows = trees.take(state.clients, ids)
        params, server, rows, info = cohort_round(
            problem, algorithm, state.params, state.server, rows, cohort, state.last_epochs[ids], key, state.round,
            width, rows_per_trip,
        )  # fmt: skip
        clients = jax.tree.map(lambda all_rows, new: all_rows.at[ids].set(new), state.clients, rows)
        last_epochs = state.last_epochs.at[ids].set(jnp.maximum(info.solves.epochs, 1))
        return State(state.round + 1, params, server, clients, last_epochs), info

    def body(loop: tuple) -> tuple:
        done, state, infos, _ = loop
        state, info = one_round(state, cohorts[done])
        infos = jax.tree.map(lambda room, new: room.at[done].set(new.astype(room.dtype)), infos, info)
        return done + 1, state, infos, info.finite

    infos = RoundInfo.empty(*cohorts.shape, dtype)
    done, state, infos, _ = lax.while_loop(
        lambda loop: (loop[0] < count) & loop[3], body, (jnp.int32(0), state, infos, jnp.bool_(True))
    )
    return state, infos, done


@jax.jit
def init_state(problem: Problem, algorithm: Algorithm, params: Any) -> State:
    """z^0, and every client at its start."""
    everyone = jnp.arange(problem.data.num_clients, dtype=jnp.int32)
    clients = clients_of(problem, everyone, trees.scalar_dtype(params))
    server, rows = algorithm.init(params, clients)
    maximum = trees.per_client(algorithm.local.max_epochs, everyone)
    return State(jnp.int32(0), params, server, rows, maximum)
