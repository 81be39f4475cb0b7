"""The command `fedjax-admm`."""

from __future__ import annotations

import argparse
import sys

from .data import sources


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0 done, 2 bad input, 1 failed."""
    parser = argparse.ArgumentParser(prog="fedjax-admm", description="A simulator of federated optimisation.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    data = commands.add_parser("data", help="data sets on disk").add_subparsers(dest="action", required=True)
    listing = data.add_parser("list", help="data sets that can be loaded")
    prepare = data.add_parser("prepare", help="download a data set with TFDS (needs fedjax_admm[tfds-download])")
    prepare.add_argument("name", help="as TFDS calls it: mnist, cifar10, emnist/balanced, ...")
    for action in (listing, prepare):
        action.add_argument("--data-dir", help="default: TFDS_DATA_DIR, else TFDS's own folder")
    options = parser.parse_args(arguments)
    try:
        if options.action == "list":
            print("\n".join(sources.available(options.data_dir)))
        else:
            print(sources.prepare(options.name, options.data_dir))
    except (ValueError, FileNotFoundError, ImportError) as error:
        print(f"fedjax-admm: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"fedjax-admm: {error}", file=sys.stderr)
        return 1
    return 0
