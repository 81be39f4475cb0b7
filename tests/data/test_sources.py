"""Data sources: the embedded set, TFDS data sets without TensorFlow, and what is said on failure.

Most tests write small data sets in TFDS's format themselves, so that what was decoded can be compared with
what was written. Those on the real MNIST look for it beside the project and skip where it is not.
"""

import hashlib
import io
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.data import sources, tfds
from fedjax_admm.data.sources import DatasetNotFoundError, load

MNIST_DIR = Path(__file__).parents[3] / "shared" / "tensorflow_datasets"
MNIST_TRAIN_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # of the original files
MNIST_TEST_COUNTS = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]

IMAGE = {"pythonClassName": "tensorflow_datasets.core.features.image_feature.Image"}
LABEL = {"pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel"}
TEXT = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_ADMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def no_decoding(monkeypatch):
    """Makes any use of TFDS, and so any decoding, a failure."""
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # as where it is not installed


# ---- small data sets in TFDS's format ----


def image_feature(*shape):
    return IMAGE | {"image": {"dtype": "uint8", "shape": {"dimensions": [str(size) for size in shape]}}}


def label_feature(classes):
    return LABEL | {"classLabel": {"numClasses": str(classes)}}


def png(image):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "PNG")
    return file.getvalue()


def serialized(example):
    """The bytes of a tf.train.Example."""
    from tensorflow_datasets.proto import tf_example_pb2

    proto = tf_example_pb2.Example()
    for key, value in example.items():
        if isinstance(value, bytes):
            proto.features.feature[key].bytes_list.value.append(value)
        else:
            proto.features.feature[key].int64_list.value.append(value)
    return proto.SerializeToString()


def write_set(folder, features, splits, supervised=("image", "label"), form="array_record"):
    """Writes split -> shards -> examples to `folder`, which ends in data set / version."""
    pytest.importorskip("tensorflow_datasets", reason="the extra 'datasets' is not installed")
    from array_record.python.array_record_module import ArrayRecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    name = folder.parent.name
    for split, shards in splits.items():
        for index, examples in enumerate(shards):
            path = folder / f"{name}-{split}.{form}-{index:05d}-of-{len(shards):05d}"
            writer = ArrayRecordWriter(str(path), "group_size:1")
            for example in examples:
                writer.write(serialized(example))
            writer.close()
    info = {
        "name": name,
        "version": folder.name,
        "fileFormat": form,
        "splits": [
            {
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "numBytes": "1",
                "shardLengths": [str(len(examples)) for examples in shards],
            }
            for split, shards in splits.items()
        ],
    }
    if supervised:
        info["supervisedKeys"] = {"tuple": {"items": [{"featureKey": key} for key in supervised]}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    feature_class = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    content = {"pythonClassName": feature_class, "featuresDict": {"features": features}}
    (folder / "features.json").write_text(json.dumps(content))


def write_tiny(root, seed=0, name="tiny", version="1.0.0", test="test", shape=(4, 3, 3)):
    """Writes 9 training images in two shards and 4 of the split `test`; returns what `load` has to give."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (13, *shape), np.uint8)
    labels = rng.integers(0, 5, 13).astype(np.int32)
    examples = [{"picture": png(x), "kind": int(y)} for x, y in zip(images, labels, strict=True)]
    write_set(
        root / name / version,
        {"picture": image_feature(*shape), "kind": label_feature(5)},
        {"train": [examples[:5], examples[5:9]], test: [examples[9:]]},
        supervised=("picture", "kind"),
    )
    return images[:9], labels[:9], images[9:], labels[9:]


def write_variant(root, features, examples, supervised=("image", "label"), splits=("train", "test")):
    write_set(root / "variant" / "1.0.0", features, {split: [examples] for split in splits}, supervised)


def assert_is(image_set, expected):
    got = image_set.train_images, image_set.train_labels, image_set.test_images, image_set.test_labels
    for array, wanted in zip(got, expected, strict=True):
        assert array.dtype == wanted.dtype
        np.testing.assert_array_equal(array, wanted)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


# ---- the embedded set ----


def test_embedded_set_is_balanced_and_as_documented(no_decoding):
    mini = load("mnist_mini", data_dir="no/such/folder")
    assert mini.train_images.shape == (5000, 28, 28, 1) and mini.test_images.shape == (1000, 28, 28, 1)
    assert mini.train_images.dtype == np.uint8 and mini.train_labels.dtype == np.int32
    assert mini.num_classes == 10
    np.testing.assert_array_equal(np.bincount(mini.train_labels), [500] * 10)
    np.testing.assert_array_equal(np.bincount(mini.test_labels), [100] * 10)
    assert repr(mini) == "ImageSet('mnist_mini', train=5000, test=1000, image=(28, 28, 1), num_classes=10)"

    file = Path(sources.__file__).with_name("mnist_mini.npz")
    assert file.stat().st_size < 1_500_000
    assert hashlib.sha256(file.read_bytes()).hexdigest() in file.with_suffix(".md").read_text()


def test_embedded_set_has_no_image_twice():
    mini = load("mnist_mini")
    images = np.concatenate([mini.train_images, mini.test_images]).reshape(6000, -1)
    assert len(np.unique(images, axis=0)) == 6000


def test_damaged_embedded_set_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    copy = tmp_path / "mnist_mini.npz"
    copy.write_bytes(sources._EMBEDDED_FILE.read_bytes())
    flip(copy, 500_000)
    monkeypatch.setattr(sources, "_EMBEDDED_FILE", copy)
    with pytest.raises(DamagedFileError, match=r"mnist_mini\.npz is damaged"):
        load("mnist_mini")


# ---- missing data ----


def test_missing_data_is_one_line_within_two_seconds(tmp_path, no_decoding):
    start = time.monotonic()
    with pytest.raises(DatasetNotFoundError) as caught:
        load("cifar100", tmp_path)
    assert time.monotonic() - start < 2
    message = str(caught.value)
    assert "\n" not in message
    for part in ("'cifar100'", str(tmp_path), "pip install 'fedjax_admm[tfds-download]'"):
        assert part in message
    assert f"fedjax-admm data prepare cifar100 --data-dir {tmp_path}" in message
    assert "did you mean" not in message


def test_missing_data_names_the_folder_of_the_environment(tmp_path, monkeypatch, no_decoding):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "absent"))
    with pytest.raises(DatasetNotFoundError) as caught:
        load("mnist")
    assert f"{tmp_path / 'absent'} (no such folder)" in str(caught.value)
    assert str(caught.value).endswith("fedjax-admm data prepare mnist")


def test_nothing_falls_back_to_the_embedded_set(tmp_path, no_decoding):
    with pytest.raises(DatasetNotFoundError) as caught:
        load("mnist", tmp_path)
    assert "mnist_mini" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("fashion-mnist", "fashion_mnist"), ("Fashion_MNIST", "fashion_mnist"), ("mnist_mni", "mnist_mini")],
)
def test_typo_is_answered_with_a_suggestion(tmp_path, typed, meant):
    write_tiny(tmp_path, name="fashion_mnist")
    with pytest.raises(DatasetNotFoundError, match=f"did you mean '{meant}'"):
        load(typed, tmp_path)


@pytest.mark.parametrize("name", ["", "../mnist", "mnist:latest", "a/b/c"])
def test_impossible_name_is_an_error(tmp_path, name):
    with pytest.raises(ValueError, match="got name="):
        load(name, tmp_path)


def test_missing_packages_are_named_by_their_extra(tmp_path, monkeypatch):
    write_tiny(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'fedjax_admm\[datasets\]'"):
        load("tiny", tmp_path)


# ---- preparing ----


def test_prepare_answers_a_typo_with_a_suggestion(tmp_path):
    pytest.importorskip("tensorflow_datasets", reason="the extra 'datasets' is not installed")
    with pytest.raises(ValueError, match=r"no data set 'fashion-mnist' \(did you mean 'fashion_mnist'"):
        sources.prepare("fashion-mnist", tmp_path)
    with pytest.raises(ValueError, match="nothing to prepare"):
        sources.prepare("mnist_mini", tmp_path)


def test_prepare_without_tensorflow_names_the_extra(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow_datasets", reason="the extra 'datasets' is not installed")
    monkeypatch.setattr(tfds.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'fedjax_admm\[tfds-download\]'"):
        sources.prepare("mnist", tmp_path)


class StubTfds:
    """In TFDS's place: "downloads" by writing a small data set in the format it is asked for."""

    def __init__(self, form=None):
        self.form = form

    def list_builders(self, with_community_datasets):
        assert not with_community_datasets
        return ["tiny"]

    def builder(self, name, data_dir):
        self.folder = Path(data_dir) / name / "1.0.0"
        return self

    def download_and_prepare(self, file_format):
        write_set(self.folder, {}, {}, form=self.form or file_format)


@pytest.mark.parametrize("form", [None, "tfrecord"])
def test_prepare_asks_tfds_for_the_format_that_load_reads(tmp_path, monkeypatch, form):
    write_tiny(tmp_path / "elsewhere")  # to skip where TFDS is not installed
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", StubTfds(form))
    monkeypatch.setattr(tfds.importlib.util, "find_spec", lambda name: object())
    if form is None:
        assert sources.prepare("tiny", tmp_path) == tmp_path / "tiny" / "1.0.0"
    else:  # it was already there in another format, which TFDS leaves as it is
        with pytest.raises(ValueError, match="was prepared as tfrecord"):
            sources.prepare("tiny", tmp_path)


def test_what_to_install_depends_on_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # as where it is not installed
    with pytest.raises(ImportError, match=r"fedjax_admm\[tfds-download\]"):
        sources.prepare("mnist", tmp_path)
    (tmp_path / "tiny" / "1.0.0").mkdir(parents=True)
    (tmp_path / "tiny" / "1.0.0" / "dataset_info.json").write_text('{"fileFormat": "array_record"}')
    with pytest.raises(ImportError, match=r"fedjax_admm\[datasets\]"):
        load("tiny", tmp_path)


# ---- the real MNIST ----


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """(the data set, the cache folder it is in)"""
    if not (MNIST_DIR / "mnist").is_dir():
        pytest.skip(f"the real MNIST is not in {MNIST_DIR}")
    pytest.importorskip("tensorflow_datasets", reason="the extra 'datasets' is not installed")
    folder = tmp_path_factory.mktemp("mnist_cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDJAX_ADMM_CACHE", str(folder))
        return load("mnist", MNIST_DIR), folder


def test_mnist_is_complete(mnist):
    data, _ = mnist
    assert data.train_images.shape == (60_000, 28, 28, 1) and data.train_images.dtype == np.uint8
    assert data.test_images.shape == (10_000, 28, 28, 1) and data.test_images.dtype == np.uint8
    assert np.bincount(data.train_labels).tolist() == MNIST_TRAIN_COUNTS
    assert np.bincount(data.test_labels).tolist() == MNIST_TEST_COUNTS
    assert data.num_classes == 10


def test_mnist_loads_from_the_cache_in_under_a_second(mnist, monkeypatch, no_decoding):
    data, folder = mnist
    monkeypatch.setenv("FEDJAX_ADMM_CACHE", str(folder))
    start = time.monotonic()
    again = load("mnist", MNIST_DIR)
    assert time.monotonic() - start < 1
    assert_is(again, (data.train_images, data.train_labels, data.test_images, data.test_labels))


def test_embedded_images_are_the_first_of_each_digit_of_mnist(mnist):
    data, mini = mnist[0], load("mnist_mini")
    for count, all_images, all_labels, images, labels in (
        (500, data.train_images, data.train_labels, mini.train_images, mini.train_labels),
        (100, data.test_images, data.test_labels, mini.test_images, mini.test_labels),
    ):
        for digit in range(10):
            np.testing.assert_array_equal(images[labels == digit], all_images[all_labels == digit][:count])
