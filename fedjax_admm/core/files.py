"""Files that are at every moment the former one, or none, or the complete new one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


class DamagedFileError(OSError):
    """A file on disk does not hold what it should; the message names it."""


def check_writable(folder: Path, name: str) -> None:
    """A directory that is there, or can be made; a message calls it `name`."""
    above = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not above.is_dir():
        raise ValueError(f"{name}: {above} is a file: give a directory")
    if not os.access(above, os.W_OK):
        raise ValueError(f"{name}: {above} may not be written to: give another directory")


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Lets `write` fill a new file, then gives it the name `path`.

    What an interruption can leave behind is a hidden `.tmp` file, which nothing reads.
    """
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(8)}.tmp")  # same folder: a rename is atomic
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())  # else a power failure could leave the name on a file without its content
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """`value` as a readable JSON file."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_whole(path, lambda file: file.write(text.encode()))


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: {error}") from None
