"""Every method, tuned with the same budget, on mnist-mini or on the small text.

    python benchmarks/methods.py mnist-mini --out runs/methods_mnist_mini --results methods_mnist_mini
    python benchmarks/methods.py text --out runs/methods_text --results methods_text

Each method has nine settings: nine rates of the local steps (for SCAFFOLD's option I a tenth of the others' rates),
each drawn with a value of the number that is its own, if it has one. `fa.tune` finds the best by successive halving
with seed 0. The table is of two other seeds, with the same test rows: the accuracy at the end, and what was computed
and communicated until the target. Methods, ranges and scale are below. The same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from results import every_run, one_line_errors, prefix, write_csv

import fedjax_admm as fa
from fedjax_admm.results.tables import Table

SETTINGS, SEEDS = 9, (1, 2)  # tuned with seed 0
HALVING = {"halving": 3, "min_rounds": 5}  # a third goes on after a third of the rounds; earlier misleads
PENALTY, SERVERS_RATE, EVERYBODY = "penalty", "server_learning_rate", {"participation": 1.0}


def gong(local: Any, penalty: Any) -> Any:
    return fa.fedadmm(local, penalty, server_step=1.0)


def zhou_li(local: Any, penalty: Any) -> Any:
    return fa.fedadmm(local, penalty, local_rounds=2)


def option_one(local: Any) -> Any:
    return fa.scaffold(local, control="gradient")


# label -> how it is made, the number that is its own, and the settings of its runs that are not the others'
METHODS: dict[str, tuple[Callable[..., Any], str | None, Mapping[str, Any]]] = {
    "FedAvg": (fa.fedavg, None, {}),
    "FedProx": (fa.fedprox, PENALTY, {}),
    "FedNova": (fa.fednova, None, {}),
    "FedAvgM": (fa.fedavgm, "server_momentum", {}),
    "FedAdagrad": (fa.fedadagrad, SERVERS_RATE, {}),
    "FedAdam": (fa.fedadam, SERVERS_RATE, {}),
    "FedYogi": (fa.fedyogi, SERVERS_RATE, {}),
    "SCAFFOLD": (fa.scaffold, None, {}),
    "SCAFFOLD option I": (option_one, None, {}),
    "FedDyn": (fa.feddyn, PENALTY, {}),
    "FedDR": (fa.feddr, PENALTY, {}),
    "FedPD (all clients)": (fa.fedpd, PENALTY, EVERYBODY),
    "FedADMM": (fa.fedadmm, PENALTY, {}),
    "FedADMM of Gong et al.": (gong, PENALTY, {}),
    "FedADMM of Zhou and Li": (zhou_li, PENALTY, {}),
    "FedADMM-In": (fa.fedadmm_in, PENALTY, {}),
    "FedADMM-InSa": (fa.fedadmm_insa, PENALTY, {}),
}
# Its controls are gradients at models of former rounds, whatever the steps; with the others' rates it diverges.
SLOWER = {"SCAFFOLD option I": 0.1}
OWN = {
    PENALTY: fa.ranges.log(0.001, 1.0),
    SERVERS_RATE: fa.ranges.log(0.003, 0.3),
    "server_momentum": fa.ranges.linear(0.2, 0.95),
}
# the example, rounds, the local solver, from which rate to which, the accuracy that is the target
SCALES: dict[str, dict[str, Any]] = {
    "mnist-mini": dict(
        make=fa.examples.mnist_mini,
        settings=dict(rounds=20, participation=0.2, evaluate="test"),
        local=dict(batch_size=20, max_epochs=5),
        rates=(0.02, 0.4),
        target=0.85,
    ),
    "text": dict(
        make=lambda: fa.examples.text_mini(num_clients=10, length=20),
        settings=dict(rounds=30, participation=3, evaluate="test"),
        local=dict(batch_size=20, max_epochs=1),
        rates=(0.3, 6.0),
        target=0.42,
    ),
}


def tune_method(name: str, scale: Mapping[str, Any], problem: fa.Problem, place: str | None) -> fa.Tuning:
    """A method's nine settings, on disk at a place."""
    method, own, others = METHODS[name]
    low, high = (SLOWER.get(name, 1.0) * rate for rate in scale["rates"])
    search: dict[str, Any] = {"grid": {"learning_rate": fa.ranges.log(low, high, SETTINGS)}}
    if own is not None:
        search = {"grid": {"learning_rate": fa.ranges.log(low, high), own: OWN[own]}, "draws": SETTINGS}

    def make(learning_rate: float, **numbers: float) -> Any:
        return method(fa.LocalSolver(learning_rate=learning_rate, **scale["local"]), **numbers)

    settings = scale["settings"] | others | HALVING
    return fa.tune(problem, make, **search, objective="accuracy", run_dir=place, progress=False, **settings)


def tell(tuned: Mapping[str, fa.Tuning], comparisons: Sequence[fa.Comparison], target: float) -> Table:
    """One row per method: its best setting, the accuracy at the end, and the work until the target."""
    rows = {row[0]: row for comparison in comparisons for row in tell_some(tuned, comparison, target)}
    header = ("method", "best setting", "accuracy at the end", "reached", "rounds", "gradients", "floats")
    return Table(header, tuple(rows[name] for name in tuned))


def tell_some(tuned: Mapping[str, fa.Tuning], comparison: fa.Comparison, target: float) -> Iterator[tuple[str, ...]]:
    """The rows of a comparison."""
    statistics = {row["algorithm"]: row for row in comparison.statistics()}
    work = comparison.to_target("accuracy", target)
    wanted = [work.header.index(name) for name in ("reached", "rounds", "gradients", "floats")]
    for line in work.rows:
        name, numbers = line[0], statistics[line[0]]
        setting = ", ".join(f"{word.replace('_', ' ')} {value:.2g}" for word, value in tuned[name].best.items())
        accuracy = f"{numbers['accuracy_final']:.3f} ± {numbers['accuracy_final_std']:.3f}"
        yield (name, setting, accuracy, *(line[column] for column in wanted))


def compare(best: Mapping[str, Any], problem: fa.Problem, scale: Mapping[str, Any], out: str | None) -> list[Any]:
    """Comparisons with the other seeds, one for each kind of runs, on disk if there is a place."""
    kinds = {"compared": {}, "compared-everybody": EVERYBODY}
    comparisons = []
    for folder, others in kinds.items():
        some = {name: algorithm for name, algorithm in best.items() if METHODS[name][2] == others}
        if some:
            place = None if out is None else f"{out}/{folder}"
            settings = scale["settings"] | others
            comparison = fa.compare(problem, some, seeds=SEEDS, run_dir=place, progress=False, **settings)
            # from disk it is with what each run was made with
            comparisons.append(comparison if place is None else fa.read_comparison(place))
    return comparisons


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
    if args.rounds is not None:
        scale["settings"] = scale["settings"] | {"rounds": args.rounds}
    problem, tuned = scale["make"]().problem, {}
    for name in names:
        folder = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")
        tuned[name] = tune_method(name, scale, problem, None if args.out is None else f"{args.out}/tuned/{folder}")
        print(f"{name}\n{tuned[name].text()}\n", flush=True)
    best = {name: tuning.best_algorithm for name, tuning in tuned.items()}
    comparisons = compare(best, problem, scale, args.out)
    table = tell(tuned, comparisons, scale["target"])
    print(f"until accuracy is {scale['target']:g}\n{table}", flush=True)
    if args.results:
        notes = [f"work until accuracy is {scale['target']:g}", *(n for each in comparisons for n in each.notes())]
        write_csv(f"{args.results}.csv", table.csv(), notes, every_run(comparisons))


if __name__ == "__main__":
    one_line_errors(main)
