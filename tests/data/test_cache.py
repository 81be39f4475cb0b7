"""The cache of decoded data sets: nothing is decoded twice, and nothing damaged is served."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import test_sources
from test_sources import assert_is, flip, write_tiny

from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.data import cache
from fedjax_admm.data.sources import load

cache_folder, no_decoding = test_sources.cache_folder, test_sources.no_decoding


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
