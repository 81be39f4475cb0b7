"""Decoded arrays on disk: written whole or not at all, checked on reading, tied to their source by a key.

A cache file is an uncompressed `.npz` (NumPy can open it). Its members carry the zip format's CRC-32, and
one member, `key`, is the text that describes the source the arrays were decoded from.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files import DamagedFileError, write_whole

_CHUNK = 1 << 20  # bytes a read: the arrays are filled in place, without a second copy of them


def folder() -> Path:
    """Returns the folder of the cache: `FEDJAX_ADMM_CACHE`, or `fedjax_admm` in the user's cache folder."""
    if chosen := os.environ.get("FEDJAX_ADMM_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "fedjax_admm"


def file_for(label: str, source: Path) -> Path:
    """Returns where the arrays decoded from the folder `source` are kept.

    The file's name is the label and a hash of the folder's path: two copies of a data set do not overwrite
    each other's cache, and a copy that changed overwrites its own.
    """
    place = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]
    return folder() / f"{label}-{place}.npz"


def get_or_make(
    path: Path, key: str, names: Sequence[str], make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Reads arrays from a cache file, or makes and keeps them.

    They are made where there is no file, where it has another key, and, with a warning that names the file,
    where it is damaged. A cache that cannot be written is a warning too.

    Args:
        path: The cache file.
        key: Describes the source of the arrays.
        names: The names of the arrays.
        make: Returns name -> array; called where the file does not do.

    Returns:
        name -> array.
    """
    try:
        arrays = read_arrays(path, ["key", *names])
        if arrays.pop("key").item() == key:
            return arrays
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        warnings.warn(f"{error}; making it anew", RuntimeWarning, stacklevel=3)
    arrays = make()
    try:
        write_arrays(path, key, arrays)
    except OSError as error:  # a full or read-only disk costs the next load its speed, not this one its data
        remedy = "set FEDJAX_ADMM_CACHE to a folder that can be written"
        warnings.warn(f"the cache file {path} was not written ({error}); {remedy}", RuntimeWarning, stacklevel=3)
    return arrays


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads arrays from an `.npz` file, every byte of them checked against its CRC-32.

    Args:
        path: The file.
        names: The names of the arrays.

    Returns:
        name -> array.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFileError: The file cannot be read as it was written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _array(archive, f"{name}.npy") for name in names}
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise
    except Exception as error:  # damage surfaces in zipfile and NumPy as nearly any type of exception
        raise DamagedFileError(f"{path} is damaged: {type(error).__name__}: {error}") from error


def write_arrays(path: Path, key: str, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays so that `path` is at every moment the former file, or none, or the complete new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    named: dict[str, Any] = dict(arrays)
    write_whole(path, lambda file: np.savez(file, key=np.array(key), **named))


def _array(archive: zipfile.ZipFile, member: str) -> np.ndarray:
    with archive.open(member) as file:
        np.lib.format.read_magic(file)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        if fortran_order:
            raise ValueError(f"{member} is in Fortran order")
        array = np.empty(shape, dtype)
        target, done = array.reshape(-1).view(np.uint8).data, 0
        while done < len(target) and (part := file.read(min(_CHUNK, len(target) - done))):
            target[done : done + len(part)] = part
            done += len(part)
        # zipfile compares the CRC at a member's end only. A damaged header that asks for fewer bytes would
        # never get there (np.load has this gap): read on, and be strict about the length.
        if done < len(target) or file.read():
            raise ValueError(f"{member} is not as long as its header says")
    return array
