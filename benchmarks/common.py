"""What the benchmarks share: problems of three kinds, and turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import fedjax_admm as fa

KINDS = ("linear", "logistic", "cnn")


def problem(kind: str, clients: int, rows: int, *, uneven: bool = False, dimension: int = 5000) -> fa.Problem:
    """Synthetic data of the shapes of Example 1 (memory-bound), of MNIST with logistic regression (overhead-bound) or
    of MNIST with the paper's CNN (bound by matrix products).

    rows: of a client, on average; with `uneven`, client sizes are those of Dirichlet(0.3) label shares.
    """
    rng = np.random.default_rng(0)
    number = clients * rows
    labels = rng.integers(10, size=number).astype(np.int32)
    parts = np.split(np.arange(number), clients)
    if uneven:
        parts = fa.partition.dirichlet(labels, clients, alpha=0.3, seed=0, min_size=1)
    if kind == "linear":
        x = rng.standard_normal((number, dimension), np.float32)
        data = fa.FederatedData.from_arrays({"x": x, "y": x[:, 0]}, parts)
        from fedjax_admm.examples import linear

        init = linear.initializer(dimension)
        return fa.Problem(init=init, loss=linear.squared_error, data=data, regularizer=linear.ridge)
    images = rng.integers(256, size=(number, 28, 28, 1), dtype=np.uint8)
    data = fa.FederatedData.from_arrays({"x": images, "y": labels}, parts)
    model = fa.models.cnn() if kind == "cnn" else fa.models.logistic((28, 28, 1), normalization=fa.models.MNIST)
    task = fa.problems.classification(model)
    return fa.Problem(init=task["init"], loss=task["loss"], data=data)


RATES = {"linear": 0.0005, "logistic": 0.01, "cnn": 0.01}


class Rounds:
    """A simulation whose rounds can be run again and again; `work` is what they did."""

    def __init__(self, sim: fa.Simulation, rounds: int) -> None:
        self._sim, self._rounds = sim, rounds
        self._state, self.samples = sim.init(), 0

    def __call__(self) -> None:
        cohorts = np.stack([self._sim.cohorts[k] for k in range(self._rounds)])
        self._state, infos, _ = self._sim.run_rounds(self._state, cohorts, self._rounds)
        self.samples = int(np.sum(jax.device_get(infos.solves.gradient_samples), dtype=np.int64))


def best_seconds(contestants: Mapping[Any, Callable[[], Any]], turns: int) -> dict[Any, float]:
    """The best of several turns of each, in turns, after one that is not counted."""
    for contestant in contestants.values():
        contestant()
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(turns):
        for name, contestant in contestants.items():
            began = time.perf_counter()
            contestant()
            best[name] = min(best[name], time.perf_counter() - began)
    return best
