"""`Simulation`: a problem and an algorithm, a round at a time."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..algorithms import contract
from ..algorithms.base import Algorithm
from ..core import checks, randomness, trees
from ..core.client_statistics import PERSONAL
from ..core.vocabulary import Solves, State
from ..engine import host_data, placement, processes
from ..engine.client_sample import check_sample, sample_of
from ..engine.devices import on_one_device
from ..engine.every_client import OWN, EveryClient
from ..engine.execution import Execution
from ..engine.ledger import RoundInfo
from ..engine.memory import lane_bytes, size_of
from ..engine.population import Feed, Population, Room, init_state, make_population
from ..engine.population.blocks import Homes, devices_here
from ..engine.population.rows import row_bytes
from ..engine.rounds import Layout, Setup
from ..exchange.client_time import ClientTime
from ..exchange.cohorts import Cohorts
from ..exchange.faults import Faults
from ..exchange.stage import Exchange, check_stages
from ..problems.evaluated_rows import check_evaluate, evaluated_on
from ..problems.evaluation import Share, evaluate
from ..problems.measures import Measures
from ..problems.problem import Problem
from .arguments import check_client_axes, check_conditions, check_everyone, check_initial_params, check_state


class Simulation:
    """Runs an algorithm on a problem one round at a time. The arguments are `simulate`'s.

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
    setup: Setup
    floats: tuple[int, int]  # that a client receives and sends
    execution: Execution
    mesh: Mesh | None
    width: int
    room: Room
    placement: str | None
    data: str  # where the rows of data are: "device" or "host"

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
        exchange: Any = (),
    ) -> None:
        if not isinstance(problem, Problem):
            hint = ": pass its .problem" if hasattr(problem, "problem") else ""
            raise ValueError(f"problem must be a fedjax_admm.Problem, got {type(problem).__name__}{hint}")
        contract.check_parts(algorithm)
        if execution is not None and not isinstance(execution, Execution):
            raise ValueError(f"execution must be a fedjax_admm.Execution, got {execution!r}")
        check_conditions(faults, client_time)
        self.problem, self.algorithm = problem, algorithm
        self._evaluated_on: dict[Any, Problem] = {}
        self.seed = checks.integer("seed", seed, at_least=0)
        self.cohorts = Cohorts(participation, problem.data.num_clients, self.seed)
        check_everyone(algorithm, self.cohorts.size, problem.data.num_clients, self.cohorts.may_vary)
        check_client_axes(algorithm, problem.data.num_clients)
        self.faults, self.client_time = faults, client_time
        for stage in Exchange.of(exchange).stages:
            if isinstance(stage, (Faults, ClientTime)):
                name = "faults" if isinstance(stage, Faults) else "client_time"
                raise ValueError(
                    f"exchange has a {type(stage).__name__}: give it as {name}=, so that the history has it"
                )
        stages = Exchange.of((*_stages_of(faults, client_time), *Exchange.of(exchange).stages))
        for part in {id(part): part for part in (faults, client_time, *stages.stages) if part is not None}.values():
            part.check(problem.data.num_clients)
        self._initial_params = check_initial_params(problem, initial_params)
        params = problem.params_shape if initial_params is None else self._initial_params
        dtype = trees.scalar_dtype(params)
        self._init_key, order_key = jax.random.split(randomness.root_key(self.seed))
        # The algorithm and the stages with their numbers on the device, in the parameters' dtype.
        cast, stages = trees.cast_floats((algorithm, stages), dtype)
        self.setup = Setup(problem.without_rows(), cast, stages, order_key)
        clients = contract.abstract_clients(problem.data.num_clients, params)
        sent, message = contract.check_round(self.setup.algorithm, params, clients)
        check_stages(self.setup.exchange, params, message, clients)
        self.floats = contract.count_floats(sent), contract.count_floats(message)
        self.rows_per_trip = algorithm.local.rows_per_trip(np.asarray(problem.data.sizes))
        self.use(execution or Execution())

    def use(self, execution: Execution, folder: Path | None = None) -> None:
        """Chooses lanes, devices, and where the clients' rows live; `folder` is for those on disk."""
        self.execution, self._folder = execution, folder
        self.data = host_data.choose(execution.data, self.problem.data)
        self._made_population: Population | None = None
        self._every_client: dict[Any, EveryClient] = {}
        self.mesh = execution.devices(self.cohorts.size)
        self.width = execution.width(self.cohorts.size, self.devices, self.problem, self.rows_per_trip, self.lane_bytes)
        self.placement = None
        if execution.population == "device" and self.mesh is not None:
            keeps_rows = row_bytes(self.shapes().clients) > 0
            number = self.problem.data.num_clients
            self.placement = placement.choose(execution.placement, self.mesh, number, keeps_rows)
        self.room = self._room()

    @property
    def devices(self) -> int:
        """How many share the cohort."""
        return 1 if self.mesh is None else self.mesh.size

    def lane_bytes(self) -> int:
        """About what a lane holds."""
        shapes = self.shapes()
        optimizer = size_of(jax.eval_shape(self.algorithm.local.init, shapes.params))
        message = self.floats[1] * trees.scalar_dtype(shapes.params).itemsize
        return lane_bytes(self.problem, self.rows_per_trip, row_bytes(shapes.clients), optimizer, message)

    @property
    def layout(self) -> Layout:
        """How a device works."""
        row = row_bytes(self.shapes().clients)
        group = None
        if self.execution.population != "device" and processes.several():  # all may live in one process
            group = min(Counter(device.process_index for device in jax.devices()).values())
        share = placement.share_of_block(self.cohorts.size, self.devices, self.width, row, group)
        return Layout(self.width, self.rows_per_trip, self.devices, share, sum(self.floats))

    def _room(self) -> Room:
        """What a device takes of a block of the cohort, where it comes in blocks."""
        share = self.layout.share
        if self.execution.population == "device" and self.placement != placement.DEALT:
            share = self.cohorts.size  # no rows of state travel, and at home all of it may live on one device
        if self.data == host_data.DEVICE:
            return Room(share)
        return Room(share, host_data.rows_of_block(self.problem.data, share, self.execution.block_bytes))

    @property
    def population(self) -> Population:
        """Where the clients' rows live; made at the first use."""
        if self._made_population is None:
            rows, setup = self.room.rows, self.setup
            self.check_folder()
            if self.data == host_data.DEVICE:
                setup = dataclasses.replace(setup, problem=self._placed_problem().for_rounds())
            self._made_population = make_population(
                self.execution.population, setup, self.shapes(), self.layout, self.mesh, self.placement,
                self.room, None if rows is None else Feed(self.problem.data, rows, self.mesh), self._folder,
            )  # fmt: skip
        return self._made_population

    def _placed_problem(self) -> Problem:
        """The problem with its rows on the device, if they are to be there; at home each device gets its clients'."""
        if self.data == host_data.DEVICE and self.placement != placement.HOME:
            self.problem = self.problem.on_device()
        return self.problem

    def check_folder(self) -> None:
        """Clients' rows off the devices of several processes are in a file that all of them see."""
        if self.execution.population != "device" and processes.several() and self._folder is None:
            raise ValueError(
                f"population={self.execution.population!r} of {jax.process_count()} processes needs a run_dir, where "
                "they have the clients' rows in one file: give simulate one that all of them see"
            )

    def resolved(self) -> dict[str, Any]:
        """How it runs, as JSON can hold it."""
        return {
            "lanes": self.width,
            "cohort": self.cohorts.size,
            "devices": self.devices,
            "population": self.execution.population,
            "placement": self.placement,
            "data": self.data,
            "platform": jax.default_backend(),
            "floats_down": self.floats[0],
            "floats_up": self.floats[1],
        }

    def init(self) -> State:
        """The state before the first round."""
        return self.population.init(self._first_params())

    def init_on_one_device(self) -> State:
        """The same with everyone's rows, wherever the population is to live."""
        return init_state(self.setup, self._first_params())

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
        return jax.eval_shape(init_state, self.setup, params)

    def saved(self, state: State) -> State:
        """The state as a checkpoint keeps it: arrays alone."""
        return self.population.saved(state)

    def was_saved(self, state: State) -> None:
        """To be called once a checkpoint has what `saved` returned."""
        self.population.was_saved(state)

    def saved_shape(self) -> State:
        """The structure of what `saved` returns, with its shardings."""
        return self.population.saved_shape()

    def restored(self, saved: State) -> State:
        """The state that `saved` was made from."""
        return self.population.restored(saved, self._first_params())

    def round(self, state: State, cohort: Any = None) -> tuple[State, Solves]:
        """One round: the next state and this round's solves [cohort].

        The new state reuses the memory of the old one, which cannot be used any more; if it is on the device,
        `jax.tree.map(jnp.copy, state)` makes a copy to keep. No error is raised if something is not finite: check the
        solves' `stop_reason` and the parameters.

        Args:
            state: What the round before left.
            cohort: The clients that take part, [cohort]; by default those that follow from the seed and the number of
                the round. Empty places have the stop reason "nobody".

        Returns:
            The next state and this round's solves.
        """
        check_state(state)
        number = int(state.round)
        for stage in self.setup.exchange.stages:
            stage.check_rounds(number + 1)
        known = self.problem.data.num_clients
        if cohort is None and self.cohorts.needs_clock:
            raise ValueError("cohort must be given where participation is a trace: only simulate keeps its clock")
        cohort = self.cohorts[number] if cohort is None else checks.client_numbers("cohort", cohort, known)
        check_everyone(self.algorithm, cohort.size, known)
        state, infos, _ = self.run_rounds(state, cohort[None], 1)
        return state, jax.tree.map(lambda leaf: leaf[0], infos.entries).solves

    def check_rounds(self, rounds: int) -> None:
        """What is given round by round must reach to the last, and what needs simulated seconds must have them."""
        self.cohorts.check_rounds(rounds, has_clock=self.client_time is not None)
        for stage in self.setup.exchange.stages:
            stage.check_rounds(rounds)

    def run_rounds(
        self, state: State, cohorts: np.ndarray, count: int, wait: Callable[[Any], Any] = jax.device_get
    ) -> tuple[State, RoundInfo, Any]:
        """The first `count` rounds with `cohorts` [rounds, cohort]. See `Population.run`."""
        return self.population.run(state, cohorts, count, self.cohorts.after(int(state.round) + count), wait)

    def evaluate(self, state: State, on: Any = "all") -> dict[str, float]:
        """The global loss and the metrics at the state's parameters.

        Args:
            state: What a round left.
            on: What `simulate` has as evaluate: "all", a number of rows, "test" or None.

        Returns:
            What was evaluated, by the names of the history's columns.
        """
        if on is None:
            return {}
        if on not in self._evaluated_on:
            check_evaluate(on, self.problem)
            self._evaluated_on[on] = evaluated_on(self._placed_problem(), on)
        share = self._share()
        if isinstance(on, (int, np.integer)):  # a sample is everywhere
            share = share._replace(data=None)
        return evaluate(self._evaluated_on[on], on_one_device(state.params), on != "test", share)

    def quantities(self) -> tuple[str, ...]:
        """What can be evaluated of each client: at the server's parameters, and at its own if the method keeps them."""
        names = Measures.of(self.problem).names
        return (*names, *(f"{PERSONAL}{name}" for name in names if OWN in self.shapes().clients))

    def every_client(self, clients: Any = "all") -> EveryClient:
        """What evaluates clients one by one.

        Args:
            clients: "all", or how many: a random sample of them, always the same.

        Raises:
            ValueError: A metric cannot be computed on their rows, or there are not so many.
        """
        check_sample(self.problem.data.num_clients, clients)
        if clients not in self._every_client:
            self.problem.check_client_evaluation()
            self._every_client[clients] = EveryClient(
                self._placed_problem(),
                sample_of(self.problem.data.num_clients, clients),
                self.mesh,
                at_home=self.placement == placement.HOME,
                placed=(lambda: self.population.placed.problem.data) if self.data == host_data.DEVICE else None,
            )
        return self._every_client[clients]

    def evaluate_clients(self, state: State, clients: Any = "all") -> dict[str, np.ndarray]:
        """Every client's loss and metrics, at the server's parameters and, where the method keeps them, at its own.

        Args:
            state: What a round left.
            clients: "all", or how many: a random sample of them, always the same.

        Returns:
            "loss" and each metric at the state's parameters, "personal_loss" and so on at clients' own -> [clients].

        >>> sim.evaluate_clients(state)["loss"].shape  # doctest: +SKIP
        (200,)
        """
        every = self.every_client(clients)
        split = self.mesh is not None and state.last_epochs.shape[0] % self.mesh.size == 0
        return every.at_server(state.params) | every.at_own(state.clients, split)

    def _share(self) -> Share:
        """What this process evaluates of rows that are not on its device: its clients', if it has clients."""
        share = Share(jax.process_index(), jax.process_count(), processes.of_all)
        if self.mesh is None or not processes.several() or self.placement == placement.DEALT:
            return share
        data = self.problem.data
        if self.placement == placement.HOME:
            homes = Homes.on_devices(data.num_clients, self.devices)
        else:
            homes = Homes.on_processes(np.asarray(data.sizes), self.mesh)
        first, stop = homes.clients_of(devices_here(self.mesh))
        offsets = np.append(np.asarray(data.offsets, np.int64), data.num_positions)
        return share._replace(data=(int(offsets[first]), int(offsets[stop])))


def _stages_of(faults: Faults | None, client_time: ClientTime | None) -> tuple[Any, ...]:
    """Those of the two that can change a round, in the order in which they do."""
    stages = (client_time,) if client_time is not None and client_time.deadline is not None else ()
    return (*stages, faults) if faults is not None and faults.any else stages
