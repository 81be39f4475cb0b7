"""A federation on disk: plain `.npy` files in client order, and an index with checksums.

    federation.json     the fields, the files, how many clients and rows; its own checksum
    field.NAME.npy      one file per field [rows, ...], the clients' rows one after the other
    clients.npz         sizes, weights and names [clients], CRC-32 of each client's rows [clients, fields]

Nothing of it is executed: arrays of Python objects are refused. A directory is written under another name and renamed
when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from ..core.files import check_writable, load_array, write_whole

INDEX, CLIENTS, FORMAT = "federation.json", "clients.npz", 1
CHECK_BYTES = 1 << 26  # a federation up to this size is read and checked when it is opened
_MOST_DIGITS = 20  # of a number of rows
_REMEDY = "restore it, or save the federation again"


class Federation(NamedTuple):
    """What a directory holds."""

    folder: Path
    fields: Any  # pytree of memory-mapped [rows, ...]
    sizes: np.ndarray  # [clients]
    weights: np.ndarray  # [clients]
    names: list[Any] | None
    checksums: np.ndarray  # [clients, fields] uint32
    digest: str  # of the index: another content has another

    def check(self, clients: Iterable[int] | None = None) -> None:
        """Reads the rows of clients, by default of all, and compares them with their checksums."""
        ends = np.cumsum(self.sizes)
        for i in range(len(self.sizes)) if clients is None else clients:
            for k, leaf in enumerate(jax.tree.leaves(self.fields)):
                rows = leaf[ends[i] - self.sizes[i] : ends[i]]
                if _crc(rows) != self.checksums[i, k]:
                    raise _damaged(Path(leaf.filename), f"the rows of client {i} are not what was written")


def write_federation(folder: Any, clients: Iterable[Any], *, weights: Any = None, names: Any = None) -> Path:
    """Writes the arrays of clients, one client in memory at a time, whole or not at all.

    Args:
        folder: The directory, new or empty.
        clients: Each client's pytree of NumPy arrays [rows, ...], alike but for the number of rows.
        weights: alpha_i [clients]; None for N_i / N.
        names: The clients' names, or None.

    Returns:
        The directory.
    """
    folder = Path(folder)
    check_writable(folder, "path")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"path: {folder} is not empty: give a new directory, or remove what is there")
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}.tmp")
    building.mkdir()
    try:
        _write(building, clients, weights, names)
        if folder.exists():
            folder.rmdir()
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return folder


def _write(folder: Path, clients: Iterable[Any], weights: Any, names: Any) -> None:
    sizes, checksums, described, kinds = [], [], None, []
    with contextlib.ExitStack() as opened:
        files: list[BinaryIO] = []
        for client in clients:
            leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(client)]
            if described is None:
                described, paths = _describe(client)
                files = [opened.enter_context(open(folder / path, "w+b")) for path in paths]
                kinds = [leaf[:0] for leaf in leaves]
                for file, kind in zip(files, kinds, strict=True):
                    _write_header(file, kind, 0)
            for file, leaf in zip(files, leaves, strict=True):
                file.write(_bytes(leaf))
            sizes.append(len(leaves[0]))
            checksums.append([_crc(leaf) for leaf in leaves])
        if described is None:
            raise ValueError("clients is empty: give at least one")
        for file, kind in zip(files, kinds, strict=True):
            file.seek(0)
            _write_header(file, kind, sum(sizes))
    write_index(folder, described, sizes, checksums, weights, names)


def write_index(
    folder: Path, described: Any, sizes: Any, checksums: Any, weights: Any = None, names: Any = None
) -> None:
    """Writes what makes a directory with all files of rows a federation.

    Args:
        folder: The directory.
        described: The fields, as `create_fields` describes them.
        sizes: Rows of each client.
        checksums: Of each client's rows of each field [clients, fields].
        weights: alpha_i [clients]; None for N_i / N.
        names: The clients' names, or None.
    """
    counts = np.array(sizes, np.int64)
    arrays: dict[str, Any] = {
        "sizes": counts,
        "weights": counts / counts.sum() if weights is None else np.asarray(weights, np.float64),
        "checksums": np.array(checksums, np.uint32),
    }
    if names is not None:
        arrays["names"] = np.array(names)
    write_whole(folder / CLIENTS, lambda file: np.savez(file, **arrays))
    index = {"format": FORMAT, "clients": len(counts), "rows": int(counts.sum()), "fields": described}
    index["clients_crc32"] = zlib.crc32((folder / CLIENTS).read_bytes())
    text = json.dumps(index | {"crc32": _index_crc(index)}, indent=2) + "\n"
    write_whole(folder / INDEX, lambda file: file.write(text.encode()))


def create_fields(folder: Path, kinds: Any, rows: int) -> tuple[Any, list[Path]]:
    """Makes files for so many rows of each field, still without content.

    Args:
        folder: The directory.
        kinds: A pytree of arrays [any, ...] with the fields' dtypes and shapes.
        rows: How many rows there will be.

    Returns:
        The fields' description for `write_index`, and their files in JAX's order, which may be memory-mapped.
    """
    described, names = _describe(kinds)
    for name, leaf in zip(names, jax.tree.leaves(kinds), strict=True):
        with open(folder / name, "w+b") as file:
            _write_header(file, leaf, rows)
            file.truncate(file.tell() + rows * int(np.prod(leaf.shape[1:])) * leaf.dtype.itemsize)
    return described, [folder / name for name in names]


def checksums_of(leaves: Sequence[np.ndarray], sizes: Any) -> Iterator[list[int]]:
    """The checksums of each client's rows, one client after the other."""
    for start, size in zip(np.cumsum(sizes) - sizes, sizes, strict=True):
        yield [_crc(leaf[start : start + size]) for leaf in leaves]


def read_federation(folder: Any) -> Federation:
    """Maps a federation's files.

    Args:
        folder: The directory.

    Returns:
        The federation. One of at most 64 MiB was read and compared with its checksums.

    Raises:
        ValueError: There is none, or something of it is damaged.
    """
    folder = Path(folder)
    index = _read_index(folder)
    try:
        fields = _map_fields(folder, index["fields"], index["rows"])
    except (KeyError, TypeError, AttributeError):
        raise _damaged(folder / INDEX, "it does not describe the fields") from None
    arrays = _read_clients(folder, index)
    sizes, names = arrays["sizes"], arrays.get("names")
    leaves = jax.tree.leaves(fields)
    kept = Federation(
        folder, fields, sizes, arrays["weights"], None if names is None else names.tolist(), arrays["checksums"],
        f"{index['crc32']:08x}",
    )  # fmt: skip
    if arrays["checksums"].shape != (len(sizes), len(leaves)):
        raise _damaged(folder / CLIENTS, "it has not one checksum for each client and field")
    if sum(leaf.nbytes for leaf in leaves) <= CHECK_BYTES:
        kept.check()
    return kept


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not path.is_file():
        raise ValueError(f"{folder} is no federation, it has no {INDEX}: give a directory that FederatedData.save made")
    try:
        index = json.loads(path.read_bytes())
        stored = index.pop("crc32")
        if index["format"] != FORMAT:
            raise ValueError(f"{path} has format {index['format']}, and this version reads {FORMAT}: save it again")
        whole = stored == _index_crc(index) and isinstance(index["rows"], int) and isinstance(index["clients"], int)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise _damaged(path, "it is no index of a federation") from None
    if not whole:
        raise _damaged(path, "it does not have its checksum")
    return index | {"crc32": stored}


def _read_clients(folder: Path, index: dict[str, Any]) -> dict[str, np.ndarray]:
    path = folder / CLIENTS
    try:
        if zlib.crc32(path.read_bytes()) != index["clients_crc32"]:
            raise _damaged(path, "it does not have its checksum")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        sizes, weights, checksums = (arrays[name] for name in ("sizes", "weights", "checksums"))
    except OSError as error:
        raise _damaged(path, error.strerror or "it cannot be read") from None
    except KeyError as error:
        raise _damaged(path, f"it has no {error.args[0]}") from None
    except (ValueError, zipfile.BadZipFile) as error:
        raise _damaged(path, " ".join(str(error).split())) from None
    for name, kind, values in (("sizes", "i", sizes), ("weights", "f", weights), ("checksums", "u", checksums)):
        if values.dtype.kind != kind:
            raise _damaged(path, f"its {name} are {values.dtype}")
    if sizes.shape != (index["clients"],) or int(sizes.sum()) != index["rows"]:
        raise _damaged(path, f"its sizes are not those of {index['clients']} clients with {index['rows']} rows")
    if weights.shape != sizes.shape or not np.all(weights > 0) or not np.isfinite(weights.sum()):
        raise _damaged(path, "its weights are not one positive number for each client")
    if "names" in arrays and arrays["names"].shape != sizes.shape:
        raise _damaged(path, "its names are not one for each client")
    if sizes.min() < 1:
        raise _damaged(path, f"client {int(np.argmin(sizes))} has no rows")
    return arrays


def _map_fields(folder: Path, described: Any, rows: int) -> Any:
    """The memory-mapped arrays in the structure that the index describes."""
    if "file" in described:
        return _map(folder, described, rows)
    if "dict" in described:
        return {name: _map_fields(folder, part, rows) for name, part in described["dict"].items()}
    kind = tuple if "tuple" in described else list
    return kind(_map_fields(folder, part, rows) for part in described[kind.__name__])


def _map(folder: Path, described: dict[str, Any], rows: int) -> np.ndarray:
    name, shape = str(described["file"]), (rows, *described["shape"])
    path, dtype = folder / name, np.dtype(described["dtype"])
    if Path(name).name != name or path.is_symlink():
        raise ValueError(f"{folder / INDEX} points outside of its directory, to {name}: {_REMEDY}")
    try:
        leaf = load_array(path, mapped=True)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, " ".join(str(error).split())) from None
    if leaf.dtype.kind == "V":  # of bfloat16 and the like NumPy's files know the width alone
        leaf = leaf.view(dtype)
    if leaf.dtype != dtype or leaf.shape != shape:
        raise _damaged(path, f"it has {leaf.dtype} {list(leaf.shape)}, and the index says {dtype} {list(shape)}")
    if not leaf.flags.c_contiguous:
        raise _damaged(path, "its rows are not one after the other but in Fortran order")
    header = path.stat().st_size - leaf.nbytes
    if header < 0 or header > 4096:
        raise _damaged(path, f"it has {path.stat().st_size:,} bytes for rows of {leaf.nbytes:,}")
    return leaf


def _describe(fields: Any) -> tuple[Any, list[str]]:
    """A structure of dicts, lists and tuples as JSON can hold it, and the names of its files in JAX's order."""
    paths: list[str] = []

    def describe(part: Any, place: tuple[str, ...]) -> Any:
        if type(part) is dict and all(isinstance(name, str) for name in part):
            return {"dict": {name: describe(part[name], (*place, name)) for name in sorted(part)}}
        if type(part) in (list, tuple):
            return {type(part).__name__: [describe(item, (*place, str(k))) for k, item in enumerate(part)]}
        if not isinstance(part, np.ndarray):
            raise ValueError(
                f"fields of {type(part).__name__} cannot be saved: give a dict, a list or a tuple of arrays"
            )
        readable = re.sub(r"[^A-Za-z0-9_-]", "_", ".".join(place).replace(".", "_")) or "rows"
        name = f"field.{readable}.npy"
        paths.append(name if name not in paths else f"field.{len(paths)}.{readable}.npy")
        return {"file": paths[-1], "dtype": str(part.dtype), "shape": list(part.shape[1:])}

    return describe(fields, ()), paths


def _write_header(file: BinaryIO, leaf: np.ndarray, rows: int) -> None:
    """A header with room for any number of rows, so that it can be written again when that is known."""
    descr = np.lib.format.dtype_to_descr(leaf.dtype)
    text = str({"descr": descr, "fortran_order": False, "shape": (rows, *leaf.shape[1:])})
    length = 64 * -(-(len(text) - len(str(rows)) + _MOST_DIGITS + 11) // 64)
    file.write(np.lib.format.magic(1, 0) + (length - 10).to_bytes(2, "little"))
    file.write(text.encode().ljust(length - 11) + b"\n")


def _bytes(leaf: np.ndarray) -> memoryview:
    return np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data


def _crc(leaf: np.ndarray) -> int:
    return zlib.crc32(_bytes(leaf))


def _index_crc(index: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(index, sort_keys=True).encode())


def _damaged(path: Path, how: str) -> ValueError:
    return ValueError(f"{path} is damaged, {how}: {_REMEDY}")
