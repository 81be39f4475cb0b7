"""The state before the first round."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ...core import trees
from ...core.sums import PositiveSum
from ...core.vocabulary import Round, State
from ...exchange.stage import MEMORIES
from ..rounds import ServerState, Setup, broadcast, client_of, clients_of, start_row


@jax.jit
def init_state(setup: Setup, params: Any) -> State:
    """z^0, and every client at its start."""
    everyone = jnp.arange(setup.problem.data.num_clients, dtype=jnp.int32)
    first = first_server(setup, params)
    maximum = trees.per_client(setup.algorithm.local.max_epochs, everyone)
    return State(
        jnp.int32(0), first.params, first.server, start_rows(setup, params, everyone), maximum, first.penalty_mean
    )


@jax.jit
def first_server(setup: Setup, params: Any) -> ServerState:
    """The server at the start; the rows of all clients, which it depends on, are never made."""
    everyone = jnp.arange(setup.problem.data.num_clients, dtype=jnp.int32)
    clients = clients_of(setup.problem, everyone, trees.scalar_dtype(params))
    server = trees.strongly_typed(setup.algorithm.init(params, clients))
    penalties = jax.vmap(lambda id: _first_penalty(setup, params, server, id))(everyone)
    return ServerState(params, server, PositiveSum.of(jnp.mean(penalties)))


@jax.jit
def start_rows(setup: Setup, params: Any, ids: Array) -> dict[str, Any]:
    """The rows of clients `ids` at their start, leaves [ids, ...]."""
    return jax.vmap(lambda id: start_row(setup, params, id))(ids)


def _first_penalty(setup: Setup, params: Any, server: Any, id: Array) -> Array:
    """The penalty of a client's first subproblem; NaN if it has none."""
    dtype, row = trees.scalar_dtype(params), start_row(setup, params, id)
    if "penalties" in row:
        return row["penalties"].astype(dtype)
    row.pop(MEMORIES, None)
    sent, client = broadcast(setup, params, server, jnp.int32(0)), client_of(setup.problem, id, dtype)
    round = Round(jnp.int32(0), setup.key)
    penalty = trees.per_client(setup.algorithm, id).subproblem(sent, row, client, round).penalty
    return jnp.asarray(jnp.nan if penalty is None else penalty, dtype)
