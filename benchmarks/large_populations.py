"""How methods fare when a round sees a small share of the clients.

    python benchmarks/large_populations.py --out runs/large --results benchmarks/results/large_populations

Three problems: "logistic", regression on images of the embedded MNIST, of which each client draws rows of two labels;
"linear", the paper's Example 1 with 20 rows of 100 numbers per client; and "mnist", all images of MNIST dealt in shards
of two labels, and a network with a hidden layer (needs --data-dir, else it is left out). No method is tuned but by its
defaults; all have the same local solver, and all that have a penalty begin with 1. Writes PREFIX.csv, with the rounds
and gradients until FedAvg's last accuracy (or loss above the optimum), and PREFIX.png. The same command goes on where
it was stopped, and with more seeds runs those alone.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from results import every_run, numbers, one_line_errors, prefix, write_csv

import fedjax_admm as fa

ROWS = {50: 100, 500: 10}  # of a client in a population of so many; in larger ones 4
MOST_MNIST = 10_000  # clients, with six images each
HOST = 20_000  # clients, from which on their state lives in host memory
COLUMNS = {"logistic": "accuracy", "linear": "excess_loss", "mnist": "accuracy"}


def logistic(clients: int) -> tuple[fa.Problem, fa.LocalSolver]:
    """Each client draws its rows from the images of two labels; another may have the same."""
    images = fa.examples.mnist_mini().problem
    x, y = (np.asarray(images.data.fields[name]) for name in ("x", "y"))
    rng, rows = np.random.default_rng(0), ROWS.get(clients, 4)
    of_label = [np.flatnonzero(y == label) for label in range(10)]
    labels = rng.integers(10, size=(clients, 2))
    parts = []
    for one, other in labels:
        pool = np.concatenate([of_label[one], of_label[other]]) if one != other else of_label[one]
        parts.append(rng.choice(pool, min(rows, len(pool)), replace=False))
    data = fa.FederatedData.from_arrays({"x": x, "y": y}, parts, allow_overlap=True)
    model = fa.models.logistic((28, 28, 1), normalization=fa.models.MNIST)
    problem = fa.Problem(**fa.problems.classification(model), data=data, eval_data=images.eval_data)
    return problem, fa.LocalSolver(learning_rate=0.05, batch_size=10, max_epochs=5)


def mnist(clients: int, data_dir: str) -> tuple[fa.Problem, fa.LocalSolver]:
    """All images, each at one client, and a network that is not convex."""
    images = fa.examples.mnist_cnn(data_dir=data_dir, num_clients=clients).problem
    model = fa.models.mlp((28, 28, 1), hidden=(32,), normalization=fa.models.MNIST)
    problem = fa.Problem(**fa.problems.classification(model), data=images.data, eval_data=images.eval_data)
    return problem, fa.LocalSolver(learning_rate=0.05, batch_size=10, max_epochs=5)


def linear(clients: int) -> tuple[fa.Problem, fa.LocalSolver]:
    """Example 1 with many small clients."""
    example = fa.examples.linear_regression(
        num_clients=clients, rows_per_client=20, dimension=100, learning_rate=0.005, batch_size=5, max_epochs=10
    )
    return example.problem, example.local


def methods(local: fa.LocalSolver) -> dict[str, Any]:
    """label -> algorithm."""
    parts = dict(residual="epoch_mean")
    return {
        "FedAvg": fa.fedavg(local),
        "FedAvg, averaged": fa.averaged(fa.fedavg(local)),
        "FedAdam": fa.fedadam(local),
        "SCAFFOLD": fa.scaffold(local),
        "FedDyn": fa.feddyn(local, 1.0),
        "Gong": fa.fedadmm(local, 1.0, server_step=1.0),
        "InSa": fa.fedadmm_insa(local, 1.0, **parts),
        "InSa, only": fa.fedadmm_insa(local, 1.0, heard="only", **parts),
        "InSa, only, 0.9": fa.fedadmm_insa(local, 1.0, heard="only", forgetting=0.9, **parts),
        "InSa, only, 0.7": fa.fedadmm_insa(local, 1.0, heard="only", forgetting=0.7, **parts),
        "InSa, only, auto": fa.fedadmm_insa(local, 1.0, heard="only", forgetting="auto", **parts),
        "large": fa.fedadmm_large(local),
    }


def first_at(values: np.ndarray, goal: float, rising: bool, work: np.ndarray) -> float:
    """The work by which a curve is at the goal; NaN if it never is."""
    there = np.flatnonzero(values >= goal if rising else values <= goal)
    return float(work[there[0]]) if len(there) else np.nan


def rows_of(comparison: fa.Comparison, kind: str, clients: int) -> list[str]:
    """A line of the table per method: means over seeds, paired with FedAvg of the same seed."""
    column, lines = COLUMNS[kind], []
    for label, runs in comparison.runs.items():
        cells = []
        for seed, run in runs.items():
            history, base = run.history, comparison.runs["FedAvg"][seed].history
            known = ~np.isnan(history[column])
            values, number = history[column][known], history["round"][known]
            gradients, floats = (
                np.cumsum(history[name])[known] for name in ("gradient_samples", "communicated_floats")
            )
            goal = np.mean(base[column][~np.isnan(base[column])][-3:])  # its last three evaluations
            whole = np.sum(base["gradient_samples"])
            cells.append(
                [
                    values[-3:].mean(),
                    history["loss"][known][-3:].mean(),
                    first_at(values, goal, column == "accuracy", number),
                    first_at(values, goal, column == "accuracy", gradients / whole),
                    gradients[-1] / whole,
                    floats[-1],
                ]
            )
        if not cells:
            lines.append(f'{kind},{clients},0,"{label}",diverged,,,,,,,')
            continue
        found = np.array(cells)
        end, loss, rounds, share, total, floats = found.mean(axis=0)  # NaN where one of the seeds never is there
        reached = np.isfinite(found[:, 2]).sum()
        numbers_of = (end, found[:, 0].std(), loss, reached, rounds, share, total, floats)
        lines.append(f'{kind},{clients},{len(cells)},"{label}",' + ",".join(f"{value:.5g}" for value in numbers_of))
    return lines


def fitted(problem: fa.Problem, clients: np.ndarray) -> float:
    """The best test accuracy of one model fitted to all rows of these clients, over steps and three regularisers.

    What is chosen by the test set is no result of a method; it is about the most that the rows can give.
    """
    parts = [problem.data.client(i) for i in np.unique(clients)]
    rows = {name: jnp.concatenate([part[name] for part in parts]) for name in ("x", "y")}
    test, optimizer, best = problem.eval_data, optax.adam(0.01), 0.0
    [(_, correct)] = problem.metrics

    @jax.jit
    def step(params: Any, state: Any, weight: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean(problem.loss(params, rows)) + weight / 2 * optax.tree.norm(params, squared=True)

        change, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, change), state

    measure = jax.jit(lambda params: jnp.mean(correct(params, test)))
    for weight in (1e-3, 1e-2, 1e-1):
        params = jax.tree.map(jnp.zeros_like, problem.init(jax.random.key(0)))
        state = optimizer.init(params)
        for k in range(600):
            params, state = step(params, state, weight)
            best = max(best, float(measure(params))) if k % 20 == 19 else best
    return best


def bounds_of(comparison: fa.Comparison, problem: fa.Problem, clients: int) -> list[str]:
    """What all rows that the server has heard of by a third of the rounds, and by the last, could give."""
    lines, runs = [], comparison.runs["FedAvg"].values()
    for name, share in (("a third", 1 / 3), ("all", 1.0)):
        best = [fitted(problem, run.cohorts[: int(share * len(run.cohorts))]) for run in runs]
        lines.append(f"logistic,{clients},{len(best)},{name},{np.mean(best):.4g}")
    return lines


def draw(path: str, found: dict[tuple[str, int], fa.Comparison]) -> None:
    """Accuracy, or the loss above the optimum, against rounds."""
    import matplotlib.pyplot as plt

    shown = ("FedAvg", "FedAvg, averaged", "SCAFFOLD", "InSa", "InSa, only", "InSa, only, auto", "large")
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.4 * columns, 3 * rows), squeeze=False)
    for ax in axes.flat[len(found) :]:
        ax.axis("off")
    for ax, ((kind, clients), comparison) in zip(axes.flat, found.items(), strict=False):
        for label in shown:
            for run in list(comparison.runs.get(label, {}).values())[:1]:
                values = run.history[COLUMNS[kind]]
                known = ~np.isnan(values)
                ax.plot(
                    run.history["round"][known],
                    values[known],
                    label=label,
                    lw=2.5 if label == "large" else 1,
                )
        ax.set(title=f"{kind}, {clients:,} clients", xlabel="round", ylabel=COLUMNS[kind].replace("_", " "))
        if kind == "linear":
            ax.set(yscale="log", ylim=(None, 2))
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


HEADER = (
    "problem,clients,seeds,method,accuracy or excess loss,its standard deviation,loss,"
    "seeds at FedAvg's,rounds to it,gradients to it (FedAvg's: 1),gradients (FedAvg's: 1),floats"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="logistic,linear,mnist")
    parser.add_argument("--populations", default="50,500,5000,100000")
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--evaluate-every", type=int, default=4)
    parser.add_argument("--methods", help="some of the labels, after FedAvg's, with ; between them; by default all")
    parser.add_argument("--data-dir", help="where MNIST of TensorFlow Datasets is")
    parser.add_argument("--bound", action="store_true", help="and what the rows heard of could give (logistic)")
    parser.add_argument("--out", required=True, help="where the runs are kept")
    parser.add_argument("--results", metavar="PREFIX", type=prefix)
    args = parser.parse_args()
    makers = {"logistic": logistic, "linear": linear}
    if args.data_dir:
        makers["mnist"] = functools.partial(mnist, data_dir=args.data_dir)
    found, lines = {}, [HEADER]
    bounds = ["problem,clients,seeds,rounds whose rows are known,best accuracy of one model fitted to them"]
    for kind in args.problems.split(","):
        for clients in numbers("populations", args.populations, int):
            if kind not in makers or (kind == "mnist" and clients > MOST_MNIST):
                print(f"{kind}, {clients:,} clients: left out", flush=True)
                continue
            problem, local = makers[kind](clients)
            chosen = methods(local)
            if args.methods:
                chosen = {label: chosen[label] for label in ("FedAvg", *args.methods.split(";"))}
            found[kind, clients] = fa.compare(
                problem, chosen, args.rounds, seeds=numbers("seeds", args.seeds, int), baseline="FedAvg",
                run_dir=f"{args.out}/{kind}-{clients}", participation=min(args.cohort, clients),
                evaluate_every=args.evaluate_every, progress=False,
                execution=fa.Execution(population="host" if clients >= HOST else "device"),
            )  # fmt: skip
            lines += rows_of(found[kind, clients], kind, clients)
            print("\n".join(lines[-len(found[kind, clients].runs) :]), flush=True)
            if args.bound and kind == "logistic":
                bounds += bounds_of(found[kind, clients], problem, clients)
                print("\n".join(bounds[-2:]), flush=True)
            if args.results and len(bounds) > 1:
                write_csv(f"{args.results}_bound.csv", "\n".join(bounds) + "\n", [], every_run(found.values()))
            if args.results:
                write_csv(f"{args.results}.csv", "\n".join(lines) + "\n", [], every_run(found.values()))
                draw(f"{args.results}.png", found)


if __name__ == "__main__":
    one_line_errors(main)
