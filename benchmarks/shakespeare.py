"""Next characters of Shakespeare's plays, whose speakers are the clients: three methods for some minutes.

    python benchmarks/shakespeare.py FILE --minutes 10 --results benchmarks/results/shakespeare

FILE is the text, or `tiny_shakespeare` for TFDS's. The GRU of `fa.examples.text`, 299 speakers of very unequal size, a
tenth of them in each round, three epochs in batches of 10 rows of 80 characters. The methods take turns of a few rounds
until the time is up, so that all have done as many. The step size and the penalty are those that `benchmarks/methods.py
text` found best for SCAFFOLD and FedADMM on the smaller text; nothing was tuned on this one. Prints the last row of
each, and writes PREFIX.csv, a line for each evaluation, and PREFIX.png.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import jax
import numpy as np
from results import one_line_errors, prefix, write_csv

import fedjax_admm as fa
from fedjax_admm.results.tables import Table

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {"average": "selected"}),
    "SCAFFOLD": ("scaffold", {}),
    "FedADMM-InSa": ("fedadmm_insa", {"penalty": 0.003}),
}
COLUMNS = ("method", "round", "gradients", "seconds", "accuracy")


class Curve:
    """A method's run, and what was seen of it."""

    def __init__(self, label: str, example: fa.examples.Example) -> None:
        name, options = METHODS[label]
        algorithm = example.algorithm(name, **options)
        self._sim = fa.Simulation(example.problem, algorithm, participation=example.participation)
        self._state, self._label, self._round = self._sim.init(), label, 0
        self._gradients, self._seconds = 0, 0.0  # one gradient is one row's
        self.rows = [self._row()]

    def advance(self, rounds: int) -> None:
        """So many rounds more, and a look."""
        cohorts = np.stack([self._sim.cohorts[self._round + k] for k in range(rounds)])
        began = time.perf_counter()
        self._state, infos, done = self._sim.run_rounds(self._state, cohorts, rounds)
        jax.block_until_ready(self._state.params)
        if done < rounds:
            raise ValueError(f"{self._label} diverged in round {self._round + done}")
        self._seconds += time.perf_counter() - began
        self._round += rounds
        self._gradients += int(np.sum(jax.device_get(infos.solves.gradient_samples), dtype=np.int64))
        self.rows.append(self._row())

    def _row(self) -> tuple[str, ...]:
        accuracy = self._sim.evaluate(self._state, on="test")["accuracy"]
        return self._label, str(self._round), str(self._gradients), f"{self._seconds:.1f}", f"{accuracy:.4f}"


def draw(path: str, rows: list[tuple[str, ...]]) -> None:
    """Accuracy by rounds, and by gradients."""
    from fedjax_admm.show.plots import figures

    grid = figures.new_axes(1, 2, (4.2, 3.0), sharey="row")
    for k, label in enumerate(METHODS):
        mine = [row for row in rows if row[0] == label]
        for axes, column in zip(grid[0], (1, 2), strict=True):
            axes.plot(
                [float(row[column]) for row in mine], [float(row[4]) for row in mine], label=label, **figures.style(k)
            )
    grid[0, 0].set(xlabel="rounds", ylabel="accuracy on held-out characters")
    grid[0, 1].set(xlabel="gradients of a row")
    figures.shared_legend(grid.flat)
    grid[0, 0].figure.savefig(path, dpi=100, pil_kwargs={"optimize": True})
    figures.pyplot().close(grid[0, 0].figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the text, or tiny_shakespeare")
    parser.add_argument("--data-dir", help="where TFDS's data sets are")
    parser.add_argument("--minutes", type=float, default=10, help="of all methods together")
    parser.add_argument("--model", default="gru", choices=("gru", "transformer"))
    parser.add_argument("--learning-rate", type=float, default=2.0)
    parser.add_argument("--speakers", type=int, help="only those who say most")
    parser.add_argument("--each", type=int, default=5, help="rounds of a turn")
    parser.add_argument("--results", type=prefix, metavar="PREFIX")
    args = parser.parse_args()
    example = fa.examples.text(
        args.file, data_dir=args.data_dir, model=args.model, learning_rate=args.learning_rate, num_clients=args.speakers
    )
    began = time.perf_counter()
    curves = [Curve(label, example) for label in METHODS]
    while True:
        for curve in curves:
            curve.advance(args.each)
            print(*curve.rows[-1], flush=True)
        rows = [row for curve in curves for row in curve.rows]
        if args.results:
            write_csv(f"{args.results}.csv", Table(COLUMNS, tuple(rows)).csv())
            draw(f"{args.results}.png", rows)
        if time.perf_counter() - began > 60 * args.minutes:
            break
    print(Table(COLUMNS, tuple(curve.rows[-1] for curve in curves)).markdown())


if __name__ == "__main__":
    one_line_errors(main)
