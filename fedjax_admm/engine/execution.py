"""How a run is executed: lanes, devices, and where the clients' rows live."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..core import checks, environment
from ..problems.problem import Problem
from . import processes
from .devices import mesh_of
from .memory import device_memory, size_of

CACHE_BYTES = 1 << 18  # a core's own, at least


@dataclass(frozen=True)
class Execution:
    """How a run is executed; results do not depend on it beyond rounding.

    The clients' states are split over the devices if the number of devices divides the number of clients; otherwise
    every device has all of them.

    Attributes:
        lanes: How many clients are solved at the same time, from 1 to the cohort's size; "auto" chooses.
        population: Where the clients' states are kept: on the "device", in "host" memory or on "disk". With the last
            two, only the states of the cohort are moved to the device, and clients that were never selected take no
            memory.
        mesh: The devices that share the cohort: a `jax.sharding.Mesh` or a number of devices. None takes all, also
            those of other processes (see `initialize_distributed`). A CPU is one device, unless `use_cpu_devices` made
            more.
        placement: Which device of several solves a client, with population="device". "home": the device that has the
            client's state and data. Only the model and one sum of messages move (and, for an evaluation, data that is
            not in memory shared with the devices). How evenly the devices are used depends on the cohort; the
            history's `device_efficiency` shows it. The number of devices has to divide the number of clients. "dealt":
            any device, for balance; states move to it and back, in blocks, and every device has all the data (CPU
            devices share one copy). "auto": home on accelerators for methods that keep states, otherwise dealt;
            `estimate` says which.
        data: Where the rows of data are kept. "device": all of them on the devices. "host": they stay in memory or in
            files, and only those of the clients that are training are copied, in blocks, the next block while the
            current one computes. "auto": on the device if they are arrays in memory and fit there, otherwise on the
            host; `estimate` says which.
        block_bytes: With data="host", the size of the largest block of rows that is copied to a device at a time; a
            device holds two. If one block holds the cohort, the results are bit for bit those of data="device".

    >>> Execution(lanes=4).lanes
    4
    """

    lanes: int | str = "auto"
    population: str = "device"
    mesh: Any = None
    placement: str = "auto"
    data: str = "auto"
    block_bytes: int = 1 << 27

    def __post_init__(self) -> None:
        if self.lanes != "auto":
            if isinstance(self.lanes, str):
                raise ValueError(f"lanes must be a whole number or 'auto', got {self.lanes!r}")
            checks.integer("lanes", self.lanes, at_least=1)
        checks.choice("population", self.population, ("device", "host", "disk"))
        checks.choice("placement", self.placement, ("auto", "home", "dealt"))
        checks.choice("data", self.data, ("auto", "device", "host"))
        checks.integer("block_bytes", self.block_bytes, at_least=1)
        if self.mesh is not None and not isinstance(self.mesh, jax.sharding.Mesh):
            if isinstance(self.mesh, str):
                raise ValueError(f"mesh must be a number of devices or a jax.sharding.Mesh, got {self.mesh!r}")
            checks.integer("mesh", self.mesh, at_least=1)

    def settings(self) -> dict[str, Any]:
        """The arguments, as JSON can hold them."""
        lanes = self.lanes if isinstance(self.lanes, str) else int(self.lanes)  # which may be NumPy's
        mesh = self.mesh.size if isinstance(self.mesh, jax.sharding.Mesh) else self.mesh
        return {
            "lanes": lanes,
            "population": self.population,
            "mesh": None if mesh is None else int(mesh),
            "placement": self.placement,
            "data": self.data,
            "block_bytes": int(self.block_bytes),
        }

    def width(self, cohort: int, devices: int, problem: Problem, rows: int, lane: Callable[[], int]) -> int:
        """The number of lanes of each device for a cohort of this size, gradients on so many rows and such lanes.

        On a CPU as many as the device has cores: a lane alone leaves cores idle where an operation is too small to be
        split or the memory waits, and more lanes wait for each other. Four times as many where a step is so small that
        starting its operations is what takes the time, as far as clients of unequal size keep them busy. All this by
        `benchmarks/lanes.py`. An accelerator is filled best by all clients at once, as far as half of its memory goes
        (reasoned, never measured).
        """
        share = -(-cohort // devices)
        if self.lanes != "auto":
            return min(int(self.lanes), share)
        if jax.default_backend() == "cpu":
            cores = max(1, environment.cores() // min(devices, jax.local_device_count()))
            more = min(4 * cores, _kept_busy(problem, share)) if steps_are_small(problem, rows) else 1
            return min(share, max(cores, more))
        memory = device_memory()
        return share if memory is None else min(share, max(1, memory // 2 // lane()))

    def devices(self, cohort: int) -> jax.sharding.Mesh | None:
        """The mesh for a cohort of this size; None for one device."""
        if self.mesh is not None:
            return mesh_of(self.mesh)
        return mesh_of(jax.device_count() if processes.several() else min(jax.device_count(), cohort))

    def again(self, begun: dict[str, Any]) -> Execution:
        """The same for a run that was begun so (`Simulation.resolved`): with its lanes and, if it can be, its devices.

        >>> Execution().again({"lanes": 2, "devices": 1})
        Execution(lanes=2, population='device', mesh=1, placement='auto', data='auto', block_bytes=134217728)
        """
        mesh = self.mesh
        if mesh is None:
            mesh = begun["devices"]
            possible = mesh == jax.device_count() if processes.several() else mesh <= jax.device_count()
            if not possible:
                mesh = None
                former = checks.counted(begun["devices"], "device")
                warnings.warn(
                    f"the run was begun on {former} and goes on with those of {jax.device_count()} "
                    "that suit it: the rest may differ in rounding",
                    stacklevel=3,
                )
        return dataclasses.replace(self, lanes=begun["lanes"], mesh=mesh)


def steps_are_small(problem: Problem, rows: int) -> bool:
    """Whether what a step touches, its rows and the parameters a few times, fits into a core's own cache."""
    row = sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(problem.data.fields))
    return rows * row + 4 * size_of(problem.params_shape) <= CACHE_BYTES


def _kept_busy(problem: Problem, jobs: int) -> int:
    """How many lanes have work for at least twice as long as the largest client takes: little of it is in a tail."""
    sizes = np.asarray(problem.data.sizes)
    return int(jobs * sizes.mean() / sizes.max() / 2)
