"""One client's local solve as a lane's program: phases of passes over its rows.

A trip is one gradient on one batch. In REFERENCE and MEASURE the parameters stand still and the pass sums the
subproblem's residual e, each batch by its share of the rows; in TRAIN each batch is a step (with a full gradient
the pass sums it, and its end is the step). So exact, averaged and verified residuals and full gradients are the
same loop. What follows a pass is decided at its end, the turn. Which phases there are, and what is summed in them, is
the `Plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from .plan import FINISHED, GRADIENT, MEASURE, REFERENCE, TRAIN, Plan


class Job(NamedTuple):
    """One solve to be done."""

    subproblem: Subproblem
    solver: LocalSolver  # this client's numbers
    criterion: Criterion  # this client's numbers
    offset: Array  # where the client's rows begin
    size: Array  # how many it has
    key: Array  # [2] words for the order of its epochs
    round: Array
    task: Any  # whatever else is to be known when the job is done


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
    gradient: Any | None = None  # the subproblem's at the start, where the algorithm asks for it
    local: LocalRound | None = None  # where a job is several solves


class LocalRound(NamedTuple):
    """Which of a job's solves is under way, where there are several."""

    number: Array  # from 0
    first_epoch: Array  # epochs of the solves before it
    linear: Any  # its linear term
    start: Any  # where it begins


class Solver(NamedTuple):
    """What the functions below need besides the job."""

    plan: Plan
    problem: Problem
    server_params: Callable[[Job], Any]  # z, of the job's run

    def objective(self, job: Job, carry: Carry) -> ClientObjective:
        subproblem = job.subproblem if carry.local is None else job.subproblem._replace(linear=carry.local.linear)
        return ClientObjective(self.problem, self.server_params(job), subproblem, job.offset, job.size)

    def start_params(self, job: Job) -> Any:
        return self.server_params(job) if job.subproblem.start is None else job.subproblem.start

    def program(self) -> Program:
        """A lane's program."""
        start, step, turn = (partial(function, self) for function in (_start, _step, _turn))
        return Program(start, step, _at_turn, turn, _finished, _retire)


def _start(solver: Solver, job: Job) -> Carry:
    plan, params = solver.plan, solver.start_params(job)
    point = params
    if plan.reference_pass:
        point = job.subproblem.previous if plan.reference == "client" else solver.server_params(job)
    zero, local, linear = jnp.int32(0), None, job.subproblem.linear
    if plan.repeats:
        linear = optax.tree.zeros_like(params) if linear is None else optax.tree.cast_like(linear, params)
        local = LocalRound(number=zero, first_epoch=zero, linear=linear, start=params)
    return Carry(
        phase=jnp.int32(plan.first_phase),
        epoch=zero,
        position=zero,
        order=shuffle.epoch_order(job.key, zero),
        params=point,
        optimizer_state=job.solver.init(params),
        residual_sum=optax.tree.zeros_like(params) if plan.sums else None,
        value_sum=jnp.zeros((), plan.dtype) if plan.full else None,
        square_sum=jnp.zeros((), plan.dtype) if plan.with_noise else None,
        reference_residual=plan.nan,
        residual=plan.nan,
        rows=zero,
        search_samples=zero,
        criterion_samples=zero,
        stop_code=zero,
        gradient=optax.tree.zeros_like(params) if plan.wants_gradient else None,
        local=local,
    )


def _step(solver: Solver, job: Job, carry: Carry) -> Carry:
    """One gradient."""
    plan, client = solver.plan, solver.objective(job, carry)
    busy, training = carry.phase != FINISHED, carry.phase == TRAIN
    batch, existing, share = client.piece(carry.position, plan.rows)
    used = jnp.where(busy, existing, 0)
    if not plan.full:  # the order matters only where the parameters move within the pass, or batches must be random
        batch = shuffle.permute(carry.order, batch, job.offset, job.size, plan.with_noise | training)
    value, gradient = jax.value_and_grad(client.on_rows)(carry.params, batch, used)

    new = carry._replace(position=jnp.where(busy, carry.position + plan.rows, carry.position))
    if plan.sums:
        share = jnp.where(busy if plan.sums_in_training else busy & ~training, share, 0)
        new = new._replace(residual_sum=add_scaled(carry.residual_sum, share, gradient))
    if plan.full:  # elsewhere nobody asks for the value, and without it two sums over the parameters are not computed
        assert carry.value_sum is not None
        new = new._replace(value_sum=carry.value_sum + share.astype(plan.dtype) * value.astype(plan.dtype))
    if plan.with_noise:
        assert carry.square_sum is not None
        square = optax.tree.norm(optax.tree.cast(gradient, plan.dtype), squared=True)
        new = new._replace(square_sum=carry.square_sum + share.astype(plan.dtype) * square)
    if not plan.full:
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


def _at_turn(job: Job, carry: Carry) -> Array:
    return (carry.phase != FINISHED) & (carry.position >= job.size)


def _turn(solver: Solver, job: Job, carry: Carry) -> Carry:
    """What follows a pass."""
    plan = solver.plan
    if plan.looks is not None:
        seen, stops, code = _look(plan, job, carry)
    else:
        seen, stops, code = carry, jnp.bool_(False), jnp.int32(0)
    after_pass = _after_full_pass(solver, job, seen, stops, code)
    new = after_pass if after_pass is not None else _after_epoch(plan, job, carry, seen, stops, code)
    if plan.measures:
        new = trees.where(carry.phase == MEASURE, _finish_if(stops, seen, code), new)
    if plan.reference_pass:
        new = trees.where(carry.phase == REFERENCE, _after_reference(solver, job, carry), new)
    if plan.wants_gradient:
        new = trees.where(carry.phase == GRADIENT, carry._replace(phase=jnp.int32(TRAIN)), new)
        at_start = (carry.epoch == 0) & (carry.phase == (TRAIN if plan.full else plan.phase_at_start))
        new = new._replace(gradient=trees.where(at_start, carry.residual_sum, carry.gradient))
    if plan.repeats:
        new = _next_local_round(solver, job, new)
    return new._replace(
        position=jnp.int32(0),
        order=shuffle.epoch_order(job.key, new.epoch),
        residual_sum=optax.tree.zeros_like(carry.residual_sum),
        value_sum=jnp.zeros((), plan.dtype) if plan.full else None,
        square_sum=jnp.zeros((), plan.dtype) if plan.with_noise else None,
    )


def _look(plan: Plan, job: Job, carry: Carry) -> tuple[Carry, Array, Array]:
    """The residual of the pass that just ended, whether it says stop, and for which reason."""
    residual = optax.tree.norm(carry.residual_sum).astype(plan.dtype)
    reference_residual = carry.reference_residual
    if plan.start_is_reference:
        first_look = (_epochs(carry) == 0) & (plan.full | (carry.phase == MEASURE))
        reference_residual = jnp.where(first_look, residual, reference_residual)
    carry = carry._replace(residual=residual, reference_residual=reference_residual)
    noise = _noise(plan, job, carry) if plan.with_noise else None
    met = residual <= job.criterion.tolerance(progress(job, carry, noise))
    at_floor = residual <= job.criterion.floor
    broken = ~jnp.isfinite(residual)
    if plan.reference is not None:
        broken |= ~jnp.isfinite(reference_residual)  # anything is small beside infinity
    code = jnp.where(met, StopReason.CRITERION.code, StopReason.FLOOR.code)
    code = jnp.where(broken, StopReason.FAILED.code, code)
    return carry, met | at_floor | broken, code


def _noise(plan: Plan, job: Job, carry: Carry) -> Array:
    """The residual's standard error (`criteria.sampling_noise` has the statistics); NaN from one batch."""
    assert carry.square_sum is not None
    batches = job.solver.steps_per_epoch(job.size).astype(plan.dtype)
    spread = jnp.maximum(carry.square_sum - carry.residual**2, 0)  # rounding must not make it negative
    return jnp.where(batches > 1, jnp.sqrt(spread / jnp.maximum(batches - 1, 1)), plan.nan)


def _after_reference(solver: Solver, job: Job, carry: Carry) -> Carry:
    plan = solver.plan
    norm = optax.tree.norm(carry.residual_sum).astype(plan.dtype)
    start = solver.start_params(job) if carry.local is None else carry.local.start
    return carry._replace(reference_residual=norm, params=start, phase=jnp.int32(plan.phase_at_start))


def _next_local_round(solver: Solver, job: Job, carry: Carry) -> Carry:
    """After a solve that is not the job's last: its dual step, and the start of the next."""
    plan, subproblem, local = solver.plan, job.subproblem, carry.local
    assert local is not None
    more = (carry.phase == FINISHED) & (local.number + 1 < subproblem.local_rounds)
    z = solver.server_params(job)
    pull = optax.tree.sub(carry.params, z if subproblem.center is None else subproblem.center)
    linear = optax.tree.sub(local.linear, trees.scale(subproblem.dual_step, pull))
    start = z if plan.starts_at_server else carry.params
    begun = carry._replace(
        phase=jnp.int32(plan.first_phase),
        params=z
        if plan.reference_pass and plan.reference == "server"
        else carry.params
        if plan.reference_pass
        else start,
        optimizer_state=job.solver.init(start),
        reference_residual=plan.nan,
        residual=plan.nan,
        local=LocalRound(local.number + 1, carry.epoch, linear, start),
    )
    return trees.where(more & (carry.stop_code != StopReason.FAILED.code), begun, carry)


def _epochs(carry: Carry) -> Array:
    """Of the solve under way."""
    return carry.epoch if carry.local is None else carry.epoch - carry.local.first_epoch


def _after_epoch(plan: Plan, job: Job, carry: Carry, seen: Carry, stops: Array, code: Array) -> Carry:
    """A pass of steps; `seen` is the carry after a look at it."""
    epoch = carry.epoch + 1
    if plan.looks == "epoch_mean":
        new = _finish_if(stops, seen, code)
    elif plan.looks == "verified":
        new = carry._replace(phase=jnp.where(stops, MEASURE, TRAIN), residual=plan.nan)
    else:
        new = carry._replace(phase=jnp.int32(MEASURE if plan.looks else TRAIN), residual=plan.nan)
    return _finish_at_maximum(plan, job, new._replace(epoch=epoch))


def _after_full_pass(solver: Solver, job: Job, seen: Carry, stops: Array, code: Array) -> Carry | None:
    """A pass that summed the full gradient, with which the criterion was looked at: it is the step's, unless it said
    stop. None where passes are of steps."""
    plan = solver.plan
    if not plan.full:
        return None
    assert seen.value_sum is not None
    params, optimizer_state, searched = job.solver.step(
        seen.params, seen.optimizer_state, seen.residual_sum, seen.value_sum,
        solver.objective(job, seen).on_all_rows(plan.rows),
    )  # fmt: skip
    stepped = seen._replace(
        params=params, optimizer_state=optimizer_state, epoch=seen.epoch + 1, residual=plan.nan,
        search_samples=seen.search_samples + searched * job.size,
    )  # fmt: skip
    stopped = _finish_if(jnp.bool_(True), seen, code)
    stopped = stopped._replace(criterion_samples=seen.criterion_samples + job.size)
    return trees.where(stops, stopped, _finish_at_maximum(plan, job, stepped))


def _finish_if(stops: Array, carry: Carry, code: Array) -> Carry:
    """The end, or else training."""
    return carry._replace(phase=jnp.where(stops, FINISHED, TRAIN), stop_code=jnp.where(stops, code, 0))


def _finish_at_maximum(plan: Plan, job: Job, carry: Carry) -> Carry:
    # Nothing is looked at once the maximum is reached, an estimate that is at hand neither.
    reached = _epochs(carry) >= job.solver.max_epochs
    return carry._replace(
        phase=jnp.where(reached, FINISHED, carry.phase),
        residual=jnp.where(reached, plan.nan, carry.residual),
        stop_code=jnp.where(reached, StopReason.MAXIMUM.code, carry.stop_code),
    )


def _finished(carry: Carry) -> Array:
    return carry.phase == FINISHED


def _retire(carry: Carry) -> Carry:
    return carry._replace(phase=jnp.int32(FINISHED))


def progress(job: Job, carry: Carry, noise: Array | None = None) -> LocalProgress:
    """What the criterion is shown."""
    penalty = job.subproblem.penalty
    return LocalProgress(
        round=job.round,
        epoch=_epochs(carry),
        residual=carry.residual,
        residual_noise=jnp.full_like(carry.residual, jnp.nan) if noise is None else noise,
        reference_residual=carry.reference_residual,
        penalty=jnp.zeros_like(carry.residual) if penalty is None else penalty,
    )
