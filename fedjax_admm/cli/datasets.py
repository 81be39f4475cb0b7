"""The commands about data sets on disk."""

from __future__ import annotations

from typing import Annotated

import typer

from ..data import sources
from .application import data_app

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
