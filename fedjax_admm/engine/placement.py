"""Where clients are solved on a mesh: at home, on the device that has their rows and data, or dealt to any.

At home nothing moves but the model and one sum of messages; who is selected decides how evenly the devices are busy.
Dealt, every device gets as much work, and a client's row travels to it and back, in blocks of a bounded size; the data
is on every device.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..data.federated import FederatedData
from ..data.rows import Rows, kinds
from . import processes
from .devices import AXIS, replicated
from .rounds import Setup

HOME, DEALT = "home", "dealt"
BLOCK_BYTES = 1 << 26  # of rows that travel at a time


def choose(asked: str, mesh: Mesh | None, clients: int, keeps_rows: bool) -> str | None:
    """`Execution.placement` for so many clients; None on one device, where there is nothing to choose."""
    if mesh is None:
        return None
    divisible = clients % mesh.size == 0
    if asked == HOME and not divisible:
        raise ValueError(
            f"placement='home' splits the clients evenly, and {clients} clients are not divisible by {mesh.size} "
            "devices: use another mesh, or placement='dealt'"
        )
    if asked != "auto":
        return asked
    if processes.several():  # each then has its own clients' data alone
        return HOME if divisible else DEALT
    # CPU devices share one memory, so nothing is won by staying at home; and without rows nothing travels.
    shared_memory = mesh.devices.flat[0].platform == "cpu"
    return HOME if divisible and keeps_rows and not shared_memory else DEALT


def share_of_block(cohort: int, devices: int, width: int, row_bytes: int, group: int | None = None) -> int:
    """How many clients each device takes at a time where rows travel in blocks; at least its lanes' worth.

    Args:
        cohort: The clients of a round.
        devices: How many there are.
        width: Lanes of each.
        row_bytes: Of what travels of a client.
        group: The fewest devices that may have to share the whole cohort; by default all.

    Returns:
        The clients.
    """
    fitting = cohort if row_bytes == 0 else BLOCK_BYTES // (row_bytes * devices)
    return min(-(-cohort // (group or devices)), max(fitting, width))


def place(setup: Setup, mesh: Mesh | None, placement: str | None) -> Setup:
    """The setup where rounds need it. To be placed once: what is not there is copied at every call."""
    problem = setup.problem
    if placement == HOME and mesh is not None:
        problem = _with(problem, data=split_by_home(problem.data, mesh), eval_data=None)
    elif mesh is not None:
        problem = replicated(problem, mesh)
    algorithm, exchange = replicated((setup.algorithm, setup.exchange), mesh)
    return Setup(problem, algorithm, exchange, setup.key)


def specs(setup: Setup, placement: str | None) -> Any:
    """How a setup lies on a mesh."""
    everywhere = jax.tree.map(lambda _: PartitionSpec(), setup)
    if placement != HOME:
        return everywhere
    data = everywhere.problem.data
    fields = jax.tree.map(lambda _: PartitionSpec(AXIS), setup.problem.data.fields)
    data = _with(data, fields=fields)
    return _with(everywhere, problem=_with(everywhere.problem, data=data))


def _with(record: Any, **values: Any) -> Any:
    """A copy with other values, unchecked: a record checks what a user gives it."""
    copy = jax.tree.map(lambda leaf: leaf, record)
    for name, value in values.items():
        object.__setattr__(copy, name, value)
    return copy


def split_by_home(data: FederatedData, mesh: Mesh) -> FederatedData:
    """The data split over the devices as the clients are; offsets count from a device's first row.

    Devices' parts are padded to the largest, since JAX splits evenly.
    """
    devices, sizes = mesh.size, np.asarray(data.sizes, np.int64)
    offsets = np.asarray(data.offsets, np.int64)
    of_device = sizes.reshape(devices, -1)
    most = int(of_device.sum(axis=1).max())
    firsts = np.repeat(offsets.reshape(devices, -1)[:, 0], of_device.shape[1])
    reader, like = Rows(data.fields, data.index), kinds(data.fields, devices * most)
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))

    here = {place: device for place, device in enumerate(mesh.devices.flat) if device in mesh.local_devices}
    parts: list[list[Array]] = []  # of each device of this process, each field's
    for place, device in here.items():
        first, number = int(firsts[place * of_device.shape[1]]), int(of_device[place].sum())
        room = [np.zeros((most, *leaf.shape[1:]), leaf.dtype) for leaf in jax.tree.leaves(like)]
        reader.read(first, first + number, room)
        parts.append([jax.device_put(leaf, device) for leaf in room])
    leaves, structure = jax.tree.flatten(like)
    fields = [
        jax.make_array_from_single_device_arrays(leaf.shape, sharding, [part[k] for part in parts])
        for k, leaf in enumerate(leaves)
    ]
    everywhere = replicated((jnp.asarray(offsets - firsts, jnp.int32), data.sizes, data.weights), mesh)
    return FederatedData(jax.tree.unflatten(structure, fields), None, *everywhere)
