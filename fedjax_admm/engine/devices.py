"""Several devices: how many to use, and which jobs each of them gets.

A mesh has one axis, over clients. Each device has its own lanes and its own loop over its share of the jobs, with
nothing to agree on until all are done; then the sums of messages are summed over the devices, and so are the records of
solves, where every job is zero but on the one that did it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..core import checks, environment

AXIS = "clients"
TOGETHER_BYTES = 1 << 16  # of an array that is copied to be added with others: a few microseconds
# One device may be late by as much as a client's solve takes; XLA would end the process after a minute.
_PATIENT = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=86400",
    "--xla_cpu_collective_call_terminate_timeout_seconds=864000",
)


def use_cpu_devices(number: int | None = None) -> int:
    """Makes JAX see several CPU devices, which runs then share.

    Clients are distributed over the devices, so all cores are used even if single steps are short. Call this before
    anything is computed with JAX; afterwards the number is fixed.

    Args:
        number: How many devices; by default one for each core that this process may use.

    Returns:
        The number.

    Raises:
        RuntimeError: JAX has started with another number.

    >>> fa.use_cpu_devices()  # doctest: +SKIP
    8
    """
    number = cast(int, checks.integer("number", environment.cores() if number is None else number, at_least=1))
    flags = be_patient()
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        os.environ["XLA_FLAGS"] = flags
        if jax.local_device_count("cpu") == number:
            return number
        raise RuntimeError(
            f"use_cpu_devices({number}) came too late, JAX has started with {jax.local_device_count('cpu')}: "
            "call it before anything is computed"
        ) from None
    return number


def be_patient() -> str:
    """Lets CPU devices wait for each other as long as it takes, if JAX has not started; returns the former flags."""
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in _PATIENT if flag.partition("=")[0] not in flags]
    os.environ["XLA_FLAGS"] = " ".join([*flags.split(), *missing])
    return flags


def mesh_of(mesh: Any) -> Mesh | None:
    """A mesh with the one axis over clients, from a mesh, a number of devices or None; None for one device."""
    if mesh is None:
        return None
    if isinstance(mesh, Mesh):
        devices = mesh.devices.ravel()
    else:
        number, here = checks.integer("mesh", mesh, at_least=1), jax.devices()
        if number > len(here):
            raise ValueError(
                f"mesh asks for {number} devices, but there are {len(here)}: on a CPU, call "
                f"fedjax_admm.use_cpu_devices({number}) before anything is computed"
            )
        devices = np.array(here[:number])
    idle = set(range(jax.process_count())) - {device.process_index for device in devices}
    if idle:
        raise ValueError(
            f"mesh has no device of process {min(idle)}, but every process must take part: leave mesh out for all "
            f"{jax.device_count()} devices"
        )
    if devices.size == 1:
        _check_default(devices[0])
        return None
    return Mesh(devices, (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))


def _check_default(device: Any) -> None:
    """One device alone is JAX's default: there the data is, and the evaluation."""
    usual = next(iter(jnp.zeros(()).devices()))
    if device != usual:
        raise ValueError(
            f"mesh has one device, {device}, and JAX's default is {usual}: make it the default before the data is "
            "made, jax.config.update('jax_default_device', ...)"
        )


def replicated(tree: Any, mesh: Mesh | None) -> Any:
    """The tree on every device of the mesh. To be placed once: what is not there is copied at every call.

    CPU devices share one copy, which nothing may be donated from.
    """
    if mesh is None:
        return jax.device_put(tree)
    if mesh.devices.flat[0].platform != "cpu":
        return everywhere(tree, mesh)
    sharding = NamedSharding(mesh, PartitionSpec())

    def share(leaf: Any) -> Array:
        host = np.asarray(leaf)  # a view of what is in memory already
        copies = [jax.device_put(host, device, may_alias=True) for device in mesh.local_devices]
        return jax.make_array_from_single_device_arrays(host.shape, sharding, copies)

    return jax.tree.map(share, tree)


def everywhere(tree: Any, mesh: Mesh | None) -> Any:
    """The tree on every device of the mesh, each with a copy of its own, which may be donated.

    On the tree's own device that is the tree's buffer: donated, the tree is gone too.
    """
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, PartitionSpec())
    return placed(tree, jax.tree.map(lambda _: sharding, tree))


def placed(tree: Any, shardings: Any) -> Any:
    """The tree where `shardings`, a tree like it, say. Of several processes each fills its own devices."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)

    def put(leaf: Any, sharding: NamedSharding) -> Array:
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return jax.tree.map(put, tree, shardings)


def spread(tree: Any, mesh: Mesh | None) -> Any:
    """Arrays whose leading axis is split over the devices, from this process's part of them."""
    if mesh is None or jax.process_count() == 1:
        return tree
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), tree)


def parts_here(tree: Any) -> Any:
    """Of arrays whose leading axis is split over the devices, this process's parts, in their order."""

    def parts(leaf: Any) -> list[Array]:
        shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        return [shard.data for shard in shards]

    return [parts(leaf) for leaf in jax.tree.leaves(tree)]


def on_one_device(tree: Any) -> Any:
    """A replicated tree's copy on one device of this process."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0) if isinstance(leaf, jax.Array) else leaf, tree)


def dealt(jobs: int, number: int) -> np.ndarray:
    """Places in the queue [number, share] that each device gets; places beyond the last job are none.

    >>> dealt(5, 2)
    array([[0, 3, 4],
           [1, 2, 5]])
    """
    table = np.arange(-(-jobs // number) * number).reshape(-1, number)
    table[1::2] = table[1::2, ::-1]
    return table.T


def as_bits(tree: Any) -> Any:
    """The leaves as unsigned integers of their width: sums of these over devices are exact where all but one are 0."""

    def bits(leaf: Array) -> Array:
        leaf = leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf
        return lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")

    return jax.tree.map(bits, tree)


def from_bits(bits: Any, like: Any) -> Any:
    """What `as_bits` was made of, in the dtypes of `like`, a tree of arrays or shapes."""

    def back(leaf: Array, like: Any) -> Array:
        return leaf.astype(bool) if like.dtype == bool else lax.bitcast_convert_type(leaf, like.dtype)

    return jax.tree.map(back, bits, like)


def summed(tree: Any) -> Any:
    """The sum over all devices of every leaf.

    CPU devices meet once for every array that they add, which takes as long as a step or two of a small model, so small
    arrays of one dtype are added as one.
    """
    leaves, structure = jax.tree.flatten(tree)
    groups: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault(leaf.dtype if leaf.nbytes <= TOGETHER_BYTES else index, []).append(index)
    packed = [ravel_pytree([leaves[index] for index in group]) for group in groups.values()]
    sums = lax.psum([flat for flat, _ in packed], AXIS)
    for group, total, (_, unpack) in zip(groups.values(), sums, packed, strict=True):
        for index, leaf in zip(group, unpack(total), strict=True):
            leaves[index] = leaf
    return jax.tree.unflatten(structure, leaves)


def pack_rows(rows: Any) -> tuple[list[Array], Callable[[list[Array]], Any]]:
    """Rows, leaves [number, ...], as few arrays [number, ...]: small leaves of one dtype side by side.

    Returns:
        The arrays, and what makes rows of arrays like them, with any number of rows.
    """
    leaves, structure = jax.tree.flatten(rows)
    groups: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault(leaf.dtype if leaf.nbytes <= TOGETHER_BYTES else index, []).append(index)
    packed = [jnp.concatenate([_flat(leaves[index]) for index in group], axis=1) for group in groups.values()]

    def unpack(arrays: list[Array]) -> Any:
        parts: list[Any] = [None] * len(leaves)
        for group, array in zip(groups.values(), arrays, strict=True):
            ends = np.cumsum([_flat(leaves[index]).shape[1] for index in group])[:-1]
            for index, part in zip(group, jnp.split(array, ends, axis=1), strict=True):
                parts[index] = part.reshape(array.shape[0], *leaves[index].shape[1:])
        return jax.tree.unflatten(structure, parts)

    return packed, unpack


def _flat(leaf: Array) -> Array:
    return leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:]))


def each_one(value: Array, number: int) -> Array:
    """[number], this device's value in its place, zeros elsewhere: summed, every device's."""
    return jnp.where(jnp.arange(number) == lax.axis_index(AXIS), value, jnp.zeros_like(value))
