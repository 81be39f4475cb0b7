"""One run of one of the paper's examples; the history goes to a CSV file.

    python benchmarks/run_example.py linear --algorithm fedadmm_in --penalty 0.1 --out in_0.1.csv
    python benchmarks/run_example.py mnist --algorithm fedadmm_insa --penalty 10 --data-dir DIR \\
        --set num_clients=100 participation=0.1 max_epochs=10 --rounds 100 --evaluate-every 10

`--set` gives arguments of the example (`fa.examples`). Prints a table of the rounds that were evaluated, the epochs
saved against running every solve to its maximum, the gradients, the seconds and the memory.
"""

from __future__ import annotations

import argparse
import ast
import csv
import resource
import sys
import time

import numpy as np

import fedjax_admm as fa

EXAMPLES = {
    "linear": fa.examples.linear_regression,
    "mnist": fa.examples.mnist_cnn,
    "cifar10": fa.examples.cifar10_resnet20,
    "mnist-mini": fa.examples.mnist_mini,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--algorithm", default="fedadmm_insa")
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate-every", type=int, default=10)
    parser.add_argument("--data-dir")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="arguments of the example")
    parser.add_argument("--out", help="CSV file of the history")
    args = parser.parse_args()
    chosen = {name: ast.literal_eval(value) for name, _, value in (item.partition("=") for item in args.set)}
    if args.data_dir is not None:
        chosen["data_dir"] = args.data_dir
    if args.rounds is not None:
        chosen["rounds"] = args.rounds
    began = time.perf_counter()
    example = EXAMPLES[args.example](**chosen)
    print(
        f"{example.problem.data}, {example.problem.num_params} parameters, made in {time.perf_counter() - began:.1f} s"
    )

    began = time.perf_counter()
    result = fa.simulate(
        example.problem,
        example.algorithm(args.algorithm, penalty=args.penalty),
        seed=args.seed,
        evaluate_every=args.evaluate_every,
        **example.run_settings,
    )
    history = result.history
    if args.out:
        with open(args.out, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(history)
            writer.writerows(zip(*(history[name] for name in history), strict=True))
    shown = [
        name for name in ("round", "loss", "excess_loss", "accuracy", "epochs_mean", "penalty_mean") if name in history
    ]
    print("  ".join(f"{name:>12}" for name in shown))
    for k in np.flatnonzero(np.isfinite(history["loss"])):
        print("  ".join(f"{history[name][k]:12.5g}" for name in shown))
    most = np.broadcast_to(example.local.max_epochs, (example.problem.data.num_clients,))[result.cohorts].sum()
    print(f"epochs saved {100 * (1 - result.epochs.sum() / most):.1f} %")
    print(f"gradients {history['gradient_samples'].sum():,}, of criterion {history['criterion_samples'].sum():,}")
    print(f"{time.perf_counter() - began:.0f} s, evaluation {history['eval_seconds'].sum():.0f} s of them")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"memory {peak / 2**30:.2f} GiB at most")


if __name__ == "__main__":
    main()
