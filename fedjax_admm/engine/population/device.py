"""Where the clients' stacked state lives: on the devices, with rounds between a gather and a scatter of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ...algorithms.base import Algorithm
from ...core import trees
from ...core.vocabulary import State
from ...exchange.conditions import Conditions
from ...problems.problem import Problem
from .. import renewal
from ..devices import AXIS, gathered
from ..rounds import RoundInfo, clients_of, cohort_round


@partial(jax.jit, static_argnames=("width", "rows_per_trip", "mesh"), donate_argnames=("state",))
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
    mesh: Mesh | None = None,
    conditions: Conditions | None = None,
) -> tuple[State, RoundInfo, Array]:
    """The first `count` of the rounds with these `cohorts` [rounds, cohort], on a stacked state on the devices.

    Ends early after a round that leaves something not finite. Returns the state, the rounds' infos [rounds, ...]
    and how many rounds were done.
    """
    rounds = partial(_rounds, width=width, rows_per_trip=rows_per_trip, devices=1 if mesh is None else mesh.size)
    if mesh is None:
        return rounds(problem, algorithm, state, key, cohorts, count, conditions, split=False)
    same, kept = PartitionSpec(), state_specs(state, mesh)
    shared = jax.shard_map(
        partial(rounds, split=kept.clients != same),
        mesh=mesh,
        in_specs=(same, same, kept, same, same, same, same),
        out_specs=(kept, same, same),
        check_vma=False,  # the lanes loop has device-varying lengths
    )
    return shared(problem, algorithm, state, key, cohorts, count, conditions)


def state_specs(state: State, mesh: Mesh) -> Any:
    """How a state lies on a mesh: the clients' rows are split if they can be split evenly, all else is everywhere."""
    same = PartitionSpec()
    split = PartitionSpec(AXIS) if state.last_epochs.shape[0] % mesh.size == 0 else same
    return State(round=same, params=same, server=same, clients=split, last_epochs=same, offences=same)  # pyright: ignore[reportArgumentType]


def shardings(state: State, mesh: Mesh) -> Any:
    """The state's tree of shardings."""
    specs = state_specs(state, mesh)

    def everywhere(part: Any, spec: PartitionSpec) -> Any:
        return jax.tree.map(lambda _: NamedSharding(mesh, spec), part)

    names = ("round", "params", "server", "clients", "last_epochs", "offences")
    return State(**{name: everywhere(getattr(state, name), getattr(specs, name)) for name in names})


def _rounds(
    problem: Problem,
    algorithm: Algorithm,
    state: State,
    key: Array,
    cohorts: Array,
    count: Array,
    conditions: Conditions | None,
    *,
    width: int,
    rows_per_trip: int,
    devices: int,
    split: bool,
) -> tuple[State, RoundInfo, Array]:
    dtype = trees.scalar_dtype(state.params)

    def one_round(state: State, ids: Array) -> tuple[State, RoundInfo]:
        cohort = clients_of(problem, ids, dtype)
        rows = _take_split(state.clients, ids, devices) if split else trees.take(state.clients, ids)
        params, server, rows, info = cohort_round(
            problem, algorithm, state.params, state.server, rows, cohort, state.last_epochs[ids], key, state.round,
            width, rows_per_trip, devices, conditions, trees.take(state.offences, ids),
        )  # fmt: skip
        put = _put_split if split else _put
        last_epochs, offences = jnp.maximum(info.solves.epochs, 1), None
        if conditions is not None:
            epochs, counts = trees.take((state.last_epochs, state.offences), ids)
            last_epochs, offences = conditions.remembered(epochs, counts, info.solves)
        last_epochs, offences = _put((state.last_epochs, state.offences), ids, (last_epochs, offences))
        clients = put(state.clients, ids, rows)
        server = renewal.renew(problem, algorithm, server, clients, info.renewed, split=split)
        return State(state.round + 1, params, server, clients, last_epochs, offences), info

    def body(loop: tuple) -> tuple:
        done, state, infos, _ = loop
        state, info = one_round(state, cohorts[done])
        infos = jax.tree.map(
            lambda room, new: lax.dynamic_update_index_in_dim(room, new.astype(room.dtype), done, 0), infos, info
        )
        return done + 1, state, infos, info.finite

    infos = RoundInfo.empty(cohorts.shape[0], cohorts.shape[1], dtype)
    done, state, infos, _ = lax.while_loop(
        lambda loop: (loop[0] < count) & loop[3], body, (jnp.int32(0), state, infos, jnp.bool_(True))
    )
    return state, infos, done


def _put(clients: Any, ids: Array, rows: Any) -> Any:
    return jax.tree.map(lambda all_rows, new: all_rows.at[ids].set(new), clients, rows)


def _take_split(clients: Any, ids: Array, devices: int) -> Any:
    """Rows `ids` of leaves that are split over the devices: each gives what it has, the sum is all of them."""

    def mine(leaf: Array) -> Array:
        place, here = _local(leaf, ids)
        rows = leaf[jnp.where(here, place, 0)]
        return jnp.where(here.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.zeros((), rows.dtype))

    return gathered(jax.tree.map(mine, clients), devices)


def _put_split(clients: Any, ids: Array, rows: Any) -> Any:
    def put(leaf: Array, new: Array) -> Array:
        place, here = _local(leaf, ids)
        return leaf.at[jnp.where(here, place, leaf.shape[0])].set(new, mode="drop")

    return jax.tree.map(put, clients, rows)


def _local(leaf: Array, ids: Array) -> tuple[Array, Array]:
    """Where clients `ids` are in this device's part of a leaf, and whether they are there."""
    place = ids - lax.axis_index(AXIS) * leaf.shape[0]
    return place, (place >= 0) & (place < leaf.shape[0])


@jax.jit
def init_state(problem: Problem, algorithm: Algorithm, params: Any, conditions: Conditions | None = None) -> State:
    """z^0, and every client at its start."""
    everyone = jnp.arange(problem.data.num_clients, dtype=jnp.int32)
    clients = clients_of(problem, everyone, trees.scalar_dtype(params))
    server, rows = trees.strongly_typed(algorithm.init(params, clients))
    maximum = trees.per_client(algorithm.local.max_epochs, everyone)
    offences = None if conditions is None else conditions.no_offences(problem.data.num_clients)
    return State(jnp.int32(0), params, server, rows, maximum, offences)
