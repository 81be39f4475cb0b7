"""Files that are at every moment the former one, or none, or the complete new one; and files that grow."""

from __future__ import annotations

import json
import os
import secrets
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


class DamagedFileError(OSError):
    """A file on disk does not hold what it should; the message names it and says what to do.

    >>> print(DamagedFileError("history.csv is damaged"))
    history.csv is damaged: restore it, or give another directory
    """

    def __init__(self, problem: str, remedy: str = "restore it, or give another directory") -> None:
        super().__init__(f"{problem}: {remedy}")


def load_array(path: Path, mapped: bool = False) -> np.ndarray:
    """Reads the array in a `.npy` file.

    Args:
        path: The file.
        mapped: Whether to map it into memory instead.

    Returns:
        The array.

    Raises:
        ValueError: It holds none. NumPy's own errors for a header in which a bit has flipped are of many kinds.
        OSError: It cannot be read.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r") if mapped else np.load(path, allow_pickle=False)
    except (SyntaxError, tokenize.TokenError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise ValueError(f"its header cannot be read ({error})") from None


def directory_in_place_of(path: Path) -> DamagedFileError:
    """The error to raise where a directory has the name of a file."""
    return DamagedFileError(f"{path} is a directory where a file should be", "move it away")


def check_writable(folder: Path, name: str) -> None:
    """Checks that a directory is there, or can be made.

    Args:
        folder: The directory.
        name: What a message calls it.

    Raises:
        ValueError: There is a file in its place, it may not be written to, or there can be none of that name.
    """
    try:
        str(folder).encode()  # names from a command line that Python could not read have half characters
    except UnicodeEncodeError:
        raise ValueError(f"{name} cannot be read in this locale: give a name in ASCII, or set PYTHONUTF8=1") from None
    try:
        above = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    except OSError as error:  # a name that is too long, for one
        raise ValueError(f"{name} cannot be used ({error.strerror}): give another directory") from None
    if not above.is_dir():
        raise ValueError(f"{name}: {above} is a file: give a directory")
    if not os.access(above, os.W_OK):
        raise ValueError(f"{name}: {above} may not be written to: give another directory")


def write_whole(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Lets `write` fill a new file, then gives it the name `path`.

    What an interruption can leave behind is a hidden `.tmp` file, which nothing reads. A symbolic link of that name
    is replaced; the file that it leads to stays as it is.

    Args:
        path: The file.
        write: Called with the new file, open for writing.

    Raises:
        DamagedFileError: There is a directory in the file's place.
    """
    if path.is_dir() and not path.is_symlink():
        raise directory_in_place_of(path)
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


def open_in_place(path: Path, flags: int) -> int:
    """Opens a file whose content is changed where it is, never through a symbolic link.

    Whoever hands over a directory could else have any file of the reader's overwritten.

    Args:
        path: The file.
        flags: As for `os.open`.

    Returns:
        The file's descriptor.

    Raises:
        DamagedFileError: There is a symbolic link or a directory in the file's place.
    """
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError:
        refuse_link(path)
        if path.is_dir():
            raise directory_in_place_of(path) from None
        raise


def refuse_link(path: Path) -> None:
    """Refuses to go on where a symbolic link stands in the place of what would be changed.

    Args:
        path: The place.

    Raises:
        DamagedFileError: There is a symbolic link.
    """
    if path.is_symlink():
        raise DamagedFileError(f"{path} is a symbolic link, which is not written through", "put what it leads to there")


def append_whole(path: Path, data: bytes) -> int:
    """Adds `data` to a file in one write, which ends at the place that is returned."""
    with open(open_in_place(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0) as file:
        if file.write(data) != len(data):
            raise OSError(f"{path} was not written whole")
        return file.tell()


def truncate(path: Path, length: int) -> None:
    """Cuts a file off at `length`, if it is longer."""
    if path.stat().st_size > length:
        with open(open_in_place(path, os.O_RDWR), "r+b", buffering=0) as file:
            file.truncate(length)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as a readable JSON file."""
    write_whole(path, lambda file: file.write(_encode(value)))


def overwrite_json(path: Path, value: Any) -> None:
    """Writes `value` over a JSON file, which takes no more room on the disk; an interruption leaves it damaged."""
    with open(open_in_place(path, os.O_RDWR), "r+b", buffering=0) as file:
        file.truncate(file.write(_encode(value)))


def read_json(path: Path) -> Any:
    """Reads what `write_json` wrote.

    Args:
        path: The file.

    Returns:
        The value.

    Raises:
        DamagedFileError: The file is no JSON, or no file.
        FileNotFoundError: There is none.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is damaged: {' '.join(str(error).split())}") from None
    except IsADirectoryError:
        raise directory_in_place_of(path) from None


def _encode(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
