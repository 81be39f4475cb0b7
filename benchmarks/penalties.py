"""Penalty rules from first penalties of 0.01 to 100, and on losses of three scales.

    python benchmarks/penalties.py --results benchmarks/results/penalties

Problems: "linear" (Example 1 with 50 clients of 20 rows of 50 numbers), "logistic" and "mlp" (the embedded MNIST, 50
clients of two labels). With losses times s the learning rate is divided by s and the first penalty multiplied. Local
steps are small enough for a penalty of 100. Rules: constant, the paper's (3.15), relative, spectral, and stiffness, by
default and with two other shares; all with the criterion and the server of `fedadmm_large`. Writes PREFIX.csv, a line
per problem, rule and scale with the figure of merit from each first penalty, and the worst of them beside the best
constant penalty's.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from results import numbers, one_line_errors, prefix, write_csv

import fedjax_admm as fa

SCALES = {"linear": (1.0, 1e-3, 1e3)}  # of others 1: a rule has a unit or has none, whatever the problem
RULES = {
    "constant": fa.penalties.constant(),
    "(3.15)": fa.penalties.residual_balancing(),
    "relative": fa.penalties.relative_balancing(),
    "spectral": fa.penalties.spectral(),
    "stiffness": fa.penalties.stiffness(),
    "stiffness 0.1": fa.penalties.stiffness(0.1),
    "stiffness 1": fa.penalties.stiffness(1.0),
}


def scaled(problem: fa.Problem, scale: float) -> dict[str, Any]:
    """The loss and the regulariser times a number, as arguments of `fa.Problem`."""
    regularizer = problem.regularizer
    return dict(
        init=problem.init,
        loss=lambda params, batch: scale * problem.loss(params, batch),
        regularizer=None if regularizer is None else lambda params: scale * regularizer(params),
        data=problem.data,
        eval_data=problem.eval_data,
        metrics=problem.metrics,
    )


def linear() -> tuple[fa.Problem, fa.LocalSolver, str]:
    example = fa.examples.linear_regression(
        num_clients=50, rows_per_client=20, dimension=50, learning_rate=0.005, batch_size=10, max_epochs=20
    )
    return example.problem, example.local, "excess_loss"


def images(model: Any) -> tuple[fa.Problem, fa.LocalSolver, str]:
    example = fa.examples.mnist_mini(model=model)
    return example.problem, fa.LocalSolver(learning_rate=0.01, batch_size=10, max_epochs=5), "accuracy"


PROBLEMS = {
    "linear": linear,
    "logistic": lambda: images(fa.models.logistic((28, 28, 1), normalization=fa.models.MNIST)),
    "mlp": lambda: images(fa.models.mlp((28, 28, 1), hidden=(32,), normalization=fa.models.MNIST)),
}


def algorithm(rule: Any, penalty: float, local: fa.LocalSolver) -> Any:
    """`fedadmm_large` with another rule."""
    large = fa.fedadmm_large(local, penalty)
    parts = dict(criterion=large.criterion, heard="only", forgetting="returning", delta=large.algorithm.delta)
    method = fa.fedadmm(local, penalty, penalty_rule=rule, **parts)
    return fa.averaged(method, large.power, returning_power=large.returning_power)


def merit(record: Any, column: str, scale: float, optimum: float | None) -> float:
    """The mean of the last three evaluations: of the accuracy, or of the loss above the optimum, without its scale."""
    values = record.history["accuracy" if column == "accuracy" else "loss"]
    last = float(np.mean(values[~np.isnan(values)][-3:]))
    return last if optimum is None else last / scale - optimum


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="linear,logistic,mlp")
    parser.add_argument("--penalties", default="0.01,0.1,1,10,100")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", metavar="PREFIX", type=prefix)
    args = parser.parse_args()
    firsts, lines = numbers("penalties", args.penalties), []
    lines.append("problem,scale,rule," + ",".join(f"from {first:g}" for first in firsts) + ",worst,best constant")
    for kind in args.problems.split(","):
        problem, local, column = PROBLEMS[kind]()
        optimum = problem.optimal_loss if column == "excess_loss" else None
        worst, best = (max, min) if column == "excess_loss" else (min, max)
        best_constant = np.nan
        for scale in SCALES.get(kind, (1.0,)):
            here = fa.Problem(**scaled(problem, scale))
            step = fa.LocalSolver(local.learning_rate / scale, local.batch_size, local.max_epochs)
            for name, rule in RULES.items():
                if name == "constant" and scale != 1:
                    continue  # its penalties are scaled with the losses: the same iterates
                runs = [(algorithm(rule, scale * first, step), args.seed) for first in firsts]
                found = fa.simulate_many(
                    here, runs, rounds=args.rounds, participation=10, evaluate_every=5, progress=False
                )
                ends = [
                    np.nan if isinstance(one, fa.DivergenceError) else merit(one, column, scale, optimum)
                    for one in found
                ]
                if name == "constant":
                    best_constant = best(end for end in ends if np.isfinite(end))
                last = worst(ends) if np.all(np.isfinite(ends)) else np.nan
                cells = ",".join(f"{value:.4g}" for value in (*ends, last, best_constant))
                lines.append(f"{kind},{scale:g},{name},{cells}")
                print(lines[-1], flush=True)
                if args.results:
                    write_csv(f"{args.results}.csv", "\n".join(lines) + "\n", ["nan: it diverged"])


if __name__ == "__main__":
    one_line_errors(main)
