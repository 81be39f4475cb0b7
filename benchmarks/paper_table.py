"""The paper's Table 2, its cells and ours side by side.

    python benchmarks/paper_table.py --example 1 --out runs/table1

Every algorithm of the table with every initial penalty, over seeds; a seed has its own data (Example 1) or its own
shards (Examples 2 and 3), cohorts, rows and start, which its runs share. `--rows` takes some of the table's rows, such
as "FedADMM-In 0.1,FedADMM-InSa 10". The paper's FedAvg averages all clients' last models; the usual one, over the
selected, is a row of its own. Runs are kept under `--out`: the same command goes on where it was stopped, and
`--report` prints what is there, unfinished runs too, without running anything. `--results PREFIX` writes the table to
PREFIX.csv, and the curves to PREFIX-curves.csv and PREFIX.png.

A row that was run at less than the paper's size is marked with *, and below the table it says what was less.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results

import fedjax_admm as fa
from fedjax_admm.core.files import read_json
from fedjax_admm.results.tables import Table
from fedjax_admm.storage.comparison_directory import CELLS
from fedjax_admm.storage.run_directory import SETTINGS, StoredRun

# Row -> Example 1: loss, epochs saved in percent; Examples 2 and 3: accuracy in percent, epochs saved in percent.
PAPER: dict[str, tuple[tuple[float, float], ...]] = {
    "FedAvg (all)": ((1.64, 0), (96.0, 0), (36.3, 0)),
    "FedADMM 0.1": ((1.64, 0), (98.6, 0), (51.1, 0)),
    "FedADMM-In 0.1": ((1.63, 94.3), (98.5, 92.4), (41.0, 71.5)),
    "FedADMM-InSa 0.1": ((1.51, 20.3), (97.8, 66.9), (53.1, 14.4)),
    "FedADMM 1": ((1.53, 0), (97.7, 0), (52.9, 0)),
    "FedADMM-In 1": ((1.55, 58.5), (97.6, 58.7), (51.6, 9.4)),
    "FedADMM-InSa 1": ((1.51, 18.8), (97.9, 61.0), (52.1, 9.4)),
    "FedADMM 2": ((1.51, 0), (96.2, 0), (46.7, 0)),
    "FedADMM-In 2": ((1.51, 19.3), (96.7, 41.7), (45.7, 2.1)),
    "FedADMM-InSa 2": ((1.51, 16.2), (97.7, 57.9), (50.4, 6.9)),
    "FedADMM 5": ((1.51, 0), (92.5, 0), (39.5, 0)),
    "FedADMM-In 5": ((1.51, 3.9), (93.4, 31.1), (39.3, 0.0)),
    "FedADMM-InSa 5": ((1.51, 12.5), (97.9, 55.9), (51.5, 4.0)),
    "FedADMM 10": ((1.51, 0), (89.7, 0), (34.0, 0)),
    "FedADMM-In 10": ((1.51, 0.9), (90.2, 21.1), (37.3, 0.0)),
    "FedADMM-InSa 10": ((1.51, 6.8), (97.5, 55.7), (49.8, 4.8)),
}
ROWS = ("FedAvg (selected)", *PAPER)
QUOTED = (35.4, 49.0, 16.6)  # the mean of FedADMM-In's reductions that the paper's text states, by example
MAKERS = (fa.examples.linear_regression, fa.examples.mnist_cnn, fa.examples.cifar10_resnet20)
FULL = {"rounds": (300, 300, 300), "clients": (200, 200, 10), "epochs": (20, 20, 10)}

WORK = ("epochs", "gradient_samples", "criterion_samples", "penalty_mean")  # beside the curves' losses and metrics


def algorithm(example: fa.examples.Example, row: str) -> Any:
    name, _, setting = row.partition(" ")
    if name == "FedAvg":
        return example.algorithm("fedavg", average=setting.strip("()"))
    return example.algorithm(name.lower().replace("-", "_"), penalty=float(setting))


def make(number: int, seed: int, args: argparse.Namespace) -> fa.examples.Example:
    """The paper's example with data or shards of a seed, smaller where the command line says so."""
    sizes = {"num_clients": args.clients, "max_epochs": args.max_epochs, "rounds": args.rounds}
    given = {name: value for name, value in sizes.items() if value is not None}
    if number == 1:
        return MAKERS[0](data_seed=seed, **given)
    return MAKERS[number - 1](data_dir=args.data_dir, partition_seed=seed, **given)


Runs = dict[str, dict[int, StoredRun]]  # row -> seed -> run


def stored(place: Path, rows: Sequence[str], seed: int, number: int) -> Runs:
    """The runs of a seed, as far as they are; unfinished ones included, if a round of them is done."""
    found: Runs = {}
    if not (place / CELLS).exists():
        return found
    plan = read_json(place / CELLS)
    name = (plan["problem"]["recipe"] or {}).get("example")
    if name != MAKERS[number - 1].__name__:
        raise ValueError(f"--out has runs of {name} in {str(place)!r}, which is not --example {number}: give another")
    for row in rows:
        run = place / plan["cells"].get(row, {}).get("folder", "-") / f"seed-{seed}"
        if (run / SETTINGS).exists() and (run / "history.csv").exists():
            with contextlib.suppress(ValueError):  # no round yet
                found[row] = {seed: fa.read_run(run)}
    return found


@dataclass(frozen=True)
class Cell:
    """One row of the table over its seeds, each at the last round that was evaluated."""

    row: str
    values: np.ndarray  # [seeds]: loss, or accuracy in percent
    saved: np.ndarray  # [seeds]: epochs, in percent
    excess: np.ndarray  # [seeds]: loss above the optimum, NaN where it is not known
    gradients: np.ndarray  # [seeds], in millions
    penalty: np.ndarray  # [seeds]: mean over the clients after the last round
    paper: tuple[float, float] | None
    less: tuple[str, ...]  # how it is smaller than the paper's


def cells(runs: Mapping[str, Mapping[int, fa.RunRecord]], number: int) -> list[Cell]:
    """What was measured, row by row; rows without a run are left out."""
    found = []
    for row, seeds in runs.items():
        if not seeds:
            continue
        measured = [_measured(run, number) for run in seeds.values()]
        first = next(iter(seeds.values()))
        sizes = {
            "rounds": len(first.cohorts),
            "clients": first.num_clients,
            "epochs": int(np.max(first.solves.max_epochs)),
        }
        less = tuple(
            f"{size} {name} of {FULL[name][number - 1]}"
            for name, size in sizes.items()
            if size < FULL[name][number - 1]
        )
        columns = (np.array(column) for column in zip(*measured, strict=True))
        found.append(Cell(row, *columns, PAPER[row][number - 1] if row in PAPER else None, less))
    return found


def _measured(run: fa.RunRecord, number: int) -> tuple[float, float, float, float, float]:
    history = run.history
    last = np.flatnonzero(np.isfinite(history["loss"]))[-1]
    value = history["loss"][last] if number == 1 else 100 * history["accuracy"][last]
    excess = history["excess_loss"][last] if "excess_loss" in history else np.nan
    gradients = history["gradient_samples"].sum() / 1e6
    return value, 100 * run.epoch_reduction, excess, gradients, history["penalty_mean"][-1]


def table(found: Sequence[Cell], number: int) -> Table:
    """Mean and, where there are several seeds, standard deviation; differences are ours minus the paper's."""

    def shown(values: np.ndarray, form: str) -> str:
        if not np.isfinite(values).all():
            return "-"
        spread = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
        return f"{np.mean(values):{form}}{spread}"

    form, theirs, unit = (".3f", ".2f", "loss") if number == 1 else (".1f", ".1f", "accuracy %")
    rows = []
    for cell in found:
        value, saved, off, saved_off = "-", "-", "-", "-"
        if cell.paper is not None:
            value, saved = f"{cell.paper[0]:{theirs}}", f"{cell.paper[1]:.1f}"
            off = f"{np.mean(cell.values) - cell.paper[0]:+{form}}"
            saved_off = f"{np.mean(cell.saved) - cell.paper[1]:+.1f}"
        excess = (shown(cell.excess, ".4f"),) if number == 1 else ()
        rows.append(
            (cell.row + "*" * bool(cell.less), str(len(cell.values)), value, shown(cell.values, form), off, *excess,
             saved, shown(cell.saved, ".1f"), saved_off, shown(cell.gradients, ".1f"), shown(cell.penalty, ".2f"))
        )  # fmt: skip
    excess = ("above optimum",) if number == 1 else ()
    header = ("row", "seeds", f"{unit}: paper", "ours", "off", *excess, "epochs saved %: paper", "ours", "off")
    return Table((*header, "gradients, millions", "penalty at the end"), tuple(rows))


def mean_reduction(found: Sequence[Cell], number: int) -> str:
    """The mean of FedADMM-In's reductions over the penalties, beside what the paper's text quotes."""
    ours = {cell.row: float(np.mean(cell.saved)) for cell in found if cell.row.startswith("FedADMM-In ")}
    wanted = [row for row in PAPER if row.startswith("FedADMM-In ")]
    if set(ours) != set(wanted):
        return f"mean reduction of FedADMM-In: the paper quotes {QUOTED[number - 1]} %; here {len(ours)} of 5 rows ran"
    return f"mean reduction of FedADMM-In: paper {QUOTED[number - 1]} %, ours {np.mean(list(ours.values())):.1f} %"


def draw(path: str, runs: Runs, number: int) -> None:
    """Loss above the optimum, or accuracy, against rounds and gradients: a row of panels for each penalty.

    Beside accuracies, where the paper's runs end; of losses it has two digits, too few for a line. Nothing is drawn of
    FedAvg alone.
    """
    penalties = sorted({row.split()[1] for row in runs if row.startswith("FedADMM")}, key=float)
    methods = ("FedAvg (all)", "FedADMM", "FedADMM-In", "FedADMM-InSa")
    chosen, ends = {}, {}
    for penalty in penalties:
        rows = {name: name if "(" in name else f"{name} {penalty}" for name in methods}
        drawn = {name: row for name, row in rows.items() if row in runs}
        chosen[f"initial penalty {penalty}"] = {name: list(runs[row].values()) for name, row in drawn.items()}
        ends[f"initial penalty {penalty}"] = {name: PAPER[row][number - 1][0] / 100 for name, row in drawn.items()}
    if chosen and number == 1:
        results.draw(path, chosen, "excess_loss")
    elif chosen:
        results.draw(path, chosen, "accuracy", levels=ends, level_name="the paper after 300 rounds")


def furthest(runs: Runs) -> tuple[Runs, list[str]]:
    """Of each row the seeds that have most rounds, since only runs of equal length have a mean; notes on the others."""
    kept, notes = {}, []
    for row, seeds in runs.items():
        most = max(len(run.cohorts) for run in seeds.values())
        kept[row] = {seed: run for seed, run in seeds.items() if len(run.cohorts) == most}
        notes += [
            f"{row}, seed {seed}: left out, at round {len(run.cohorts)} of {most}"
            for seed, run in seeds.items()
            if seed not in kept[row]
        ]
    return kept, notes


def chosen_rows(text: str | None) -> list[str]:
    rows = list(ROWS) if text is None else [row.strip() for row in text.split(",")]
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise ValueError(f"--rows {unknown[0]!r} is not a row of the table, which are: {', '.join(ROWS)}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", type=int, choices=(1, 2, 3), required=True)
    parser.add_argument("--rows", help="some of the table's rows, with commas between them; by default all")
    parser.add_argument("--rounds", type=int, help="by default the paper's 300")
    parser.add_argument("--clients", type=int, help="by default the paper's")
    parser.add_argument("--max-epochs", type=int, help="by default the paper's")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--data-dir", help="where TFDS's data sets are")
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--devices", type=int, help="CPU devices; by default one per core")
    parser.add_argument("--out", required=True, help="where the runs are kept")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    parser.add_argument("--results", metavar="PREFIX", type=results.prefix)
    args = parser.parse_args()
    rows, seeds = chosen_rows(args.rows), results.numbers("seeds", args.seeds, int)
    fa.use_cpu_devices(args.devices)
    runs: Runs = {row: {} for row in rows}
    for seed in seeds:
        place = Path(args.out) / f"seed-{seed}"
        if not args.report:
            example = make(args.example, seed, args)
            algorithms = {row: algorithm(example, row) for row in rows}
            settings = {**example.run_settings, "evaluate_every": args.evaluate_every}
            fa.compare(example.problem, algorithms, seeds=[seed], run_dir=place, **settings)
        for row, found in stored(place, rows, seed, args.example).items():
            runs[row] |= found
    runs = {row: found for row, found in runs.items() if found}
    if not runs:
        raise ValueError(f"--out {args.out!r} has no run of these rows and seeds yet")
    runs, left_out = furthest(runs)
    found = cells(runs, args.example)
    notes = [mean_reduction(found, args.example), *left_out]
    notes += [f"* {cell.row}: {', '.join(cell.less)}" for cell in found if cell.less]
    every = {(row, seed): run for row, found in runs.items() for seed, run in found.items()}
    notes += [f"{row}, seed {seed}: {run.status}" for (row, seed), run in every.items() if run.status != "finished"]
    shown = table(found, args.example)
    print("\n".join([str(shown), *notes]))
    if args.results:
        results.write_csv(f"{args.results}.csv", shown.csv(), notes, runs=list(every.values()))
        curves = results.every_round(runs, (*WORK, *next(iter(every.values())).history.evaluated))
        results.write_csv(f"{args.results}-curves.csv", curves, runs=list(every.values()))
        draw(f"{args.results}.png", runs, args.example)


if __name__ == "__main__":
    results.one_line_errors(main)
