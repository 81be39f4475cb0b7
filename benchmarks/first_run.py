"""A small Example 1: FedAvg, FedADMM, FedADMM-In and FedADMM-InSa on the same data, clients and rows.

    python benchmarks/first_run.py

prints a table of the loss above the exact optimum and of the work that it took. Sizes and rounds are arguments;
the paper's own are --clients 200 --rows 250 --dimension 5000 --batch-size 50 --learning-rate 0.001 --rounds 300.
"""

from __future__ import annotations

import argparse
import time

import fedjax_admm as fa

ALGORITHMS = {
    "FedAvg": "fedavg",
    "FedADMM": "fedadmm",
    "FedADMM-In": "fedadmm_in",
    "FedADMM-InSa": "fedadmm_insa",
}
HEADER = ("algorithm", "loss", "excess", "epochs saved", "gradients", "of criterion", "floats sent", "penalty", "s")


def row(label: str, example: fa.examples.Example, name: str, penalty: float, seed: int) -> tuple[str, ...]:
    """One algorithm's line of the table."""
    began = time.perf_counter()
    result = fa.simulate(example.problem, example.algorithm(name, penalty), seed=seed, **example.run_settings)
    history = result.history
    full = example.local.max_epochs * result.epochs.size
    return (
        label,
        f"{history['loss'][-1]:.4f}",
        f"{history['excess_loss'][-1]:.4f}",
        f"{100 * (1 - result.epochs.sum() / full):.1f} %",
        f"{history['gradient_samples'].sum():,}",
        f"{history['criterion_samples'].sum():,}",
        f"{history['communicated_floats'].sum():,}",
        "-" if name == "fedavg" else f"{history['penalty_mean'][-1]:.2f}",
        f"{time.perf_counter() - began:.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rows", type=int, default=50, help="rows of a client")
    parser.add_argument("--dimension", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--penalty", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    example = fa.examples.linear_regression(
        num_clients=args.clients,
        rows_per_client=args.rows,
        dimension=args.dimension,
        rounds=args.rounds,
        batch_size=args.batch_size,
        learning_rate=args.learning_rate,
    )
    print(f"{example.problem.data}\npenalty {args.penalty:g}, {args.rounds} rounds, 20 % of the clients in each")
    lines = [HEADER]
    for label, name in ALGORITHMS.items():
        lines.append(row(label, example, name, args.penalty, args.seed))
    widths = [max(len(line[j]) for line in lines) for j in range(len(HEADER))]
    for line in lines:
        first, *others = (f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        print("  ".join([f"{line[0]:<{len(first)}}", *others]))


if __name__ == "__main__":
    main()
