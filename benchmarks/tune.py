"""Tuning 24 settings with 3 seeds by `fa.tune`, against the same runs one after the other.

    python benchmarks/tune.py

FedADMM with penalties and learning rates, on a small Example 1 and on mnist-mini. `fa.tune` decides by itself whether
runs are one program (`at_once`). In turns in one process after a turn that compiles, which is reported too; nothing is
written to disk. `--problem linear --at-once 4,8,16` is that problem alone, with programs for so many runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np

import fedjax_admm as fa

fa.use_cpu_devices()

from common import best_seconds  # noqa: E402  (JAX starts with the devices above)

SEEDS, PENALTIES = (0, 1, 2), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# learning rates, and `simulate`'s arguments
WORK: dict[str, tuple[tuple[float, ...], dict[str, Any]]] = {
    "linear": ((0.0003, 0.0007, 0.0015, 0.003), dict(rounds=50, participation=10, evaluate_every=10)),
    "mnist-mini": ((0.01, 0.02, 0.05, 0.1), dict(rounds=4, participation=10, evaluate_every=4)),
}


def make_problem(name: str) -> fa.Problem:
    if name == "mnist-mini":
        return fa.examples.mnist_mini().problem
    return fa.examples.linear_regression(num_clients=50, rows_per_client=50, dimension=200).problem


def contestants(name: str, at_once: Any = "auto") -> tuple[Callable[[], Any], Callable[[], Any]]:
    """`fa.tune` and the loop; each returns the scores [settings, seeds]."""
    problem, (rates, settings) = make_problem(name), WORK[name]

    def make(penalty: float, learning_rate: float) -> Any:
        return fa.fedadmm(fa.LocalSolver(learning_rate=learning_rate, batch_size=20, max_epochs=5), penalty=penalty)

    def tune() -> np.ndarray:
        grid = {"penalty": PENALTIES, "learning_rate": rates}
        tuning = fa.tune(problem, make, grid, seeds=SEEDS, at_once=at_once, progress=False, **settings)
        return tuning.scores[:, :, -1]

    def loop() -> np.ndarray:
        def loss(penalty: float, rate: float, seed: int) -> float:
            try:
                result = fa.simulate(problem, make(penalty, rate), seed=seed, progress=False, **settings)
                return result.history["loss"][-1]
            except fa.DivergenceError:
                return np.inf

        return np.array([[loss(p, rate, seed) for seed in SEEDS] for p in PENALTIES for rate in rates])

    return tune, loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--problem", choices=tuple(WORK), help="by default both")
    parser.add_argument("--at-once", type=lambda text: [int(word) for word in text.split(",")])
    args = parser.parse_args()
    if args.at_once:
        tunes = {number: contestants(args.problem or "linear", number)[0] for number in (1, *args.at_once)}
        best = best_seconds(tunes, args.turns)
        for number, seconds in best.items():
            print(f"{number:>3} at once: {best[1] / seconds:.2f} times as fast as one by one", flush=True)
        return
    for name in WORK if args.problem is None else [args.problem]:
        both = dict(zip(("tune", "loop"), contestants(name), strict=True))
        scores, seconds = {}, {"tune": [], "loop": []}
        for _ in range(1 + args.turns):
            for label, contestant in both.items():
                began = time.perf_counter()
                scores[label] = contestant()
                seconds[label].append(time.perf_counter() - began)
        first, best = ({label: pick(each) for label, each in seconds.items()} for pick in (itemgetter(0), min))
        same = np.argmin(scores["tune"].mean(axis=1)) == np.argmin(scores["loop"].mean(axis=1))
        ratio = best["loop"] / best["tune"]
        print(
            f"{name}: 72 runs, {best['tune']:.1f} s by tune (first turn {first['tune']:.1f}), {best['loop']:.1f} s one "
            f"after the other ({first['loop']:.1f}): {ratio:.2f} times as fast; "
            f"the best setting is {'the same' if same else 'ANOTHER'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
