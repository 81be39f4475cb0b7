"""A tuning's directory that is not what was written."""

import json
import shutil

import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.storage.tuning_directory import TUNING


def make(penalty):
    return fa.fedadmm(fa.LocalSolver(learning_rate=0.02, batch_size=4, max_epochs=2), penalty)


def tune(folder, **settings):
    problem = least_squares([6, 3, 5])[0]
    options = dict(rounds=2, seeds=[0, 1], progress=False) | settings
    return fa.tune(problem, make, {"penalty": [0.1, 1.0]}, run_dir=folder, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuning") / "whole"
    return folder, tune(folder)


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole[0], tmp_path / "copy")


def test_a_folder_without_one(tmp_path):
    with pytest.raises(ValueError, match=rf"has no tuning: it needs a {TUNING}"):
        fa.read_tuning(tmp_path)


@pytest.mark.parametrize("damage", [
    lambda plan: {},
    lambda plan: [plan],
    lambda plan: plan | {"cells": {}},
    lambda plan: plan | {"cells": []},
    lambda plan: plan | {"search": plan["search"] | {"seeds": []}},
    lambda plan: plan | {"search": plan["search"] | {"rungs": [2.5]}},
    lambda plan: plan | {"search": plan["search"] | {"halving": "3"}},
    lambda plan: plan | {"search": plan["search"] | {"objective": {"column": "loss"}}},
])  # fmt: skip
def test_a_plan_that_is_none(copy, damage):
    plan = json.loads((copy / TUNING).read_text())
    (copy / TUNING).write_text(json.dumps(damage(plan)))
    with pytest.raises(DamagedFileError, match=rf"{TUNING} is damaged: it is not what tune wrote"):
        fa.read_tuning(copy)


def test_a_folder_outside(copy):
    plan = json.loads((copy / TUNING).read_text())
    label, cell = next(iter(plan["cells"].items()))
    plan["cells"][label] = cell | {"folder": "../elsewhere"}
    (copy / TUNING).write_text(json.dumps(plan))
    with pytest.raises(ValueError, match=rf"the folder of '{label}' leads outside: name a folder in it"):
        fa.read_tuning(copy)


def test_runs_that_are_gone_are_missing_and_made_again(whole, copy):
    plan = json.loads((copy / TUNING).read_text())
    label, cell = next(iter(plan["cells"].items()))
    shutil.rmtree(copy / cell["folder"] / "seed-1")
    read = fa.read_tuning(copy)
    assert read.missing and list(read.runs[label]) == [0]
    again = tune(copy)
    assert not again.missing
    assert (again.scores == whole[1].scores).all()


def test_a_place_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"run_dir '.*file.*'"):
        tune(tmp_path / "file" / "tuning")
