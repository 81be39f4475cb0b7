"""Simulated time to a target loss on clients of unequal speed: fixed epochs, and three ways to look at the criterion.

    python benchmarks/stragglers.py --results stragglers

Example 1, by default small, with log-normal speeds and bandwidths; the same clients, cohorts and rows for every method
of a seed. A round takes as long as its slowest client, and the criterion's gradients take time too. "InSa, fixed
epochs" is FedADMM-InSa without its criterion, so that the criterion and the adaptive penalty can be told apart. Prints
a table, writes every round to PREFIX.csv and the figure to PREFIX.png. README.md has a reading of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from results import draw, every_round, numbers, one_line_errors, write_csv

import fedjax_admm as fa
from fedjax_admm.results.tables import Table


def methods(example: fa.examples.Example, penalty: float) -> dict[str, Any]:
    fixed = fa.criteria.run_to_maximum()
    insa = {residual: example.algorithm("fedadmm_insa", penalty, residual=residual) for residual in RESIDUALS}
    return {
        "FedADMM, fixed epochs": example.algorithm("fedadmm", penalty),
        "InSa, fixed epochs": example.algorithm("fedadmm_insa", penalty, criterion=fixed),
        **{f"InSa, {residual}": algorithm for residual, algorithm in insa.items()},
    }


RESIDUALS = ("exact", "epoch_mean", "verified")


def busy(run: fa.RunRecord, time: fa.ClientTime, floats: int) -> float:
    """The mean share of a round that its clients work, receive or send rather than wait for the slowest."""
    each = time.seconds(run.cohorts, run.solves.gradient_samples, floats)
    return float(np.mean(each.mean(axis=1) / each.max(axis=1)))


def table(comparison: fa.Comparison, time: fa.ClientTime, floats: Mapping[str, int], target: float) -> Table:
    """A row per method; `floats` that a client receives and sends."""
    reached, rows = comparison.to_target("excess_loss", target), []
    lines = {line[0]: line for line in reached.rows}
    for label, records in comparison.by_label().items():
        line = lines[label]
        seconds = np.mean([run.history["simulated_seconds"][1:].mean() for run in records])
        share = np.mean([busy(run, time, floats[label]) for run in records])
        excess = np.mean([run.history["excess_loss"][-1] for run in records])
        rows.append((*line, f"{seconds:.3g}", f"{100 * share:.0f} %", f"{excess:.2g}"))
    return Table((*reached.header, "s a round", "busy", "excess at the end"), tuple(rows))


COLUMNS = ("simulated_seconds", "gradient_samples", "communicated_floats", "excess_loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--results", metavar="PREFIX", default="stragglers")
    given = vars(parser.parse_args())
    example = fa.examples.linear_regression(
        num_clients=given["clients"], rows_per_client=given["rows_per_client"], dimension=given["dimension"],
        batch_size=given["batch_size"], learning_rate=given["learning_rate"], rounds=given["rounds"],
    )  # fmt: skip
    speeds, bandwidths = (
        fa.client_time.log_normal(given[name], given["sigma"], given["clients"], seed=seed)
        for seed, name in enumerate(("gradients_per_second", "floats_per_second"))
    )
    time, algorithms = fa.ClientTime(speeds, bandwidths), methods(example, given["penalty"])
    seeds = numbers("seeds", given["seeds"], int)
    comparison = fa.compare(example.problem, algorithms, seeds=seeds, client_time=time, **example.run_settings)
    target = given["target"]
    estimates = {label: fa.estimate(example.problem, method) for label, method in algorithms.items()}
    floats = {label: one.floats_down + one.floats_up for label, one in estimates.items()}
    spread = ", ".join(f"{speed:.0f}" for speed in (speeds.min(), np.median(speeds), speeds.max()))
    print(f"slowest, median and fastest client: {spread} gradients a second")
    print(f"to a loss {target:g} above the optimum, mean over seeds {given['seeds']}:\n")
    print(table(comparison, time, floats, target).markdown())
    write_csv(f"{given['results']}.csv", every_round(comparison.runs, COLUMNS))
    panels = {f"initial penalty {given['penalty']:g}": comparison.by_label()}
    draw(f"{given['results']}.png", panels, "excess_loss", ("rounds", "gradients", "time"), target)


SIZES = {
    "clients": 60, "rows_per_client": 40, "dimension": 300, "batch_size": 10, "learning_rate": 0.002, "rounds": 100,
    "seeds": "0,1,2", "penalty": 1.0, "target": 0.1, "sigma": 1.0, "gradients_per_second": 2000.0,
    "floats_per_second": 20_000.0,
}  # fmt: skip

if __name__ == "__main__":
    one_line_errors(main)
