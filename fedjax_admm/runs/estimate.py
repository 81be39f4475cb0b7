"""What a run will take, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..algorithms.base import Algorithm
from ..core import checks, trees
from ..engine.execution import Execution
from ..engine.memory import shared_bytes, size_of
from ..engine.population.rows import row_bytes
from ..exchange.faults import Faults
from ..problems.problem import Problem
from .simulation import Simulation

PLACEMENTS = {"home": "at home (placement='home')", "dealt": "dealt (placement='dealt')"}


@dataclass(frozen=True)
class Estimate:
    """Bytes by where they are, and the work of a round.

    By shapes, so rather too much: XLA shares some of the buffers. Nothing grows with the cohort but the rows that
    travel where the population is not on the device, up to a block.
    """

    device_data: int  # the clients' and the evaluation data, on each device
    device_state: int  # the clients' rows on a device: all of them or its part, and a block of those that travel, twice
    device_lanes: int  # of a device's lanes, and the sum of messages
    host_state: int  # with population="host", once every client was selected
    disk: int  # likewise with population="disk"; up to three times as much between checkpoints
    most_gradients: int  # per-example gradients of a round if every solve does its maximum, looks included, a line
    # search's own not
    lanes: int
    devices: int
    floats_down: int  # that a client receives in a round
    floats_up: int  # that it sends
    placement: str | None = None  # who solves a client: "home" or "dealt"; None on one device

    def __repr__(self) -> str:
        device = self.device_data + self.device_state + self.device_lanes
        return (
            f"{_size(device)} on a device (data {_size(self.device_data)}, clients {_size(self.device_state)}, "
            f"lanes {_size(self.device_lanes)}), {_size(self.host_state)} in host memory, {_size(self.disk)} on disk; "
            f"a round of at most {self.most_gradients:,} gradients, "
            f"{checks.counted(self.lanes, 'lane')} on {checks.counted(self.devices, 'device')}"
            + (f", clients {PLACEMENTS[self.placement]}" if self.placement else "")
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
    """Tells what memory and work a run will take, before anything runs. The arguments are `simulate`'s.

    >>> example = fa.examples.linear_regression(num_clients=10, rows_per_client=20, dimension=50)
    >>> estimate(example.problem, example.algorithm("fedadmm_insa"), participation=2).most_gradients
    1640
    """
    options: dict[str, Any] = dict(participation=participation, execution=execution, faults=faults, exchange=exchange)
    sim = Simulation(problem, algorithm, **options)
    shapes, cohort = sim.shapes(), sim.cohorts.size
    population, clients = sim.execution.population, problem.data.num_clients
    row, devices = row_bytes(shapes.clients), sim.resolved()["devices"]
    message = sim.floats[1] * trees.scalar_dtype(shapes.params).itemsize
    split = devices if clients % devices == 0 else 1
    at_home, travels = sim.placement == "home", sim.placement == "dealt" or population != "device"
    sizes = np.sort(np.asarray(problem.data.sizes, np.int64))[-cohort:]
    full, criterion = algorithm.local.full_gradient, algorithm.criterion
    looks = 0 if criterion.residual is None or full else 1  # after an epoch: a full gradient is the next step's
    reference = looks or (full and criterion.reference == "client")
    epochs = int(np.max(np.asarray(algorithm.local.max_epochs)))
    return Estimate(
        # The first device, which evaluates, has all of it at home too.
        device_data=size_of((problem.data, problem.eval_data)) + size_of(problem.data) // devices * at_home,
        device_state=(row * clients // split if population == "device" else 0) + 2 * row * sim.layout.share * travels,
        device_lanes=sim.width * sim.lane_bytes() + shared_bytes(problem, message),
        host_state=row * clients if population == "host" else 0,
        disk=(row + 4) * clients if population == "disk" and row else 0,
        most_gradients=int(sizes.sum()) * (epochs * (1 + looks) + reference),
        lanes=sim.width,
        devices=devices,
        floats_down=sim.floats[0],
        floats_up=sim.floats[1],
        placement=sim.placement,
    )


def _size(number: float) -> str:
    """Bytes for people."""
    power = min(4, max(0, int(number).bit_length() - 1) // 10)
    return f"{number / 1024**power:.3g} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
