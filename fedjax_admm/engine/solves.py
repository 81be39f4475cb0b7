"""One client's local solve as a lane's program: phases of passes over its rows.

A trip is one gradient on one batch. In REFERENCE and MEASURE the parameters stand still and the pass sums the
subproblem's residual e, each batch by its share of the rows; in TRAIN each batch is a step (with a full gradient
the pass sums it, and its end is the step). So exact, averaged and verified residuals and full gradients are the
same loop. What follows a pass is decided at its end, the turn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ..algorithms.criteria import Criterion
from ..algorithms.local_solver import LocalSolver
from ..core import trees
from ..core.trees import add_scaled
from ..core.vocabulary import LocalProgress, StopReason, Subproblem
from ..problems.problem import Problem
from . import shuffle
from .lanes import Program
from .objective import ClientObjective

REFERENCE, MEASURE, TRAIN, FINISHED = range(4)


class Job(NamedTuple):
    """One solve to be done; leaves [cohort, ...] in the queue, one of them in a lane."""

    subproblem: Subproblem
    solver: LocalSolver  # this client's numbers
    criterion: Criterion  # this client's numbers
    offset: Array  # where the client's rows begin
    size: Array  # how many it has
    key: Array  # [2] words for the order of its epochs
    round: Array
    run: Array | None = None  # in a sweep: whose server this is


class Carry(NamedTuple):
    """A solve under way."""

    phase: Array
    epoch: Array  # epochs done
    position: Array  # rows of this pass that are behind us
    order: Array  # words for the order of this epoch's rows
    params: Any
    optimizer_state: Any
    residual_sum: Any  # of this pass: sum over batches of share * e_batch, where anybody asks for it
    value_sum: Array | None  # likewise the objective, where the step is with the full gradient
    square_sum: Array | None  # likewise ||e_batch||^2, where the criterion wants the residual's noise
    reference_residual: Array
    residual: Array  # at the last look; NaN if there was none since the parameters last moved
    rows: Array  # whose gradient was computed
    search_samples: Array  # gradients that a line search asked for besides
    criterion_samples: Array  # those of `rows` that only the criterion asked for
    stop_code: Array


def program(problem: Problem, params: Any, job_example: Job, rows: int) -> Program:
    """The solve of every job of a round; `rows` is the size of a trip's batch.

    params: the server's, [runs, ...] if the jobs say which run is theirs.

    Which phases there are depends on static facts alone: the criterion's residual, reference and need of noise,
    and whether the solver uses the full gradient. `job_example` has them.
    """
    dtype = trees.scalar_dtype(params)
    full = job_example.solver.full_gradient
    looks = job_example.criterion.residual  # None, "exact", "epoch_mean", "verified"
    reference = job_example.criterion.reference
    exact_looks = looks is not None and (full or looks == "exact")
    estimates = looks is not None and not exact_looks
    # The first look is at the start, so it is the server's reference too, unless the solve starts elsewhere.
    start_is_reference = reference == "server" and job_example.subproblem.start is None
    sums = looks is not None or full
    sums_in_training = full or estimates
    # The pieces of a full gradient are no random batches: there is no noise to be had from them.
    with_noise = looks is not None and not full and getattr(job_example.criterion, "needs_noise", False)
    nan = jnp.full((), jnp.nan, dtype)

    def server_params(job: Job) -> Any:
        return params if job.run is None else trees.take(params, job.run)

    def objective(job: Job) -> ClientObjective:
        return ClientObjective(problem, server_params(job), job.subproblem, job.offset, job.size)

    def start_params(job: Job) -> Any:
        return server_params(job) if job.subproblem.start is None else job.subproblem.start

    def start(job: Job) -> Carry:
        params = start_params(job)
        phase = TRAIN
        if looks is not None and not full and (exact_looks or start_is_reference):
            phase = MEASURE
        point = params
        if reference is not None and not start_is_reference:
            phase, point = REFERENCE, job.subproblem.previous if reference == "client" else server_params(job)
        zero = jnp.int32(0)
        return Carry(
            phase=jnp.int32(phase),
            epoch=zero,
            position=zero,
            order=shuffle.epoch_order(job.key, zero),
            params=point,
            optimizer_state=job.solver.init(params),
            residual_sum=optax.tree.zeros_like(params) if sums else None,
            value_sum=jnp.zeros((), dtype) if full else None,
            square_sum=jnp.zeros((), dtype) if with_noise else None,
            reference_residual=nan,
            residual=nan,
            rows=zero,
            search_samples=zero,
            criterion_samples=zero,
            stop_code=zero,
        )

    def step(job: Job, carry: Carry) -> Carry:
        client = objective(job)
        busy, training = carry.phase != FINISHED, carry.phase == TRAIN
        batch, existing, share = client.piece(carry.position, rows)
        used = jnp.where(busy, existing, 0)
        if not full:  # the order matters only where the parameters move within the pass, or batches must be random
            batch = shuffle.permute(carry.order, batch, job.offset, job.size, with_noise | training)
        value, gradient = jax.value_and_grad(client.on_rows)(carry.params, batch, used)

        summing = busy if sums_in_training else busy & ~training
        new = carry._replace(position=jnp.where(busy, carry.position + rows, carry.position))
        if sums:
            share = jnp.where(summing, share, 0)
            new = new._replace(residual_sum=add_scaled(carry.residual_sum, share, gradient))
        if full:  # elsewhere nobody asks for the value, and without it two sums over the parameters are not computed
            assert carry.value_sum is not None
            new = new._replace(value_sum=carry.value_sum + share.astype(dtype) * value.astype(dtype))
        if with_noise:
            assert carry.square_sum is not None
            square = optax.tree.norm(optax.tree.cast(gradient, dtype), squared=True)
            new = new._replace(square_sum=carry.square_sum + share.astype(dtype) * square)
        if not full:
            params, optimizer_state, searched = job.solver.step(
                carry.params, carry.optimizer_state, gradient, value,
                lambda params: client.on_rows(params, batch, used),
            )  # fmt: skip
            moves = busy & training
            new = new._replace(
                search_samples=carry.search_samples + jnp.where(moves, searched, 0) * used,
                params=trees.where(moves, params, carry.params),
                optimizer_state=trees.where(moves, optimizer_state, carry.optimizer_state),
            )
        return new._replace(
            rows=carry.rows + used,
            criterion_samples=carry.criterion_samples + jnp.where(training, 0, used),
        )

    def at_turn(job: Job, carry: Carry) -> Array:
        return (carry.phase != FINISHED) & (carry.position >= job.size)

    def look(job: Job, carry: Carry) -> tuple[Carry, Array, Array]:
        """The residual of the pass that just ended, whether it says stop, and for which reason."""
        residual = optax.tree.norm(carry.residual_sum).astype(dtype)
        reference_residual = carry.reference_residual
        if start_is_reference:
            first_look = (carry.epoch == 0) & (full | (carry.phase == MEASURE))
            reference_residual = jnp.where(first_look, residual, reference_residual)
        carry = carry._replace(residual=residual, reference_residual=reference_residual)
        met = residual <= job.criterion.tolerance(progress(job, carry, noise(job, carry) if with_noise else None))
        at_floor = residual <= job.criterion.floor
        broken = ~jnp.isfinite(residual)
        if reference is not None:
            broken |= ~jnp.isfinite(reference_residual)  # anything is small beside infinity
        code = jnp.where(met, StopReason.CRITERION.code, StopReason.FLOOR.code)
        code = jnp.where(broken, StopReason.FAILED.code, code)
        return carry, met | at_floor | broken, code

    def noise(job: Job, carry: Carry) -> Array:
        """The residual's standard error (`criteria.sampling_noise` has the statistics); NaN from one batch."""
        assert carry.square_sum is not None
        batches = job.solver.steps_per_epoch(job.size).astype(dtype)
        spread = jnp.maximum(carry.square_sum - carry.residual**2, 0)  # rounding must not make it negative
        return jnp.where(batches > 1, jnp.sqrt(spread / jnp.maximum(batches - 1, 1)), nan)

    def turn(job: Job, carry: Carry) -> Carry:
        if looks is not None:
            seen, stops, code = look(job, carry)
        else:
            seen, stops, code = carry, jnp.bool_(False), jnp.int32(0)
        options = {TRAIN: after_training(job, carry, seen, stops, code)}
        if looks is not None and not full:
            options[MEASURE] = finish_if(stops, seen, code, otherwise=TRAIN)
        if reference is not None and not start_is_reference:
            options[REFERENCE] = after_reference(job, carry)
        new = options.pop(TRAIN)
        for phase, option in options.items():
            new = trees.where(carry.phase == phase, option, new)
        return new._replace(
            position=jnp.int32(0),
            order=shuffle.epoch_order(job.key, new.epoch),
            residual_sum=optax.tree.zeros_like(carry.residual_sum),
            value_sum=jnp.zeros((), dtype) if full else None,
            square_sum=jnp.zeros((), dtype) if with_noise else None,
        )

    def after_reference(job: Job, carry: Carry) -> Carry:
        norm = optax.tree.norm(carry.residual_sum).astype(dtype)
        phase = MEASURE if exact_looks and not full else TRAIN
        return carry._replace(reference_residual=norm, params=start_params(job), phase=jnp.int32(phase))

    def after_training(job: Job, carry: Carry, seen: Carry, stops: Array, code: Array) -> Carry:
        return after_full_pass(job, seen, stops, code) if full else after_epoch(job, carry, seen, stops, code)

    def after_epoch(job: Job, carry: Carry, seen: Carry, stops: Array, code: Array) -> Carry:
        epoch = carry.epoch + 1
        if looks == "epoch_mean":
            new = finish_if(stops, seen, code, otherwise=TRAIN)
        elif looks == "verified":
            new = carry._replace(phase=jnp.where(stops, MEASURE, TRAIN), residual=nan)
        else:
            new = carry._replace(phase=jnp.int32(MEASURE if looks else TRAIN), residual=nan)
        return finish_at_maximum(job, new._replace(epoch=epoch))

    def after_full_pass(job: Job, seen: Carry, stops: Array, code: Array) -> Carry:
        # The gradient that the criterion looked at is the step's, unless it said stop.
        value_fn = objective(job).on_all_rows(rows)
        assert seen.value_sum is not None
        params, optimizer_state, searched = job.solver.step(
            seen.params, seen.optimizer_state, seen.residual_sum, seen.value_sum, value_fn
        )
        stepped = seen._replace(
            params=params, optimizer_state=optimizer_state, epoch=seen.epoch + 1, residual=nan,
            search_samples=seen.search_samples + searched * job.size,
        )  # fmt: skip
        stopped = finish_if(jnp.bool_(True), seen, code, otherwise=TRAIN)
        stopped = stopped._replace(criterion_samples=seen.criterion_samples + job.size)
        return trees.where(stops, stopped, finish_at_maximum(job, stepped))

    def finish_if(stops: Array, carry: Carry, code: Array, otherwise: int) -> Carry:
        return carry._replace(phase=jnp.where(stops, FINISHED, otherwise), stop_code=jnp.where(stops, code, 0))

    def finish_at_maximum(job: Job, carry: Carry) -> Carry:
        # Nothing is looked at once the maximum is reached, an estimate that is at hand neither.
        reached = carry.epoch >= job.solver.max_epochs
        return carry._replace(
            phase=jnp.where(reached, FINISHED, carry.phase),
            residual=jnp.where(reached, nan, carry.residual),
            stop_code=jnp.where(reached, StopReason.MAXIMUM.code, carry.stop_code),
        )

    def finished(carry: Carry) -> Array:
        return carry.phase == FINISHED

    def result(carry: Carry) -> Carry:
        return carry._replace(optimizer_state=None, residual_sum=None, value_sum=None, square_sum=None, order=None)

    def retire(carry: Carry) -> Carry:
        return carry._replace(phase=jnp.int32(FINISHED))

    return Program(start, step, at_turn, turn, finished, result, retire)


def progress(job: Job, carry: Carry, noise: Array | None = None) -> LocalProgress:
    """What the criterion is shown."""
    penalty = job.subproblem.penalty
    return LocalProgress(
        round=job.round,
        epoch=carry.epoch,
        residual=carry.residual,
        residual_noise=jnp.full_like(carry.residual, jnp.nan) if noise is None else noise,
        reference_residual=carry.reference_residual,
        penalty=jnp.zeros_like(carry.residual) if penalty is None else penalty,
    )
