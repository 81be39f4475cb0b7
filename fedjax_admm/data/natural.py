"""Parts that follow from the data itself: one client per user id, and rows that each client holds out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..core import checks


class Parts(list[np.ndarray]):
    """The rows of each client, a list, with the clients' `names`, which `FederatedData` keeps.

    >>> Parts([np.array([0, 2])], names=["ada"]).names
    ['ada']
    """

    def __init__(self, parts: Iterable[np.ndarray], names: Sequence[Any] | None = None) -> None:
        super().__init__(parts)
        self.names = None if names is None else list(names)


def by_key(keys: Any, *, min_size: int = 1) -> Parts:
    """Natural clients: one for each distinct key, in the order in which keys first appear.

    Args:
        keys: The owner of each row [rows]: user ids, names, any numbers or words.
        min_size: Keys with fewer rows are left out, together with their rows.

    Returns:
        The rows of each client, in their order, as a list whose `names` are the keys.

    >>> parts = by_key(["ada", "bob", "ada"])
    >>> [part.tolist() for part in parts], parts.names
    ([[0, 2], [1]], ['ada', 'bob'])
    """
    min_size = checks.integer("min_size", min_size, at_least=1)
    keys = _checked_keys(keys)
    names, first, of_row = np.unique(keys, return_index=True, return_inverse=True)
    counts = np.bincount(of_row)
    rows = np.split(np.argsort(of_row, kind="stable"), np.cumsum(counts)[:-1])
    kept = [k for k in np.argsort(first) if counts[k] >= min_size]
    if not kept:
        raise ValueError(f"min_size={min_size} leaves no client: the key with most rows has {counts.max()}; lower it")
    return Parts([rows[k] for k in kept], names[kept].tolist())


def holdout(parts: Sequence[Any], fraction: float, seed: int = 0) -> tuple[Parts, Parts]:
    """Holds out some of each client's rows, for tests per client.

    Which rows depends only on the seed and the client's number. The share is rounded to whole rows, with at least one
    row on either side.

    Args:
        parts: The rows of each client, at least two.
        fraction: The share of a client's rows that are held out, between 0 and 1.
        seed: The seed from which the rows are drawn.

    Returns:
        (train_parts, test_parts), both with the same clients in the same order, and their names.

    >>> train, test = holdout([np.arange(10), np.arange(10, 14)], fraction=0.2)
    >>> [len(part) for part in train], [len(part) for part in test]
    ([8, 3], [2, 1])
    """
    fraction = checks.number("fraction", fraction, above=0)
    if not fraction < 1:
        raise ValueError(f"fraction must be below 1, got {fraction}: each client keeps rows to train on")
    seed = checks.integer("seed", seed, at_least=0)
    train, test = [], []
    for i, part in enumerate(parts):
        rows = np.asarray(part)
        if len(rows) < 2:
            raise ValueError(
                f"parts[{i}] has {checks.counted(len(rows), 'row')}, of which none can be held out: leave such "
                "clients out, as by_key(keys, min_size=2) does"
            )
        number = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        out = np.zeros(len(rows), bool)
        out[np.random.default_rng([seed, i]).permutation(len(rows))[:number]] = True
        train.append(rows[~out])
        test.append(rows[out])
    names = getattr(parts, "names", None)
    return Parts(train, names), Parts(test, names)


def _checked_keys(keys: Any) -> np.ndarray:
    """Keys as an array that can be sorted."""
    array = np.asarray(keys)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"keys must be one key per row, [rows], got shape {array.shape}")
    if array.dtype.kind == "O":
        missing = [k for k, key in enumerate(array) if key is None or key != key]
        if missing:
            raise ValueError(f"keys[{missing[0]}] is missing: remove the row, or give it a key")
        array = array.astype(str)
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise ValueError(f"keys[{int(np.argmax(np.isnan(array)))}] is NaN: remove the row, or give it a key")
    if array.dtype.kind not in "iufbSUM":
        raise ValueError(f"keys must be numbers or words, got dtype {array.dtype}")
    return array
