"""Stopping criteria beside each other: criteria x penalties x seeds on one problem.

    python benchmarks/criteria.py linear --set num_clients=100 --set rows_per_client=50 --set dimension=500 \
        --set batch_size=10 --set learning_rate=0.002 --rounds 100 --penalties 0.1,1 --seeds 0,1,2,3,4 \
        --target excess_loss=0.05 --out runs/criteria

The problem is an example's name (linear, mnist, cifar10, mnist-mini), "logistic" (multinomial regression on the images
of mnist-mini, clients by Dirichlet(0.3) labels), or module:function, a function that returns an `Example`; `--set` are
its arguments. Seeds change the start, the cohorts and the order of rows, not the data or its partition. Criteria
are in words, listed below and the same as for `fedjax-admm compare --criteria`.

Prints a table for each penalty, with the first criterion as baseline, of "verified" how often the exact look refused,
and with each `--target` the work until a loss or a metric is there. `--out` keeps the runs, a comparison for each
penalty: the same command goes on where it was stopped or adds criteria, `fedjax-admm report OUT/penalty-1` makes a page
of it. `--results PREFIX` writes PREFIX.csv, PREFIX-target.csv and PREFIX.png.
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from results import arguments_of, draw, every_run, make, numbers, one_line_errors, prefix, stacked, write_csv

import fedjax_admm as fa
from fedjax_admm.algorithms import named_criteria
from fedjax_admm.cli.examples import EXAMPLES, read_target
from fedjax_admm.core import checks
from fedjax_admm.problems.evaluation import evaluated_columns


def logistic(
    *, num_clients: int = 50, alpha: float = 0.3, learning_rate: float = 0.05, batch_size: int = 20,
    max_epochs: int = 10, rounds: int = 100, participation: float = 0.2,
) -> fa.examples.Example:  # fmt: skip
    """Multinomial regression on the images that come with the package, a convex problem with unequal clients."""
    images = fa.data.sources.load("mnist_mini")
    parts = fa.partition.dirichlet(images.train_labels, num_clients, alpha, seed=0, min_size=5)
    rows = {"x": images.train_images, "y": images.train_labels.astype("int32")}
    test = {"x": images.test_images, "y": images.test_labels.astype("int32")}
    task = fa.problems.classification(fa.models.logistic((28, 28, 1), normalization=fa.models.MNIST))
    problem = fa.Problem(**task, data=fa.FederatedData.from_arrays(rows, parts), eval_data=test)
    local = fa.LocalSolver(learning_rate=learning_rate, batch_size=batch_size, max_epochs=max_epochs)
    return fa.examples.Example("logistic", problem, local, rounds, participation, c=0.01)


def maker(name: str) -> Callable[..., fa.examples.Example]:
    known = EXAMPLES | {"logistic": logistic}
    if name in known:
        return known[name]
    if ":" not in name:
        raise ValueError(f"problem must be one of {', '.join(known)} or module:function, got {name!r}")
    try:
        return pkgutil.resolve_name(name)
    except (AttributeError, ImportError) as error:
        raise ValueError(f"problem {name!r} must be a module and a function in it: {error}") from None


def refusals(comparison: fa.Comparison, methods: Mapping[str, Any], sizes: np.ndarray) -> list[str]:
    """Of the methods whose residual is "verified": how often the mean said stop and the exact look did not."""
    notes = []
    for label, method in methods.items():
        if method.criterion.residual != "verified" or method.local.full_gradient:  # then every residual is exact
            continue
        asked = refused = vain = 0
        for run in comparison.runs[label].values():
            # A solve's passes for the criterion, without the reference's.
            looks = run.solves.criterion_samples // sizes[run.cohorts] - (method.criterion.reference is not None)
            agreed = run.solves.stop_reason == "criterion"
            asked, refused = asked + looks.sum(), refused + (looks - agreed).sum()
            vain += looks[~agreed].sum()
        share = f"{refused:,} of {asked:,} exact looks refused, {refused / max(asked, 1):.0%}"
        notes.append(f"{label}: {share}; {vain:,} of them in solves that went on to the maximum")
    return notes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{named_criteria.__doc__}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("problem")
    parser.add_argument("--criteria", default="fixed,exact,epoch_mean,verified")
    parser.add_argument("--algorithms", default="fedadmm-insa", help="with commas between them")
    parser.add_argument("--penalties", default="1", help="likewise")
    parser.add_argument("--seeds", default="0", help="likewise")
    parser.add_argument("--rounds", type=int, help="by default the example's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an argument of the example")
    parser.add_argument(
        "--target", action="append", default=[], metavar="COLUMN=VALUE",
        help="such as excess_loss=0.05 or accuracy=0.9; may be given again",
    )  # fmt: skip
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--devices", type=int, help="CPU devices; by default one per core")
    parser.add_argument("--out", help="where the runs are kept; without it, only in memory")
    parser.add_argument("--results", metavar="PREFIX", type=prefix)
    args = parser.parse_args()
    seeds, penalties = numbers("seeds", args.seeds, int), numbers("penalties", args.penalties)
    targets = [read_target(text) for text in args.target]
    fa.use_cpu_devices(args.devices)
    sizes = arguments_of(args.set) | ({} if args.rounds is None else {"rounds": args.rounds})
    example = make(maker(args.problem), sizes)
    for column, _ in targets:
        checks.choice("--target", column, evaluated_columns(example.problem))
    names = [name.strip().replace("-", "_") for name in args.algorithms.split(",")]
    cells = {
        f"{name.replace('_', '-')}, {how}": (name, how) for name in names for how in named_criteria.split(args.criteria)
    }
    methods = {
        p: {label: example.algorithm(name, p, criterion=how) for label, (name, how) in cells.items()} for p in penalties
    }
    settings = {"seeds": seeds, "targets": targets, "evaluate_every": args.evaluate_every, **example.run_settings}
    comparisons, notes = {}, []
    for penalty, of in methods.items():  # each has its own baseline
        place = None if args.out is None else f"{args.out}/penalty-{penalty:g}"
        done = fa.compare(example.problem, of, run_dir=place, **settings)
        refused = refusals(done, of, np.asarray(example.problem.data.sizes))
        if place is not None:  # with what was there before, and what each run was made with
            done = fa.read_comparison(place)
        comparisons[penalty] = done
        print("\n".join([f"initial penalty {penalty:g}\n{done}", *refused, ""]), flush=True)
        notes += [f"penalty {penalty:g}: {note}" for note in [*done.notes(), *refused]]
    done = {penalty: comparison for penalty, comparison in comparisons.items() if comparison.by_label()}
    if not done:
        print("criteria.py: every run diverged: lower the learning rate, or try other penalties", file=sys.stderr)
        sys.exit(1)
    if args.results:
        keep(args.results, done, notes)


def keep(prefix: str, done: dict[float, fa.Comparison], notes: list[str]) -> None:
    """Tables and figure, of the penalties for which anything is done."""
    runs = every_run(done.values())
    write_csv(f"{prefix}.csv", stacked({p: found.csv() for p, found in done.items()}), notes, runs)
    targets = next(iter(done.values())).targets
    if targets:
        works = {
            p: stacked({f"{name}={goal:g}": found.to_target(name, goal).csv() for name, goal in targets}, "target")
            for p, found in done.items()
        }
        write_csv(f"{prefix}-target.csv", stacked(works), ["the work until each target"], runs)
    rows = {f"initial penalty {penalty:g}": found.by_label() for penalty, found in done.items()}
    history = runs[0].history
    best = "excess_loss" if "excess_loss" in history else (*history.metrics, "loss")[0]
    column, target = targets[0] if targets else (best, None)
    draw(f"{prefix}.png", rows, column, target=target)


if __name__ == "__main__":
    one_line_errors(main)
