"""Runs that version 0.1.0 wrote: they are read and reported, and go on or are refused in one line.

The directories in data/ are as 0.1.0 left them (the names of the host and of its folders apart): a run that failed
after round 4 of 6 with a checkpoint of round 3, a finished one with client times, and a comparison without its
checkpoints. All are of four clients, two a round, in double precision.
"""

import csv
import json
import shutil
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_admm as fa
from fedjax_admm.cli import main
from fedjax_admm.runs.resume import resume_comparison
from fedjax_admm.storage.description import recreate
from fedjax_admm.storage.settings import recreate_algorithm

STORED = Path(__file__).parent / "data" / "fedjax_admm-0.1.0"
LABELS = {"FedAvg": "fedavg", "FedADMM-In, eps": "fedadmm_in", "FedDyn": "feddyn", "SCAFFOLD": "scaffold"}
OTHER_VERSIONS = "made with other versions"
TOLERANCE = 1e-9  # relative: another version may compute in another order


@pytest.fixture
def stored(tmp_path):
    """Copies of the directories, to be written to."""
    shutil.copytree(STORED, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def example():
    return fa.examples.linear_regression(
        num_clients=4, rows_per_client=10, dimension=5, rounds=6, batch_size=5, max_epochs=3, learning_rate=0.01,
        participation=2,
    )  # fmt: skip


def column(folder, name):
    """A column of history.csv, as the csv module reads it."""
    with open(folder / "history.csv", newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file)]


def assert_same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "rounds", "status"), [("finished", 6, "finished"), ("unfinished", 4, "failed")])
def test_a_run_is_read(stored, name, rounds, status):
    run = fa.read_run(stored / name)
    assert run.status == status and run.cohorts.shape == (rounds, 2) and run.num_clients == 4
    assert run.history["loss"].tolist() == column(stored / name, "loss")
    table = np.load(stored / name / "solves.npy")
    np.testing.assert_array_equal(run.solves.epochs, table["epochs"][:rounds])
    assert run.title == "FedADMM-InSa on linear regression"
    assert run.note is None


def test_a_run_without_floats_of_its_messages_still_says_what_would_help(stored):
    settings = json.loads((stored / "finished" / "settings.json").read_text())
    late = fa.StopReason.LATE.code
    table = np.load(stored / "finished" / "solves.npy")
    table["stop_code"] = late
    np.save(stored / "finished" / "solves.npy", table)
    assert (fa.read_run(stored / "finished").note or "").endswith("raise the deadline")
    settings["client_time"]["floats_per_second"] = None  # then messages take no time, and the seconds are known
    (stored / "finished" / "settings.json").write_text(json.dumps(settings))
    speeds = np.array(settings["client_time"]["gradients_per_second"]["array"])
    shortest = np.min(table["gradient_samples"] / speeds[table["client"]])
    assert f"(the shortest solve took {shortest:.4g} simulated s)" in (fa.read_run(stored / "finished").note or "")


@pytest.mark.parametrize("name", ["finished", "unfinished", "comparison"])
def test_a_report_is_written(stored, capsys, name):
    assert main(["report", str(stored / name)]) == 0
    page = (stored / name / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "linear regression" in page


def test_a_comparison_is_read(stored):
    comparison = fa.read_comparison(stored / "comparison")
    assert list(comparison.runs) == list(LABELS) and comparison.baseline == "FedAvg" and not comparison.notes()
    for label, seeds in comparison.runs.items():
        folder = next(f for f in (stored / "comparison").iterdir() if label.startswith(f.name.partition("-eps")[0]))
        assert seeds[0].history["loss"].tolist() == column(folder / "seed-0", "loss")


def test_what_settings_name_is_found_in_this_version(example):
    cells = json.loads((STORED / "comparison" / "comparison.json").read_text())["cells"]
    for label, name in LABELS.items():
        options = {"penalty": 0.5} if name == "fedadmm_in" else {}
        assert_same(recreate_algorithm(cells[label]["algorithm"]), example.algorithm(name, **options))
    for name in ("finished", "unfinished"):
        settings = json.loads((STORED / name / "settings.json").read_text())
        assert_same(recreate_algorithm(settings["algorithm"]), example.algorithm("fedadmm_insa", penalty=0.5))
    assert_same(recreate(settings["faults"]), fa.Faults(dropout=0.25))
    settings = json.loads((STORED / "finished" / "settings.json").read_text())
    speeds = np.array([1000.0, 2000.0, 3000.0, 4000.0])
    assert_same(recreate(settings["client_time"]), fa.ClientTime(speeds, floats_per_second=1e4, deadline=10.0))


@pytest.mark.filterwarnings(f"ignore:.*{OTHER_VERSIONS}")
@pytest.mark.parametrize("name", ["finished", "unfinished"])
def test_a_run_goes_on_or_is_refused_with_both_versions(stored, example, name):
    before = column(stored / name, "loss")
    try:
        result = fa.resume(stored / name, progress=False)
    except ValueError as refused:  # where this version keeps other state, or has other settings
        assert_names_both_versions(str(refused))
        assert column(stored / name, "loss") == before
        return
    conditions = {"faults": fa.Faults(dropout=0.25)} if name == "unfinished" else {}
    algorithm = example.algorithm("fedadmm_insa", penalty=0.5)
    whole = fa.simulate(example.problem, algorithm, progress=False, **conditions, **example.run_settings)
    np.testing.assert_allclose(result.history["loss"], whole.history["loss"], rtol=TOLERANCE)
    np.testing.assert_allclose(result.params, whole.params, rtol=TOLERANCE)
    assert result.history["loss"][:4].tolist() == before[:4]  # up to the checkpoint they are those of 0.1.0


def assert_names_both_versions(text):
    assert "\n" not in text and "fedjax_admm 0.1.0" in text and fa.__version__ in text


@pytest.mark.filterwarnings(f"ignore:.*{OTHER_VERSIONS}")
@pytest.mark.parametrize(("key", "value"), [("path", ".former"), ("shape", [4, 5, 1]), ("dtype", "float32")])
def test_a_checkpoint_of_other_state_is_refused_with_both_versions(stored, capsys, key, value):
    described = stored / "unfinished" / "checkpoints" / "3" / "leaves" / "metadata"
    leaves = json.loads(described.read_text())
    leaves["0001"][key] = value
    described.write_text(json.dumps(leaves))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", OTHER_VERSIONS)
        assert main(["resume", str(stored / "unfinished")]) == 2
    error = capsys.readouterr().err.removesuffix("\n")
    assert_names_both_versions(error)
    assert "which kept other state" in error
    assert len(column(stored / "unfinished", "loss")) == 5  # nothing was cut off
    assert fa.read_run(stored / "unfinished").cohorts.shape == (4, 2)


def test_other_settings_are_refused_with_both_versions(stored, example):
    algorithm = example.algorithm("fedadmm_insa", penalty=0.7)
    with (
        pytest.warns(UserWarning, match=OTHER_VERSIONS),
        pytest.raises(ValueError, match=r"algorithm\.penalty: 0\.5 there, 0\.7 now") as refused,
    ):
        fa.simulate(
            example.problem, algorithm, run_dir=stored / "unfinished", progress=False, faults=fa.Faults(dropout=0.25),
            execution=fa.Execution(lanes=2), **example.run_settings,
        )  # fmt: skip
    assert_names_both_versions(str(refused.value))


def test_a_part_that_this_version_does_not_have_is_refused_with_both_versions(stored):
    file = stored / "unfinished" / "settings.json"
    file.write_text(file.read_text().replace("fedjax_admm.penalties:", "fedjax_admm.no_longer:"))
    with pytest.raises(ValueError, match=r"fedjax_admm\.no_longer:ResidualBalancing") as refused:
        fa.resume(stored / "unfinished", progress=False)
    assert_names_both_versions(str(refused.value))


@pytest.mark.filterwarnings(f"ignore:.*{OTHER_VERSIONS}", "ignore:.*lost its checkpoints")
def test_a_comparison_goes_on(stored):
    before = fa.read_comparison(stored / "comparison")
    again = resume_comparison(stored / "comparison", progress=False)
    for label in LABELS:
        new, old = (one.runs[label][0].history["loss"] for one in (again, before))
        np.testing.assert_allclose(new, old, rtol=TOLERANCE)
    plan = json.loads((stored / "comparison" / "comparison.json").read_text())
    assert plan["versions"]["fedjax-admm"] == fa.__version__
    assert plan["cells"]["SCAFFOLD"]["algorithm"]["record"] == "fedjax_admm:Scaffold"
