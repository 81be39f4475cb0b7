"""Every method, tuned with the same budget, on mnist-mini or on the small text.

    python benchmarks/methods.py mnist-mini --out runs/methods_mnist_mini --results methods_mnist_mini
    python benchmarks/methods.py text --out runs/methods_text --results methods_text

Each method has nine settings: three rates of the local steps with three values of the number that is its own, or nine
rates if it has none. `fa.tune` finds the best by successive halving with seed 0. The table is of two other seeds, with
the same test rows: the accuracy at the end, and what was computed and communicated until the target. Methods, settings
and scale are below. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from results import every_run, one_line_errors, prefix, write_csv

import fedjax_admm as fa
from fedjax_admm.results.tables import Table

HALVING, SEEDS = 3, (1, 2)  # tuned with seed 0
PENALTIES = {"penalty": (0.003, 0.03, 0.3)}
SERVERS_RATES = {"server_learning_rate": (0.01, 0.03, 0.1)}
# label -> how it is made, and the number that is its own
METHODS: dict[str, tuple[Callable[..., Any], Mapping[str, tuple[float, ...]]]] = {
    "FedAvg": (fa.algorithms.fedavg, {}),
    "FedProx": (fa.algorithms.fedprox, PENALTIES),
    "FedNova": (fa.algorithms.fednova, {}),
    "FedAvgM": (fa.algorithms.fedavgm, {"server_momentum": (0.3, 0.6, 0.9)}),
    "FedAdagrad": (fa.algorithms.fedadagrad, SERVERS_RATES),
    "FedAdam": (fa.algorithms.fedadam, SERVERS_RATES),
    "FedYogi": (fa.algorithms.fedyogi, SERVERS_RATES),
    "SCAFFOLD": (fa.algorithms.scaffold, {}),
    "FedDyn": (fa.algorithms.feddyn, PENALTIES),
    "FedDR": (fa.algorithms.feddr, PENALTIES),
    "FedADMM": (fa.algorithms.fedadmm, PENALTIES),
    "FedADMM of Gong et al.": (lambda local, penalty: fa.fedadmm(local, penalty, server_step=1.0), PENALTIES),
    "FedADMM-In": (fa.algorithms.fedadmm_in, PENALTIES),
    "FedADMM-InSa": (fa.algorithms.fedadmm_insa, PENALTIES),
}
# the example, rounds, the local solver, three rates, nine rates, the accuracy that is the target
SCALES: dict[str, dict[str, Any]] = {
    "mnist-mini": dict(
        make=fa.examples.mnist_mini,
        settings=dict(rounds=20, participation=0.2),
        local=dict(batch_size=20, max_epochs=5),
        three=(0.05, 0.1, 0.2),
        nine=(0.01, 0.02, 0.035, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3),
        target=0.85,
    ),
    "text": dict(
        make=lambda: fa.examples.text_mini(num_clients=10, length=20),
        settings=dict(rounds=10, participation=3),
        local=dict(batch_size=20, max_epochs=1),
        three=(0.5, 1.0, 2.0),
        nine=(0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0),
        target=0.4,
    ),
}


def tune_method(name: str, scale: Mapping[str, Any], problem: fa.Problem, place: str | None) -> fa.Tuning:
    """A method's nine settings, on disk at a place."""
    method, own = METHODS[name]
    grid = {"learning_rate": scale["three"] if own else scale["nine"], **own}

    def make(learning_rate: float, **numbers: float) -> Any:
        return method(fa.LocalSolver(learning_rate=learning_rate, **scale["local"]), **numbers)

    settings = scale["settings"] | {"objective": "accuracy", "halving": HALVING, "run_dir": place, "progress": False}
    return fa.tune(problem, make, grid, **settings)


def tell(tuned: Mapping[str, fa.Tuning], comparison: fa.Comparison, target: float) -> Table:
    """One row per method: its best setting, the accuracy at the end, and the work until the target."""
    statistics = {row["algorithm"]: row for row in comparison.statistics()}
    work = comparison.to_target("accuracy", target)
    wanted = [work.header.index(name) for name in ("reached", "rounds", "gradients", "floats")]
    rows = []
    for line in work.rows:
        name, numbers = line[0], statistics[line[0]]
        setting = ", ".join(f"{word.replace('_', ' ')} {value:g}" for word, value in tuned[name].best.items())
        accuracy = f"{numbers['accuracy_final']:.3f} ± {numbers['accuracy_final_std']:.3f}"
        rows.append((name, setting, accuracy, *(line[column] for column in wanted)))
    header = ("method", "best setting", "accuracy at the end", "reached", "rounds", "gradients", "floats")
    return Table(header, tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", choices=tuple(SCALES))
    parser.add_argument("--methods", help="some of them, between commas")
    parser.add_argument("--rounds", type=int, help="by default the scale's")
    parser.add_argument("--devices", type=int, help="CPU devices; by default one per core")
    parser.add_argument("--out", help="where the runs are kept; without it, only in memory")
    parser.add_argument("--results", metavar="PREFIX", type=prefix)
    args = parser.parse_args()
    names = list(METHODS) if args.methods is None else [name.strip() for name in args.methods.split(",")]
    if unknown := [name for name in names if name not in METHODS]:
        raise ValueError(f"--methods must be some of {', '.join(METHODS)}, got {unknown[0]!r}")
    fa.use_cpu_devices(args.devices)
    scale = dict(SCALES[args.problem])
    scale["settings"] |= {} if args.rounds is None else {"rounds": args.rounds}
    problem, tuned = scale["make"]().problem, {}
    for name in names:
        folder = name.replace(" ", "-").replace(".", "")
        tuned[name] = tune_method(name, scale, problem, None if args.out is None else f"{args.out}/tuned/{folder}")
        print(f"{name}\n{tuned[name].text()}\n", flush=True)
    best = {name: tuning.best_algorithm for name, tuning in tuned.items()}
    place = None if args.out is None else f"{args.out}/compared"
    comparison = fa.compare(problem, best, seeds=SEEDS, run_dir=place, progress=False, **scale["settings"])
    table = tell(tuned, comparison, scale["target"])
    print(f"until accuracy is {scale['target']:g}\n{table}", flush=True)
    if args.results:
        if place is not None:  # with what each run was made with
            comparison = fa.read_comparison(place)
        notes = [f"work until accuracy is {scale['target']:g}", *comparison.notes()]
        write_csv(f"{args.results}.csv", table.csv(), notes, every_run([comparison]))


if __name__ == "__main__":
    one_line_errors(main)
