"""The round: subproblems, lanes, duals and penalties, server. It knows the cohort's rows, not where they live."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ..algorithms.base import Algorithm, RenewableSums
from ..core import randomness, trees
from ..core.record import record
from ..core.vocabulary import Clients, Solutions, Solves, StopReason
from ..exchange.conditions import Conditions, Outcome
from ..problems.problem import Problem
from . import lanes, solves
from .devices import gathered, my_jobs


@record
class RoundInfo:
    """What a round leaves behind besides the state."""

    solves: Solves  # [cohort]
    trips: Array  # trips of the lanes loop, of all devices together
    rows: Array  # rows whose gradient those trips computed, line searches apart
    penalty_mean: Array
    finite: Array  # whether the server's parameters are, and any client's
    renewed: Array  # whether the server's sums are formed anew after it

    @classmethod
    def empty(cls, rounds: int, cohort: int, dtype: Any) -> RoundInfo:
        """Room for the infos [rounds, ...] of several rounds."""
        whole, real = jnp.zeros((rounds, cohort), jnp.int32), jnp.zeros((rounds, cohort), dtype)
        kinds = {"epochs": whole, "max_epochs": whole, "gradient_samples": whole, "criterion_samples": whole}
        kinds["stop_code"] = whole.astype(jnp.int8)
        solves = Solves(**{field.name: kinds.get(field.name, real) for field in dataclasses.fields(Solves)})
        true = jnp.ones((rounds,), bool)
        return cls(solves, whole[:, 0], whole[:, 0], real[:, 0], finite=true, renewed=~true)


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
    conditions: Conditions | None = None,
    offences: Array | None = None,
) -> tuple[Any, Any, dict[str, Any], RoundInfo]:
    """One round of the cohort's clients: (params, server, rows, info).

    `rows` has the cohort's rows [cohort, ...] and `last_epochs` [cohort] what each client's last solve took; so has
    `offences`, where `conditions` count them. With several devices it is called on each of them with the same values,
    and does its share of the solves.
    """
    away = None if conditions is None else conditions.away(key, round, cohort.ids, offences)
    job = _jobs(problem, algorithm, params, server, rows, cohort, key, round)
    program = solves.program(problem, params, job, rows_per_trip)
    mine, count = _queue(cohort.sizes, last_epochs, away, devices)
    ended, trips = gathered(lanes.run(program, job, mine, count, width), devices)
    out = _solved(job, ended, params)
    if conditions is not None:
        floats = algorithm.floats_down(problem.num_params) + algorithm.floats_up(problem.num_params)
        out = conditions.outcome(key, round, cohort, away, params, out, ended.rows + ended.search_samples, floats)
    return _settle(algorithm, params, server, rows, cohort, job, ended, trips, out, away)


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
        cohort = clients_of(problem, ids, dtype)
        return _settle(algorithm, params, server, rows, cohort, job, ended, trips, _solved(job, ended, params))

    job = jax.vmap(jobs_of)(algorithms, params, servers, rows, cohorts, keys)
    job = job._replace(run=jnp.broadcast_to(jnp.arange(runs)[:, None], cohorts.shape))
    queue = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), job)
    program = solves.program(problem, params, queue, rows_per_trip)
    mine, count = _queue(queue.size, last_epochs.reshape(-1), None, devices)
    ended, trips = gathered(lanes.run(program, queue, mine, count, width), devices)
    ended = jax.tree.map(lambda leaf: leaf.reshape(*cohorts.shape, *leaf.shape[1:]), ended)
    params, servers, rows, info = jax.vmap(settle)(algorithms, params, servers, rows, cohorts, job, ended)
    return params, servers, rows, dataclasses.replace(info, rows=jnp.full_like(info.rows, jnp.sum(info.rows)))


def _jobs(
    problem: Problem, algorithm: Algorithm, params: Any, server: Any, rows: Any, cohort: Clients, key: Array, round: Any
) -> solves.Job:
    """The cohort's solves [cohort] to be done."""
    subproblem = algorithm.subproblems(params, server, rows, cohort)
    if subproblem.penalty is not None and jnp.ndim(subproblem.penalty) == 0:  # one for all
        penalty = jnp.full(cohort.ids.shape, subproblem.penalty, trees.scalar_dtype(params))
        subproblem = subproblem._replace(penalty=penalty)
    return solves.Job(
        subproblem=subproblem,
        solver=trees.per_client(algorithm.local, cohort.ids),
        criterion=trees.per_client(algorithm.criterion, cohort.ids),
        offset=problem.data.offsets[cohort.ids],
        size=cohort.sizes,
        key=randomness.client_keys(key, round, cohort.ids),
        round=jnp.full(cohort.ids.shape, round),
    )


def _solved(job: solves.Job, ended: solves.Carry, params: Any) -> Outcome:
    """How the solves [cohort] ended by themselves."""
    ok = jax.vmap(trees.all_finite)(ended.params) & (ended.stop_code != StopReason.FAILED.code)
    start = params if job.subproblem.start is None else job.subproblem.start
    u = trees.where(ok, ended.params, jax.tree.map(lambda s, u: jnp.broadcast_to(s, u.shape), start, ended.params))
    return Outcome(u, ok, jnp.where(ok, ended.stop_code, StopReason.FAILED.code))


def _settle(
    algorithm: Algorithm,
    params: Any,
    server: Any,
    rows: dict[str, Any],
    cohort: Clients,
    job: solves.Job,
    ended: solves.Carry,
    trips: Array,
    out: Outcome,
    away: Array | None = None,
) -> tuple[Any, Any, dict[str, Any], RoundInfo]:
    """The round's results from its solves, of which `out` came to the server."""
    ok = out.ok
    record = _solves(job, ended, out, params)
    steps = ended.epoch * algorithm.local.steps_per_epoch(cohort.sizes)
    measured = {"consensus_gap": record.consensus_gap, "movement": record.movement}
    own = ok if out.clipped is None else ok & ~out.clipped
    solutions = Solutions(out.params, steps, **measured, measured=own)
    record = dataclasses.replace(record, **_nan_unless(ok, measured))
    # A client that failed, or of which nothing came, has weight 0 and keeps its rows; if that is all of them, the
    # server keeps its record as well.
    counted = Clients(cohort.ids, cohort.sizes, jnp.where(ok, cohort.weights, 0), cohort.population)
    new_params, new_server, new_rows = algorithm.update(params, server, rows, solutions, counted)
    any_ok = jnp.any(ok)
    new_params, new_server = trees.where(any_ok, (new_params, new_server), (params, server))
    finite = (any_ok if out.any_solved is None else out.any_solved) & trees.all_finite(new_params)
    new_rows = trees.where(ok, new_rows, rows)
    record = dataclasses.replace(record, new_penalty=new_rows.get("penalties", record.penalty))
    if away is not None:
        names = ("reference_residual", "final_residual", "sigma")
        record = dataclasses.replace(record, **_nan_unless(away < 0, {name: record[name] for name in names}))
    worn = algorithm.worn(new_server) if isinstance(algorithm, RenewableSums) else jnp.zeros((), bool)
    info = RoundInfo(record, trips, jnp.sum(ended.rows), algorithm.penalty_mean(new_server), finite, worn)
    return new_params, new_server, new_rows, info


def _queue(sizes: Array, last_epochs: Array, away: Array | None, devices: int) -> tuple[Array, Any]:
    """This device's jobs, longest expected first, since the last solves to end should be short ones: (order, count)."""
    expected = sizes.astype(jnp.float32) * last_epochs.astype(jnp.float32)
    if away is None:
        return my_jobs(jnp.argsort(-expected), devices)
    # Clients that are away come last, on every device, and are not counted.
    mine, count = my_jobs(jnp.argsort(jnp.where(away < 0, -expected, 1.0)), devices)
    return mine, jnp.sum((jnp.arange(mine.shape[0], dtype=jnp.int32) < count) & (away < 0)[mine], dtype=jnp.int32)


def _nan_unless(measured: Array, values: dict[str, Array]) -> dict[str, Array]:
    return {name: jnp.where(measured, x, jnp.nan) for name, x in values.items()}


def _solves(job: solves.Job, ended: solves.Carry, out: Outcome, z: Any) -> Solves:
    """The record [cohort] of the solves that ended."""
    u = out.params
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
        stop_code=out.stop_code.astype(jnp.int8),
    )
