"""Many small runs as one program, against the same runs one by one.

    python benchmarks/sweeps.py

FedADMM-InSa with several penalties and seeds, by `fa.simulate_many` and by `fa.simulate` in a loop, in turns in one
process after a turn that compiles; evaluated every ten rounds. Reported are seconds of each one's best turn, and of the
first turns, which compile.
"""

from __future__ import annotations

import argparse
import time

import fedjax_admm as fa

fa.use_cpu_devices()

from common import best_seconds  # noqa: E402  (JAX starts with the devices above)

PENALTIES, SEEDS, ROUNDS = (0.1, 0.3, 1.0, 3.0), (0, 1, 2, 3), 50
SIZES = {"tiny": (20, 20, 20, 4), "small": (50, 50, 200, 10)}  # clients, rows, dimension, cohort


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=4)
    args = parser.parse_args()
    print(f"{len(PENALTIES) * len(SEEDS)} runs of {ROUNDS} rounds; seconds, best of {args.turns} turns")
    for name, (clients, rows, dimension, cohort) in SIZES.items():
        example = fa.examples.linear_regression(
            num_clients=clients, rows_per_client=rows, dimension=dimension, learning_rate=0.002
        )
        runs = [(example.algorithm("fedadmm_insa", penalty=penalty), seed) for penalty in PENALTIES for seed in SEEDS]
        settings = dict(participation=cohort, evaluate_every=10, progress=False)

        def at_once(example=example, runs=runs, settings=settings):
            fa.simulate_many(example.problem, runs, ROUNDS, **settings)

        def one_by_one(example=example, runs=runs, settings=settings):
            for algorithm, seed in runs:
                fa.simulate(example.problem, algorithm, ROUNDS, seed=seed, **settings)

        contestants = {"one by one": one_by_one, "at once": at_once}
        first = {}
        for label, contestant in contestants.items():
            began = time.perf_counter()
            contestant()
            first[label] = time.perf_counter() - began
        best = best_seconds(contestants, args.turns)
        shown = ", ".join(f"{label} {seconds:.2f} (first {first[label]:.1f})" for label, seconds in best.items())
        print(f"{name:>6}: {shown}; {best['one by one'] / best['at once']:.1f} times as fast", flush=True)


if __name__ == "__main__":
    main()
