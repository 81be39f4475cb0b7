"""Data sources: the embedded set, TFDS data sets without TensorFlow, the cache, and what is said on failure.

Most tests write small data sets in TFDS's format themselves, so that what was decoded can be compared with
what was written. Those on the real MNIST look for it beside the project and skip where it is not.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.data import cache, sources, tfds
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


# ---- reading TFDS's format ----


@pytest.mark.parametrize("shape", [(4, 3, 3), (5, 5, 1), (2, 6, 4)])
def test_decoded_arrays_are_those_written(tmp_path, shape):
    expected = write_tiny(tmp_path, shape=shape)
    loaded = load("tiny", tmp_path)
    assert_is(loaded, expected)
    assert loaded.name == "tiny" and loaded.num_classes == 5


def test_validation_takes_the_place_of_a_missing_test_split(tmp_path):
    expected = write_tiny(tmp_path, test="validation")
    assert_is(load("tiny", tmp_path), expected)


def test_newest_version_unless_one_is_named(tmp_path):
    old, new = write_tiny(tmp_path, 1, version="9.0.0"), write_tiny(tmp_path, 2, version="10.0.0")
    assert_is(load("tiny", tmp_path), new)
    assert_is(load("tiny:9.0.0", tmp_path), old)
    with pytest.raises(DatasetNotFoundError, match=r"'tiny:8\.0\.0' not found"):
        load("tiny:8.0.0", tmp_path)


def test_configurations(tmp_path):
    digits = write_tiny(tmp_path / "letters", 1, name="digits")
    assert_is(load("letters", tmp_path), digits)  # the only one
    capitals = write_tiny(tmp_path / "letters", 2, name="capitals")
    assert_is(load("letters/digits", tmp_path), digits)
    assert sources.available(tmp_path) == ["letters/capitals", "letters/digits", "mnist_mini"]
    with pytest.raises(ValueError, match="name one: letters/capitals, letters/digits"):
        load("letters", tmp_path)
    (tmp_path / "letters" / ".config").mkdir()
    note = tmp_path / "letters" / ".config" / "metadata.json"  # TFDS's record of the default
    note.write_text(json.dumps({"default_config_name": "capitals"}))
    assert_is(load("letters", tmp_path), capitals)


def test_where_is_looked(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(home))
    in_home = write_tiny(home / "tensorflow_datasets", 1)
    in_variable, in_argument = write_tiny(tmp_path / "variable", 2), write_tiny(tmp_path / "argument", 3)
    assert_is(load("tiny"), in_home)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "variable"))
    assert_is(load("tiny"), in_variable)
    assert_is(load("tiny", str(tmp_path / "argument")), in_argument)
    assert sources.available() == ["mnist_mini", "tiny"]


def test_supervised_keys_choose_among_several_labels(tmp_path):
    features = {
        "image": image_feature(2, 2, 1),
        "coarse": label_feature(2),
        "label": label_feature(5),
        "id": TEXT,
    }
    picture = png(np.zeros((2, 2, 1), np.uint8))
    write_variant(tmp_path, features, [{"image": picture, "coarse": 1, "label": 4, "id": b"a"}])
    loaded = load("variant", tmp_path)
    assert loaded.num_classes == 5 and loaded.train_labels.tolist() == [4]


def unsuitable(root, case):
    """Writes a data set that cannot be an `ImageSet`; returns what the error has to say."""
    pictures = [png(np.zeros((size, 2, 1), np.uint8)) for size in (2, 3)]
    examples = [{"image": picture, "label": 0} for picture in pictures]
    fixed = {"image": image_feature(2, 2, 1), "label": label_feature(2)}
    match case:
        case "no label":
            write_variant(root, {"image": fixed["image"], "id": TEXT}, [{"image": pictures[0], "id": b"a"}])
            return "not image classification"
        case "two images":
            features = fixed | {"mask": image_feature(2, 2, 1)}
            write_variant(root, features, [examples[0] | {"mask": pictures[0]}], supervised=())
            return "not image classification"
        case "sizes vary":
            write_variant(root, {"image": image_feature(-1, -1, 1), "label": label_feature(2)}, examples)
            return r"not of one size: \[\(2, 2, 1\), \(3, 2, 1\)\]"
        case "splits differ in size":
            splits = {"train": [examples[:1]], "test": [examples[1:]]}
            write_set(root / "variant" / "1.0.0", fixed, splits)
            return "not of one size"
        case "no test split":
            write_variant(root, fixed, examples[:1], splits=("train",))
            return r"needs the splits 'train' and 'test', has \['train'\]"
        case "empty split":
            write_set(root / "variant" / "1.0.0", fixed, {"train": [examples[:1]], "test": []})
            return "no examples in its split 'test'"
        case "hidden labels":
            write_variant(root, fixed, [examples[0] | {"label": -1}])
            return r"labels outside \[0, 2\) in its split 'train'"
        case "tfrecord":
            splits = {"train": [examples[:1]], "test": [examples[:1]]}
            write_set(root / "variant" / "1.0.0", fixed, splits, form="tfrecord")
            return "was prepared as tfrecord.*fedjax-admm data prepare variant"


@pytest.mark.parametrize(
    "case",
    [
        "no label",
        "two images",
        "sizes vary",
        "splits differ in size",
        "no test split",
        "empty split",
        "hidden labels",
        "tfrecord",
    ],
)
def test_unsuitable_data_set_is_a_clear_error(tmp_path, case):
    message = unsuitable(tmp_path, case)
    with pytest.raises(ValueError, match=message):
        load("variant", tmp_path)


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


# ---- the cache ----


def test_second_load_decodes_nothing(tmp_path, request):
    expected = write_tiny(tmp_path)
    load("tiny", tmp_path)
    request.getfixturevalue("no_decoding")
    again = load("tiny", tmp_path)
    assert_is(again, expected)
    assert again.num_classes == 5
    again.train_images[0] = 0  # an array of its own
    assert_is(load("tiny", tmp_path), expected)


def test_changed_source_is_decoded_again(tmp_path, cache_folder):
    write_tiny(tmp_path, seed=1)
    load("tiny", tmp_path)
    expected = write_tiny(tmp_path, seed=2)
    assert_is(load("tiny", tmp_path), expected)
    assert len(list(cache_folder.iterdir())) == 1  # in place of the former


def test_copies_do_not_share_a_cache_file(tmp_path, request):
    first, second = write_tiny(tmp_path / "a", seed=1), write_tiny(tmp_path / "b", seed=2)
    load("tiny", tmp_path / "a")
    load("tiny", tmp_path / "b")
    request.getfixturevalue("no_decoding")
    assert_is(load("tiny", tmp_path / "a"), first)
    assert_is(load("tiny", tmp_path / "b"), second)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_damaged_cache_is_reported_and_made_anew(tmp_path, cache_folder, damage, request):
    expected = write_tiny(tmp_path)
    load("tiny", tmp_path)
    (file,) = cache_folder.iterdir()
    content = file.read_bytes()
    if damage == "flip":
        flip(file, content.index(expected[0].tobytes()) + 100)
    else:
        file.write_bytes(content[: len(content) // 2 if damage == "truncate" else 0])
    with pytest.warns(RuntimeWarning, match=f"{file.name} is damaged"):
        assert_is(load("tiny", tmp_path), expected)
    request.getfixturevalue("no_decoding")
    assert_is(load("tiny", tmp_path), expected)


def test_no_changed_byte_of_a_cache_file_gives_wrong_arrays(tmp_path):
    arrays = {"images": np.arange(60, dtype=np.uint8).reshape(5, 4, 3), "labels": np.arange(5, dtype=np.int32)}
    file = tmp_path / "arrays.npz"
    cache.write_arrays(file, "the key", arrays)
    content, refused = file.read_bytes(), 0
    for position in range(len(content)):
        for bit in (0x01, 0x80):
            changed = bytearray(content)
            changed[position] ^= bit
            file.write_bytes(changed)
            try:
                read = cache.read_arrays(file, ["key", "images", "labels"])
            except DamagedFileError:
                refused += 1
                continue
            assert read["key"].item() == "the key"
            for name, array in arrays.items():
                assert read[name].dtype == array.dtype
                np.testing.assert_array_equal(read[name], array)
    assert refused > len(content)  # the rest are bytes such as the zip format's dates
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])
        with pytest.raises(DamagedFileError, match=r"arrays\.npz"):
            cache.read_arrays(file, ["key", "images", "labels"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_interrupted_write_leaves_the_former_file(tmp_path, monkeypatch, error):
    file = tmp_path / "arrays.npz"
    cache.write_arrays(file, "one", {"x": np.arange(3)})

    def interrupted(target, **_):
        target.write(b"PK half a file")
        raise error

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        cache.write_arrays(file, "two", {"x": np.arange(4)})
    assert list(tmp_path.iterdir()) == [file]
    assert cache.read_arrays(file, ["key", "x"])["x"].tolist() == [0, 1, 2]


def test_process_killed_while_writing_leaves_nothing_that_is_read(tmp_path, cache_folder):
    expected = write_tiny(tmp_path)
    program = """
import os, sys
import numpy as np
from fedjax_admm.data import sources
def killed(file, **_):
    file.write(b"PK half a file")
    file.flush()
    os._exit(9)
np.savez = killed
sources.load("tiny", sys.argv[1])
"""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}).returncode == 9
    assert [file.suffix for file in cache_folder.iterdir()] == [".tmp"]
    assert_is(load("tiny", tmp_path), expected)


def test_interrupted_decoding_leaves_nothing(tmp_path, cache_folder, monkeypatch):
    expected = write_tiny(tmp_path)
    import PIL.Image

    decoded, decode = [], PIL.Image.open

    def interrupted(*arguments):
        decoded.append(1)
        if len(decoded) == 8:
            raise KeyboardInterrupt
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PIL.Image, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load("tiny", tmp_path)
    assert not cache_folder.exists()
    assert_is(load("tiny", tmp_path), expected)


def test_cache_that_cannot_be_written_costs_no_data(tmp_path, monkeypatch):
    expected = write_tiny(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDJAX_ADMM_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match="was not written.*set FEDJAX_ADMM_CACHE"):
        assert_is(load("tiny", tmp_path), expected)


def test_cache_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDJAX_ADMM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for platform, parent in (("linux", tmp_path / "xdg"), ("win32", tmp_path / "local")):
        monkeypatch.setattr(sys, "platform", platform)
        assert cache.folder() == parent / "fedjax_admm"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.folder().parts[-3:] == ("Library", "Caches", "fedjax_admm")


# ---- a damaged source ----


def damage_flip(file):
    flip(file, file.read_bytes().index(b"IDAT") + 8)


def rewrite(file, change):
    """Writes a shard anew, its records changed: array_record has nothing to object to."""
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    reader = ArrayRecordReader(str(file))
    records = reader.read(list(range(reader.num_records())))
    reader.close()
    writer = ArrayRecordWriter(str(file), "group_size:1")
    for record in change(records):
        writer.write(record)
    writer.close()


DAMAGES = {
    "flipped bit": damage_flip,
    "broken image": lambda file: rewrite(file, lambda records: [r.replace(b"IDAT", b"IDxT") for r in records]),
    "a record short": lambda file: rewrite(file, lambda records: records[:-1]),
    "a record too many": lambda file: rewrite(file, lambda records: [*records, records[0]]),
    "not an example": lambda file: rewrite(file, lambda records: [b"\xff" * 9 for _ in records]),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-70_000]),
    "emptied": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_source_is_an_error_that_names_the_file(tmp_path, cache_folder, damage):
    write_tiny(tmp_path)
    file = tmp_path / "tiny" / "1.0.0" / "tiny-train.array_record-00001-of-00002"
    DAMAGES[damage](file)
    with pytest.raises(DamagedFileError, match=file.name):
        load("tiny", tmp_path)
    assert not cache_folder.exists()


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type"])
def test_a_feature_of_ones_own_is_not_imported(tmp_path, monkeypatch, key):
    """TFDS imports the module of any class that features.json names; a run's settings name the folder it is in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    sprung = tmp_path / "sprung"
    (tmp_path / "trap_of_a_data_set.py").write_text(f"open({str(sprung)!r}, 'w').close()\n")
    feature = {key: "trap_of_a_data_set.Image", "content": {}}
    write_variant(tmp_path, {"image": feature, "label": label_feature(2)}, [{"image": b"", "label": 1}])
    with pytest.raises(ValueError, match=r"features\.json.*'trap_of_a_data_set\.Image'.*not imported") as refused:
        load("variant", tmp_path)
    assert not sprung.exists() and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_damaged_description_is_an_error_that_names_the_file(tmp_path, name, content):
    write_tiny(tmp_path)
    file = tmp_path / "tiny" / "1.0.0" / name
    file.write_text(content)
    with pytest.raises(DamagedFileError, match=name):
        load("tiny", tmp_path)


def test_source_damaged_after_caching_is_not_served_from_the_cache(tmp_path):
    write_tiny(tmp_path)
    load("tiny", tmp_path)
    file = tmp_path / "tiny" / "1.0.0" / "tiny-test.array_record-00000-of-00001"
    damage_flip(file)
    with pytest.raises(DamagedFileError, match=file.name):
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
