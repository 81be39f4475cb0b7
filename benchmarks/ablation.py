"""Which part of FedADMM-InSa does what, and how much its numbers matter.

    python benchmarks/ablation.py linear --penalties 0.1,1 --seeds 0,1,2 --out runs/ablation

The parts: the criterion (off; relative to the residual at z, as in the paper's experiments; relative to the one at u_i,
as in its theorem), the adaptive penalty (off, on) and the server's memory delta (0, 0.01), each with each. All off is
Algorithm 1, the criterion at z with delta 0.01 Algorithm 2, all on Algorithm 3.

The numbers: FedADMM-InSa with other c, mu, tau, maximum of epochs and learning rate, one at a time.

The problem is "linear", a small Example 1 with its optimum known, or "mnist-mini". Prints both tables; `--out` keeps
the runs, and the same command goes on where it was stopped; `--results PREFIX` writes PREFIX-parts.csv and
PREFIX-numbers.csv.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from results import every_run, numbers, one_line_errors, prefix, stacked, write_csv

import fedjax_admm as fa

SMALL = dict(num_clients=100, rows_per_client=50, dimension=500, batch_size=10, learning_rate=0.002, rounds=100)
PROBLEMS = {
    "linear": lambda: fa.examples.linear_regression(**SMALL),
    "mnist-mini": lambda: fa.examples.mnist_mini(rounds=60),
}
CRITERIA = {"off": None, "z": "server", "u": "client"}
NUMBERS = {  # besides the usual: c 0.01, mu 5, tau 2 and the example's epochs and rate
    "c": (0.001, 0.1, 1.0),
    "mu": (2.0, 10.0, 20.0),
    "tau": (1.5, 4.0),
    "max_epochs": (0.25, 0.5, 2.0),  # times the example's, as is the learning rate
    "learning_rate": (0.5, 2.0),
}


def parts(example: fa.examples.Example, penalty: float) -> dict[str, Any]:
    """label -> algorithm, every mixture of the parts."""
    found = {}
    for criterion, reference in CRITERIA.items():
        relative = None if reference is None else fa.criteria.relative_residual(c=example.c, reference=reference)
        for adaptive, rule in (("off", None), ("on", fa.penalties.residual_balancing(5.0, 2.0))):
            for delta in (0.0, 0.01):
                label = f"criterion {criterion}, adaptive {adaptive}, delta {delta:g}"
                found[label] = fa.fedadmm(example.local, penalty, delta=delta, criterion=relative, penalty_rule=rule)
    return found


def changed_numbers(example: fa.examples.Example, penalty: float) -> dict[str, Any]:
    """label -> FedADMM-InSa as usual, and with one number changed."""
    found = {"as usual": example.algorithm("fedadmm_insa", penalty)}
    for name, values in NUMBERS.items():
        for value in values:
            if name in ("max_epochs", "learning_rate"):
                usual = getattr(example.local, name)
                value = type(usual)(usual * value)
                changed = dataclasses.replace(example, local=dataclasses.replace(example.local, **{name: value}))
                method = changed.algorithm("fedadmm_insa", penalty)
            else:
                method = example.algorithm("fedadmm_insa", penalty, **{name: value})
            found[f"{name} {value:g}"] = method
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=tuple(PROBLEMS))
    parser.add_argument("--penalties", default="0.1,1")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, help="by default the example's")
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--devices", type=int, help="CPU devices; by default one per core")
    parser.add_argument("--out", help="where the runs are kept; without it, only in memory")
    parser.add_argument("--results", metavar="PREFIX", type=prefix)
    args = parser.parse_args()
    fa.use_cpu_devices(args.devices)
    example = PROBLEMS[args.problem]()
    settings = example.run_settings | ({} if args.rounds is None else {"rounds": args.rounds})
    settings |= {"seeds": numbers("seeds", args.seeds, int), "evaluate_every": args.evaluate_every}
    for title, make in (("parts", parts), ("numbers", changed_numbers)):
        found = {}
        for penalty in numbers("penalties", args.penalties):  # each has its own baseline
            place = None if args.out is None else f"{args.out}/{title}-{penalty:g}"
            found[penalty] = fa.compare(example.problem, make(example, penalty), run_dir=place, **settings)
            if place is not None:  # with what each run was made with
                found[penalty] = fa.read_comparison(place)
            print(f"{title}, initial penalty {penalty:g}\n{found[penalty]}\n", flush=True)
        if args.results:
            notes = [f"penalty {penalty:g}: {note}" for penalty, each in found.items() for note in each.notes()]
            values = stacked({penalty: each.csv() for penalty, each in found.items()})
            write_csv(f"{args.results}-{title}.csv", values, notes, every_run(found.values()))


if __name__ == "__main__":
    one_line_errors(main)
