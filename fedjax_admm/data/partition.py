"""Which rows each client has. The functions return a list with one array of row numbers per client."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from ..core import checks
from .natural import Parts, by_key, holdout

__all__ = ["Parts", "by_key", "dirichlet", "holdout", "iid", "shards"]


def iid(num_examples: int, num_clients: int, seed: int = 0) -> list[np.ndarray]:
    """Shuffles the rows and deals them evenly: sizes differ by at most one.

    Args:
        num_examples: How many rows there are.
        num_clients: How many clients there are.
        seed: The seed from which the rows are dealt.

    Returns:
        The rows of each client.

    >>> [len(part) for part in iid(10, 3)]
    [4, 3, 3]
    """
    num_examples = checks.integer("num_examples", num_examples, at_least=1)
    num_clients = _num_clients(num_clients, num_examples)
    return np.array_split(_generator(seed).permutation(num_examples), num_clients)


def shards(
    labels: Any, num_clients: int, labels_per_client: int = 2, seed: int = 0, *, straddle: bool = False
) -> list[np.ndarray]:
    """Pathological non-IID clients, each with at most `labels_per_client` labels.

    There are num_clients * labels_per_client shards, of one label each. A label gets shards in proportion to its count
    (by largest remainders, at least one). Its rows are shuffled and cut into shards whose sizes differ by at most one.
    The shards are dealt at random, labels_per_client to each client. So sizes are as equal as the counts of the labels
    allow, and a client may get the same label twice.

    Args:
        labels: The rows' labels [rows].
        num_clients: How many clients there are.
        labels_per_client: The shards of a client.
        seed: The seed from which the rows are shuffled and dealt.
        straddle: Cut the rows, sorted by label, into equal pieces regardless of where a label ends, as the
            authors' program does. A piece may then contain two labels, so that a client has one label more.

    Returns:
        The rows of each client.

    >>> labels = np.repeat([0, 1, 2], [30, 20, 10])
    >>> parts = shards(labels, num_clients=6, labels_per_client=2)
    >>> max(len(set(labels[part])) for part in parts) <= 2
    True
    """
    labels = _labels(labels)
    num_clients = _num_clients(num_clients, len(labels))
    labels_per_client = checks.integer("labels_per_client", labels_per_client, at_least=1)
    rng = _generator(seed)
    num_shards = num_clients * labels_per_client
    if num_shards > len(labels):
        raise ValueError(
            f"num_clients * labels_per_client = {num_shards} shards do not fit {len(labels)} examples: lower one"
        )
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    if straddle:
        pieces = np.array_split(by_label, num_shards)
    else:
        counts = np.unique(labels, return_counts=True)[1]
        if len(counts) > num_shards:
            raise ValueError(
                f"num_clients * labels_per_client = {num_shards} shards cannot hold {len(counts)} labels: raise one"
            )
        groups = np.split(by_label, np.cumsum(counts)[:-1])
        pieces = [
            piece
            for group, number in zip(groups, _apportion(counts, num_shards), strict=True)
            for piece in np.array_split(group, number)
        ]
    dealt = rng.permutation(num_shards).reshape(num_clients, labels_per_client)
    return [np.concatenate([pieces[j] for j in client]) for client in dealt]


def dirichlet(labels: Any, num_clients: int, alpha: float, seed: int = 0, *, min_size: int = 1) -> list[np.ndarray]:
    """Divides the rows of each label among the clients, in proportions drawn from Dirichlet(alpha, ..., alpha).

    With a small alpha, clients have few labels and very unequal sizes; with a large alpha they are nearly i.i.d.
    Afterwards each client with fewer than `min_size` rows gets random rows from whichever client has most at that
    moment. Nothing is drawn again, so this always ends and leaves the other clients as drawn.

    Args:
        labels: The rows' labels [rows].
        num_clients: How many clients there are.
        alpha: The concentration, above 0.
        seed: The seed of all draws.
        min_size: The least number of rows of a client.

    Returns:
        The rows of each client.

    >>> parts = dirichlet(np.arange(1000) % 10, num_clients=20, alpha=0.3, min_size=5)
    >>> sum(map(len, parts)), min(map(len, parts)) >= 5
    (1000, True)

    Reference: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated
    visual classification", 2019.
    """
    labels = _labels(labels)
    num_clients = _num_clients(num_clients, len(labels))
    alpha = checks.number("alpha", alpha, above=0)
    min_size = checks.integer("min_size", min_size, at_least=1)
    if num_clients * min_size > len(labels):
        raise ValueError(
            f"min_size={min_size} for {num_clients} clients needs {num_clients * min_size} examples, "
            f"there are {len(labels)}: lower one"
        )
    rng = _generator(seed)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(num_clients, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return _top_up([rng.permutation(np.concatenate(part)) for part in parts], min_size)


def _top_up(parts: list[np.ndarray], min_size: int) -> list[np.ndarray]:
    """Moves rows, one at a time, from the largest client to each that is too small.

    The parts are in random order, so the last rows of one are random rows of it.
    """
    sizes = [len(part) for part in parts]
    received: dict[int, list[np.ndarray]] = {i: [] for i, size in enumerate(sizes) if size < min_size}
    largest = [(-size, i) for i, size in enumerate(sizes) if size > min_size]
    heapq.heapify(largest)
    for i, rows in received.items():
        for _ in range(min_size - len(parts[i])):
            size, giver = heapq.heappop(largest)
            rows.append(parts[giver][-size - 1 : -size])
            if -size - 1 > min_size:
                heapq.heappush(largest, (size + 1, giver))
            sizes[giver] = -size - 1
    return [np.concatenate([part[: sizes[i]], *received.get(i, [])]) for i, part in enumerate(parts)]


def _apportion(counts: np.ndarray, total: int) -> np.ndarray:
    """`total` seats in proportion to `counts`, at least one each, by largest remainders."""
    quota = counts * (total / counts.sum())
    seats = np.maximum(np.floor(quota).astype(int), 1)
    while seats.sum() != total:  # at most one step per label
        step = 1 if seats.sum() < total else -1
        # A label gives up a seat only if one is left, and takes one only if it has a row for it.
        allowed = seats < counts if step > 0 else seats > 1
        gain = np.where(allowed, step * (quota - seats), -np.inf)
        seats[np.argmax(gain)] += step
    return seats


def _labels(labels: Any) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(f"labels must be one label per example, [examples], got shape {labels.shape}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"labels must be finite, got {labels[~np.isfinite(labels)][0]}")
    return labels


def _generator(seed: Any) -> np.random.Generator:
    return np.random.default_rng(checks.integer("seed", seed, at_least=0))


def _num_clients(num_clients: Any, num_examples: int) -> int:
    num_clients = checks.integer("num_clients", num_clients, at_least=1)
    if num_clients > num_examples:
        raise ValueError(f"num_clients={num_clients} is more than the {num_examples} examples: each client needs one")
    return num_clients
