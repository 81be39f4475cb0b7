"""The round: subproblems, lanes, duals and penalties, server, compiled as one.

`cohort_round` knows the cohort's rows alone; `device_rounds` puts it between a gather and a scatter of the
stacked state and runs several rounds in one dispatch.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from . import lanes, shuffle, solves, trees
from .algorithms.base import Algorithm
from .problem import Problem
from .records import Clients, Solutions, Solves, State, StopReason
from .trees import record


@record
class RoundInfo:
    """What a round leaves behind besides the state."""

    solves: Solves  # [cohort]
    trips: Array  # trips of the lanes loop
    rows: Array  # rows whose gradient those trips computed, line searches apart
    penalty_mean: Array
    finite: Array  # whether the server's parameters are, and any client's

    @classmethod
    def empty(cls, rounds: int, cohort: int, dtype: Any) -> RoundInfo:
        """Room for the infos [rounds, ...] of several rounds."""
        whole, real = jnp.zeros((rounds, cohort), jnp.int32), jnp.zeros((rounds, cohort), dtype)
        solves = Solves(whole, whole, whole, real, real, real, real, real, whole.astype(jnp.int8))
        return cls(solves, whole[:, 0], whole[:, 0], real[:, 0], jnp.ones((rounds,), bool))


def clients_of(problem: Problem, ids: Array, dtype: Any) -> Clients:
    """The records of clients `ids`."""
    data = problem.data
    return Clients(ids, data.sizes[ids], data.weights[ids].astype(dtype), data.num_clients)


def cohort_round(
    problem: Problem,
    algorithm: Algorithm,
    params: Any,
    server: Any,
    rows: dict[str, Any],
    cohort: Clients,
    last_epochs: Array,
    key: Array,
    round: Array,
    width: int,
    rows_per_trip: int,
) -> tuple[Any, Any, dict[str, Any], RoundInfo]:
    """One round of the cohort's clients: (params, server, rows, info).

    `rows` has the cohort's rows [cohort, ...] and `last_epochs` [cohort] what each client's last solve took.
    """
    subproblem = algorithm.subproblems(params, server, rows, cohort)
    job = solves.Job(
        subproblem=subproblem,
        solver=trees.per_client(algorithm.local, cohort.ids),
        criterion=trees.per_client(algorithm.criterion, cohort.ids),
        offset=problem.data.offsets[cohort.ids],
        size=cohort.sizes,
        key=shuffle.client_keys(key, round, cohort.ids),
        round=jnp.full(cohort.ids.shape, round),
    )
    # Longest expected first: the last solves to end should be short ones.
    order = jnp.argsort(-(cohort.sizes.astype(jnp.float32) * last_epochs.astype(jnp.float32)))
    program = solves.program(problem, params, job, rows_per_trip)
    ended, trips = lanes.run(program, job, order, width)

    ok = jax.vmap(trees.all_finite)(ended.params) & (ended.stop_code != StopReason.FAILED.code)
    start = params if subproblem.start is None else subproblem.start
    u = trees.where(ok, ended.params, jax.tree.map(lambda s, u: jnp.broadcast_to(s, u.shape), start, ended.params))
    record = _solves(job, ended, ok, u, params)
    solutions = Solutions(u, record.consensus_gap, record.movement)
    measured = {"consensus_gap": record.consensus_gap, "movement": record.movement}
    record = dataclasses.replace(record, **{name: jnp.where(ok, x, jnp.nan) for name, x in measured.items()})
    # A failed client has weight 0 and keeps its rows; if all failed, the server keeps its record as well.
    counted = Clients(cohort.ids, cohort.sizes, jnp.where(ok, cohort.weights, 0), cohort.population)
    new_params, new_server, new_rows = algorithm.update(params, server, rows, solutions, counted)
    any_ok = jnp.any(ok)
    new_params, new_server = trees.where(any_ok, (new_params, new_server), (params, server))
    finite = any_ok & trees.all_finite(new_params)
    info = RoundInfo(record, trips, jnp.sum(ended.rows), algorithm.penalty_mean(new_server), finite)
    return new_params, new_server, trees.where(ok, new_rows, rows), info


def _solves(job: solves.Job, ended: solves.Carry, ok: Array, u: Any, z: Any) -> Solves:
    """The record [cohort] of the solves that ended."""
    sub, nan = job.subproblem, jnp.full_like(ended.residual, jnp.nan)
    gap = trees.minus(u, z) if sub.center is None else optax.tree.sub(u, sub.center)
    norm = jax.vmap(optax.tree.norm)
    sigma = jax.vmap(lambda job, carry: job.criterion.sigma(solves.progress(job, carry)))(job, ended)
    return Solves(
        epochs=ended.epoch,
        gradient_samples=ended.rows + ended.search_samples,
        criterion_samples=ended.criterion_samples,
        reference_residual=ended.reference_residual,
        final_residual=ended.residual,
        sigma=sigma,
        consensus_gap=norm(gap).astype(nan.dtype),
        movement=nan if sub.previous is None else norm(optax.tree.sub(u, sub.previous)).astype(nan.dtype),
        stop_code=jnp.where(ok, ended.stop_code, StopReason.FAILED.code).astype(jnp.int8),
    )


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
