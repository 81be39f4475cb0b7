"""Data sets that TFDS has prepared on disk, found and read without TensorFlow.

Nothing here touches the network except `prepare`.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.files import DamagedFileError

EMBEDDED = "mnist_mini"

_BATCH = 1000  # records a read: one by one costs ten times as much
_TFDS_FEATURES = "tensorflow_datasets.core.features."


class DatasetNotFoundError(FileNotFoundError):
    """A data set is not on disk; the message says where was looked and which command fetches it."""


def available(data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Lists the data sets on disk, of whatever kind.

    Args:
        data_dir: The folder that holds them; see `load`.

    Returns:
        Their names, and "mnist_mini", which always is.

    >>> available("an/empty/folder")
    ['mnist_mini']
    """
    names = [EMBEDDED]
    for folder in _subfolders(_root(data_dir)):
        names += [folder.name] if _versions(folder) else []
        names += [f"{folder.name}/{config.name}" for config in _subfolders(folder) if _versions(config)]
    return sorted(names)


def prepare(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Downloads a data set with TFDS's own `download_and_prepare`, in the format that `load` reads.

    Needs the network and TensorFlow (`pip install 'fedjax_admm[tfds-download]'`); `load` needs neither.

    Args:
        name: TFDS's name of the data set.
        data_dir: The folder for it; see `load`.

    Returns:
        The folder of the prepared data set.
    """
    base, *_ = parse(name)
    if base == EMBEDDED:
        raise ValueError(f"{EMBEDDED!r} is part of this package: there is nothing to prepare")
    tfds = import_tfds(extra="tfds-download")
    known = tfds.list_builders(with_community_datasets=False)  # those would be looked up in the network
    if base not in known:
        raise ValueError(f"TFDS has no data set {base!r}{_suggestion(base, known)}")
    for module in ("tensorflow", "importlib_resources"):  # TFDS 4.9.10 uses the second without requiring it
        if importlib.util.find_spec(module) is None:
            raise ImportError(f"preparing {name!r} needs {module}: pip install 'fedjax_admm[tfds-download]'")
    tfds.builder(name, data_dir=str(_root(data_dir))).download_and_prepare(file_format="array_record")
    source = find(name, data_dir)
    check_format(name, source)  # TFDS leaves a folder alone that is already there in another format
    return source


# ---- finding a data set on disk, without TFDS: it would try the network for minutes ----


def _root(data_dir: str | os.PathLike[str] | None) -> Path:
    chosen = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(chosen).expanduser().absolute()


def parse(name: str) -> tuple[str, str | None, str | None]:
    """Returns (data set, configuration, version) of TFDS's `name[/config][:version]`."""
    match = re.fullmatch(r"(\w[\w-]*)(?:/(\w[\w.+-]*))?(?::(\d+\.\d+\.\d+))?", name)
    if match is None:
        raise ValueError(f"a data set is named 'name', 'name/config' or 'name:1.2.3', got {name=}")
    return match.group(1), match.group(2), match.group(3)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _versions(folder: Path) -> list[Path]:
    """Returns the folders of the prepared versions, the newest last."""
    versions = [
        path
        for path in _subfolders(folder)
        if re.fullmatch(r"\d+\.\d+\.\d+", path.name) and (path / "dataset_info.json").is_file()
    ]
    return sorted(versions, key=lambda path: [int(part) for part in path.name.split(".")])


def find(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """Returns the folder `root/name[/config]/version` of a prepared data set, or raises."""
    base, config, version = parse(name)
    root = _root(data_dir)
    folder = root / base / config if config else _default_config(root / base)
    versions = [path for path in _versions(folder) if version in (None, path.name)]
    if versions:
        return versions[-1]
    where = f"{root}{'' if root.is_dir() else ' (no such folder)'}"
    target = f"{name} --data-dir {root}" if data_dir else name
    raise DatasetNotFoundError(
        f"data set {name!r} not found in {where}{_suggestion(name, available(data_dir))}; to fetch it: "
        f"pip install 'fedjax_admm[tfds-download]' and then: fedjax-admm data prepare {target}"
    )


def _default_config(folder: Path) -> Path:
    """Returns the folder of a data set's versions: itself, or its default or only configuration."""
    configs = [path for path in _subfolders(folder) if _versions(path)]
    if _versions(folder) or not configs:
        return folder
    if (note := folder / ".config" / "metadata.json").is_file():  # where TFDS writes down the default
        default = folder / str(_read_json(note).get("default_config_name"))
        if default in configs:
            return default
    if len(configs) > 1:
        names = ", ".join(f"{folder.name}/{path.name}" for path in configs)
        raise ValueError(f"data set {folder.name!r} has several configurations in {folder}; name one: {names}")
    return configs[0]


def _suggestion(name: str, known: list[str]) -> str:
    # The cutoff lets "mnsit" and "fashion-mnist" through but not "mnist", which is no typo of "mnist_mini".
    close = difflib.get_close_matches(name.lower(), [other for other in known if other != name], 1, cutoff=0.75)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _read_json(path: Path) -> dict[str, Any]:
    with naming(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content


def check_format(name: str, source: Path) -> None:
    form = _read_json(source / "dataset_info.json").get("fileFormat", "tfrecord")
    if form != "array_record":
        raise ValueError(
            f"data set {name!r} in {source} was prepared as {form}, which cannot be read without TensorFlow; "
            f"delete that folder or choose another data_dir, and run: fedjax-admm data prepare {name}"
        )


# ---- reading ----


def import_tfds(extra: str = "datasets") -> Any:
    """TFDS; `extra` is what the caller needs, to be named where something is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TFDS's own dependencies
            for module in ("array_record.python.array_record_data_source", "PIL.Image"):
                importlib.import_module(module)
            return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(f"TFDS data sets need: pip install 'fedjax_admm[{extra}]' ({error})") from error


def open_builder(name: str, source: Path) -> Any:
    """TFDS's builder of the data set in the folder `source`, of which nothing is executed."""
    check_format(name, source)
    tfds = import_tfds()
    _check_features(source / "features.json")
    with naming(source):
        builder = tfds.builder_from_directory(str(source))
        assert builder.info.splits is not None and builder.info.features is not None  # read here, where it is named
        return builder


def _check_features(path: Path) -> None:
    """Refuses features that TFDS would import from elsewhere: data, and the run that names its folder, is no code."""
    parts: list[Any] = [_read_json(path)]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts += part.values()
            for kind in (part.get(key) for key in ("pythonClassName", "python_class_name", "type")):
                if isinstance(kind, str) and not kind.startswith(_TFDS_FEATURES):
                    raise ValueError(f"{path} has a feature of the type {kind!r}, which is not TFDS's: not imported")


def batches(split: Any) -> Iterator[tuple[os.PathLike[str], slice]]:
    """Yields (file, rows of the split) such that a batch is of one file, the only one its errors can mean."""
    start = 0
    for path, length in zip(split.filepaths, split.shard_lengths, strict=True):
        _check_length(path, length)
        for first in range(start, start + length, _BATCH):
            yield path, slice(first, min(first + _BATCH, start + length))
        start += length


def _check_length(path: os.PathLike[str], length: int) -> None:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    with naming(path):
        if (number := len(ArrayRecordDataSource(os.fspath(path)))) != length:
            raise ValueError(f"{number} records instead of {length}")


@contextlib.contextmanager
def naming(path: os.PathLike[str]) -> Iterator[None]:
    """Turns any error into one that names the file.

    TFDS keeps no checksums of what it writes, but array_record hashes every chunk of records: bytes changed
    at random were all refused here, except for unused ones, which changed no record.
    """
    try:
        yield
    except Exception as error:  # array_record, protobuf, Pillow and zlib each raise their own
        reason = str(error) or type(error).__name__
        raise DamagedFileError(f"{path} is damaged or missing: {reason}") from error
