"""Data sets in TFDS's format, read without TensorFlow: what was written, or an error that names the file."""

import json

import numpy as np
import pytest
import test_sources
from test_sources import (
    TEXT,
    assert_is,
    flip,
    image_feature,
    label_feature,
    png,
    write_set,
    write_tiny,
    write_variant,
)

from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.data import sources
from fedjax_admm.data.sources import DatasetNotFoundError, load

cache_folder, no_decoding = test_sources.cache_folder, test_sources.no_decoding


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
