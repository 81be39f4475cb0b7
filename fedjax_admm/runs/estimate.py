"""What a run will take, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..algorithms.base import Algorithm
from ..core import checks
from ..engine.execution import Execution
from ..engine.population.rows import row_bytes
from ..problems.problem import Problem
from .simulation import Simulation

PLACEMENTS = {"home": "at home (placement='home')", "dealt": "dealt (placement='dealt')"}


@dataclass(frozen=True)
class Estimate:
    """Bytes by where they are, and the work of a round.

    The lanes' part counts their parameters, optimizer states and accumulators; what a gradient needs besides
    (activations) is the model's own and not counted.
    """

    device_data: int  # the clients' and the evaluation data, on each device
    device_state: int  # the clients' rows on devices: all of them, or the cohort's
    device_lanes: int  # of all lanes: a solve's carry, and the cohort's results
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
    problem: Problem, algorithm: Algorithm, *, participation: Any = 1.0, execution: Execution | None = None
) -> Estimate:
    """The memory and the work of a run. The arguments are `simulate`'s.

    >>> example = fa.examples.linear_regression(num_clients=10, rows_per_client=20, dimension=50)
    >>> estimate(example.problem, example.algorithm("fedadmm_insa"), participation=2).most_gradients
    1640
    """
    sim = Simulation(problem, algorithm, participation=participation, execution=execution)
    shapes, cohort = sim.shapes(), sim.cohorts.size
    population, clients = sim.execution.population, problem.data.num_clients
    row, devices = row_bytes(shapes.clients), sim.resolved()["devices"]
    params = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes.params))
    optimizer = jax.eval_shape(algorithm.local.init, shapes.params)
    carry = 3 * params + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(optimizer))
    split = devices if clients % devices == 0 else 1
    sizes = np.sort(np.asarray(problem.data.sizes, np.int64))[-cohort:]
    full, criterion = algorithm.local.full_gradient, algorithm.criterion
    looks = 0 if criterion.residual is None or full else 1  # after an epoch: a full gradient is the next step's
    reference = looks or (full and criterion.reference == "client")
    epochs = int(np.max(np.asarray(algorithm.local.max_epochs)))
    return Estimate(
        device_data=sum(leaf.nbytes for leaf in jax.tree.leaves((problem.data, problem.eval_data))),
        device_state=row * clients // split if population == "device" else row * cohort,
        device_lanes=sim.width * devices * carry + 2 * cohort * params,
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
