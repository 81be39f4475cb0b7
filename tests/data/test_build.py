"""Federations built from tables: each source against what is in memory, interruptions, and what is wrong with sources."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from test_sources import write_tiny

import fedjax_admm as fa
from fedjax_admm.cli.commands import main
from fedjax_admm.data import build, tables
from fedjax_admm.data.build import build_federation

ROWS = 50


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, tmp_path):
    """Blocks of a few rows, of which progress is noted after each."""
    monkeypatch.setattr(tables, "BLOCK", 7)
    monkeypatch.setattr(build, "_SECONDS", 0.0)
    monkeypatch.setenv("FEDJAX_ADMM_CACHE", str(tmp_path / "cache"))


def table(seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(ROWS, 3)).astype(np.float32), rng.integers(0, 4, size=ROWS).astype(np.int32)
    return x, y, rng.choice(["dora", "carl", "bea"], size=ROWS)


def in_memory(**options):
    x, y, users = table()
    return fa.FederatedData.from_arrays({"x": x, "y": y}, fa.partition.by_key(users, **options))


def assert_same(folder, wanted):
    got = fa.FederatedData.open(folder)
    assert got.names == wanted.names and got.sizes.tolist() == wanted.sizes.tolist()
    for name, field in wanted.fields.items():
        np.testing.assert_array_equal(got.fields[name], field)
        assert got.fields[name].dtype == field.dtype
    np.testing.assert_allclose(got.weights, wanted.weights)
    got.directory.check()
    assert {path.name for path in folder.iterdir()} == {"federation.json", "clients.npz", "field.x.npy", "field.y.npy"}
    assert not list(folder.parent.glob(".*building"))


def write_csv(path, rows=None):
    x, y, users = table()
    lines = rows or [[user, *map(repr, map(float, row)), int(one)] for user, row, one in zip(users, x, y, strict=True)]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["user", "a", "b", "c", "label"], *lines])
    return path


def test_arrays_by_key(tmp_path):
    x, y, users = table()
    np.savez_compressed(tmp_path / "d.npz", x=x, y=y, user=users)
    assert_same(build_federation(tmp_path / "one", tmp_path / "d.npz", key="user"), in_memory())
    for name, array in (("x", x), ("y", y), ("user", users)):
        np.save(tmp_path / f"{name}.npy", array)
    files = [tmp_path / f"{name}.npy" for name in ("x", "y", "user")]
    assert_same(build_federation(tmp_path / "two", files, key="user"), in_memory())
    assert_same(build_federation(tmp_path / "few", files, key="user", min_size=16), in_memory(min_size=16))
    assert len(fa.FederatedData.open(tmp_path / "few").names) < 3


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_by_key(tmp_path, kind):
    path = write_csv(tmp_path / "d.csv")
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
        parquet = pytest.importorskip("pyarrow.parquet")
        x, y, users = table()
        columns = {"user": users, "a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y}
        path = tmp_path / "d.parquet"
        parquet.write_table(pyarrow.table(columns), path)
    assert_same(build_federation(tmp_path / "out", path, key="user", label="label"), in_memory())
    chosen = build_federation(tmp_path / "chosen", path, key="user", label="b", columns=["c", "a"])
    data, wanted = fa.FederatedData.open(chosen), in_memory()
    np.testing.assert_array_equal(data.fields["x"], np.asarray(wanted.fields["x"])[:, [2, 0]])
    np.testing.assert_array_equal(data.fields["y"], np.asarray(wanted.fields["x"])[:, 1])


def test_a_partition_gives_the_same_rows_in_the_same_order(tmp_path):
    x, y, _ = table()
    np.savez(tmp_path / "d.npz", x=x, y=y)

    def partition(labels):
        return fa.partition.dirichlet(labels, num_clients=5, alpha=0.5, seed=3)

    folder = build_federation(tmp_path / "out", tmp_path / "d.npz", label="y", partition=partition)
    assert_same(folder, fa.FederatedData.from_arrays({"x": x, "y": y}, partition(y)))


def test_a_folder_of_clients(tmp_path):
    x, y, users = table()
    (tmp_path / "clients").mkdir()
    for user in sorted(set(users)):
        np.savez(tmp_path / "clients" / f"{user}.npz", x=x[users == user], y=y[users == user])
    order = np.argsort(users, kind="stable")
    wanted = fa.FederatedData.from_arrays({"x": x[order], "y": y[order]}, fa.partition.by_key(users[order]))
    assert_same(build_federation(tmp_path / "out", tmp_path / "clients"), wanted)
    (tmp_path / "clients" / "notes.csv").touch()
    with pytest.raises(ValueError, match="all of one kind"):
        build_federation(tmp_path / "mixed", tmp_path / "clients")


def test_images_of_tfds(tmp_path):
    images, labels, _, _ = write_tiny(tmp_path)
    parts = fa.partition.shards(labels, num_clients=3, labels_per_client=2, seed=1)
    code = main(
        f"data build tiny --data-dir {tmp_path} --out {tmp_path / 'out'} --partition shards --clients 3 "
        "--labels-per-client 2 --seed 1".split()
    )
    assert code == 0
    assert_same(tmp_path / "out", fa.FederatedData.from_arrays({"x": images, "y": labels}, parts))


class Stop(KeyboardInterrupt):
    pass


@pytest.mark.parametrize("after", [1, 9, 12, 20])
@pytest.mark.parametrize(
    "partition", [None, lambda labels: fa.partition.iid(len(labels), 4, seed=2)], ids=["key", "iid"]
)
def test_an_interrupted_build_goes_on(tmp_path, monkeypatch, after, partition):
    x, y, users = table()
    np.savez(tmp_path / "d.npz", x=x, y=y, **({"user": users} if partition is None else {}))
    options = {"key": "user"} if partition is None else {"partition": partition}
    read, blocks = tables.ArrayTable.blocks, []

    def stopping(self):
        for block in read(self):
            blocks.append(block)
            if len(blocks) == after:
                raise Stop
            yield block

    monkeypatch.setattr(tables.ArrayTable, "blocks", stopping)
    with pytest.raises(Stop) if after < 17 else pytest.raises(AssertionError):
        build_federation(tmp_path / "out", tmp_path / "d.npz", **options)
        raise AssertionError
    assert (tmp_path / "out").exists() == (after >= 17)
    if after >= 17:
        return
    placed = []
    destinations = build._destinations
    monkeypatch.setattr(build, "_destinations", lambda *a: placed.append(a[2]) or destinations(*a))
    folder = build_federation(tmp_path / "out", tmp_path / "d.npz", **options)
    parts = fa.partition.by_key(users) if partition is None else partition(y)
    assert_same(folder, fa.FederatedData.from_arrays({"x": x, "y": y}, parts))
    assert placed[0] == max(after - 9, 0) * 7  # of eight blocks those are written that were not: not all again


def test_a_killed_build_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    x, users = rng.normal(size=(700, 5)).astype(np.float32), rng.integers(0, 90, size=700)
    np.savez(tmp_path / "d.npz", x=x, user=users)
    program = (
        "import sys, time\nfrom fedjax_admm.data import build, tables\nbuild._SECONDS = 0\ntables.BLOCK = 7\n"
        "put = build._destinations\n"
        "build._destinations = lambda *a: (time.sleep(0.1), put(*a))[1]\n"
        f"build.build_federation({str(tmp_path / 'out')!r}, {str(tmp_path / 'd.npz')!r}, key='user')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    noted = tmp_path / ".out.building" / "progress.json"
    while process.poll() is None and not (noted.exists() and '"filled"' in noted.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() != 0 and not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="another source"):  # blocks of another size end elsewhere
        tables.BLOCK = 8
        build_federation(tmp_path / "out", tmp_path / "d.npz", key="user")
    tables.BLOCK = 7
    data = fa.FederatedData.open(build_federation(tmp_path / "out", tmp_path / "d.npz", key="user"))
    parts = fa.partition.by_key(users)
    np.testing.assert_array_equal(data.fields["x"], x[np.concatenate(parts)])
    assert data.names == parts.names


def test_a_build_under_way_is_of_one_source_with_its_options(tmp_path, monkeypatch):
    x, y, _ = table()
    np.savez(tmp_path / "d.npz", x=x, y=y)
    first, other = (lambda labels, s=s: fa.partition.iid(len(labels), 4, seed=s) for s in (0, 1))
    monkeypatch.setattr(build, "_destinations", lambda *a: (_ for _ in ()).throw(Stop))
    with pytest.raises(Stop):
        build_federation(tmp_path / "out", tmp_path / "d.npz", partition=first)
    for wrong in ({"partition": other}, {"partition": first, "min_size": 2}):
        with pytest.raises(ValueError, match="another source or with other options"):
            build_federation(tmp_path / "out", tmp_path / "d.npz", **wrong)
    np.savez(tmp_path / "d.npz", x=x, y=y, z=y)
    with pytest.raises(ValueError, match="another source"):
        build_federation(tmp_path / "out", tmp_path / "d.npz", partition=first)
    assert (tmp_path / ".out.building").exists()


def bad(folder):
    """name -> (source, options, message)"""
    x, _, users = table()
    good = write_csv(folder / "good.csv")
    rows = [["a", 1, 2, 3, 0], ["b", 1, "red", 3, 1]]
    np.savez(folder / "uneven.npz", x=x, user=users[:-1])
    np.savez(folder / "objects.npz", x=x, user=users.astype(object))
    np.savez(folder / "nan.npz", x=np.where(x > 1, np.nan, x), user=users)
    row = 1 + int(np.argwhere((x > 1).any(axis=1))[0, 0])
    np.save(folder / "user.npy", users)
    np.savez(folder / "keys.npz", x=x, user=x)
    np.savez(folder / "whole.npz", x=x, user=users)
    (folder / "cut.npz").write_bytes((folder / "whole.npz").read_bytes()[:-300])
    np.save(folder / "x.npy", x)
    (folder / "short.npy").write_bytes((folder / "x.npy").read_bytes()[:-8])
    (folder / "none.csv").write_text("")
    (folder / "header.csv").write_text("user,a\n")
    (folder / "ragged.csv").write_text("user,a\nann,1\nbob\n")
    (folder / "quote.csv").write_text('user,a\n"ann,1\n')
    (folder / "key.csv").write_text("user,a\n,1\n")
    (folder / "odd.parquet").write_bytes(b"PAR1 no PAR1")
    (folder / "empty").mkdir()
    return {
        "no such column": (good, {"key": "patient"}, "has no column 'patient': it has user, a, b, c, label"),
        "no such label": (good, {"key": "user", "label": "z"}, "has no column 'z'"),
        "neither key nor partition": (good, {}, "give a key, .* got none"),
        "both": (good, {"key": "user", "partition": lambda n: []}, "got both"),
        "words": (write_csv(folder / "words.csv", rows), {"key": "user"}, "'red' in row 2, column 'b'"),
        "no rows": (folder / "header.csv", {"key": "user"}, "no rows"),
        "no header": (folder / "none.csv", {"key": "user"}, "first line"),
        "ragged": (folder / "ragged.csv", {"key": "user"}, "1 instead of 2 values in line 3"),
        "an open quote": (folder / "quote.csv", {"key": "user"}, "damaged"),
        "an empty key": (folder / "key.csv", {"key": "user"}, "no key in row 1, column 'user'"),
        "uneven": (folder / "uneven.npz", {"key": "user"}, "as many rows each"),
        "objects": (folder / "objects.npz", {"key": "user"}, "Python objects"),
        "nan": (folder / "nan.npz", {"key": "user"}, f"nan.npz: .*'x'.* not finite in row {row}"),
        "only keys": (folder / "user.npy", {"key": "user"}, "the key 'user' alone"),
        "a row twice": (folder / "x.npy", {"partition": lambda n: [[0, 1], [1]]}, "row 1 belongs to clients 0 and 1"),
        "a row that is not there": (folder / "x.npy", {"partition": lambda n: [[999]]}, "names row 999"),
        "no row numbers": (folder / "x.npy", {"partition": lambda n: [[0.5]]}, "must be row numbers"),
        "no parts": (folder / "x.npy", {"partition": lambda n: None}, "must be a list of row numbers"),
        "keys of two axes": (folder / "keys.npz", {"key": "user"}, "one key per row"),
        "cut": (folder / "cut.npz", {"key": "user"}, "damaged"),
        "short": (folder / "short.npy", {"partition": lambda n: [n]}, "damaged"),
        "parquet": (folder / "odd.parquet", {"key": "user"}, "damaged|parquet"),
        "an empty folder": (folder / "empty", {}, "one file for each client"),
        "a folder with a key": (folder / "empty", {"key": "user"}, "files are the clients'"),
        "min_size": (good, {"key": "user", "min_size": 99}, "leaves no client"),
        "nowhere": (folder / "nowhere.csv", {"key": "user"}, "no file"),
    }


BAD = [
    "no such column", "no such label", "neither key nor partition", "both", "words", "no rows", "no header", "ragged",
    "an open quote", "an empty key", "uneven", "objects", "nan", "keys of two axes", "cut", "short", "parquet",
    "an empty folder", "a folder with a key", "min_size", "nowhere", "only keys", "a row twice",
    "a row that is not there", "no row numbers", "no parts",
]  # fmt: skip


def test_a_partition_that_raises_leaves_nothing(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((4, 2)))

    def mine(labels):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        build_federation(tmp_path / "place" / "out", tmp_path / "x.npy", partition=mine)
    assert not list((tmp_path / "place").iterdir())


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_one_line_and_leaves_nothing(tmp_path, name):
    cases = bad(tmp_path)
    assert set(cases) == set(BAD)
    source, options, message = cases[name]
    (tmp_path / "place").mkdir()
    with pytest.raises((ValueError, FileNotFoundError, ImportError), match=message) as caught:
        build_federation(tmp_path / "place" / "out", source, **options)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "place").iterdir())


def test_the_command_is_clear_about_what_is_missing(tmp_path, capsys):
    path = write_csv(tmp_path / "d.csv")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for arguments, message in (
        (f"{path} --out {tmp_path / 'o'} --key patient", "no column 'patient'"),
        (f"{path} --out {tmp_path / 'full'} --key user", "not empty"),
        (f"{path} --out {tmp_path / 'o'} --clients 3", "--clients needs --partition"),
        (f"{path} --out {tmp_path / 'o'} --partition iid", "needs --clients"),
        (f"{path} --out {tmp_path / 'o'} --partition iid --clients 3 --alpha 1", "alpha is not an argument"),
        (f"mnits --out {tmp_path / 'o'} --partition iid --clients 3 --data-dir {tmp_path}", "not found"),
    ):
        assert main(["data", "build", *arguments.split()]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert main(["data", "build", str(path), "--out", str(tmp_path / "o"), "--key", "user", "--label", "label"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'o'}\n"
    assert_same(tmp_path / "o", in_memory())


def test_checksums_are_those_of_the_rows(tmp_path):
    folder = build_federation(tmp_path / "out", write_csv(tmp_path / "d.csv"), key="user", label="label")
    data = fa.FederatedData.open(folder)
    rows = data.client(1)["x"]
    assert data.directory.checksums[1, 0] == zlib.crc32(np.ascontiguousarray(rows).tobytes())
