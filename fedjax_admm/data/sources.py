"""Image-classification data sets as arrays: any that TFDS has prepared on disk, and a small embedded one.

TFDS data sets are read without TensorFlow. Images are decoded once and kept in a cache (`data/cache.py`), so
that a second `load` takes a fraction of a second. Nothing here touches the network except `prepare`.

    images = load("mnist_mini")     # in the package: 5,000 + 1,000 images of MNIST
    images = load("cifar10")        # ~/tensorflow_datasets/cifar10, or $TFDS_DATA_DIR, or data_dir=
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from . import cache
from .tfds import (
    EMBEDDED,
    DatasetNotFoundError,
    available,
    batches,
    find,
    import_tfds,
    naming,
    open_builder,
    parse,
    prepare,
)

__all__ = ["EMBEDDED", "DatasetNotFoundError", "ImageSet", "available", "load", "prepare"]

_EMBEDDED_FILE = Path(__file__).with_name("mnist_mini.npz")
_FIELDS = ("train_images", "train_labels", "test_images", "test_labels", "num_classes")
_CACHE_FORMAT = 1  # to be raised whenever the same source decodes to other arrays
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # channels -> Pillow's mode


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
        source = find(name, data_dir)
        path = cache.file_for(f"{parse(name)[0]}-{source.name}", source)
        arrays = cache.get_or_make(path, _source_key(source), _FIELDS, lambda: _decode(name, source))
    return ImageSet(name, **{**arrays, "num_classes": int(arrays["num_classes"])})


def training_batches(name: str, folder: Path | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The training images of a data set and their labels, as `load` returns them, batch by batch and never cached.

    Args:
        name: The data set's.
        folder: Where TFDS has prepared it; None for the embedded set.
    """
    if folder is None:
        images = load(name)
        yield images.train_images, images.train_labels
        return
    tfds, builder = import_tfds(), open_builder(name, folder)
    yield from _decoded_batches(name, tfds, builder, "train", *_feature_keys(name, tfds, builder.info))


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


def _decode(name: str, source: Path) -> dict[str, np.ndarray]:
    """Decodes both splits of the data set in the folder `source` to the arrays of an `ImageSet`."""
    tfds, builder = import_tfds(), open_builder(name, source)
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
    """Decodes one split to images, uint8 [N, height, width, channels], and labels, int32 [N]."""
    number, start = builder.info.splits[split].num_examples, 0
    images, labels = np.empty(0, np.uint8), np.empty(number, np.int32)
    with tqdm(total=number, desc=f"decoding {name} {split}", unit=" images", disable=None) as bar:
        for pixels, kinds in _decoded_batches(name, tfds, builder, split, image_key, label_key):
            if start == 0:
                images = np.empty((number, *pixels.shape[1:]), np.uint8)
            rows = slice(start, start := start + len(kinds))
            images[rows], labels[rows] = pixels, kinds
            bar.update(len(kinds))
    return images, labels


def _decoded_batches(
    name: str, tfds: Any, builder: Any, split: str, image_key: str, label_key: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Decodes one split batch by batch.

    In one thread: 0.1 ms an image, most of it Python's, so that two threads gained nothing.
    """
    info, channels = builder.info.splits[split], builder.info.features[image_key].shape[-1]
    if info.num_examples == 0:
        raise ValueError(f"data set {name!r} has no examples in its split {split!r}")
    source = builder.as_data_source(split, decoders={image_key: tfds.decode.SkipDecoding()})
    with naming(info.filepaths[0]):
        shape = _pixels(source[0][image_key], channels).shape
    for path, rows in batches(info):
        with naming(path):
            examples = source.__getitems__(list(range(rows.start, rows.stop)))
            pixels = [_pixels(example[image_key], channels) for example in examples]
            labels = np.array([example[label_key] for example in examples], np.int32)
        _check_shapes(name, {shape, *(image.shape for image in pixels)})
        yield np.stack(pixels), labels


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
