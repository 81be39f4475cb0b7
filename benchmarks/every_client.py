"""Every client: the server's model against clients' own and fine-tuned ones, the worst decile beside the mean.

    python benchmarks/every_client.py --results every_client
    python benchmarks/every_client.py --mnist --scale --data-dir DIR --results every_client_mnist
    python benchmarks/every_client.py --cost

mnist-mini dealt in shards of two labels and by Dirichlet(0.3), and the speakers of text-mini; `--mnist` is Example 2
dealt likewise, with `--scale` 100 clients of 150 of its images and five epochs, which two cores finish in an hour.
Of each client a fifth of the rows is held out, on which it is evaluated; cohorts, rows and starts are the same for
every method. "own" is u_i, which FedADMM keeps; "fine-tuned" is the server's model after one epoch on its rows.
Prints the accuracies, and writes them to PREFIX.csv.
`--cost`: 200,000 clients of 20 rows, evaluated one by one, against one pass over the same rows. Bar: 1.3 times.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import best_seconds
from results import one_line_errors, prefix, write_csv

import fedjax_admm as fa
from fedjax_admm.results.tables import Table

SPLITS = ("shards", "dirichlet")
METHODS = {"FedAvg": "fedavg", "FedProx": "fedprox", "SCAFFOLD": "scaffold", "FedADMM-InSa": "fedadmm_insa"}
TEXT = dict(length=20, batch_size=20, max_epochs=1, learning_rate=2.0)  # cheaper than longer rows, and a tuned rate
SCALED = dict(batch_size=20, max_epochs=5, learning_rate=0.05, participation=0.1)
STATISTICS = ("mean", "worst_decile", "worst")


def images(example: fa.examples.Example, split: str, clients: int, rows: int | None = None) -> fa.examples.Example:
    """An example's training images, or so many per client of them, dealt so, a fifth of each client's held out."""
    fields = {name: np.asarray(leaf) for name, leaf in example.problem.data.fields.items()}
    if rows is not None:
        drawn = np.random.default_rng(0).permutation(len(fields["y"]))[: clients * rows]
        fields = {name: leaf[drawn] for name, leaf in fields.items()}
    deal: Callable[..., Any] = fa.partition.shards
    options: dict[str, Any] = {"labels_per_client": 2}
    if split == "dirichlet":
        deal, options = fa.partition.dirichlet, {"alpha": 0.3, "min_size": 5}
    train, test = fa.partition.holdout(deal(fields["y"], clients, seed=0, **options), fraction=0.2)
    data, held_out = (fa.FederatedData.from_arrays(fields, parts) for parts in (train, test))
    problem = dataclasses.replace(example.problem, data=data, client_eval_data=held_out, recipe=None)
    return dataclasses.replace(example, problem=problem)


def examples(arguments: argparse.Namespace) -> dict[str, fa.examples.Example]:
    """What is run."""
    if arguments.mnist:
        local = SCALED if arguments.scale else {}
        whole = fa.examples.mnist_cnn(data_dir=arguments.data_dir, **local)
        size = (100, 150) if arguments.scale else (200, None)
        return {f"Example 2, {split}": images(whole, split, *size) for split in SPLITS}
    found = {f"mnist-mini, {split}": images(fa.examples.mnist_mini(), split, arguments.clients) for split in SPLITS}
    if not arguments.no_text:
        found["text-mini, speakers"] = fa.examples.text_mini(num_clients=arguments.speakers, **TEXT)
    return found


def study(arguments: argparse.Namespace) -> tuple[Table, list[fa.RunRecord]]:
    """A row for each problem, method and kind of model."""
    rows, runs = [], []
    for label, example in examples(arguments).items():
        rounds, penalty = (arguments.text_rounds, 0.01) if label.startswith("text") else (arguments.rounds, 0.1)
        penalty = arguments.penalty or penalty
        for method, name in METHODS.items():
            options = {"average": "selected"} if name == "fedavg" else {}
            algorithm = example.algorithm(name, penalty, **options)
            result = fa.simulate(
                example.problem, algorithm, rounds, participation=example.participation, evaluate="test",
                evaluate_every=rounds, evaluate_clients_every=rounds, progress=False,
            )  # fmt: skip
            runs.append(result)
            tuned = fa.personalize(result, example.problem, example.local, epochs=1)
            models = {"server's": tuned.before, "fine-tuned": tuned.after} | ({"own": tuned.own} if tuned.own else {})
            for model, values in models.items():
                accuracy = values["accuracy"]
                numbers = (accuracy.mean(), np.quantile(accuracy, 0.1), accuracy.min())
                rows.append((f"{label}: {method}", model, *(f"{number:.3f}" for number in numbers)))
                print(*rows[-1], flush=True)
    return Table(("problem and method", "model", *(name.replace("_", " ") for name in STATISTICS)), tuple(rows)), runs


def cost(clients: int, turns: int) -> Table:
    """Seconds of evaluating every client over those of one pass over the same rows."""
    rows = [cost_of(clients, 20, features, turns) for features in (10, 60)]
    return Table(("every client, over", "the rows' loss at once", "the global loss"), tuple(rows))


def cost_of(clients: int, rows: int, features: int, turns: int) -> tuple[str, ...]:
    """A row of the table."""
    rng = np.random.default_rng(0)
    number = clients * rows
    fields = {
        "x": rng.normal(size=(number, features)).astype("f"),
        "y": rng.integers(0, 10, number).astype(np.int32),
    }
    data = fa.FederatedData.from_arrays(fields, np.arange(number).reshape(clients, rows))
    task = fa.problems.classification(fa.models.logistic(features), accuracy=False)
    problem = fa.Problem(**task, data=data)
    sim = fa.Simulation(problem, fa.fedavg(fa.LocalSolver(0.1, 10)), participation=1)
    state = sim.init()
    one_pass = jax.jit(lambda params, fields: jnp.mean(problem.loss(params, fields)))
    contestants = {
        "at once": lambda: float(one_pass(state.params, problem.data.fields)),
        "global": lambda: sim.evaluate(state),
        "each": lambda: sim.evaluate_clients(state),
    }
    best = best_seconds(contestants, turns)
    ratios = (f"{best['each'] / best[name]:.2f}" for name in ("at once", "global"))
    return (f"{clients:,} clients, {rows} rows, {features} features", *ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--text-rounds", type=int, default=60)
    parser.add_argument("--clients", type=int, default=50, help="of mnist-mini")
    parser.add_argument("--speakers", type=int, default=None, help="of text-mini; by default all")
    parser.add_argument("--penalty", type=float, help="by default 0.1 of images and 0.01 of texts")
    parser.add_argument("--no-text", action="store_true")
    parser.add_argument("--mnist", action="store_true", help="Example 2 instead")
    parser.add_argument("--scale", action="store_true", help="Example 2 at a size for two cores")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--results", default=None, metavar="PREFIX", type=prefix)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--cost-clients", type=int, default=200_000)
    arguments = parser.parse_args()
    if arguments.cost:
        print(cost(arguments.cost_clients, 7).markdown())
        return
    fa.use_cpu_devices()
    table, runs = study(arguments)
    print(table.markdown())
    if arguments.results:
        write_csv(f"{arguments.results}.csv", table.csv(), (), runs)


if __name__ == "__main__":
    one_line_errors(main)
