"""Several processes, on one host or many, that do a run together.

Every process runs the same script on the same data and sees the same numbers; the mesh spans all their devices. What
follows from a clock or a signal is agreed upon, since a process that did another round, or a checkpoint, alone would
wait for the others for ever. Process 0 writes the records.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from ..core.errors import is_shared, share
from .devices import be_patient

HEARTBEAT_SECONDS = 40  # after which a silent process counts as dead: the others are to end within a minute
_BLOCK_BYTES = 1 << 26  # of rows that are fetched from all processes at a time


class LostProcessError(RuntimeError):
    """Another process of the run ended, or cannot be reached.

    >>> issubclass(LostProcessError, RuntimeError)
    True
    """


def initialize_distributed(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **options: Any,
) -> int:
    """Joins this process to the others of a run, by `jax.distributed.initialize`.

    Under SLURM, Open MPI, Kubernetes and on TPU pods no argument is needed. Call it before anything is computed with
    JAX, then run the same script in every process, with a `run_dir` that all of them see. When a process dies, the
    others end as well; the run can be resumed with the same or another number of processes.

    Args:
        coordinator_address: A host and a free port of process 0, as "10.0.0.1:1234".
        num_processes: How many processes there are.
        process_id: The number of this process, from 0.
        options: Other arguments of `jax.distributed.initialize`.

    Returns:
        The number of this process, from 0.

    Raises:
        LostProcessError: The processes did not find each other.
        RuntimeError: JAX has started already.
        ValueError: No cluster was found, and an argument is missing.

    >>> fa.initialize_distributed("127.0.0.1:1234", num_processes=2, process_id=1)  # doctest: +SKIP
    1
    """
    options = {"heartbeat_timeout_seconds": HEARTBEAT_SECONDS} | options
    flags = be_patient()
    try:
        jax.distributed.initialize(coordinator_address, num_processes, process_id, **options)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise LostProcessError(f"the processes did not find each other at {coordinator_address}: {reason}") from error
    except RuntimeError as error:
        os.environ["XLA_FLAGS"] = flags
        raise RuntimeError(f"initialize_distributed came too late, or twice: {error}") from None
    except ValueError as error:
        raise ValueError(
            f"initialize_distributed found no cluster ({str(error).rstrip('.')}): give coordinator_address, "
            "num_processes and process_id"
        ) from None
    return jax.process_index()


def is_first() -> bool:
    """Whether this is the process that writes records and speaks; alone, it is."""
    return jax.process_index() == 0


def several() -> bool:
    """Whether there are other processes."""
    return jax.process_count() > 1


def greatest(*numbers: int) -> tuple[int, ...]:
    """Of each number the greatest that any process has: so all go on with the same. Alone, the numbers themselves.

    >>> greatest(3, True)
    (3, 1)
    """
    if not several():
        return tuple(map(int, numbers))
    return tuple(multihost_utils.process_allgather(np.array(numbers, np.int32)).max(axis=0).tolist())


def greatest_of(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Of each array of whole numbers, entry by entry, the greatest that any process has. Alone, the arrays themselves.

    >>> greatest_of(np.array([3, -1]))
    (array([ 3, -1]),)
    """
    if not several():
        return arrays
    return tuple(multihost_utils.process_allgather(array).max(axis=0) for array in arrays)


def of_all(tree: Any) -> list[Any]:
    """Every process's tree of NumPy arrays, alike in shapes, to the bit. Alone, this one's.

    >>> of_all({"loss": np.ones(2)})
    [{'loss': array([1., 1.])}]
    """
    if not several():
        return [tree]
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, tree))
    # As bytes: what is gathered goes through the devices, which may not have the dtype.
    sent = [multihost_utils.process_allgather(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)) for leaf in leaves]
    return [
        jax.tree.unflatten(
            structure,
            [
                np.ascontiguousarray(bytes[process]).view(leaf.dtype).reshape(leaf.shape)
                for bytes, leaf in zip(sent, leaves, strict=True)
            ],
        )
        for process in range(jax.process_count())
    ]


def whole(tree: Any) -> Any:
    """The tree with every leaf in this process; leaves of which other processes have rows come as NumPy arrays."""
    return jax.tree.map(_whole_leaf, tree)


def _whole_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return leaf
    return leaf.addressable_data(0) if leaf.is_fully_replicated else _fetch(leaf)


def _fetch(leaf: jax.Array) -> np.ndarray:
    """All rows of a leaf that is split along its first axis; through the devices in blocks, since it may be large."""
    owners: dict[int, list[int]] = {}  # process -> its rows, in the order in which it sends them
    for device, index in sorted(leaf.sharding.devices_indices_map(leaf.shape).items(), key=lambda item: item[0].id):
        owners.setdefault(device.process_index, []).extend(range(leaf.shape[0])[index[0]])
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)
    mine = np.concatenate([np.asarray(shard.data) for shard in shards])
    rows = max(1, _BLOCK_BYTES * len(mine) // max(1, mine.nbytes))
    blocks = [multihost_utils.process_allgather(mine[k : k + rows]) for k in range(0, len(mine), rows)]
    sent = np.concatenate(blocks, axis=1)  # [processes, rows of each, ...]
    whole_leaf = np.empty(leaf.shape, leaf.dtype)
    for process, places in owners.items():
        whole_leaf[places] = sent[process]
    return whole_leaf


@contextlib.contextmanager
def together(run_dir: Any) -> Iterator[None]:
    """A run of several processes: one that has an error alone (`core.errors`) will not wait for the others.

    An orderly end would wait for them, while they wait for this one in the run.
    """
    try:
        yield
    except BaseException as error:
        if several() and not is_shared(error):
            atexit.register(_leave)
            if tells_of_a_loss(error):
                raise LostProcessError(_lost(error, run_dir)) from error
        raise


@contextlib.contextmanager
def before_the_others() -> Iterator[None]:
    """What process 0 does while the others wait in `after_the_first`; an error of it is an error of all."""
    try:
        yield
    except BaseException as error:
        greatest(True)
        share(error)
        raise
    greatest(False)


def after_the_first() -> None:
    """Waits until process 0 has left `before_the_others`."""
    if greatest(False)[0]:
        raise share(ValueError("process 0 could not begin the run: see what it says"))


def tells_of_a_loss(error: BaseException) -> bool:
    """Whether an error is how a collective or a barrier says that a process is gone; JAX has no type for it.

    >>> tells_of_a_loss(ValueError("UNKNOWN: Gloo AllReduce failed: Connection closed by peer"))
    True
    """
    pattern = r"[A-Z_]+: .*(?i:gloo|nccl|rccl|connection|barrier|coordination)"
    return isinstance(error, Exception) and re.match(pattern, str(error), re.DOTALL) is not None


def _lost(error: BaseException, run_dir: Any) -> str:
    reason = str(error).splitlines()[0][:200]
    kept = (
        "nothing is kept, since there is no run_dir"
        if run_dir is None
        else f"{run_dir} is as it was last saved: start all processes again, and the run is resumed"
    )
    return f"another process of the run ended or cannot be reached ({reason}); {kept}"


def _leave() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
