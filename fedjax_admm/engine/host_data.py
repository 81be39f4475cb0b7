"""Data that stays on the host: whether it does, and how much of it is on the devices at a time."""

from __future__ import annotations

import jax
import numpy as np

from ..data.federated import FederatedData
from ..data.rows import in_memory, row_bytes
from .memory import device_memory

DEVICE, HOST = "device", "host"
FITTING = 0.5  # of a device's memory, that data may take without being asked for


def choose(asked: str, data: FederatedData) -> str:
    """`Execution.data` for this data: by itself on the device where it is in memory and fits there."""
    if asked != "auto":
        return asked
    if not in_memory(data.fields):
        return HOST
    limit = device_memory()
    return DEVICE if limit is None or data_bytes(data) <= FITTING * limit else HOST


def data_bytes(data: FederatedData) -> int:
    """Bytes of all rows, as a device would hold them."""
    leaves = jax.tree.leaves(data.fields)
    return leaves[0].shape[0] * row_bytes(data.fields)


def rows_of_block(data: FederatedData, share: int, block_bytes: int) -> int:
    """How many rows of data a device has room for in a block of at most `share` clients.

    By the clients' sizes alone, so that every block has the same: a program is compiled once.

    Args:
        data: The federation.
        share: Clients that a device takes of a block.
        block_bytes: The most that the rows may take.

    Returns:
        The rows.

    Raises:
        ValueError: A single client has more.
    """
    sizes, each = np.asarray(data.sizes, np.int64), max(1, row_bytes(data.fields))
    bound, largest = block_bytes // each, int(sizes.max())
    if largest > bound:
        raise ValueError(
            f"client {int(sizes.argmax())} has {largest:,} rows of {each:,} bytes, and a block of data with "
            f"data='host' has {block_bytes:,} bytes: give Execution(block_bytes={largest * each}) or more"
        )
    most = int(np.partition(sizes, -share)[-share:].sum()) if share < len(sizes) else int(sizes.sum())
    return min(bound, most, np.iinfo(np.int32).max)
