"""Natural clients, and federations on disk."""

from __future__ import annotations

import json
import pickle
import shutil
import weakref
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest
from federations import initializer, least_squares, squared_error

import fedjax_admm as fa
from fedjax_admm.data import directory


def federation():
    rng = np.random.default_rng(0)
    fields = {"x": rng.normal(size=(9, 2)).astype(np.float32), "y": rng.integers(0, 5, size=9, dtype=np.int8)}
    return fa.FederatedData.from_arrays(fields, fa.partition.by_key(list("bbabcaccc")))


def test_by_key_keeps_order_and_names():
    keys = np.random.default_rng(1).choice(["dora", "carl", "bea", "abe"], size=50)
    parts = fa.partition.by_key(keys)
    wanted = list(dict.fromkeys(keys.tolist()))
    assert parts.names == wanted
    for name, part in zip(wanted, parts, strict=True):
        np.testing.assert_array_equal(part, [k for k, key in enumerate(keys) if key == name])
    assert fa.partition.by_key([7, 3, 7], min_size=2).names == [7]
    assert federation().names == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        ([], {}, "one key per row"),
        ([[1, 2]], {}, "one key per row"),
        ([1.0, np.nan], {}, r"keys\[1\] is NaN"),
        (["a", None], {}, r"keys\[1\] is missing"),
        ([1, 2, 2], {"min_size": 3}, "most rows has 2"),
    ],
)
def test_by_key_refuses(keys, options, message):
    with pytest.raises(ValueError, match=message):
        fa.partition.by_key(keys, **options)


def test_holdout_splits_every_client():
    parts = fa.partition.by_key(np.repeat(np.arange(4), [2, 5, 20, 100]))
    train, test = fa.partition.holdout(parts, 0.2, seed=3)
    assert [len(part) for part in test] == [1, 1, 4, 20] and train.names == test.names == parts.names
    for whole, kept, out in zip(parts, train, test, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate([kept, out])), whole)
    again = fa.partition.holdout(parts[:3], 0.2, seed=3)[1]
    for one, other in zip(test[:3], again, strict=True):  # a client's rows do not depend on the others
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(fa.partition.holdout(parts, 0.2, seed=4)[1][3], test[3])
    for fraction in (0, 1, -0.5):
        with pytest.raises(ValueError, match="fraction"):
            fa.partition.holdout(parts, fraction, 0)
    with pytest.raises(ValueError, match="min_size=2"):
        fa.partition.holdout([np.arange(3), [3]], 0.5, 0)


def test_a_saved_federation_is_the_same_and_is_mapped(tmp_path):
    data = federation()
    opened = fa.FederatedData.open(data.save(tmp_path / "new" / "place"))
    assert isinstance(opened.fields["x"], np.memmap) and opened.names == data.names
    for one, other in zip(jax.tree.leaves(data), jax.tree.leaves(opened), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    for i in range(3):
        jax.tree.map(np.testing.assert_array_equal, data.client(i), opened.client(i))
    np.testing.assert_array_equal(np.load(tmp_path / "new" / "place" / "field.x.npy"), opened.fields["x"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["place"]


def test_shared_rows_and_nested_fields_are_saved(tmp_path):
    fields = ({"b.c": np.arange(4.0), "b_c": np.arange(4)}, [np.ones((4, 2), np.uint8)])
    data = fa.FederatedData.from_arrays(fields, [[0, 1], [1, 2]], allow_overlap=True, weights=[1, 3])
    opened = fa.FederatedData.open(data.save(tmp_path / "d"))
    assert jax.tree.structure(opened.fields) == jax.tree.structure(fields)
    assert opened.client(1)[0]["b.c"].tolist() == [1.0, 2.0] and opened.weights.tolist() == [0.25, 0.75]
    one = fa.FederatedData.from_clients([np.arange(3.0)])
    assert fa.FederatedData.open(one.save(tmp_path / "one")).fields.tolist() == [0, 1, 2]


def test_a_generator_is_never_whole_in_memory():
    alive, most = set(), []

    class Rows(np.ndarray):
        pass

    def clients():
        for k in range(20):
            rows = np.full((k % 3 + 1, 2), float(k)).view(Rows)
            alive.add(k)
            weakref.finalize(rows, alive.discard, k)
            most.append(len(alive))
            yield {"x": rows}
            del rows

    data = fa.FederatedData.from_clients(clients(), min_size=2)
    assert max(most) <= 3
    assert data.sizes.tolist() == [k % 3 + 1 for k in range(20) if k % 3]
    assert data.client(1)["x"][0, 0] == 2.0
    folder = data.directory.folder
    assert folder.exists()
    del data
    assert not folder.exists()


def test_a_generator_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for bad, message in (
        ({"x": np.ones(0)}, "no rows"),
        ({"y": np.ones(2)}, "fields"),
        ({"x": np.array([np.nan])}, "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            fa.FederatedData.from_clients(iter([{"x": np.ones(2)}, bad]))
    with pytest.raises(ValueError, match="none"):
        fa.FederatedData.from_clients(iter([]))
    with pytest.raises(ValueError, match="min_size=9"):
        fa.FederatedData.from_clients([{"x": np.ones(2)}], min_size=9)
    assert not list(tmp_path.iterdir())


def test_runs_on_a_mapped_federation_are_the_same(tmp_path):
    problem, _, _ = least_squares([4, 7, 3, 6])
    opened = fa.FederatedData.open(problem.data.save(tmp_path / "d"))
    mapped = fa.Problem(init=initializer(5), loss=squared_error, data=opened, regularizer=problem.regularizer)
    algorithm = fa.fedadmm_insa(fa.LocalSolver(learning_rate=0.05, batch_size=2, max_epochs=4), penalty=1.0)
    settings = dict(rounds=3, participation=0.5, progress=False)
    one, other = (fa.simulate(which, algorithm, **settings) for which in (problem, mapped))
    np.testing.assert_array_equal(one.params, other.params)
    np.testing.assert_array_equal(one.history["loss"], other.history["loss"])


def rewritten(folder, change):
    """The index with a change, and a checksum that fits it."""
    path = folder / directory.INDEX
    index = json.loads(path.read_text())
    index.pop("crc32")
    change(index)
    crc = zlib.crc32(json.dumps(index, sort_keys=True).encode())
    path.write_text(json.dumps(index | {"crc32": crc}))


def resized(folder, sizes):
    changed(folder, sizes=np.array(sizes))


def changed(folder, **values):
    """Other arrays of the clients, None for none, with checksums that fit them."""
    with np.load(folder / directory.CLIENTS) as archive:
        arrays = {name: value for name, value in (dict(archive) | values).items() if value is not None}
    np.savez(folder / directory.CLIENTS, **arrays)
    crc = zlib.crc32((folder / directory.CLIENTS).read_bytes())
    rewritten(folder, lambda index: index.update(clients_crc32=crc))


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def objects(folder):
    np.save(folder / "field.x.npy", np.array([Path("x")] * 9, object))


DAMAGES = {
    "a bit of a row": (lambda d: flip(d / "field.x.npy", -5), "rows of client 2"),
    "a bit of the header": (lambda d: flip(d / "field.x.npy", 20), "field.x.npy is damaged"),
    "truncated": (lambda d: (d / "field.x.npy").write_bytes((d / "field.x.npy").read_bytes()[:-3]), "field.x.npy"),
    "longer": (lambda d: (d / "field.x.npy").write_bytes((d / "field.x.npy").read_bytes() + bytes(5000)), "bytes for"),
    "empty": (lambda d: (d / "field.y.npy").write_bytes(b""), "field.y.npy is damaged"),
    "gone": (lambda d: (d / "field.y.npy").unlink(), "field.y.npy is damaged"),
    "objects": (objects, "field.x.npy is damaged"),
    "a pickle": (lambda d: (d / "field.x.npy").write_bytes(pickle.dumps(1)), "field.x.npy is damaged"),
    "another array": (lambda d: np.save(d / "field.x.npy", np.ones(3)), "the index says"),
    "no index": (lambda d: (d / directory.INDEX).unlink(), "is no federation"),
    "a foreign index": (lambda d: (d / directory.INDEX).write_text("[1]"), "no index of a federation"),
    "no JSON": (lambda d: (d / directory.INDEX).write_bytes(b"\xff{"), "no index of a federation"),
    "a changed number": (
        lambda d: (d / directory.INDEX).write_text((d / directory.INDEX).read_text().replace('"rows": 9', '"rows": 8')),
        "does not have its checksum",
    ),
    "a changed checksum": (
        lambda d: (d / directory.INDEX).write_text(
            (d / directory.INDEX).read_text().replace('"clients_crc32": ', '"clients_crc32": 1')
        ),
        "does not have its checksum",
    ),
    "outside": (
        lambda d: rewritten(d, lambda index: index["fields"]["dict"]["x"].update(file="../x.npy")),
        "points outside",
    ),
    "a newer format": (lambda d: rewritten(d, lambda index: index.update(format=99)), "has format 99"),
    "another number of clients": (lambda d: rewritten(d, lambda index: index.update(clients=5)), "5 clients"),
    "a client without rows": (lambda d: resized(d, [4, 0, 5]), "client 1 has no rows"),
    "too many rows": (lambda d: resized(d, [4, 2, 5]), "sizes are not those"),
    "sizes of another kind": (lambda d: resized(d, [4.0, 3.0, 2.0]), "sizes are float64"),
    "a negative weight": (lambda d: changed(d, weights=np.array([1.0, 1.0, -1.0])), "weights are not one positive"),
    "too few weights": (lambda d: changed(d, weights=np.ones(2)), "weights are not one positive"),
    "no weights": (lambda d: changed(d, weights=None), "it has no weights"),
    "no checksums": (lambda d: changed(d, checksums=None), "it has no checksums"),
    "too few names": (lambda d: changed(d, names=np.array(["a"])), "names are not one for each"),
    "an unknown dtype": (
        lambda d: rewritten(d, lambda index: index["fields"]["dict"]["x"].update(dtype="numbers")),
        "does not describe the fields",
    ),
    "no fields": (lambda d: rewritten(d, lambda index: index.update(fields=[])), "does not describe the fields"),
    "Fortran order": (
        lambda d: np.save(d / "field.x.npy", np.asfortranarray(np.load(d / "field.x.npy"))),
        "in Fortran order",
    ),
    "no clients": (lambda d: (d / directory.CLIENTS).unlink(), "clients.npz is damaged"),
    "a bit of the clients": (lambda d: flip(d / directory.CLIENTS, -9), "clients.npz is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_told_in_one_line(tmp_path, damage):
    folder = federation().save(tmp_path / "d")
    break_it, message = DAMAGES[damage]
    break_it(folder)
    with pytest.raises(ValueError, match=message) as caught:
        fa.FederatedData.open(folder)
    assert "\n" not in str(caught.value)


def test_large_federations_are_checked_when_asked(tmp_path, monkeypatch):
    folder = federation().save(tmp_path / "d")
    monkeypatch.setattr(directory, "CHECK_BYTES", 10)
    flip(folder / "field.y.npy", -1)
    data = fa.FederatedData.open(folder)
    data.directory.check([0, 1])
    with pytest.raises(ValueError, match="rows of client 2"):
        data.directory.check()


def test_nothing_is_written_over_and_nothing_half_written(tmp_path):
    data = federation()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="not empty"):
        data.save(tmp_path / "full")
    with pytest.raises(ValueError, match="is a file"):
        data.save(tmp_path / "file")
    with pytest.raises(ValueError, match="cannot be saved"):
        fa.FederatedData.from_arrays({1: np.ones(2)}, [[0], [1]]).save(tmp_path / "odd")
    with pytest.raises(ValueError, match="is no federation"):
        fa.FederatedData.open(tmp_path / "nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full"]
    shutil.rmtree(tmp_path / "full")
