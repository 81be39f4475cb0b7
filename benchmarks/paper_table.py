"""The paper's Table 2, its cells and ours side by side.

    python benchmarks/paper_table.py --example 1 --out runs/table1

Every algorithm of the table with every initial penalty, over seeds; a seed has its own data (Example 1) or its own
shards (Examples 2 and 3), cohorts, rows and start, which its runs share. `--rows` takes some of the table's rows, such
as "FedADMM-In 0.1,FedADMM-InSa 10". The paper's FedAvg averages all clients' last models; the usual one, over the
selected, is a row of its own. Runs are kept under `--out`: the same command goes on where it was stopped, and
`--report` prints what is there, unfinished runs too, without running anything. `--results PREFIX` writes the table to
PREFIX.csv, and the curves to PREFIX-curves.csv and PREFIX.png.

`--scale` divides Examples 2 and 3 until two cores finish all cells in an hour or two: fewer clients, rows of a client,
epochs and rounds, and of Example 3 smaller batches, so that an epoch still has several steps. The learning rate is
multiplied by what the steps of a solve are divided by: a solve still goes as far, and penalties mean what they meant.

A row that was run at less than the paper's size is marked with *, and below the table it says what was less.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
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
from fedjax_admm.storage.run_files import SETTINGS
from fedjax_admm.storage.stored_run import StoredRun

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
SAID = {
    "num_clients": "clients",
    "max_epochs": "epochs",
    "rows_per_client": "rows per client",
    "batch_size": "rows per step",
}
ELSE = {"rows_per_client": (250, 300, 5000), "test_rows": (None, 10_000, 10_000)}  # where an example's default is "all"
APART = ("data_dir", "data_seed", "partition_seed", "rounds")  # what does not make a run smaller, and what is counted

# Steps of a full solve: Example 2 has 20 epochs of 6 (300 rows by 50), Example 3 has 10 of 10 (5,000 rows by 500).
SCALED: dict[int, dict[str, Any]] = {
    2: dict(num_clients=20, rows_per_client=150, max_epochs=10, learning_rate=0.04, rounds=30),  # 30 steps
    3: dict(rows_per_client=100, batch_size=20, max_epochs=4, learning_rate=0.005, rounds=40, test_rows=2000),  # 20
}

WORK = ("epochs", "gradient_samples", "criterion_samples", "penalty_mean")  # beside the curves' losses and metrics


def algorithm(example: fa.examples.Example, row: str) -> Any:
    name, _, setting = row.partition(" ")
    if name == "FedAvg":
        return example.algorithm("fedavg", average=setting.strip("()"))
    return example.algorithm(name.lower().replace("-", "_"), penalty=float(setting))


def make(number: int, seed: int, args: argparse.Namespace) -> fa.examples.Example:
    """The paper's example with data or shards of a seed, smaller where the command line says so."""
    sizes = {"num_clients": args.clients, "max_epochs": args.max_epochs, "rounds": args.rounds}
    given = (SCALED[number] if args.scale else {}) | {k: size for k, size in sizes.items() if size is not None}
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
        less = smaller(next(iter(seeds.values())), number)
        columns = (np.array(column) for column in zip(*measured, strict=True))
        found.append(Cell(row, *columns, PAPER[row][number - 1] if row in PAPER else None, less))
    return found


def what_is_less(found: Sequence[Cell]) -> list[str]:
    """A line for the rows that are smaller than the paper's in the same way."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for cell in found:
        alike.setdefault(cell.less, []).append(cell.row)
    named = {less: ", ".join(rows) if len(rows) < len(found) else "every row" for less, rows in alike.items()}
    return [f"* {rows}: {', '.join(less)}" for less, rows in named.items() if less]


def smaller(run: StoredRun, number: int) -> tuple[str, ...]:
    """Where the run is not the paper's, in words: "30 rounds of 300"."""
    full = {name: item.default for name, item in inspect.signature(MAKERS[number - 1]).parameters.items()}
    full |= {name: sizes[number - 1] for name, sizes in ELSE.items() if name in full}
    own = run.settings["problem"]["recipe"]["arguments"]
    rounds = [f"{len(run.cohorts)} rounds of {full['rounds']}"] if len(run.cohorts) < full["rounds"] else []
    others = [name for name, value in own.items() if name not in APART and value not in (None, full[name])]
    return (*rounds, *(f"{own[name]} {SAID.get(name, name.replace('_', ' '))} of {full[name]}" for name in others))


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
    parser.add_argument("--scale", action="store_true", help="Example 2 or 3 at a size for two cores")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--data-dir", help="where TFDS's data sets are")
    parser.add_argument("--evaluate-every", type=int, default=5)
    parser.add_argument("--devices", type=int, help="CPU devices; by default one per core")
    parser.add_argument("--out", required=True, help="where the runs are kept")
    parser.add_argument("--report", action="store_true", help="only print what is there")
    parser.add_argument("--results", metavar="PREFIX", type=results.prefix)
    args = parser.parse_args()
    if args.scale and args.example not in SCALED:
        raise ValueError("--scale is for Examples 2 and 3: the first runs at full size in half an hour")
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
    notes += what_is_less(found)
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
