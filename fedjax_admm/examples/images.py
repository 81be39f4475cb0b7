"""Examples 2 and 3: image classification with clients that hold few labels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .. import models, problems
from ..algorithms.local_solver import LocalSolver
from ..core import checks
from ..data import partition
from ..data.federated import FederatedData
from ..data.sources import EMBEDDED, load
from ..exchange.cohorts import Cohorts
from ..models.model import Model
from ..problems.problem import Problem
from .base import Example, recipe

DataDir = str | os.PathLike[str] | None


@recipe
def mnist_cnn(
    *,
    data_dir: DataDir = None,
    num_clients: int = 200,
    labels_per_client: int = 2,
    straddle: bool = False,
    rows_per_client: int | None = None,
    test_rows: int | None = None,
    padded: bool = False,
    partition_seed: int = 0,
    learning_rate: Any = 0.01,
    batch_size: int | None = 50,
    max_epochs: Any = 20,
    rounds: int = 300,
    participation: Any = 0.2,
    dtype: str | None = None,
) -> Example:
    """Example 2 of the paper: MNIST, a CNN with two convolutions, at most two labels per client.

    Args:
        data_dir: The folder with TFDS's data sets; by default `$TFDS_DATA_DIR`, or else TFDS's own folder.
        num_clients: How many clients there are.
        labels_per_client: The most labels of a client.
        straddle: Cut the shards as the authors' program does (see `fa.partition.shards`).
        rows_per_client: Take this many training images per client on average, drawn with `partition_seed`; None takes
            all.
        test_rows: Take this many test images, drawn likewise but the same with every seed; None takes all.
        padded: McMahan et al.'s network with padded convolutions instead of the authors' without.
        partition_seed: The seed from which the clients' shards are dealt.
        learning_rate: The step size of the local solver.
        batch_size: Rows per step; None is the full gradient.
        max_epochs: The most passes over its rows that a client does in a round.
        rounds: How many rounds a run has.
        participation: The fraction of the clients that take part in a round, or their number.
        dtype: Of the factors of the network's products, such as "bfloat16", which some processors multiply faster; all
            sums and the parameters stay float32.

    >>> example = fa.examples.mnist_cnn(data_dir="tensorflow_datasets")  # doctest: +SKIP
    """
    return _image_example(
        "mnist",
        data_dir,
        models.cnn(padded=padded, dtype=dtype),
        parts=dict(
            num_clients=num_clients, labels_per_client=labels_per_client, seed=partition_seed, straddle=straddle
        ),
        local=LocalSolver(learning_rate=learning_rate, batch_size=batch_size, max_epochs=max_epochs),
        rows_per_client=rows_per_client,
        test_rows=test_rows,
        rounds=rounds,
        participation=participation,
        c=0.01,
    )


@recipe
def cifar10_resnet20(
    *,
    data_dir: DataDir = None,
    num_clients: int = 10,
    labels_per_client: int = 5,
    straddle: bool = False,
    rows_per_client: int | None = None,
    test_rows: int | None = None,
    partition_seed: int = 0,
    learning_rate: Any = 0.001,
    batch_size: int | None = 500,
    max_epochs: Any = 10,
    rounds: int = 300,
    participation: Any = 0.2,
    dtype: str | None = None,
) -> Example:
    """Example 3 of the paper: CIFAR-10, ResNet-20 with GroupNorm, ten clients with at most five labels each.

    Args:
        data_dir: The folder with TFDS's data sets; by default `$TFDS_DATA_DIR`, or else TFDS's own folder.
        num_clients: How many clients there are.
        labels_per_client: The most labels of a client.
        straddle: Cut the shards as the authors' program does (see `fa.partition.shards`).
        rows_per_client: Take this many training images per client on average, drawn with `partition_seed`; None takes
            all.
        test_rows: Take this many test images, drawn likewise but the same with every seed; None takes all.
        partition_seed: The seed from which the clients' shards are dealt.
        learning_rate: The step size of the local solver.
        batch_size: Rows per step; None is the full gradient.
        max_epochs: The most passes over its rows that a client does in a round.
        rounds: How many rounds a run has.
        participation: The fraction of the clients that take part in a round, or their number.
        dtype: Of the factors of the network's products, such as "bfloat16", which some processors multiply faster; all
            sums and the parameters stay float32.

    >>> example = fa.examples.cifar10_resnet20(data_dir="tensorflow_datasets")  # doctest: +SKIP
    """
    return _image_example(
        "cifar10",
        data_dir,
        models.resnet20(dtype=dtype),
        parts=dict(
            num_clients=num_clients, labels_per_client=labels_per_client, seed=partition_seed, straddle=straddle
        ),
        local=LocalSolver(learning_rate=learning_rate, batch_size=batch_size, max_epochs=max_epochs),
        rows_per_client=rows_per_client,
        test_rows=test_rows,
        rounds=rounds,
        participation=participation,
        c=0.001,
    )


@recipe
def mnist_mini(
    *,
    num_clients: int = 50,
    labels_per_client: int = 2,
    partition_seed: int = 0,
    model: Model | None = None,
    learning_rate: Any = 0.05,
    batch_size: int | None = 20,
    max_epochs: Any = 10,
    rounds: int = 100,
    participation: Any = 0.2,
    dtype: str | None = None,
) -> Example:
    """A small version of Example 2: 5,000 + 1,000 images of MNIST that come with the package, and an MLP.

    It is not one of the paper's examples; it runs offline, in seconds.

    Args:
        num_clients: How many clients there are.
        labels_per_client: The most labels of a client.
        partition_seed: The seed from which the clients' shards are dealt.
        model: Another model, such as `fa.models.cnn()`; by default an MLP.
        learning_rate: The step size of the local solver.
        batch_size: Rows per step; None is the full gradient.
        max_epochs: The most passes over its rows that a client does in a round.
        rounds: How many rounds a run has.
        participation: The fraction of the clients that take part in a round, or their number.
        dtype: Of the factors of the network's products, such as "bfloat16", which some processors multiply faster; all
            sums and the parameters stay float32.

    >>> mnist_mini(num_clients=10).problem.data.num_clients
    10
    """
    if model is not None and dtype is not None:
        raise ValueError(f"dtype is of the example's own network: give model= with its dtype, got dtype={dtype!r}")
    own = models.mlp((28, 28, 1), hidden=(128,), normalization=models.MNIST, dtype=dtype) if model is None else model
    return _image_example(
        EMBEDDED,
        None,
        own,
        parts=dict(num_clients=num_clients, labels_per_client=labels_per_client, seed=partition_seed),
        local=LocalSolver(learning_rate=learning_rate, batch_size=batch_size, max_epochs=max_epochs),
        rounds=rounds,
        participation=participation,
        c=0.01,
    )


def _image_example(
    name: str,
    data_dir: DataDir,
    model: Model,
    *,
    parts: dict[str, Any],
    rows_per_client: int | None = None,
    test_rows: int | None = None,
    **settings: Any,
) -> Example:
    clients = checks.integer("num_clients", parts["num_clients"], at_least=1)
    seed = checks.integer("partition_seed", parts["seed"], at_least=0)
    cohorts = Cohorts(settings["participation"], clients, seed=0)
    cohorts.check_rounds(checks.integer("rounds", settings["rounds"], at_least=1))
    for number, value in (("rows_per_client", rows_per_client), ("test_rows", test_rows)):
        if value is not None:
            checks.integer(number, value, at_least=1)
    images = load(name, data_dir)
    rows = _draw("rows_per_client", rows_per_client, clients, len(images.train_labels), seed)
    labels = images.train_labels[rows]
    train = {"x": images.train_images, "y": images.train_labels.astype(np.int32)}
    data = FederatedData.from_arrays(train, [rows[part] for part in partition.shards(labels, **parts)])
    tested = _draw("test_rows", test_rows, 1, len(images.test_labels), 0)
    test = {"x": images.test_images[tested], "y": images.test_labels[tested].astype(np.int32)}
    problem = Problem(**problems.classification(model), data=data, eval_data=test)
    return Example(name=name, problem=problem, **settings)


def _draw(name: str, number: int | None, times: int, available: int, seed: int) -> np.ndarray:
    """Rows drawn without replacement, in their order; all of them where no number is given."""
    if number is None:
        return np.arange(available)
    if number * times > available:
        raise ValueError(f"{name}={number} is more than there are, {available // times}: lower it or leave it out")
    return np.sort(np.random.default_rng(seed).permutation(available)[: number * times])
