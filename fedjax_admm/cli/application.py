"""The application of which the commands are parts: its groups, and the options before a command's name."""

from __future__ import annotations

from typing import Annotated

import typer

from .._version import __version__
from ..engine import processes

RUN_HELP = """Run one algorithm on one example.

Examples:

fedjax-admm run linear --clients 20 --rows-per-client 50 --dimension 100 --batch-size 10 --rounds 30 --out runs/first

fedjax-admm run mnist-mini --algorithm fedadmm --rounds 5 --max-epochs 2

The same command again, or `fedjax-admm resume runs/first`, continues a run that was interrupted."""
COMPARE_HELP = """Compare algorithms, penalties and seeds on one example; a seed gives all the same clients and rows.

Example:

fedjax-admm compare linear --clients 20 --rows-per-client 50 --dimension 100 --batch-size 10 --rounds 10 \
--algorithms fedadmm,fedadmm-insa --penalties 0.1,1 --seeds 0,1 --out runs/comparison

The same command again, or `fedjax-admm resume runs/comparison`, continues; new seeds or algorithms are added."""
TUNE_HELP = """Try many settings of one algorithm on one example, and find the best.

Example:

fedjax-admm tune linear --clients 20 --rows-per-client 50 --dimension 100 --batch-size 10 --rounds 10 \
--algorithm fedadmm --grid penalty=0.1,1,10 --grid learning-rate=0.001,0.003 --halving 2 --out runs/tuned

The same command again, or `fedjax-admm resume runs/tuned`, continues."""

app = typer.Typer(no_args_is_help=True, add_completion=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
run_app, compare_app, tune_app = (typer.Typer(no_args_is_help=True) for _ in range(3))
data_app = typer.Typer(no_args_is_help=True, help="List, download and build data sets on disk.")
app.add_typer(run_app, name="run", help=RUN_HELP)
app.add_typer(compare_app, name="compare", help=COMPARE_HELP)
app.add_typer(tune_app, name="tune", help=TUNE_HELP)
app.add_typer(data_app, name="data")


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


def _join(how: str) -> None:
    """Joins the other processes: "auto", or "HOST:PORT,PROCESSES,THIS"."""
    address, number, this = how.split(",") if how.count(",") == 2 else (how, "", "")
    if how == "auto":
        try:
            processes.initialize_distributed()
        except ValueError as error:  # which names Python's arguments
            reason = str(error).partition("(")[2].rpartition(")")[0]
            text = f"--distributed auto found no cluster around it ({reason}): give HOST:PORT,PROCESSES,THIS (from 0)"
            raise ValueError(text) from None
    elif ":" in address and number.isdigit() and this.isdigit() and int(this) < int(number):
        processes.initialize_distributed(address, int(number), int(this))
    else:
        raise ValueError(f"--distributed must be auto or HOST:PORT,PROCESSES,THIS (from 0), got {how!r}")


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    distributed: Annotated[
        str | None,
        typer.Option(
            help="Run together with other processes that were started with the same command: auto (SLURM, Open MPI, "
            "Kubernetes, TPU pods), or HOST:PORT,PROCESSES,THIS: process 0's address, how many there are, and this "
            "one's number, from 0."
        ),
    ] = None,
) -> None:
    """A simulator of federated optimisation: FedADMM-InSa and others, on the paper's examples.

    Begin with: fedjax-admm demo
    """
    if distributed is not None:
        _join(distributed)
