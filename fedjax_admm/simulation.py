"""`Simulation`: a problem and an algorithm, a round at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import checks, population, shuffle, trees
from .algorithms.base import Algorithm
from .cohorts import Cohorts, check_cohort
from .evaluation import evaluate
from .problem import Problem, check_params
from .records import Solves, State
from .rounds import RoundInfo


@dataclass(frozen=True)
class Execution:
    """How a run is executed; results do not depend on it beyond rounding.

    lanes: how many clients advance at the same time, from 1 to the cohort's size; "auto" chooses.
    population: where the clients' rows live: "device".
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

    def resolved(self, cohort: int) -> dict[str, Any]:
        """What was chosen for a cohort of this size, as JSON can hold it."""
        return {
            "lanes": self.width(cohort),
            "cohort": cohort,
            "devices": 1,
            "population": self.population,
            "platform": jax.default_backend(),
        }


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

    def state_shape(self) -> State:
        """The shapes and dtypes of the state."""
        params = self.problem.params_shape if self._initial_params is None else self._initial_params
        return jax.eval_shape(population.init_state, self.problem, self._algorithm, params)

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
