"""Several runs as one program: seeds, penalties or other numbers of one algorithm along a leading axis.

Small runs leave a device half idle: a short queue of clients, and a call of the device for a few milliseconds of work.
Together their clients are one queue, and they share the data, the compiled program and the calls.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh, PartitionSpec

from ..algorithms.base import Algorithm
from ..core import checks, trees
from ..core.vocabulary import State
from ..engine import placement, renewal
from ..engine.devices import everywhere, on_one_device, replicated
from ..engine.execution import Execution
from ..engine.population.device import work_off_dealt
from ..engine.population.rows import row_bytes
from ..engine.rounds import (
    Layout,
    Ledger,
    Queue,
    RoundInfo,
    ServerState,
    Setup,
    Store,
    Tally,
    aggregate,
    broadcast,
    count_clients,
    empty_ledger,
    gather_ledger,
    info_of,
    order_of_work,
    put_at_clients,
    remembered_epochs,
    work_off,
)  # fmt: skip
from ..problems.evaluation import evaluate_many
from ..problems.problem import Problem
from ..results.history import DivergenceError, Result
from .collected_solves import CollectedSolves
from .history_builder import HistoryBuilder
from .interrupts import Interrupted, Interrupts
from .progress import Progress
from .simulate import MOST_ROUNDS_A_DISPATCH
from .simulation import Simulation


def simulate_many(
    problem: Problem,
    runs: Sequence[tuple[Algorithm, int]],
    rounds: int,
    *,
    participation: Any = 1.0,
    initial_params: Any = None,
    evaluate_every: int = 1,
    execution: Execution | None = None,
    progress: bool = True,
) -> list[Result | DivergenceError]:
    """`simulate` for every (algorithm, seed) of `runs`, all at once; results in the order of `runs`.

    The algorithms may differ in their numbers (penalty, c, learning rate, maximum of epochs ...) and in nothing else.
    All clients' states of all runs are on the device, and nothing is written to disk: it is for many small runs. A run
    that diverges has its `DivergenceError` in its place, and the others go on. The histories' `seconds` are those of
    all runs together, and so are the efficiencies. Ctrl-C ends them after a round, with the list so far as the `result`
    of `Interrupted`.

    Args:
        problem: The problem of all runs.
        runs: Pairs (algorithm, seed).

    The other arguments are `simulate`'s.

    >>> import fedjax_admm as fa
    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> runs = [(example.algorithm("fedadmm", penalty=penalty), seed) for penalty in (0.1, 1.0) for seed in (0, 1)]
    >>> results = simulate_many(example.problem, runs, progress=False, **example.run_settings)
    >>> [len(result.history["loss"]) for result in results]
    [4, 4, 4, 4]
    """
    rounds = checks.integer("rounds", rounds, at_least=1)
    every = checks.integer("evaluate_every", evaluate_every, at_least=1)
    shared = dict(participation=participation, initial_params=initial_params, execution=execution)
    if execution is not None and execution.data == "host":
        raise ValueError("data must be 'auto' or 'device' for runs at once, got 'host': use compare for such data")
    if isinstance(problem, Problem):
        problem = problem.on_device()  # once for all runs
    sims = [Simulation(problem, algorithm, seed=seed, **shared) for algorithm, seed in _checked(runs)]
    sims[0].check_rounds(rounds)
    sweep = _Sweep(sims)
    selected = [[sim.cohorts.select(k) for k in range(rounds)] for sim in sims]
    cohorts = np.stack([np.stack([each.ids for each in one]) for one in selected])  # [runs, rounds, cohort]
    states, logs = sweep.init(), [_Log(sim) for sim in sims]
    _evaluate(sims[0].problem, states, logs)
    collected, done = CollectedSolves(axis=1), 0

    def results() -> list[Result | DivergenceError]:
        solves = collected.solves()  # [runs, rounds, cohort]
        return [log.error or _result(r, log, states, cohorts[:, :done], solves) for r, log in enumerate(logs)]

    with Progress(rounds, progress) as shown, Interrupts(kept=False) as interrupts:
        while done < rounds:
            count = min(every - done % every, MOST_ROUNDS_A_DISPATCH, rounds - done)
            began = time.perf_counter()
            block = cohorts[:, done : done + count]
            states, infos = sweep.run(states, block, min(every, MOST_ROUNDS_A_DISPATCH), interrupts.wait)
            for r, log in enumerate(logs):
                mine = jax.tree.map(lambda leaf, r=r: leaf[r], infos)
                log.add_rounds(selected[r][done : done + count], mine, count, time.perf_counter() - began)
            collected.add(infos.solves)
            done += count
            if done % every == 0 or done == rounds:
                _evaluate(sims[0].problem, states, logs)
            shown.update(count, f"{len(logs)} runs, first {logs[0].log.summary()}")
            if interrupts.requested:
                raise Interrupted(done, None, results())
    return results()


class _Log:
    """A run's history, and the error that ended it."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.log, self.error = sim, HistoryBuilder(sim), None

    def add_rounds(self, *values: Any) -> None:
        self._unless_ended(self.log.add_rounds, *values)

    def add_evaluation(self, *values: Any) -> None:
        self._unless_ended(self.log.add_evaluation, *values)

    def _unless_ended(self, add: Any, *values: Any) -> None:
        if self.error is None:
            try:
                add(*values)
            except DivergenceError as error:
                self.error = error


def _evaluate(problem: Problem, states: State, logs: Sequence[_Log]) -> None:
    began = time.perf_counter()
    states = on_one_device(states)
    values = evaluate_many(problem, states.params)
    for r, log in enumerate(logs):
        log.add_evaluation(values[r], partial(trees.take, states.penalty_mean, r), time.perf_counter() - began)


def _result(r: int, log: _Log, states: State, cohorts: np.ndarray, solves: Any) -> Result:
    state = trees.take(on_one_device(states), r)
    return Result(
        history=log.log.history(),
        cohorts=cohorts[r],
        solves=jax.tree.map(lambda leaf: leaf[r], solves),
        num_clients=log.sim.problem.data.num_clients,
        params=jax.tree.map(jnp.copy, state.params),
        state=state,
    )


def _checked(runs: Any) -> list[tuple[Algorithm, int]]:
    """Pairs of an algorithm and a seed whose algorithms differ in numbers alone."""
    pairs = list(runs)
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"runs must be pairs (algorithm, seed), at least one, got {runs!r}")
    first = _structure(pairs[0][0])
    for k, (algorithm, _) in enumerate(pairs):
        if _structure(algorithm) != first:
            raise ValueError(
                f"runs[{k}] differs from runs[0] in more than numbers ({algorithm!r} and {pairs[0][0]!r}): "
                "simulate those apart, or use compare"
            )
    return pairs


def _structure(algorithm: Any) -> Any:
    leaves, tree = jax.tree.flatten(algorithm)
    return tree, [jnp.shape(leaf) for leaf in leaves]


class _Sweep:
    """Simulations whose rounds are run together."""

    def __init__(self, sims: Sequence[Simulation]) -> None:
        first = sims[0]
        if first.execution.population != "device":
            raise ValueError(f"population must be 'device' for runs at once, got {first.execution.population!r}")
        if first.execution.placement == "home":
            raise ValueError(
                "placement must be 'auto' or 'dealt' for runs at once, got 'home': their jobs are one queue"
            )
        jobs = len(sims) * first.cohorts.size
        self._mesh = first.execution.devices(jobs)
        devices = 1 if self._mesh is None else self._mesh.size
        width = first.execution.width(jobs, devices, first.problem, first.rows_per_trip, first.lane_bytes)
        share = placement.share_of_block(jobs, devices, width, row_bytes(first.shapes().clients))
        self._layout = Layout(width, first.rows_per_trip, devices, share, sum(first.floats))
        for sim in sims:
            sim.width, sim.mesh = width, self._mesh  # what the history's efficiencies refer to
        stacked = _stack([(sim.setup.algorithm, sim.setup.exchange) for sim in sims])
        problem, (algorithms, exchanges) = replicated((first.problem, stacked), self._mesh)
        self._setup = Setup(problem, algorithms, exchanges, _stack([sim.setup.key for sim in sims]))
        self._sims = sims

    def init(self) -> State:
        """The states [runs, ...] before the first round."""
        return everywhere(_stack([sim.init_on_one_device() for sim in self._sims]), self._mesh)

    def run(self, states: State, cohorts: np.ndarray, most: int, wait: Callable[[Any], Any]) -> tuple[State, RoundInfo]:
        """The rounds with `cohorts` [runs, rounds, cohort], at most `most`: states and infos [runs, rounds, ...]."""
        count = cohorts.shape[1]
        padded = np.concatenate([cohorts, np.repeat(cohorts[:, -1:], most - count, axis=1)], axis=1)
        states, infos = _rounds(
            self._setup, states, jnp.asarray(padded), jnp.int32(count), layout=self._layout, mesh=self._mesh
        )
        return states, jax.tree.map(lambda leaf: leaf[:, :count], wait(infos))


def _stack(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


@partial(jax.jit, static_argnames=("layout", "mesh"), donate_argnames=("states",))
def _rounds(
    setup: Setup, states: State, cohorts: Array, count: Array, *, layout: Layout, mesh: Mesh | None
) -> tuple[State, RoundInfo]:
    """The first `count` rounds with `cohorts` [runs, rounds, cohort]: the states and infos [runs, rounds, ...]."""

    def rounds(setup: Setup, states: State, cohorts: Array, count: Array) -> Any:
        runs, most, size = cohorts.shape
        room = trees.repeat(RoundInfo.empty(most, size, trees.scalar_dtype(states.params)), runs)

        def body(loop: tuple) -> tuple:
            done, states, infos = loop
            states, info = _one_round(setup, states, cohorts[:, done], layout)
            infos = jax.tree.map(lambda room, new: room.at[:, done].set(new.astype(room.dtype)), infos, info)
            return done + 1, states, infos

        return lax.while_loop(lambda loop: loop[0] < count, body, (jnp.int32(0), states, room))[1:]

    if mesh is None:
        return rounds(setup, states, cohorts, count)
    same = PartitionSpec()
    shared = jax.shard_map(rounds, mesh=mesh, in_specs=(same,) * 4, out_specs=same, check_vma=False)
    return shared(setup, states, cohorts, count)


def _one_round(setup: Setup, states: State, cohorts: Array, layout: Layout) -> tuple[State, RoundInfo]:
    """A round of every run with `cohorts` [runs, cohort].

    All jobs are in one queue: lanes that a short run leaves go on with another's.
    """
    runs, size = cohorts.shape
    number, clients = states.round[0], setup.problem.data.num_clients
    each = (setup.algorithm, setup.exchange, setup.key)

    def of_run(algorithm: Any, exchange: Any, key: Any) -> Setup:
        return Setup(setup.problem, algorithm, exchange, key)

    sent = jax.vmap(lambda each, z, server: broadcast(of_run(*each), z, server, number))(
        each, states.params, states.server
    )
    last_epochs = jax.vmap(trees.take)(states.last_epochs, cohorts)
    ids, run = cohorts.reshape(-1), jnp.repeat(jnp.arange(runs, dtype=jnp.int32), size)
    order = order_of_work(setup.problem, ids, last_epochs.reshape(-1))
    queue = Queue(ids, run * clients + ids, order, count_clients(ids), run)
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states.clients)
    store = Store(rows, _empty_ledger(of_run(*trees.take(each, 0)), trees.take(states.params, 0), runs, size))
    work = partial(work_off, setup, layout, states.params, sent, number)
    if layout.devices == 1:
        ordered = Queue(ids[order], queue.addresses[order], order, queue.length, run[order])
        rows, ledger = work(ordered, store)
    else:
        rows, ledger = work_off_dealt(work, layout, queue, store, split=False)
    rows = jax.tree.map(lambda leaf, old: leaf.reshape(old.shape), rows, states.clients)
    ledger, longest = gather_ledger(ledger, layout.devices)
    shared = {name: jnp.broadcast_to(getattr(ledger.tally, name), (runs,)) for name in ("rows", "trips")}
    tallies = dataclasses.replace(ledger.tally, **shared)
    solves = jax.tree.map(lambda leaf: leaf.reshape(cohorts.shape), ledger.solves)

    def settle(each: Any, before: ServerState, tally: Tally, solves: Any, ids: Array) -> Any:
        after, finite, worn = aggregate(of_run(*each), before, tally, number)
        return after, info_of(Ledger(solves, tally), ids, longest, after, finite, worn)

    before = ServerState(states.params, states.server, states.penalty_mean)
    after, info = jax.vmap(settle)(each, before, tallies, solves, cohorts)
    after = renewal.renew_many(setup, after, rows, info.renewed)
    epochs = jax.vmap(put_at_clients)(states.last_epochs, cohorts, remembered_epochs(last_epochs, info.solves))
    return State(states.round + 1, after.params, after.server, rows, epochs, after.penalty_mean), info


def _empty_ledger(setup: Setup, params: Any, runs: int, cohort: int) -> Ledger:
    """The ledger of all runs: their solves in one row, sums [runs, ...], rows and trips of all together."""
    solves, tally = empty_ledger(setup, params, runs * cohort)
    sums = trees.repeat(tally, runs)
    return Ledger(solves, dataclasses.replace(sums, rows=tally.rows, trips=tally.trips))
