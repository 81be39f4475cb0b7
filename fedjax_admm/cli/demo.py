"""The command `demo`: four methods side by side on a small problem, for a first look."""

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
    "fedavg": "clients train, the server averages",
    "fedadmm": "as FedAvg, but each client remembers in which direction it was held back (its dual)",
    "fedadmm_in": "as FedADMM, but a client stops training as soon as it is accurate enough",
    "fedadmm_insa": "as FedADMM-In, but each client's penalty adapts by itself",
}
ROUNDS, CLIENTS = 40, 40


@app.command("demo")
@carry_past_typer
def _demo(
    out: Annotated[str, typer.Option(metavar="DIR", help="Where the runs and the report go.")] = "fedjax_admm_demo",
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    progress: Annotated[bool, typer.Option(help="Show a bar, or a line every few seconds.")] = True,
) -> None:
    """A first look, in under a minute: four methods on one small problem, a table and a report with pictures.

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
        print(f"{CLIENTS} clients, each with data of its own kind, fit one linear model in {ROUNDS} rounds.\n")
    comparison = compare(example.problem, algorithms, **settings)
    if not processes.is_first():
        return
    table = _in_words(comparison)
    print(f"{table}\n")
    print("above the best: the loss over all clients' data, less the least that any model can have; small is good")
    print("local epochs: passes of a client over its data, of all clients and rounds")
    print("gradients: of single rows, those included that only tell a client when to stop; what a client computes")
    print("numbers sent: between server and clients, both ways\n")
    for name, text in METHODS.items():
        print(f"{name.replace('_', '-')}: {text}")
    report = write_report(out).resolve()
    print(f"\nreport with pictures: {report}")
    print("your own: fedjax-admm compare linear --help, or the tutorials in the documentation")
    if open_report:
        webbrowser.open(report.as_uri())


def _in_words(comparison: Comparison) -> Table:
    """The comparison in columns that need no knowledge of it."""
    rows = []
    for label, runs in comparison.runs.items():
        for run in runs.values():
            history = run.history
            gradients, floats = history["gradient_samples"].sum(), history["communicated_floats"].sum()
            rows.append((
                label, f"{history['excess_loss'][0]:.3f}", f"{history['excess_loss'][-1]:.3f}",
                f"{run.epochs.sum():,}", f"{gradients:,}", f"{floats:,}",
            ))  # fmt: skip
    header = ("method", "above the best at first", "at the end", "local epochs", "gradients", "numbers sent")
    return Table(header, tuple(rows))
