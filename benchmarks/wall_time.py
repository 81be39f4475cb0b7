"""Does the criterion save time? FedADMM and FedADMM-InSa on Example 1, side by side, in seconds.

    python benchmarks/wall_time.py --penalties 0.1,1 --results benchmarks/results/wall_time

The methods take turns of ten rounds in one process, so that a slow moment of the machine hits all of them; what is
timed is the rounds alone, without compiling (a turn before the first) and without evaluating. "InSa, exact" is the
paper's; "epoch_mean" and "verified" look at the criterion without, or with few, gradients of its own; "fixed" has the
adaptive penalty without a criterion, so that what each of the two parts saves can be told apart. Printed are the
seconds of all rounds, the loss above the optimum at the end, and the seconds until the loss that FedADMM of the same
penalty ends with. `--results PREFIX` writes PREFIX.csv, every turn of every method, and PREFIX.png.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from results import arguments_of, make, numbers, one_line_errors, prefix, write_csv

import fedjax_admm as fa
from fedjax_admm.core import checks
from fedjax_admm.results.tables import Table

METHODS = {
    "FedADMM": ("fedadmm", {}),
    "InSa, fixed": ("fedadmm_insa", {"criterion": fa.criteria.run_to_maximum()}),
    "InSa, exact": ("fedadmm_insa", {"residual": "exact"}),
    "InSa, epoch_mean": ("fedadmm_insa", {"residual": "epoch_mean"}),
    "InSa, verified": ("fedadmm_insa", {"residual": "verified"}),
}


class Contestant:
    """A method, its state, and at each turn's end: rounds, seconds, epochs, gradients, loss above the optimum."""

    def __init__(self, example: fa.examples.Example, name: str, penalty: float, options: dict[str, Any]) -> None:
        algorithm = example.algorithm(name, penalty, **options)
        self._sim = fa.Simulation(example.problem, algorithm, participation=example.participation, seed=0)
        self._state = self._sim.init()
        self.points = [(0, 0.0, 0, 0, self._sim.evaluate(self._state)["excess_loss"])]

    def warm_up(self, turn: int) -> None:
        """Compiles, on a state of its own."""
        self._sim.run_rounds(self._sim.init(), self._cohorts(0, turn), turn)

    def advance(self, turn: int) -> None:
        first, seconds, epochs, gradients, _ = self.points[-1]
        began = time.perf_counter()
        self._state, infos, _ = self._sim.run_rounds(self._state, self._cohorts(first, turn), turn)
        epochs += int(np.sum(np.asarray(infos.solves.epochs), dtype=np.int64))  # this waits for the rounds
        seconds += time.perf_counter() - began
        gradients += int(np.sum(np.asarray(infos.solves.gradient_samples), dtype=np.int64))
        excess = self._sim.evaluate(self._state)["excess_loss"]
        self.points.append((first + turn, seconds, epochs, gradients, excess))

    def _cohorts(self, first: int, turn: int) -> np.ndarray:
        return np.stack([self._sim.cohorts[k] for k in range(first, first + turn)])


Key = tuple[str, float]  # method, penalty


def table(points: Mapping[Key, np.ndarray]) -> Table:
    """points: [turns + 1, 5] of each method."""
    rows = []
    for (name, penalty), found in points.items():
        base = points["FedADMM", penalty]
        reached = np.flatnonzero(found[:, 4] <= base[-1, 4])
        until = f"{found[reached[0], 1]:.1f}" if reached.size else "not reached"
        cells = (f"{found[-1, 1]:.1f}", f"{found[-1, 1] / base[-1, 1]:.2f}", f"{found[-1, 3] / base[-1, 3]:.2f}")
        rows.append((f"{name}, {penalty:g}", *cells, f"{found[-1, 4]:.4f}", until))
    header = (
        "method",
        "seconds",
        "of FedADMM's",
        "gradients, of FedADMM's",
        "loss above optimum",
        "seconds to FedADMM's",
    )
    return Table(header, tuple(rows))


def draw(path: str, points: Mapping[Key, np.ndarray]) -> None:
    """A row for each penalty: the loss above the optimum against epochs, as the paper counts, gradients and seconds."""
    from matplotlib import ticker

    from fedjax_admm.show.plots import figures

    penalties = list(dict.fromkeys(penalty for _, penalty in points))
    grid = figures.new_axes(len(penalties), 3, (3.6, 2.9), sharey=True)
    shown = ((2, "local epochs so far"), (3, "per-example gradients so far"), (1, "seconds of computing so far"))
    for line, penalty in zip(grid, penalties, strict=True):
        for axes, (column, label) in zip(line, shown, strict=True):
            for index, name in enumerate(METHODS):
                if (name, penalty) in points:
                    found = points[name, penalty]
                    axes.plot(found[:, column], found[:, 4], label=name, **figures.style(index))
            axes.set_yscale("log")
            axes.set_xlabel(label)
            axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        line[0].set_ylabel("loss above the optimum")
        line[0].set_title(f"initial penalty {penalty:g}", fontsize="medium", loc="left")
    figures.shared_legend(grid.flat)
    grid[0, 0].figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penalties", default="0.1,1")
    parser.add_argument("--methods", default=";".join(METHODS), help="FedADMM and others, with semicolons between them")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--turn", type=int, default=10, help="rounds of a turn")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an argument of the example")
    parser.add_argument("--devices", type=int, help="CPU devices; by default one per core")
    parser.add_argument("--results", metavar="PREFIX", type=prefix)
    args = parser.parse_args()
    names = [checks.choice("--methods", name.strip(), tuple(METHODS)) for name in args.methods.split(";")]
    if "FedADMM" not in names:
        raise ValueError(f"--methods must have FedADMM among them, which the others are compared with, got {names}")
    if args.turn < 1 or args.rounds < 1 or args.rounds % args.turn:
        raise ValueError(f"--rounds must be a multiple of --turn, got {args.rounds} and {args.turn}")
    fa.use_cpu_devices(args.devices)
    example = make(fa.examples.linear_regression, arguments_of(args.set))
    contestants = {
        (name, penalty): Contestant(example, METHODS[name][0], penalty, METHODS[name][1])
        for penalty in numbers("penalties", args.penalties)
        for name in names
    }
    for contestant in contestants.values():
        contestant.warm_up(args.turn)
    for turn in range(args.rounds // args.turn):
        for contestant in contestants.values():
            contestant.advance(args.turn)
        if turn % 5 == 0:
            print(f"round {(turn + 1) * args.turn}", flush=True)
    points = {key: np.array(contestant.points) for key, contestant in contestants.items()}
    print(table(points).markdown())
    if args.results:
        lines = [
            (name, f"{penalty:g}", f"{point[0]:.0f}", f"{point[1]:.3f}", *(f"{number:.7g}" for number in point[2:]))
            for (name, penalty), found in points.items()
            for point in found
        ]
        header = ("method", "penalty", "round", "seconds", "epochs", "gradients", "excess_loss")
        write_csv(f"{args.results}.csv", Table(header, tuple(lines)).csv())
        draw(f"{args.results}.png", points)


if __name__ == "__main__":
    one_line_errors(main)
