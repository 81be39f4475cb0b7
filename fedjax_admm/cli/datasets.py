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

DataDir = Annotated[str | None, typer.Option(help="By default TFDS_DATA_DIR, else TFDS's own folder.")]


@data_app.command("list")
def _list_data(data_dir: DataDir = None) -> None:
    """Data sets that can be loaded.

    Example:

    fedjax-admm data list
    """
    print("\n".join(sources.available(data_dir)))


@data_app.command("prepare")
def _prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As TFDS calls it: mnist, cifar10, emnist/balanced, ...")],
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
    source: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="Files, a folder, or a name of TFDS's.")],
    out: Annotated[str, typer.Option(help="The directory to be made, new or empty.", rich_help_panel="What")],
    key: Annotated[
        str | None, typer.Option(help="The column, or array, that says whose a row is.", rich_help_panel="What")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help='The column of labels, "y"; of arrays, what is partitioned by.', rich_help_panel="What"),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help='The columns of "x", between commas; by default all.', rich_help_panel="What")
    ] = None,
    min_size: Annotated[int, typer.Option(help="Clients with fewer rows are left out.", rich_help_panel="What")] = 1,
    data_dir: Annotated[
        str | None,
        typer.Option(help="By default TFDS_DATA_DIR, else TFDS's own folder.", rich_help_panel="What"),
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show a bar in a terminal.", rich_help_panel="What")] = True,
    partition: Annotated[
        str | None,
        typer.Option(
            help="Where no key says whose rows they are: iid, shards, dirichlet.", rich_help_panel="Partition"
        ),
    ] = None,
    **values: Any,
) -> None:
    """Makes a federation on disk, of any size, of .npy, .npz, CSV or Parquet files, a folder, or a data set of TFDS.

    The same command goes on with what was interrupted. Python opens the directory with FederatedData.open(DIR).

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
