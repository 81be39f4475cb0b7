"""The work that every peer does, and how it is asked to do it. NumPy only.

A peer is a script that calls `serve` with a function from a `Work` to a `Peer`. It must start from `start()`, train
the clients of `data()` and average them by their rows. Sizes are multiples of the batch, so that nobody pads, drops or
compiles anything for a shorter last batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

CLASSES, SIDE = 10, 28
MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels in [0, 1]
KERNELS = {  # [height, width, inputs, outputs] of a convolution, [inputs, outputs] of a dense layer
    "logistic": [(SIDE * SIDE, CLASSES)],
    "cnn": [(5, 5, 1, 32), (5, 5, 32, 64), (1024, 512), (512, CLASSES)],
}
Layers = list[tuple[np.ndarray, np.ndarray]]  # (kernel, bias) of each layer; images are [height, width, channels]


class Count(NamedTuple):
    """What some rounds have cost."""

    steps: int  # minibatch steps, of all clients together
    gradients: int  # rows whose gradient was computed, those that only a criterion asked for included


class Peer(NamedTuple):
    run: Callable[[int], Count]  # does the next `rounds` rounds, and waits for them
    layers: Callable[[], Layers]  # the server's parameters


@dataclasses.dataclass(frozen=True)
class Work:
    """The work, as `peers.py` gives it."""

    algorithm: str  # "fedavg" or "insa"
    model: str  # "logistic": 784 -> 10, or "cnn": the paper's, 582,026 parameters
    clients: int
    cohort: int  # clients of a round
    least_rows: int
    most_rows: int
    batch: int
    epochs: int  # of FedAvg; at most so many of FedADMM-InSa
    rounds: int  # of a turn
    learning_rate: float
    penalty: float  # beta_i^0, and what else Algorithm 3 needs, with the paper's values:
    c: float = 0.01
    mu: float = 5.0
    tau: float = 2.0
    delta: float = 0.01
    sigma_factor: float = 0.999
    seed: int = 0

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[clients] rows of each."""
        rng = np.random.default_rng([self.seed, 1])
        return self.batch * rng.integers(self.least_rows // self.batch, self.most_rows // self.batch + 1, self.clients)

    @functools.cached_property
    def data(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of each client uint8 images [rows, 28, 28] and int32 labels [rows].

        A fifth of the pixels is not black, about as in MNIST; a third of them comes from the label's pattern, the rest
        is noise.
        """

        def draw(rng: np.random.Generator, images: int) -> np.ndarray:
            shape = (images, SIDE, SIDE)
            return rng.integers(0, 256, shape, dtype=np.uint8) * (rng.random(shape, np.float32) < 0.2)

        patterns, clients = draw(np.random.default_rng([self.seed, 2]), CLASSES), []
        for i, size in enumerate(self.sizes):
            rng = np.random.default_rng([self.seed, 3, i])
            labels = rng.integers(CLASSES, size=size, dtype=np.int32)
            noise = draw(rng, size)
            clients.append((np.where(rng.random(noise.shape, np.float32) < 1 / 3, patterns[labels], noise), labels))
        return clients

    def members(self, round: int) -> np.ndarray:
        """[cohort] the clients of a round, from 0."""
        rng = np.random.default_rng([self.seed, 4, round])
        return np.sort(rng.choice(self.clients, self.cohort, replace=False))

    def steps(self, round: int) -> int:
        """Minibatch steps of a round of FedAvg."""
        return self.epochs * int(self.sizes[self.members(round)].sum()) // self.batch

    def start(self) -> Layers:
        """The first parameters: uniform in +-1 / sqrt(inputs), PyTorch's default."""
        rng, layers = np.random.default_rng([self.seed, 5]), []
        for shape in KERNELS[self.model]:
            bound = 1 / math.sqrt(math.prod(shape[:-1]))
            kernel, bias = (rng.uniform(-bound, bound, size).astype(np.float32) for size in (shape, shape[-1:]))
            layers.append((kernel, bias))
        return layers

    def loss(self, layers: Layers) -> float:
        """The mean cross entropy over all rows of all clients, by NumPy: the same for every peer."""
        total = 0.0
        for images, labels in self.data:
            x = normalized(images)[..., None]
            for kernel, bias in layers[:-1]:
                x = np.maximum(_pooled(x, kernel) + bias if kernel.ndim == 4 else _flat(x) @ kernel + bias, 0)
            logits = (_flat(x) @ layers[-1][0] + layers[-1][1]).astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            total += np.sum(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels])
        return float(total / self.sizes.sum())


def normalized(images):
    """Pixels 0 to 255 as floats around 0, in one multiplication and one subtraction; also of float tensors."""
    if isinstance(images, np.ndarray):
        images = images.astype(np.float32)
    return images * (1 / (255 * STD)) - MEAN / STD


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def _pooled(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """A convolution without padding and the maximum of 2 x 2, before bias and ReLU, which are monotone."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))  # [N, H, W, C, h, w]
    y = np.tensordot(windows, kernel, axes=([4, 5, 3], [0, 1, 2]))
    n, height, width, channels = y.shape
    return y.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))


def serve(make: Callable[[Work], Peer], packages: tuple[str, ...]) -> None:
    """A peer's process: does a round to warm up, then for every line that it reads a turn, and says how it went."""
    with conversation() as say:
        converse(make, packages, say)


def converse(make: Callable[[Work], Peer], packages: tuple[str, ...], say: Callable[[dict], None]) -> None:
    work = given_work()
    peer = make(work)
    peer.run(1)
    say({"versions": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)})
    for line in sys.stdin:
        if line.strip() == "loss":
            say({"loss": work.loss(peer.layers())})
            continue
        began = time.perf_counter()
        count = peer.run(work.rounds)
        say({"seconds": time.perf_counter() - began, **count._asdict()})


def given_work() -> Work:
    return Work(**json.loads(sys.argv[1]))


@contextlib.contextmanager
def conversation() -> Iterator[Callable[[dict], None]]:
    """A function that sends a record to `peers.py`; whatever else is printed goes to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def say(record: dict) -> None:
            print(json.dumps(record), file=out, flush=True)

        yield say
