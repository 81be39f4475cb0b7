"""`Simulation`: a problem and an algorithm, a round at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from ..algorithms import contract
from ..algorithms.base import Algorithm
from ..core import checks, randomness, trees
from ..core.vocabulary import Solves, State
from ..engine import population, processes
from ..engine.devices import everywhere, on_one_device, replicated
from ..engine.execution import Execution
from ..engine.population import StoredClients, StoredPopulation
from ..engine.rounds import RoundInfo
from ..exchange.client_time import ClientTime
from ..exchange.cohorts import Cohorts, check_cohort
from ..exchange.conditions import Conditions
from ..exchange.faults import Faults
from ..problems.evaluation import evaluate
from ..problems.problem import Problem, check_params


class Simulation:
    """A problem and an algorithm, a round at a time. The arguments are `simulate`'s.

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

    problem: Problem
    algorithm: Algorithm
    seed: int
    cohorts: Cohorts
    faults: Faults | None
    client_time: ClientTime | None
    rows_per_trip: int
    order_key: Array
    cast: Algorithm
    execution: Execution
    mesh: Mesh | None
    width: int

    def __init__(
        self,
        problem: Problem,
        algorithm: Algorithm,
        *,
        participation: Any = 1.0,
        seed: int = 0,
        initial_params: Any = None,
        execution: Execution | None = None,
        faults: Faults | None = None,
        client_time: ClientTime | None = None,
    ) -> None:
        if not isinstance(problem, Problem):
            hint = ": pass its .problem" if hasattr(problem, "problem") else ""
            raise ValueError(f"problem must be a fedjax_admm.Problem, got {type(problem).__name__}{hint}")
        contract.check_parts(algorithm)
        if execution is not None and not isinstance(execution, Execution):
            raise ValueError(f"execution must be a fedjax_admm.Execution, got {execution!r}")
        check_conditions(faults, client_time)
        self.problem, self.algorithm = problem, algorithm
        self.seed = checks.integer("seed", seed, at_least=0)
        self.cohorts = Cohorts(participation, problem.data.num_clients, self.seed)
        _check_client_axes(algorithm, problem.data.num_clients)
        for part in (faults, client_time):
            if part is not None:
                part.check(problem.data.num_clients)
        self.faults, self.client_time = faults, client_time
        self._initial_params = _checked_params(problem, initial_params)
        params = problem.params_shape if initial_params is None else self._initial_params
        dtype = trees.scalar_dtype(params)
        # The algorithm with its numbers on the device, in the parameters' dtype.
        self.cast = trees.cast_floats(algorithm, dtype)
        contract.check_round(self.cast, params, problem.data.num_clients, self.cohorts.size)
        self.rows_per_trip = algorithm.local.rows_per_trip(np.asarray(problem.data.sizes))
        self.use(execution or Execution())
        self._init_key, self.order_key = jax.random.split(randomness.root_key(self.seed))
        self._conditions = Conditions.of(faults, client_time, dtype)

    def use(self, execution: Execution, folder: Path | None = None) -> None:
        """Chooses lanes, devices, and where the clients' rows live; `folder` is for those on disk."""
        if execution.population != "device" and processes.several():
            raise ValueError(
                f"population={execution.population!r} is for one process, and there are {jax.process_count()}: "
                'use population="device", whose rows are split over all devices'
            )
        self.execution, self._folder = execution, folder
        self._stored_population: StoredPopulation | None = None
        self.mesh = execution.devices(self.cohorts.size)
        devices = 1 if self.mesh is None else self.mesh.size
        self.width = execution.width(self.cohorts.size, devices, self.problem, self.rows_per_trip)
        self._placed: tuple[tuple[Problem, Algorithm], Conditions | None] | None = None

    @property
    def _stored(self) -> StoredPopulation | None:
        """The population, if it is not on the devices; made at the first use."""
        kind = self.execution.population
        if kind != "device" and self._stored_population is None:
            shapes = self.shapes()
            self._stored_population = StoredPopulation(kind, self.problem, self.cast, shapes, self._folder)
        return self._stored_population

    @property
    def _on_devices(self) -> tuple[Problem, Algorithm]:
        """The problem and the algorithm where rounds need them; placed at the first use."""
        return self._everything_on_devices()[0]

    def _everything_on_devices(self) -> tuple[tuple[Problem, Algorithm], Conditions | None]:
        if self._placed is None:
            problem = self.problem if self.mesh is None else replicated(self.problem, self.mesh)
            algorithm, conditions = replicated((self.cast, self._conditions), self.mesh)
            self._placed = (problem, algorithm), conditions
        return self._placed

    def resolved(self) -> dict[str, Any]:
        """How it runs, as JSON can hold it."""
        return {
            "lanes": self.width,
            "cohort": self.cohorts.size,
            "devices": 1 if self.mesh is None else self.mesh.size,
            "population": self.execution.population,
            "platform": jax.default_backend(),
        }

    def init(self) -> State:
        """The state before the first round."""
        if self._stored is not None:
            return self._on_mesh(self._stored.init(self._first_params()))
        if self.mesh is None:
            return self.init_on_one_device()
        # Where it is to be from the start: everyone's rows may be too much for one device.
        places = population.shardings(self.shapes(), self.mesh)
        (problem, algorithm), conditions = self._everything_on_devices()
        params = self._first_params()
        # By one device, as a stored population's: sums over all clients that devices share are rounded in another way.
        server = everywhere(population.init_server(self.problem, self.cast, params), self.mesh)
        start = jax.jit(population.init_state, out_shardings=places)
        state = start(problem, algorithm, everywhere(params, self.mesh), conditions)
        return dataclasses.replace(state, server=server)

    def _on_mesh(self, state: State) -> State:
        """What of a stored population's state is on the devices, on all of them: as rounds return it."""
        params, server = everywhere((state.params, state.server), self.mesh)
        return dataclasses.replace(state, params=params, server=server)

    def init_on_one_device(self) -> State:
        """The same with everyone's rows, wherever the population is to live."""
        return population.init_state(self.problem, self.cast, self._first_params(), self._conditions)

    def _first_params(self) -> Any:
        params = self._initial_params
        if params is None:
            params = self.problem.init(self._init_key)
            if not bool(trees.all_finite(params)):
                raise ValueError("init returned parameters that are not finite: remove NaN and inf")
        return trees.strongly_typed(params)  # a copy, since the round gives the state's buffers away

    def shapes(self) -> State:
        """The shapes and dtypes of the state with all clients' rows."""
        params = self.problem.params_shape if self._initial_params is None else self._initial_params
        return jax.eval_shape(population.init_state, self.problem, self.cast, params, self._conditions)

    def saved(self, state: State) -> State:
        """The state as a checkpoint keeps it: arrays alone."""
        return state if self._stored is None else self._stored.saved(state)

    def was_saved(self, state: State) -> None:
        """To be called once a checkpoint has what `saved` returned."""
        if self._stored is not None:
            self._stored.was_saved(state)

    def saved_shape(self) -> State:
        """The structure of what `saved` returns, with its shardings."""
        shapes = self.shapes() if self._stored is None else self._stored.saved_shape()
        if self.mesh is None or self._stored is not None:
            return shapes
        places = population.shardings(shapes, self.mesh)
        return jax.tree.map(lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place), shapes, places)

    def restored(self, saved: State) -> State:
        """The state that `saved` was made from."""
        if self._stored is None:
            return saved
        return self._on_mesh(self._stored.restored(saved, self._first_params()))

    def round(self, state: State, cohort: Any = None) -> tuple[State, Solves]:
        """One round: the next state and this round's solves [cohort].

        cohort: the clients that take part, [cohort]; by default those that the seed and the round's number
        give. The state that went in is given away to the one that comes out, and cannot be used again; where it is
        on the device, `jax.tree.map(jnp.copy, state)` keeps one. Nothing is raised if something is not finite: look at
        `info.stop_reason` and at the parameters.
        """
        _check_state(state)
        number = int(state.round)
        if self.faults is not None:
            self.faults.check_rounds(number + 1)
        known = self.problem.data.num_clients
        cohort = self.cohorts[number] if cohort is None else check_cohort(cohort, known)
        state, infos, _ = self.run_rounds(state, cohort[None], 1)
        return state, jax.tree.map(lambda leaf: leaf[0], infos.solves)

    def check_rounds(self, rounds: int) -> None:
        """Cohorts or faults that are given round by round must reach to the last."""
        self.cohorts.check_rounds(rounds)
        if self.faults is not None:
            self.faults.check_rounds(rounds)

    def run_rounds(
        self, state: State, cohorts: np.ndarray, count: int, wait: Callable[[Any], Any] = jax.device_get
    ) -> tuple[State, RoundInfo, Any]:
        """The first `count` rounds with `cohorts` [rounds, cohort]. See `population.device_rounds`."""
        (problem, algorithm), conditions = self._everything_on_devices()
        if self._stored is not None:
            upcoming = self.cohorts.after(int(state.round) + count)
            return self._stored.run(
                (problem, algorithm), conditions, state, self.order_key, cohorts[:count], upcoming, wait,
                width=self.width, rows_per_trip=self.rows_per_trip, mesh=self.mesh,
            )  # fmt: skip
        return population.device_rounds(
            problem,
            algorithm,
            state,
            self.order_key,
            jnp.asarray(cohorts),
            jnp.int32(count),
            width=self.width,
            rows_per_trip=self.rows_per_trip,
            mesh=self.mesh,
            conditions=conditions,
        )

    def evaluate(self, state: State) -> dict[str, float]:
        """The global loss and the metrics at the state's parameters."""
        return evaluate(self.problem, on_one_device(state.params))


def _check_state(state: Any) -> None:
    """A state whose memory, or whose clients' rows, no later one has taken over."""
    if not isinstance(state, State):
        raise ValueError(f"state must come from init or round, got {type(state).__name__}")
    deleted = any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))
    if deleted or (isinstance(state.clients, StoredClients) and state.clients.round != state.round):
        raise ValueError(
            "state was used before, and the state which that round returned has taken over its memory: go on with that "
            "one, or give round a copy, jax.tree.map(jnp.copy, state), where the population is on the device"
        )


def check_conditions(faults: Any, client_time: Any) -> None:
    """Faults and the clients' time must be objects of their kinds, or None."""
    if faults is not None and not isinstance(faults, Faults):
        raise ValueError(f"faults must be a fedjax_admm.Faults, got {faults!r}")
    if client_time is not None and not isinstance(client_time, ClientTime):
        raise ValueError(f"client_time must be a fedjax_admm.ClientTime, got {client_time!r}")


def _check_client_axes(algorithm: Algorithm, num_clients: int) -> None:
    """Every number of the algorithm is one, or one per client."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(algorithm):
        checks.client_axis(jax.tree_util.keystr(path).lstrip("."), leaf, num_clients)


def _checked_params(problem: Problem, initial_params: Any) -> Any:
    if initial_params is None:
        return None
    check_params(initial_params, "initial_params has")
    expected, given = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (problem.params_shape, initial_params)
    )
    if expected.keys() != given.keys():
        raise ValueError(
            f"initial_params must have the structure of init's parameters, {list(expected)}, got {list(given)}"
        )
    for place, like in expected.items():
        if like.shape != (shape := jnp.shape(given[place])):
            raise ValueError(
                f"initial_params{place} must have the shape of init's parameters, {like.shape}, got {shape}"
            )
    if not bool(trees.all_finite(initial_params)):
        raise ValueError("initial_params is not finite: remove NaN and inf")
    # Python's own numbers have no precision; NumPy's, which may be instances of float, have one.
    arrays = [
        jnp.asarray(given[place], like.dtype if type(given[place]) is float else None)
        for place, like in expected.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(problem.params_shape), arrays)
