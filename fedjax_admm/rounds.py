"""The round: subproblems, lanes, duals and penalties, server. It knows the cohort's rows, not where they live."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from . import lanes, shuffle, solves, trees
from .algorithms.base import Algorithm
from .devices import gathered, my_jobs
from .problem import Problem
from .records import Clients, Solutions, Solves, StopReason
from .trees import record


@record
class RoundInfo:
    """What a round leaves behind besides the state."""

    solves: Solves  # [cohort]
    trips: Array  # trips of the lanes loop, of all devices together
    rows: Array  # rows whose gradient those trips computed, line searches apart
    penalty_mean: Array
    finite: Array  # whether the server's parameters are, and any client's

    @classmethod
    def empty(cls, rounds: int, cohort: int, dtype: Any) -> RoundInfo:
        """Room for the infos [rounds, ...] of several rounds."""
        whole, real = jnp.zeros((rounds, cohort), jnp.int32), jnp.zeros((rounds, cohort), dtype)
        kinds = {"epochs": whole, "max_epochs": whole, "gradient_samples": whole, "criterion_samples": whole}
        kinds["stop_code"] = whole.astype(jnp.int8)
        solves = Solves(**{field.name: kinds.get(field.name, real) for field in dataclasses.fields(Solves)})
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
    devices: int = 1,
) -> tuple[Any, Any, dict[str, Any], RoundInfo]:
    """One round of the cohort's clients: (params, server, rows, info).

    `rows` has the cohort's rows [cohort, ...] and `last_epochs` [cohort] what each client's last solve took. With
    several devices it is called on each of them with the same values, and does its share of the solves.
    """
    job = _jobs(problem, algorithm, params, server, rows, cohort, key, round)
    program = solves.program(problem, params, job, rows_per_trip)
    mine, count = my_jobs(_longest_first(cohort.sizes, last_epochs), devices)
    ended, trips = gathered(lanes.run(program, job, mine, count, width), devices)
    return _settle(algorithm, params, server, rows, cohort, job, ended, trips)


def sweep_round(
    problem: Problem,
    algorithms: Algorithm,
    params: Any,
    servers: Any,
    rows: dict[str, Any],
    cohorts: Array,
    last_epochs: Array,
    keys: Array,
    round: Array,
    width: int,
    rows_per_trip: int,
    devices: int = 1,
) -> tuple[Any, Any, dict[str, Any], RoundInfo]:
    """`cohort_round` for several runs at once, everything with a leading axis [runs, ...], `cohorts` [runs, cohort].

    The jobs of all runs are in one queue: lanes that a short run leaves go on with another's.
    """
    runs, dtype = cohorts.shape[0], trees.scalar_dtype(params)

    def jobs_of(algorithm: Algorithm, params: Any, server: Any, rows: Any, ids: Array, key: Array) -> solves.Job:
        return _jobs(problem, algorithm, params, server, rows, clients_of(problem, ids, dtype), key, round)

    def settle(algorithm: Algorithm, params: Any, server: Any, rows: Any, ids: Array, job: Any, ended: Any) -> Any:
        return _settle(algorithm, params, server, rows, clients_of(problem, ids, dtype), job, ended, trips)

    job = jax.vmap(jobs_of)(algorithms, params, servers, rows, cohorts, keys)
    job = job._replace(run=jnp.broadcast_to(jnp.arange(runs)[:, None], cohorts.shape))
    queue = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), job)
    program = solves.program(problem, params, queue, rows_per_trip)
    mine, count = my_jobs(_longest_first(queue.size, last_epochs.reshape(-1)), devices)
    ended, trips = gathered(lanes.run(program, queue, mine, count, width), devices)
    ended = jax.tree.map(lambda leaf: leaf.reshape(*cohorts.shape, *leaf.shape[1:]), ended)
    params, servers, rows, info = jax.vmap(settle)(algorithms, params, servers, rows, cohorts, job, ended)
    return params, servers, rows, dataclasses.replace(info, rows=jnp.full_like(info.rows, jnp.sum(info.rows)))


def _jobs(
    problem: Problem, algorithm: Algorithm, params: Any, server: Any, rows: Any, cohort: Clients, key: Array, round: Any
) -> solves.Job:
    """The cohort's solves [cohort] to be done."""
    return solves.Job(
        subproblem=algorithm.subproblems(params, server, rows, cohort),
        solver=trees.per_client(algorithm.local, cohort.ids),
        criterion=trees.per_client(algorithm.criterion, cohort.ids),
        offset=problem.data.offsets[cohort.ids],
        size=cohort.sizes,
        key=shuffle.client_keys(key, round, cohort.ids),
        round=jnp.full(cohort.ids.shape, round),
    )


def _longest_first(sizes: Array, last_epochs: Array) -> Array:
    """The jobs' numbers, longest expected first: the last solves to end should be short ones."""
    return jnp.argsort(-(sizes.astype(jnp.float32) * last_epochs.astype(jnp.float32)))


def _settle(
    algorithm: Algorithm,
    params: Any,
    server: Any,
    rows: dict[str, Any],
    cohort: Clients,
    job: solves.Job,
    ended: solves.Carry,
    trips: Array,
) -> tuple[Any, Any, dict[str, Any], RoundInfo]:
    """The round's outcome from its solves."""
    subproblem = job.subproblem
    ok = jax.vmap(trees.all_finite)(ended.params) & (ended.stop_code != StopReason.FAILED.code)
    start = params if subproblem.start is None else subproblem.start
    u = trees.where(ok, ended.params, jax.tree.map(lambda s, u: jnp.broadcast_to(s, u.shape), start, ended.params))
    record = _solves(job, ended, ok, u, params)
    steps = ended.epoch * algorithm.local.steps_per_epoch(cohort.sizes)
    solutions = Solutions(u, steps, record.consensus_gap, record.movement)
    measured = {"consensus_gap": record.consensus_gap, "movement": record.movement}
    record = dataclasses.replace(record, **{name: jnp.where(ok, x, jnp.nan) for name, x in measured.items()})
    # A failed client has weight 0 and keeps its rows; if all failed, the server keeps its record as well.
    counted = Clients(cohort.ids, cohort.sizes, jnp.where(ok, cohort.weights, 0), cohort.population)
    new_params, new_server, new_rows = algorithm.update(params, server, rows, solutions, counted)
    any_ok = jnp.any(ok)
    new_params, new_server = trees.where(any_ok, (new_params, new_server), (params, server))
    finite = any_ok & trees.all_finite(new_params)
    new_rows = trees.where(ok, new_rows, rows)
    record = dataclasses.replace(record, new_penalty=new_rows.get("penalties", record.penalty))
    info = RoundInfo(record, trips, jnp.sum(ended.rows), algorithm.penalty_mean(new_server), finite)
    return new_params, new_server, new_rows, info


def _solves(job: solves.Job, ended: solves.Carry, ok: Array, u: Any, z: Any) -> Solves:
    """The record [cohort] of the solves that ended."""
    sub, nan = job.subproblem, jnp.full_like(ended.residual, jnp.nan)
    gap = trees.minus(u, z) if sub.center is None else optax.tree.sub(u, sub.center)
    penalty = nan if sub.penalty is None else sub.penalty.astype(nan.dtype)
    norm = jax.vmap(optax.tree.norm)
    sigma = jax.vmap(lambda job, carry: job.criterion.sigma(solves.progress(job, carry)))(job, ended)
    return Solves(
        epochs=ended.epoch,
        max_epochs=job.solver.max_epochs,
        gradient_samples=ended.rows + ended.search_samples,
        criterion_samples=ended.criterion_samples,
        reference_residual=ended.reference_residual,
        final_residual=ended.residual,
        sigma=sigma,
        consensus_gap=norm(gap).astype(nan.dtype),
        movement=nan if sub.previous is None else norm(optax.tree.sub(u, sub.previous)).astype(nan.dtype),
        penalty=penalty,
        new_penalty=penalty,
        stop_code=jnp.where(ok, ended.stop_code, StopReason.FAILED.code).astype(jnp.int8),
    )
