"""`Simulation`, a round at a time, and `simulate`, the loop over it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import checks, population, shuffle, trees
from .algorithms.base import Algorithm
from .cohorts import Cohorts, check_cohort
from .evaluation import evaluate
from .history import DivergenceError, History, Result
from .problem import Problem, check_params
from .progress import Progress
from .records import Solves, State, StopReason
from .rounds import RoundInfo

MOST_ROUNDS_A_DISPATCH = 64  # so that progress shows and an interrupt is heard


@dataclass(frozen=True)
class Execution:
    """How a run is executed; results do not depend on it beyond rounding.

    lanes: how many clients advance at the same time, from 1 to the cohort's size; "auto" chooses.
    population: where the clients' rows live; "device" here.
    mesh: devices to share the cohort; None is one device.

    >>> Execution(lanes=4).lanes
    4
    """

    lanes: int | str = "auto"
    population: str = "device"
    mesh: Any = None

    def __post_init__(self) -> None:
        if self.lanes != "auto":
            if isinstance(self.lanes, str):
                raise ValueError(f"lanes must be a whole number or 'auto', got {self.lanes!r}")
            checks.integer("lanes", self.lanes, at_least=1)
        checks.choice("population", self.population, ("device",))
        if self.mesh is not None:
            raise ValueError(f"mesh must be None: sharding over several devices is not available, got {self.mesh!r}")

    def width(self, cohort: int) -> int:
        """The number of lanes for a cohort of this size."""
        if self.lanes != "auto":
            return min(int(self.lanes), cohort)
        # One client's matrix products fill a CPU, and a single lane never waits for another: on two cores it was
        # the fastest or within noise of it for Example 1 and for logistic regression. An accelerator wants all
        # clients at once (reasoned, not measured).
        return 1 if jax.default_backend() == "cpu" else cohort


class Simulation:
    """A problem and an algorithm, a round at a time.

    >>> import fedjax_admm as fa, numpy as np
    >>> data = fa.FederatedData.from_arrays({"x": np.eye(4), "y": np.ones(4)}, [[0, 1], [2, 3]])
    >>> def loss(w, batch):
    ...     return 0.5 * (batch["x"] @ w - batch["y"]) ** 2
    >>> problem = fa.Problem(init=lambda key: jnp.zeros(4), loss=loss, data=data)
    >>> sim = Simulation(problem, fa.fedadmm(fa.LocalSolver(learning_rate=0.1, max_epochs=3)), participation=1)
    >>> state = sim.init()
    >>> state, info = sim.round(state)
    >>> info.epochs.tolist()
    [3]
    """

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        *,
        participation: Any = 1.0,
        seed: int = 0,
        initial_params: Any = None,
        execution: Execution | None = None,
    ) -> None:
        self.problem, self.algorithm = problem, algorithm
        self.seed = checks.integer("seed", seed, at_least=0)
        self.cohorts = Cohorts(participation, problem.data.num_clients, self.seed)
        self.execution = execution or Execution()
        _check_client_axes(algorithm, problem.data.num_clients)
        self._initial_params = _checked_params(problem, initial_params)
        self.rows_per_trip = algorithm.local.rows_per_trip(np.asarray(problem.data.sizes))
        self._init_key, self._order_key = jax.random.split(shuffle.root_key(self.seed))
        # The algorithm with its numbers on the device, in the parameters' dtype.
        dtype = trees.scalar_dtype(problem.params_shape if initial_params is None else self._initial_params)
        self._algorithm = jax.device_put(trees.cast_floats(algorithm, dtype))

    def init(self) -> State:
        """The state before the first round."""
        params = self._initial_params
        if params is None:
            params = self.problem.init(self._init_key)
            if not bool(trees.all_finite(params)):
                raise ValueError("init returned parameters that are not finite: remove NaN and inf")
        # A copy, since the round gives the state's buffers away; with its dtype named, since a weakly typed
        # start (jnp.full) would make the second round another program.
        params = jax.tree.map(lambda leaf: jnp.array(leaf, jnp.result_type(leaf)), params)
        return population.init_state(self.problem, self._algorithm, params)

    def round(self, state: State, cohort: Any = None) -> tuple[State, Solves]:
        """One round: the next state and this round's solves [cohort].

        cohort: the clients that take part, [cohort]; by default those that the seed and the round's number
        give. The state that went in is given away to the one that comes out, and cannot be used again. Nothing is
        raised if something is not finite: look at `info.stop_reason` and at the parameters.
        """
        number = int(state.round)
        known = self.problem.data.num_clients
        cohort = self.cohorts[number] if cohort is None else check_cohort(cohort, known)
        state, infos, _ = self.run_rounds(state, cohort[None], 1)
        return state, jax.tree.map(lambda leaf: leaf[0], infos.solves)

    def run_rounds(self, state: State, cohorts: np.ndarray, count: int) -> tuple[State, RoundInfo, Any]:
        """The first `count` rounds with `cohorts` [rounds, cohort] in one dispatch. See `population.device_rounds`."""
        return population.device_rounds(
            self.problem,
            self._algorithm,
            state,
            self._order_key,
            jnp.asarray(cohorts),
            jnp.int32(count),
            width=self.execution.width(cohorts.shape[1]),
            rows_per_trip=self.rows_per_trip,
        )

    def evaluate(self, state: State) -> dict[str, float]:
        """The global loss and the metrics at the state's parameters."""
        return evaluate(self.problem, state.params)


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    *,
    participation: Any = 1.0,
    seed: int = 0,
    initial_params: Any = None,
    evaluate_every: int = 1,
    run_dir: None = None,
    execution: Execution | None = None,
    progress: bool = True,
) -> Result:
    """Runs `rounds` rounds and returns the final parameters, every client's state and the history.

    participation: a fraction of the clients or a whole number of them, drawn uniformly in each round, or an
        integer array [rounds, cohort].
    seed: fixes the initial parameters, the cohorts and the order of every epoch's rows. Two algorithms with the
        same seed start alike and select the same clients.
    initial_params: z^0 instead of `problem.init`'s.
    evaluate_every: the loss and the metrics are computed at round 0, at every so many rounds and at the last.
        Rounds between are dispatched together.
    progress: show a bar in a terminal or notebook, and a line every few seconds elsewhere, on stderr.

    Raises `DivergenceError`, with the history so far, if the server's parameters or the loss stop being finite.

    >>> import fedjax_admm as fa, numpy as np
    >>> data = fa.FederatedData.from_arrays({"x": np.eye(4), "y": np.ones(4)}, [[0, 1], [2, 3]])
    >>> def loss(w, batch):
    ...     return 0.5 * (batch["x"] @ w - batch["y"]) ** 2
    >>> problem = fa.Problem(init=lambda key: jnp.zeros(4), loss=loss, data=data)
    >>> local = fa.LocalSolver(learning_rate=0.5, max_epochs=5)
    >>> result = simulate(problem, fa.fedadmm_in(local, penalty=0.1), rounds=20)
    >>> bool(result.history["loss"][-1] < 0.01 * result.history["loss"][0])
    True
    """
    rounds = checks.integer("rounds", rounds, at_least=1)
    evaluate_every = checks.integer("evaluate_every", evaluate_every, at_least=1)
    if run_dir is not None:
        raise ValueError(f"run_dir must be None: runs are not written to disk yet, got {run_dir!r}")
    sim = Simulation(
        problem, algorithm, participation=participation, seed=seed, initial_params=initial_params, execution=execution
    )
    sim.cohorts.check_rounds(rounds)
    cohorts = np.stack([sim.cohorts[k] for k in range(rounds)])
    most = min(evaluate_every, MOST_ROUNDS_A_DISPATCH)
    log = _Log(sim)
    state = sim.init()
    log.evaluate(state)
    solves: list[Solves] = []
    with Progress(rounds, progress) as shown:
        done = 0
        while done < rounds:
            count = min(most, rounds - done, evaluate_every - done % evaluate_every)
            block = cohorts[done : done + count]
            # Always of one shape, so that a shorter last block compiles nothing.
            padded = np.concatenate([block, np.repeat(block[-1:], most - count, axis=0)])
            began = time.perf_counter()
            state, infos, ran = sim.run_rounds(state, padded, count)
            infos, ran = jax.device_get((infos, ran))
            log.add_rounds(infos, int(ran), time.perf_counter() - began)
            solves.append(jax.tree.map(lambda leaf, n=count: leaf[:n], infos.solves))
            done += count
            if done % evaluate_every == 0 or done == rounds:
                log.evaluate(state)
            shown.update(count, log.summary())
    every = jax.tree.map(lambda *blocks: np.concatenate(blocks), *solves)
    params = jax.tree.map(jnp.copy, state.params)  # the result's own: its state may be given to another round
    return Result(
        history=log.history(),
        cohorts=cohorts,
        solves=every,
        num_clients=problem.data.num_clients,
        params=params,
        state=state,
    )


class _Log:
    """The history as it grows."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        n = sim.problem.num_params
        self._floats_up = sim.algorithm.floats_up(n)
        # The model goes down to every selected client, and whatever else the algorithm says.
        self._floats_down = getattr(sim.algorithm, "floats_down", lambda n: n)(n)
        self._rows: list[dict[str, float]] = []
        self._last: dict[str, float] = {}
        self._unmeasured: dict[str, float] = {}

    def evaluate(self, state: State) -> None:
        """Adds loss and metrics to the last row."""
        began = time.perf_counter()
        self._last = self._sim.evaluate(state)
        if not self._rows:
            self._unmeasured = dict.fromkeys(self._last, np.nan)
            penalty_mean = float(self._sim.algorithm.penalty_mean(state.server))
            self._rows.append(self._row(0, penalty_mean=penalty_mean))
        self._rows[-1].update(self._last, eval_seconds=time.perf_counter() - began)
        if not np.isfinite(self._last["loss"]):
            raise DivergenceError(len(self._rows) - 1, "the loss", History(self._rows[:-1] or self._rows))

    def add_rounds(self, infos: RoundInfo, ran: int, seconds: float) -> None:
        """Adds the rows of the first `ran` rounds of a dispatch."""
        width = self._sim.execution.width(self._sim.cohorts.size)
        executed = infos.trips.astype(np.int64) * width * self._sim.rows_per_trip
        for k in range(ran):
            solves = jax.tree.map(lambda leaf, k=k: leaf[k], infos.solves)
            failed = int(np.sum(solves.stop_code == StopReason.FAILED.code))
            cohort = solves.epochs.size
            if not infos.finite[k]:
                all_failed = failed == cohort
                quantity = "every selected client's solve" if all_failed else "the server's parameters"
                raise DivergenceError(len(self._rows), quantity, self.history())
            samples = int(np.sum(solves.gradient_samples, dtype=np.int64))
            self._rows.append(
                self._row(
                    len(self._rows),
                    epochs_mean=float(np.mean(solves.epochs)),
                    gradient_samples=samples,
                    criterion_samples=int(np.sum(solves.criterion_samples, dtype=np.int64)),
                    # A failed solve has nothing to send.
                    communicated_floats=cohort * self._floats_down + (cohort - failed) * self._floats_up,
                    penalty_mean=float(infos.penalty_mean[k]),
                    lane_efficiency=int(infos.rows[k]) / int(executed[k]),
                    seconds=seconds / ran,
                    failed_clients=failed,
                )
            )

    def history(self) -> History:
        return History(self._rows)

    def summary(self) -> str:
        shown = self._last | {"epochs": self._rows[-1]["epochs_mean"]}
        return ", ".join(f"{name} {value:.4g}" for name, value in shown.items())

    def _row(self, round: int, **values: float) -> dict[str, float]:
        start = {
            "round": round, **self._unmeasured, "epochs_mean": 0.0, "gradient_samples": 0, "criterion_samples": 0,
            "communicated_floats": 0, "penalty_mean": np.nan, "lane_efficiency": np.nan, "seconds": 0.0,
            "eval_seconds": 0.0, "failed_clients": 0,
        }  # fmt: skip
        return start | values


def _check_client_axes(algorithm: Algorithm, num_clients: int) -> None:
    """Every number of the algorithm is one, or one per client."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(algorithm):
        checks.client_axis(jax.tree_util.keystr(path).lstrip("."), leaf, num_clients)


def _checked_params(problem: Problem, initial_params: Any) -> Any:
    if initial_params is None:
        return None
    check_params(initial_params, "initial_params has")
    expected, given = (jax.tree.map(jnp.shape, tree) for tree in (problem.params_shape, initial_params))
    if expected != given:
        raise ValueError(f"initial_params must have the shapes of init's parameters, {expected}, got {given}")
    if not bool(trees.all_finite(initial_params)):
        raise ValueError("initial_params is not finite: remove NaN and inf")
    return initial_params
