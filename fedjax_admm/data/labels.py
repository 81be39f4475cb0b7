"""Which labels clients' rows have, where rows have labels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .federated import FederatedData

LABELS = "y"  # the field that has them, as in the ready-made losses
MOST_LABELS = 256
_MOST_COUNTS = 20_000_000


def count_labels(data: FederatedData, clients: np.ndarray) -> np.ndarray | None:
    """How many rows of each label clients have [clients, labels].

    Args:
        data: The clients' rows.
        clients: Whose to count.

    Returns:
        The counts; None where there is no field "y" of whole numbers, one for each row and few different ones.

    >>> data = FederatedData.from_arrays({"x": np.eye(3), "y": np.array([0, 2, 2])}, [[0, 1], [2]])
    >>> count_labels(data, np.arange(2)).tolist()
    [[1, 0, 1], [0, 0, 1]]
    """
    field = data.fields.get(LABELS) if isinstance(data.fields, Mapping) else None
    if field is None or len(field.shape) != 1 or not np.issubdtype(field.dtype, np.integer):
        return None
    labels = np.asarray(field)
    kinds = int(labels.max()) + 1
    if labels.min() < 0 or kinds > MOST_LABELS or kinds * len(clients) > _MOST_COUNTS:
        return None
    labels = labels if data.index is None else labels[np.asarray(data.index)]
    client = np.repeat(np.arange(data.num_clients, dtype=np.int64), np.asarray(data.sizes))
    chosen = np.full(data.num_clients, -1, np.int64)
    chosen[clients] = np.arange(len(clients))
    mine = chosen[client]
    counts = np.bincount(mine[mine >= 0] * kinds + labels[mine >= 0], minlength=kinds * len(clients))
    return counts.reshape(len(clients), kinds).astype(np.int32)
