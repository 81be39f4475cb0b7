"""The commands about data sets on disk."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Annotated, Any, get_type_hints

import typer

from ..core import checks
from ..data import partition, sources
from ..data.build import build_federation
from .application import data_app
from .failures import carry_past_typer
from .flags import Flags, command

DATA_DIR = "The folder with TFDS's data sets; by default $TFDS_DATA_DIR, or else TFDS's own folder."
DataDir = Annotated[str | None, typer.Option(help=DATA_DIR)]


@data_app.command("list")
def _list_data(data_dir: DataDir = None) -> None:
    """Lists the data sets that can be loaded.

    Example:

    fedjax-admm data list
    """
    print("\n".join(sources.available(data_dir)))


@data_app.command("prepare")
def _prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in TFDS: mnist, cifar10, emnist/balanced, ...")],
    data_dir: DataDir = None,
) -> None:
    """Downloads a data set with TFDS; needs fedjax_admm[tfds-download]."""
    print(sources.prepare(name, data_dir))


_PARTITIONS = {"iid": partition.iid, "shards": partition.shards, "dirichlet": partition.dirichlet}
_PARTITION = Flags(
    _PARTITIONS.values(),
    "Partition",
    renamed={"num_examples": None, "labels": None, "num_clients": "clients", "min_size": None},
    own_defaults=False,
)


def _build(
    source: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Files, a folder, or a name of TFDS.")],
    out: Annotated[str, typer.Option(help="The directory to write, new or empty.", rich_help_panel="What")],
    key: Annotated[
        str | None, typer.Option(help="The column, or array, that names each row's client.", rich_help_panel="What")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help='The column of labels, "y"; for arrays, what a partition uses.', rich_help_panel="What"),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help='Columns of "x", separated by commas; by default all.', rich_help_panel="What"),
    ] = None,
    min_size: Annotated[int, typer.Option(help="Clients with fewer rows are left out.", rich_help_panel="What")] = 1,
    data_dir: Annotated[
        str | None,
        typer.Option(help=DATA_DIR, rich_help_panel="What"),
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show a bar in a terminal.", rich_help_panel="What")] = True,
    partition: Annotated[
        str | None,
        typer.Option(
            help="How clients get rows if there is no key: iid, shards, dirichlet.",
            rich_help_panel="Partition",
        ),
    ] = None,
    **values: Any,
) -> None:
    """Makes a federation on disk from .npy, .npz, CSV or Parquet files, a folder, or a TFDS data set of any size.

    After an interruption the same command continues. In Python, open the directory with fa.FederatedData.open(DIR).

    Examples:

    fedjax-admm data build mnist_mini --out federations/mnist-mini --partition dirichlet --clients 20 --alpha 0.3

    fedjax-admm data build visits.csv --key patient --label outcome --out federations/visits
    """
    names = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    dealt = _read_partition(partition, _PARTITION.values(values))
    made = build_federation(
        out, source, key=key, label=label, columns=names, partition=dealt, min_size=min_size, data_dir=data_dir,
        progress=progress,
    )  # fmt: skip
    print(made)


def _read_partition(name: str | None, options: dict[str, Any]) -> Any:
    if name is None:
        if options:
            raise ValueError(f"--{next(iter(options)).replace('num_', '').replace('_', '-')} needs --partition")
        return None
    make = _PARTITIONS[checks.choice("partition", name, tuple(_PARTITIONS))]
    known = inspect.signature(make).parameters
    for option in options:
        if option not in known:
            raise ValueError(f"{option} is not an argument of the partition {name}")
    if "num_clients" not in options:
        raise ValueError(f"--partition {name} needs --clients")
    if name == "dirichlet" and "alpha" not in options:
        raise ValueError("--partition dirichlet needs --alpha")
    if name == "iid":
        return lambda labels: make(len(labels), **options)
    return partial(_by_labels, make, options)


def _by_labels(make: Any, options: dict[str, Any], labels: Any) -> Any:
    return make(labels, **options)


_hints = get_type_hints(_build, include_extras=True)
_OWN = [p.replace(annotation=_hints[p.name]) for p in inspect.signature(_build).parameters.values() if p.name in _hints]
data_app.command("build")(command(carry_past_typer(_build), _PARTITION, own=[p for p in _OWN if p.name != "values"]))
