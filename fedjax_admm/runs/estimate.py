"""What a run will take, before anything runs."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..algorithms.base import Algorithm
from ..core import checks, trees
from ..core.environment import free_memory
from ..data.rows import in_memory, on_device
from ..data.rows import row_bytes as bytes_of_a_row
from ..engine.execution import Execution
from ..engine.host_data import data_bytes
from ..engine.memory import device_memory, shared_bytes, size_of
from ..engine.population.rows import row_bytes
from ..exchange.faults import Faults
from ..problems.problem import Problem
from ..problems.streaming import CHUNK_BYTES
from .simulation import Simulation

PLACEMENTS = {"home": "at home (placement='home')", "dealt": "dealt (placement='dealt')"}


@dataclass(frozen=True)
class Estimate:
    """The memory that a run needs, by place, and the work of a round.

    The numbers follow from shapes and are rather too large, since XLA shares some buffers. Memory does not grow with
    the cohort, except for the blocks of states or data that are moved if these are not on the device.
    """

    device_data: int  # the clients' and the evaluation data, or two blocks of it, on each device
    device_state: int  # the clients' rows on a device: all of them or its part, and a block of those that travel, twice
    device_lanes: int  # of a device's lanes, and the sum of messages
    host_data: int  # with data="host": rows that are in memory anyway, and the blocks that are read
    host_state: int  # with population="host", once every client was selected
    disk: int  # likewise with population="disk"; up to three times as much between checkpoints
    most_gradients: int  # per-example gradients of a round if every solve does its maximum, looks included, a line
    # search's own not
    lanes: int
    devices: int
    floats_down: int  # that a client receives in a round
    floats_up: int  # that it sends
    round_messages: int  # bytes that a cohort receives and sends in a round
    round_state: int  # bytes of clients' rows of state that go to the devices and back in a round
    round_data: int  # bytes of rows of data that go to the devices in a round, of the largest clients
    placement: str | None = None  # who solves a client: "home" or "dealt"; None on one device
    data: str = "device"  # where the rows of data are: "device" or "host"
    warnings: tuple[str, ...] = ()  # what does not fit, and the setting that would

    def __repr__(self) -> str:
        device, host = self.device_data + self.device_state + self.device_lanes, self.host_data + self.host_state
        return (
            f"{_size(device)} on a device (data {_size(self.device_data)}, clients {_size(self.device_state)}, "
            f"lanes {_size(self.device_lanes)}), {_size(host)} in host memory, {_size(self.disk)} on disk; "
            f"a round of at most {self.most_gradients:,} gradients moves {_size(self.round_messages)} of messages, "
            f"{_size(self.round_state)} of clients' state and {_size(self.round_data)} of data; "
            f"data on the {self.data} (data={self.data!r}), "
            + (f"clients {PLACEMENTS[self.placement]}, " if self.placement else "")
            + f"{checks.counted(self.lanes, 'lane')} on {checks.counted(self.devices, 'device')}"
        )


def estimate(
    problem: Problem,
    algorithm: Algorithm,
    *,
    participation: Any = 1.0,
    execution: Execution | None = None,
    faults: Faults | None = None,
    exchange: Any = (),
) -> Estimate:
    """Estimates the memory and work that a run needs, before anything is computed or copied.

    The arguments are `simulate`'s.

    Warns if something will not fit into this machine, and names the setting that helps; `Estimate.warnings` has the
    same lines.

    >>> example = fa.examples.linear_regression(num_clients=10, rows_per_client=20, dimension=50)
    >>> estimate(example.problem, example.algorithm("fedadmm_insa"), participation=2).most_gradients
    1640
    """
    options: dict[str, Any] = dict(participation=participation, execution=execution, faults=faults, exchange=exchange)
    sim = Simulation(problem, algorithm, **options)
    shapes, cohort = sim.shapes(), sim.cohorts.size
    population, clients = sim.execution.population, problem.data.num_clients
    row, devices = row_bytes(shapes.clients), sim.resolved()["devices"]
    floats = trees.scalar_dtype(shapes.params).itemsize
    split = devices if clients % devices == 0 else 1
    travels = sim.placement == "dealt" or population != "device"
    sizes = np.sort(np.asarray(problem.data.sizes, np.int64))[-cohort:]
    full, criterion = algorithm.local.full_gradient, algorithm.criterion
    looks = 0 if criterion.residual is None or full else 1  # after an epoch: a full gradient is the next step's
    reference = looks or (full and criterion.reference == "client")
    # A method's own: several solves in a round, and a gradient that nobody computes besides.
    solves = getattr(algorithm, "local_rounds", None) or 1
    gradient = getattr(algorithm, "needs_gradient", False) and not full and not looks
    epochs = int(np.max(np.asarray(algorithm.local.max_epochs)))
    found = Estimate(
        device_data=_device_data(sim),
        device_state=(row * clients // split if population == "device" else 0) + 2 * row * sim.layout.share * travels,
        device_lanes=sim.width * sim.lane_bytes() + shared_bytes(problem, sim.floats[1] * floats),
        host_data=_host_data(sim),
        host_state=row * clients if population == "host" else 0,
        disk=(row + 4) * clients if population == "disk" and row else 0,
        most_gradients=int(sizes.sum()) * ((epochs * (1 + looks) + reference) * solves + gradient),
        lanes=sim.width,
        devices=devices,
        floats_down=sim.floats[0],
        floats_up=sim.floats[1],
        round_messages=sum(sim.floats) * floats * cohort,
        round_state=2 * row * cohort * travels,
        round_data=int(sizes.sum()) * bytes_of_a_row(problem.data.fields) if sim.data == "host" else 0,
        placement=sim.placement,
        data=sim.data,
    )
    found = dataclasses.replace(found, warnings=tuple(_excesses(found, sim)))
    for text in found.warnings:
        warnings.warn(text, stacklevel=2)
    return found


def _device_data(sim: Simulation) -> int:
    """Bytes of rows on a device: of those that are not there only blocks, and chunks to evaluate."""
    problem, blocks = sim.problem, 0
    here = sim.data == "device"
    data = data_bytes(problem.data) + size_of((problem.data.index, problem.data.offsets)) if here else 0
    if sim.room.rows is not None:
        blocks = 2 * sim.room.rows * bytes_of_a_row(problem.data.fields)
    clients = size_of((problem.data.sizes, problem.data.weights))
    at_home = sim.placement == "home"
    each = data // sim.devices if at_home else data
    # On a CPU arrays that were in memory still are; else an evaluation streams what is split over the devices.
    whole = data if at_home and on_device(problem.data.fields) else 0
    return each + whole + blocks + clients + _eval_data(problem, here and not at_home)


def _eval_data(problem: Problem, data_here: bool) -> int:
    """Bytes of `eval_data` on the device that evaluates, or of the chunks that it gets."""
    kept = 0 if problem.eval_data is None else _all_bytes(problem.eval_data)
    if data_here or on_device((problem.data.fields, problem.eval_data)):
        return kept
    return 2 * min(CHUNK_BYTES, max(kept, data_bytes(problem.data)))


def _all_bytes(fields: Any) -> int:
    return jax.tree.leaves(fields)[0].shape[0] * bytes_of_a_row(fields)


def _host_data(sim: Simulation) -> int:
    """Bytes of rows in host memory, with those that are being read."""
    if sim.room.rows is None:
        return 0
    fields = sim.problem.data.fields
    held = _all_bytes(fields) if in_memory(fields) and not on_device(fields) else 0
    here = 1 if sim.mesh is None else len(sim.mesh.local_devices)
    return held + 2 * here * sim.room.rows * bytes_of_a_row(fields)


def _excesses(found: Estimate, sim: Simulation) -> Iterator[str]:
    """What does not fit into the memory and the disk of this machine, and what to set."""
    device, host = found.device_data + found.device_state + found.device_lanes, found.host_data + found.host_state
    limit = device_memory()
    if limit is None:  # the devices' memory is the host's
        here = 1 if sim.mesh is None else len(sim.mesh.local_devices)
        shared = found.device_data * (1 if sim.data == "device" and sim.placement != "home" else here)
        host, device = host + shared + here * (found.device_state + found.device_lanes), 0
    if limit is not None and device > limit:
        yield f"a device has {_size(limit)} of memory, and the run takes {_size(device)} there: {_remedy(found, sim)}"
    free = free_memory()
    if free is not None and host > free:
        yield f"{_size(free)} of memory are free, and the run takes {_size(host)}: {_remedy(found, sim, host=True)}"
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if found.disk > free:
        yield f"{_size(free)} of disk are free, and clients' state may take {_size(found.disk)}: use another disk"


def _remedy(found: Estimate, sim: Simulation, host: bool = False) -> str:
    """The setting that makes the largest part smaller."""
    state = max(found.device_state, found.host_state)
    parts = {
        "population='disk'" if host else "population='host' or 'disk'": state
        if sim.execution.population != "disk"
        else 0,
        "data='host' with memory-mapped rows (FederatedData.open)": found.device_data if sim.data == "device" else 0,
        f"fewer lanes than {found.lanes}": found.device_lanes if found.lanes > 1 else 0,
        "a smaller block_bytes": found.device_data if sim.data == "host" else 0,
    }
    largest = max(parts, key=lambda name: parts[name])
    return f"use {largest if parts[largest] else 'a smaller model, or more memory'}"


def _size(number: float) -> str:
    """Bytes for people."""
    power = min(4, max(0, int(number).bit_length() - 1) // 10)
    return f"{number / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
