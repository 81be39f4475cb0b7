"""Image-classification data sets as arrays: any that TFDS has prepared on disk, and a small embedded one.

TFDS data sets are read without TensorFlow. Images are decoded once and kept in a cache (`data/cache.py`), so
that a second `load` takes a fraction of a second. Nothing here touches the network except `prepare`.

    images = load("mnist_mini")     # in the package: 5,000 + 1,000 images of MNIST
    images = load("cifar10")        # ~/tensorflow_datasets/cifar10, or $TFDS_DATA_DIR, or data_dir=
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..core.files import DamagedFileError
from . import cache

EMBEDDED = "mnist_mini"

_EMBEDDED_FILE = Path(__file__).with_name("mnist_mini.npz")
_FIELDS = ("train_images", "train_labels", "test_images", "test_labels", "num_classes")
_CACHE_FORMAT = 1  # to be raised whenever the same source decodes to other arrays
_BATCH = 1000  # records a read: one by one costs ten times as much
_TFDS_FEATURES = "tensorflow_datasets.core.features."
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # channels -> Pillow's mode


class DatasetNotFoundError(FileNotFoundError):
    """A data set is not on disk; the message says where was looked and which command fetches it."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """A data set of equally large images with one label each.

    >>> load("mnist_mini")
    ImageSet('mnist_mini', train=5000, test=1000, image=(28, 28, 1), num_classes=10)
    """

    name: str
    train_images: np.ndarray  # uint8 [train, height, width, channels]
    train_labels: np.ndarray  # int32 [train], in [0, num_classes)
    test_images: np.ndarray  # uint8 [test, height, width, channels]
    test_labels: np.ndarray  # int32 [test]
    num_classes: int

    def __repr__(self) -> str:
        train, test, shape = len(self.train_labels), len(self.test_labels), self.train_images.shape[1:]
        return f"ImageSet({self.name!r}, {train=}, {test=}, image={shape}, num_classes={self.num_classes})"


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> ImageSet:
    """Loads an image-classification data set.

    The arrays of a TFDS data set are in the order in which TFDS stored the examples (shuffled). Its splits
    are "train" and "test"; where there is no "test", "validation" takes its place.

    Args:
        name: "mnist_mini" for the embedded set (`data_dir` is then not used), or TFDS's name of a data set
            that was prepared as array_record: "mnist", "emnist/balanced" (a configuration), "mnist:3.0.1" (a
            version; else the newest on disk).
        data_dir: The folder that holds the data sets. Default: `TFDS_DATA_DIR`, else `~/tensorflow_datasets`.

    Returns:
        The images as uint8 [N, height, width, channels] and the labels as int32 [N].

    Raises:
        DatasetNotFoundError: It is not there.
        DamagedFileError: One of its files is damaged (a damaged cache file is a warning, and made anew).
        ValueError: It is not image classification with images of one size, or not in a form that can be read.

    >>> load("mnist_mini").train_images.shape
    (5000, 28, 28, 1)
    """
    if name == EMBEDDED:
        arrays = cache.read_arrays(_EMBEDDED_FILE, _FIELDS)
    else:
        source = _find(name, data_dir)
        path = cache.file_for(f"{_parse(name)[0]}-{source.name}", source)
        arrays = cache.get_or_make(path, _source_key(source), _FIELDS, lambda: _decode(name, source))
    return ImageSet(name, **{**arrays, "num_classes": int(arrays["num_classes"])})


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
    base, *_ = _parse(name)
    if base == EMBEDDED:
        raise ValueError(f"{EMBEDDED!r} is part of this package: there is nothing to prepare")
    tfds = _import_tfds(extra="tfds-download")
    known = tfds.list_builders(with_community_datasets=False)  # those would be looked up in the network
    if base not in known:
        raise ValueError(f"TFDS has no data set {base!r}{_suggestion(base, known)}")
    for module in ("tensorflow", "importlib_resources"):  # TFDS 4.9.10 uses the second without requiring it
        if importlib.util.find_spec(module) is None:
            raise ImportError(f"preparing {name!r} needs {module}: pip install 'fedjax_admm[tfds-download]'")
    tfds.builder(name, data_dir=str(_root(data_dir))).download_and_prepare(file_format="array_record")
    source = _find(name, data_dir)
    _check_format(name, source)  # TFDS leaves a folder alone that is already there in another format
    return source


# ---- finding a data set on disk, without TFDS: it would try the network for minutes ----


def _root(data_dir: str | os.PathLike[str] | None) -> Path:
    chosen = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return Path(chosen).expanduser().absolute()


def _parse(name: str) -> tuple[str, str | None, str | None]:
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


def _find(name: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """Returns the folder `root/name[/config]/version` of a prepared data set, or raises."""
    base, config, version = _parse(name)
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
    with _naming(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
        return content


def _check_format(name: str, source: Path) -> None:
    form = _read_json(source / "dataset_info.json").get("fileFormat", "tfrecord")
    if form != "array_record":
        raise ValueError(
            f"data set {name!r} in {source} was prepared as {form}, which cannot be read without TensorFlow; "
            f"delete that folder or choose another data_dir, and run: fedjax-admm data prepare {name}"
        )


def _source_key(source: Path) -> str:
    """Describes the files of a data set: another text means that it has to be decoded again.

    TFDS keeps no checksum of the files it writes. Reading 140 MB to compute one would take longer than the
    cached load itself, so a file is known by its size and its time of modification.
    """
    notes = [source / "dataset_info.json", source / "features.json"]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in notes if path.is_file()]
    stats = {path.name: path.stat() for path in sorted(source.glob("*array_record*"))}
    records = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()]
    return json.dumps({"format": _CACHE_FORMAT, "notes": digests, "records": records})


# ---- decoding ----


def _import_tfds(extra: str = "datasets") -> Any:
    """TFDS; `extra` is what the caller needs, to be named where something is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TFDS's own dependencies
            for module in ("array_record.python.array_record_data_source", "PIL.Image"):
                importlib.import_module(module)
            return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(f"TFDS data sets need: pip install 'fedjax_admm[{extra}]' ({error})") from error


def _decode(name: str, source: Path) -> dict[str, np.ndarray]:
    """Decodes both splits of the data set in the folder `source` to the arrays of an `ImageSet`."""
    _check_format(name, source)
    tfds = _import_tfds()
    _check_features(source / "features.json")
    with _naming(source):
        builder = tfds.builder_from_directory(str(source))
        splits, features = builder.info.splits, builder.info.features
    image_key, label_key = _feature_keys(name, tfds, builder.info)
    test = "test" if "test" in splits else "validation"
    if not {"train", test} <= set(splits):
        raise ValueError(f"data set {name!r} needs the splits 'train' and 'test', has {sorted(splits)}")
    num_classes = features[label_key].num_classes
    arrays = {"num_classes": np.array(num_classes, np.int32)}
    for field, split in (("train", "train"), ("test", test)):
        images, labels = _decode_split(name, tfds, builder, split, image_key, label_key)
        if labels.min() < 0 or labels.max() >= num_classes:  # test splits of competitions have -1 for labels
            raise ValueError(f"data set {name!r} has labels outside [0, {num_classes}) in its split {split!r}")
        arrays |= {f"{field}_images": images, f"{field}_labels": labels}
    _check_shapes(name, {arrays["train_images"].shape[1:], arrays["test_images"].shape[1:]})
    return arrays


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


def _feature_keys(name: str, tfds: Any, info: Any) -> tuple[str, str]:
    """Returns the keys of the image and of the class label, told by their types.

    Where several features are of the type (CIFAR-100 has fine and coarse labels), TFDS's `supervised_keys`
    say which one is meant.
    """
    keys = []
    for kind in (tfds.features.Image, tfds.features.ClassLabel):
        candidates = [key for key, feature in info.features.items() if type(feature) is kind]
        if len(candidates) > 1:
            candidates = [key for key in candidates if key in (info.supervised_keys or ())]
        if len(candidates) != 1:
            kinds = {key: type(feature).__name__ for key, feature in info.features.items()}
            raise ValueError(f"data set {name!r} is not image classification: its features are {kinds}")
        keys += candidates
    image, label = (info.features[key] for key in keys)
    if image.np_dtype != np.uint8 or image.shape[-1] not in _MODES or not label.num_classes:
        raise ValueError(f"data set {name!r} needs uint8 images and known classes, has {image} and {label}")
    return keys[0], keys[1]


def _decode_split(
    name: str, tfds: Any, builder: Any, split: str, image_key: str, label_key: str
) -> tuple[np.ndarray, np.ndarray]:
    """Decodes one split to images, uint8 [N, height, width, channels], and labels, int32 [N].

    In one thread: 0.1 ms an image, most of it Python's, so that two threads gained nothing.
    """
    info, channels = builder.info.splits[split], builder.info.features[image_key].shape[-1]
    if info.num_examples == 0:
        raise ValueError(f"data set {name!r} has no examples in its split {split!r}")
    source = builder.as_data_source(split, decoders={image_key: tfds.decode.SkipDecoding()})
    with _naming(info.filepaths[0]):
        shape = _pixels(source[0][image_key], channels).shape
    images, labels = np.empty((info.num_examples, *shape), np.uint8), np.empty(info.num_examples, np.int32)
    with tqdm(total=len(labels), desc=f"decoding {name} {split}", unit=" images", disable=None) as bar:
        for path, rows in _batches(info):
            with _naming(path):
                examples = source.__getitems__(list(range(rows.start, rows.stop)))
                pixels = [_pixels(example[image_key], channels) for example in examples]
                labels[rows] = [example[label_key] for example in examples]
            _check_shapes(name, {shape, *(image.shape for image in pixels)})
            images[rows] = pixels
            bar.update(len(pixels))
    return images, labels


def _batches(split: Any) -> Iterator[tuple[os.PathLike[str], slice]]:
    """Yields (file, rows of the split) such that a batch is of one file, the only one its errors can mean."""
    start = 0
    for path, length in zip(split.filepaths, split.shard_lengths, strict=True):
        _check_length(path, length)
        for first in range(start, start + length, _BATCH):
            yield path, slice(first, min(first + _BATCH, start + length))
        start += length


def _check_length(path: os.PathLike[str], length: int) -> None:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    with _naming(path):
        if (number := len(ArrayRecordDataSource(os.fspath(path)))) != length:
            raise ValueError(f"{number} records instead of {length}")


def _pixels(encoded: bytes, channels: int) -> np.ndarray:
    """Decodes one image to uint8 [height, width, channels]."""
    from PIL import Image

    with Image.open(io.BytesIO(encoded)) as image:
        if image.mode[0] in "IF":
            raise ValueError(f"an image of more than 8 bits a channel (Pillow's mode {image.mode})")
        mode = _MODES[channels]
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels.reshape(*pixels.shape[:2], channels)


def _check_shapes(name: str, shapes: set[tuple[int, ...]]) -> None:
    if len(shapes) > 1:
        raise ValueError(f"the images of data set {name!r} are not of one size: {sorted(shapes)[:3]}")


@contextlib.contextmanager
def _naming(path: os.PathLike[str]) -> Iterator[None]:
    """Turns any error into one that names the file.

    TFDS keeps no checksums of what it writes, but array_record hashes every chunk of records: bytes changed
    at random were all refused here, except for unused ones, which changed no record.
    """
    try:
        yield
    except Exception as error:  # array_record, protobuf, Pillow and zlib each raise their own
        reason = str(error) or type(error).__name__
        raise DamagedFileError(f"{path} is damaged or missing: {reason}") from error
