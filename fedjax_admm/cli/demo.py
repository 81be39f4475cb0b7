"""The command `demo`: four methods side by side on a small problem."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from .. import examples
from ..engine import processes
from ..results.comparison import Comparison
from ..results.tables import Table
from ..runs.compare import compare
from ..show.report import write_report
from .application import app
from .failures import carry_past_typer

METHODS = {
    "fedavg": "clients train on their own data, and the server averages their models",
    "fedadmm": "a penalty ties each client to the server's model, and a memory (its dual) corrects for that pull",
    "fedadmm_in": "like fedadmm, but a client stops training as soon as it is accurate enough",
    "fedadmm_insa": "like fedadmm-in, and each client adapts its penalty by itself",
}
ROUNDS, CLIENTS = 40, 40


@app.command("demo")
@carry_past_typer
def _demo(
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the runs and the report go.")] = "fedjax_admm_demo",
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    progress: Annotated[bool, typer.Option(help="Show a bar, or a line every few seconds.")] = True,
) -> None:
    """Compare four methods on a small problem in under a minute: a table, and a report with pictures.

    Example:

    fedjax-admm demo --open
    """
    example = examples.linear_regression(
        num_clients=CLIENTS, rows_per_client=50, dimension=50, batch_size=10, learning_rate=0.005, rounds=ROUNDS
    )
    algorithms = {
        name.replace("_", "-"): example.algorithm(name, **({} if name == "fedavg" else {"penalty": 0.1}))
        for name in METHODS
    }
    settings = example.run_settings | {"run_dir": out, "progress": progress}
    if processes.is_first():
        print(f"{CLIENTS} clients, each with its own data, fit one linear model together in {ROUNDS} rounds.\n")
    comparison = compare(example.problem, algorithms, **settings)
    if not processes.is_first():
        return
    table = _in_words(comparison)
    print(f"{table}\n")
    print("excess loss: the loss over all clients' data, minus the smallest possible; lower is better")
    print("epochs: passes of a client over its own data, summed over clients and rounds")
    print("gradients: per-example gradients that clients computed, including those spent on deciding when to stop")
    print("numbers sent: between the server and the clients, both ways\n")
    for name, text in METHODS.items():
        print(f"{name.replace('_', '-')}: {text}")
    report = write_report(out).resolve()
    print(f"\nreport with pictures: {report}")
    print("your own settings: fedjax-admm compare linear --help; your own data and model: docs/how-to/own_problem.md")
    if open_report:
        webbrowser.open(report.as_uri())


def _in_words(comparison: Comparison) -> Table:
    """The comparison in columns that a newcomer understands."""
    rows = []
    for label, runs in comparison.runs.items():
        for run in runs.values():
            history = run.history
            gradients, floats = history["gradient_samples"].sum(), history["communicated_floats"].sum()
            rows.append((
                label, f"{history['excess_loss'][0]:.3f}", f"{history['excess_loss'][-1]:.3f}",
                f"{run.epochs.sum():,}", f"{gradients:,}", f"{floats:,}",
            ))  # fmt: skip
    header = ("method", "excess loss at first", "at the end", "epochs", "gradients", "numbers sent")
    return Table(header, tuple(rows))
