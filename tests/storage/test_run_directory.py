"""A run directory whose files are lost, damaged or led elsewhere: one clear line, or the run goes on to the bit."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federations import squared_error
from test_runs import assert_identical, crash_in, crashed, run

import fedjax_admm as fa
from fedjax_admm.cli.commands import main
from fedjax_admm.storage import checkpoints, run_directory

ROUNDS = 4
DAMAGES = {
    "absent": None,
    "empty": b"",
    "object": b"{}",
    "list": b"[]",
    "null": b"null",
    "word": b'"x"',
    "number": b"3",
    "half": "half",
    "garbage": b"\x00\xff\xfe{\x80",
}
CUT = "cut"  # the last byte
SOLVES = ["absent", "empty", "half", "begun", "other", "cut"]
IN_MEMORY, ON_DISK = None, fa.Execution(population="disk")


@pytest.fixture(autouse=True)
def save_often(monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)


@functools.cache
def linear():
    return fa.examples.linear_regression(num_clients=4, rows_per_client=6, dimension=3, batch_size=2, rounds=ROUNDS)


def run_linear(run_dir, **options):
    """A run that `resume` can recreate; its checkpoints are after every round."""
    settings = linear().run_settings | dict(run_dir=run_dir, progress=False, checkpoint_seconds=0)
    return fa.simulate(linear().problem, linear().algorithm("fedadmm_insa"), **settings | options)


def call_linear_again(run_dir):
    return run_linear(run_dir)


def resume(run_dir):
    return fa.resume(run_dir, progress=False, checkpoint_seconds=0)


@pytest.fixture(scope="module")
def sound():
    """The result of a run that nothing happened to."""
    return run_linear(None)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed after round 3 of 4; copy it."""
    place = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Exception, match="^$"):
        run_linear(place, on_round=crash_in(3))
    told = json.loads((place / "status.json").read_text())
    (place / "status.json").write_text(json.dumps(told | {"status": "running", "message": None}))
    return place


@pytest.fixture
def place(killed, tmp_path):
    shutil.copytree(killed, tmp_path / "run")
    return tmp_path / "run"


def damage(path, content):
    if content is None:
        path.unlink()
    elif content == "half":
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    elif content == CUT:
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(content)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def assert_identical_params(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)


def assert_identical_records(stored, result):
    jax.tree.map(np.testing.assert_array_equal, stored.solves, result.solves)
    np.testing.assert_array_equal(stored.cohorts, result.cohorts)
    np.testing.assert_array_equal(stored.history["loss"], result.history["loss"])


def one_line(capsys, *words):
    """The single line on stderr of a command that was refused."""
    assert main(list(map(str, words))) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("fedjax-admm: "), error
    return error


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", ["execution.json", "environment.json", "status.json"])
def test_a_run_goes_on_without_what_can_be_made_anew(place, sound, capsys, name, content):
    damage(place / name, content)
    stored = fa.read_run(place)
    assert stored.status == "killed" and len(stored.cohorts) == 3
    assert main(["report", str(place)]) == 0
    again = place.with_name("again")
    shutil.copytree(place, again)
    for folder, go_on in ((place, resume), (again, call_linear_again)):
        lost = pytest.warns(UserWarning, match=r"execution\.json was lost or damaged")
        with lost if name == "execution.json" else contextlib.nullcontext():
            assert_identical(go_on(folder), sound)
        assert fa.read_run(folder).status == "finished"
        for file in ("execution.json", "environment.json", "status.json"):
            assert json.loads((folder / file).read_text())
    damage(place / name, content)  # of the run that is finished now
    assert fa.read_run(place).status == "finished"


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_damaged_settings_get_one_line(place, capsys, content):
    damage(place / "settings.json", content)
    for refused in (fa.read_run, resume, call_linear_again):
        with pytest.raises((ValueError, OSError), match=r"settings\.json") as error:
            refused(place)
        assert "\n" not in str(error.value)
    for word in ("report", "resume"):
        assert "settings.json" in one_line(capsys, word, place)


@pytest.mark.parametrize("value", [None, 3, [], {}], ids=str)
@pytest.mark.parametrize("entry", ["problem", "problem.clients", "problem.recipe.example", "algorithm",
                                   "algorithm.record", "algorithm.criterion.record", "rounds", "execution"])  # fmt: skip
def test_an_entry_of_a_wrong_kind_gets_one_line(place, capsys, entry, value):
    settings = json.loads((place / "settings.json").read_text())
    *above, last = entry.split(".")
    part = functools.reduce(dict.__getitem__, above, settings)
    if type(value) is type(part[last]) and entry not in ("problem", "algorithm"):
        pytest.skip("of the right kind")
    part[last] = value
    (place / "settings.json").write_text(json.dumps(settings))
    for word in ("report", "resume"):
        assert "settings.json is damaged" in one_line(capsys, word, place)


@pytest.mark.parametrize("content", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_comparison_gets_one_line(tmp_path, capsys, content):
    algorithms = {"fedavg": linear().algorithm("fedavg")}

    def compare():
        return fa.compare(linear().problem, algorithms, rounds=1, run_dir=tmp_path / "two", progress=False)

    compare()
    damage(tmp_path / "two" / "comparison.json", content)
    for word in ("report", "resume"):
        expected = "settings.json" if content is None else "comparison.json"
        assert expected in one_line(capsys, word, tmp_path / "two")
    with pytest.raises((ValueError, OSError), match=r"comparison\.json") as error:
        compare()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["settings.json", "execution.json", "environment.json", "status.json", "history.csv",
                                  "solves.npy", "checksums.csv", "lock", "report.html"])  # fmt: skip
def test_a_folder_in_place_of_a_file_gets_one_line(place, capsys, name):
    (place / name).unlink(missing_ok=True)
    (place / name).mkdir()
    assert name in one_line(capsys, "report" if name == "report.html" else "resume", place)


def test_a_file_in_place_of_the_checkpoints_gets_one_line(place, capsys):
    shutil.rmtree(place / "checkpoints")
    (place / "checkpoints").touch()
    assert "checkpoints" in one_line(capsys, "resume", place)


def test_names_that_no_file_can_have_get_one_line(tmp_path, capsys, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    begin = "run linear --clients 4 --rounds 1 --no-progress --out".split()
    assert "File name too long" in one_line(capsys, *begin, "x" * 300)
    assert "File name too long" in one_line(capsys, "resume", "x" * 300)
    assert "File name too long" in one_line(capsys, "report", "x" * 300)
    assert "File name too long" in one_line(capsys, "report", place, "--output", "x" * 300)
    assert "PYTHONUTF8=1" in one_line(capsys, *begin, "r\udcc3\udcbcn")  # what Python makes of it in an ASCII locale
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("content", [None, b"", "half", b"\x93NUMPY", b"x" * 100_000, CUT], ids=SOLVES)
@pytest.mark.parametrize("checked", [True, False])
def test_solves_are_sound_after_a_start_from_round_0(place, sound, content, checked):
    if not checked:
        (place / "checksums.csv").unlink()
    damage(place / "solves.npy", content)
    with pytest.raises(fa.RunDirectoryError, match=r"solves\.npy is (damaged|missing)"):
        resume(place)
    again = place.with_name("again")
    shutil.copytree(place, again)
    shutil.rmtree(place / "checkpoints")
    assert_identical(resume(place), sound)
    with pytest.warns(RuntimeWarning, match="is damaged from round 0 on: computing it again from round 0"):
        assert_identical(fa.resume(again, progress=False, rebuild=True), sound)
    for folder in (place, again):
        assert_identical_records(fa.read_run(folder), sound)


@pytest.mark.parametrize("population", ["device", "host", "disk"])
def test_parameters_without_entries_are_kept(tmp_path, population):
    data = fa.FederatedData.from_arrays({"x": np.eye(4), "y": np.ones(4)}, [[0, 1], [2, 3]])

    def init(key):
        return {"w": jnp.zeros(4), "none": jnp.zeros((0, 3))}

    problem = fa.Problem(init=init, loss=lambda params, batch: squared_error(params["w"], batch), data=data)
    execution = fa.Execution(population=population)
    crashed(tmp_path, 8, problem=problem, execution=execution)
    result = run(tmp_path, problem=problem, execution=execution)
    assert result.params["none"].shape == (0, 3)
    assert_identical_params(result, run(None, problem=problem))


APPENDED = ("history.csv", "solves.npy", "checksums.csv", "lock")
REPLACED = ("settings.json", "execution.json", "environment.json", "status.json", "report.html")


@pytest.mark.parametrize("name", [*APPENDED, "checkpoints"])
def test_nothing_is_written_through_a_link(place, capsys, name):
    other = place.with_name("other")
    shutil.move(place / name, other)
    (place / name).symlink_to(other)
    before = contents(other)
    assert f"{name} is a symbolic link" in one_line(capsys, "resume", place, "--no-progress")
    assert contents(other) == before


def contents(path):
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in files}


@pytest.mark.parametrize("name", REPLACED)
def test_a_link_in_place_of_a_file_that_is_written_whole_is_replaced(place, sound, name):
    other = place.with_name("other")
    shutil.move(place / name, other) if (place / name).exists() else other.write_text("precious")
    (place / name).symlink_to(other)
    before = other.read_bytes()
    assert_identical(resume(place), sound)
    assert main(["report", str(place)]) == 0
    assert other.read_bytes() == before


def test_clients_rows_are_not_written_through_a_link(tmp_path):
    crashed(tmp_path / "run", 8, execution=ON_DISK)
    (rows,) = (tmp_path / "run").rglob("rows.bin")
    shutil.move(rows, tmp_path / "other")
    rows.symlink_to(tmp_path / "other")
    before = (tmp_path / "other").read_bytes()
    with pytest.raises(OSError, match=r"rows\.bin is a symbolic link"):
        run(tmp_path / "run", execution=ON_DISK)
    assert (tmp_path / "other").read_bytes() == before


@pytest.mark.parametrize("name", ["table.txt", "table.csv", "table.md", "table.tex"])
def test_tables_are_not_written_through_a_link(tmp_path, capsys, name):
    (tmp_path / "two").mkdir()
    (tmp_path / "precious").write_text("mine")
    words = "compare linear --clients 4 --rows-per-client 6 --dimension 3 --rounds 1 --no-progress --algorithms fedavg"
    assert main([*words.split(), "--out", str(tmp_path / "two")]) == 0
    (tmp_path / "two" / name).unlink()
    (tmp_path / "two" / name).symlink_to(tmp_path / "precious")
    assert main([*words.split(), "--out", str(tmp_path / "two")]) == 0
    assert (tmp_path / "precious").read_text() == "mine" and "fedavg" in (tmp_path / "two" / name).read_text()


def test_a_damaged_row_of_a_client_is_named_and_the_run_can_begin_again(tmp_path):
    crashed(tmp_path, 8, execution=ON_DISK)
    width = (tmp_path / "rows.bin").stat().st_size // 100
    for position in range(0, 100 * width, width):
        flip(tmp_path / "rows.bin", position)
    with pytest.raises(OSError, match=r"rows\.bin is damaged: row \d+ .*: remove the run's checkpoints"):
        run(tmp_path, execution=ON_DISK)
    shutil.rmtree(tmp_path / "checkpoints")
    assert_identical_params(run(tmp_path, execution=ON_DISK), run(None))


@pytest.fixture
def read_only(killed, tmp_path):
    """A killed run in a file system that may not be written to, without its lock; needs the right to mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    shutil.copytree(killed, place / "run")
    (place / "run" / "lock").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    yield place / "run"
    subprocess.run(["umount", str(place)], check=True)


def test_a_read_only_directory_can_be_read_and_reported(read_only, tmp_path, capsys):
    stored = fa.read_run(read_only)
    assert stored.status == "killed" and len(stored.cohorts) == 3
    assert "report.html' cannot be written (Read-only file system)" in one_line(capsys, "report", read_only)
    assert main(["report", str(read_only), "--output", str(tmp_path / "page.html")]) == 0
    assert "killed: 3 of 4 rounds are here" in (tmp_path / "page.html").read_text()
    assert "may not be written to" in one_line(capsys, "resume", read_only)


def test_reading_changes_nothing_in_a_directory(place):
    (place / "lock").unlink()
    before = contents(place)
    fa.read_run(place)
    assert contents(place) == before


def test_a_run_is_running_while_a_process_holds_its_lock(tmp_path):
    seen = []
    run(tmp_path, on_round=lambda row: seen.append(fa.read_run(tmp_path).status) if row["round"] == 4 else None)
    assert seen == ["running"] and fa.read_run(tmp_path).status == "finished"


def test_a_run_whose_status_cannot_be_written_at_all_is_killed(tmp_path, monkeypatch):
    def full(path, value):
        raise OSError(28, "No space left on device")

    def fill(row):
        if row["round"] == 4:
            monkeypatch.setattr(run_directory, "write_json", full)
            monkeypatch.setattr(run_directory, "overwrite_json", full)
            raise RuntimeError("as it happens")

    with pytest.raises(RuntimeError, match="as it happens"):
        run(tmp_path, on_round=fill)
    assert fa.read_run(tmp_path).status == "killed"


def test_states_are_plain_words(place):
    assert fa.read_run(place).status is fa.RunStatus.KILLED
    assert [str(status) for status in fa.RunStatus] == [
        "running", "killed", "finished", "interrupted", "diverged", "failed"
    ]  # fmt: skip
