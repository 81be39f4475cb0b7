"""Settings are data: what they name is looked up in a table, and nothing else is imported or called."""

import functools
import importlib
import json
import pkgutil
import shutil
import sys
from dataclasses import is_dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_admm as fa
from fedjax_admm import algorithms, exchange
from fedjax_admm.cli import main
from fedjax_admm.core import environment
from fedjax_admm.runs.resume import remake_problem
from fedjax_admm.storage import differences, parts
from fedjax_admm.storage.description import describe, recreate
from fedjax_admm.storage.digests import computation
from fedjax_admm.storage.parts import CannotRecreate

# Records that runs make themselves.
NOT_SETTINGS = ("Server", "Iterate", "Evidence", "Memory", "Statistics", "Level", "Sent")
STORED = Path(__file__).parent / "data" / "fedjax_admm-0.1.0"


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module `trap_of_a_run` in the current folder; the file whose existence betrays that it was imported."""
    sprung = tmp_path / "sprung"
    (tmp_path / "trap_of_a_run.py").write_text(f"open({str(sprung)!r}, 'w').close()\nx = print\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield sprung
    sys.modules.pop("trap_of_a_run", None)


def attacks(sprung):
    """name -> what settings may say to have code executed that makes the file `sprung`."""
    code = f"open({str(sprung)!r}, 'w').close()"
    timeit = {"partial": {"function": "timeit:timeit"}, "arguments": ["pass", code], "named": {}}
    return {
        "a function that runs code": timeit,
        "a module of the current folder": {"function": "trap_of_a_run:x"},
        "a record of any module": {"record": "trap_of_a_run:x"},
        "a partial of a partial": {"partial": timeit, "arguments": [], "named": {}},
        "an argument of a sound function": {
            "partial": {"function": "optax:sgd"},
            "arguments": [],
            "named": {"momentum": timeit},
        },
        "what the package imports": {"function": "fedjax_admm.cli.commands:os.system"},
        "what a listed function can reach": {"function": "optax:sgd.__globals__"},
        "what optax imports": {"function": "optax._src.alias:functools.partial"},
        "a private part of optax": {"function": "optax:chain"},
        "a name that is none": {"function": ["timeit", "timeit"]},
        "an array of objects": {"array": [code], "dtype": "object"},
        "a number that is code": {"number": code},
    }


ATTACKS = sorted(attacks("-"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_no_table_has_is_neither_imported_nor_called(trap, attack):
    before = set(sys.modules)
    with pytest.raises(CannotRecreate) as refused:
        recreate(attacks(trap)[attack])
    assert "\n" not in str(refused.value) and not trap.exists()
    assert set(sys.modules) == before


def stored_run(tmp_path, **changes):
    """A copy of a run whose settings were changed by whoever handed it over."""
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(STORED / "finished", folder)
    described = json.loads((folder / "settings.json").read_text())
    for path, value in changes.items():
        *above, last = path.split("__")
        functools.reduce(lambda part, name: part[name], above, described)[last] = value
    (folder / "settings.json").write_text(json.dumps(described))
    return folder


@pytest.mark.parametrize(
    "place", ["algorithm__local__optimizer", "algorithm", "client_time", "faults", "participation", "problem__recipe"]
)
def test_neither_resume_nor_report_executes_what_a_directory_names(trap, tmp_path, capsys, place):
    if place == "problem__recipe":
        arguments = [{"example": "linear_regression", "arguments": {"num_clients": a}} for a in attacks(trap).values()]
        values = [*arguments, *({"example": name, "arguments": {}} for name in ("Example", "os", "__loader__", []))]
    else:
        values = list(attacks(trap).values())
        problem = "fedjax_admm.problems.problem:Problem"
        values += [{"record": problem, "init": value, "loss": value, "data": value} for value in values]
    for value in values:
        folder = stored_run(tmp_path, **{place: value})
        assert main(["resume", str(folder)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "Traceback" not in error, error
        if place != "problem__recipe" and place != "algorithm":
            assert main(["report", str(folder)]) == 0
            assert "<!doctype html>" in (folder / "report.html").read_text()
            capsys.readouterr()
        assert not trap.exists()


def test_a_recipe_has_plain_values():
    described = {"example": "mnist_mini", "arguments": {"model": {"function": "optax:sgd"}}}
    with pytest.raises(CannotRecreate, match="the problem's model, which was made in Python,"):
        remake_problem(described)


def test_a_record_in_the_wrong_place_is_one_line(tmp_path, capsys):
    sound = json.loads((STORED / "finished" / "settings.json").read_text())
    for path, value in {
        "algorithm": sound["client_time"],
        "algorithm__local": sound["client_time"],
        "algorithm__local__optimizer": "sgd",
        "algorithm__penalty": "much",
        "algorithm__colour": "blue",
        "client_time": sound["algorithm"]["local"],
        "execution": {"what": 1},
    }.items():
        assert main(["resume", str(stored_run(tmp_path, **{path: value}))]) == 2, path
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "Traceback" not in error, error


def test_the_part_that_cannot_be_made_again_is_the_sentence_s_subject():
    for described, subject in (
        ({"record": "__main__:FedAdam"}, "FedAdam, which was defined in a script or a notebook,"),
        ({"record": "fedjax_admm.no.such:Thing"}, "fedjax_admm.no.such:Thing, which this version does not have,"),
        ({"opaque": "a:<lambda>"}, "a:<lambda>"),
    ):
        with pytest.raises(CannotRecreate) as refused:
            recreate(described)
        assert str(refused.value).startswith(f"{subject} cannot be made again from the settings: call simulate")


def test_describing_imports_nothing(trap):
    def foreign():
        pass

    foreign.__module__, foreign.__qualname__ = "trap_of_a_run", "x"
    assert describe(foreign) == {"opaque": "trap_of_a_run:x"}
    assert not trap.exists()


def test_every_record_of_an_algorithm_or_of_the_exchange_has_a_name_that_does_not_say_where_it_is():
    for package in (algorithms, exchange):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, kind in vars(module).items():
                here = getattr(kind, "__module__", None) == module.__name__
                if here and isinstance(kind, type) and is_dataclass(kind) and name not in NOT_SETTINGS:
                    assert parts.name_part(kind) == f"fedjax_admm:{kind.__name__}"
                    assert parts.RECORDS[f"fedjax_admm:{kind.__name__}"] is kind


def test_a_record_may_be_named_with_where_it_is_or_was():
    """Versions before a module became a package named the module; a name below a record's module is none of its."""
    rule = fa.penalties.spectral()
    fields = {key: value for key, value in describe(rule).items() if key != "record"}
    for module in ("fedjax_admm.algorithms.penalties", "fedjax_admm.algorithms.penalties.spectral"):
        assert recreate({"record": f"{module}:Spectral", **fields}) == rule
    for module in ("fedjax_admm.algorithms.pen", "fedjax_admm.algorithms.penalties.constant", "algorithms.penalties"):
        with pytest.raises(CannotRecreate):
            recreate({"record": f"{module}:Spectral", **fields})


def test_every_optimizer_of_the_list_is_found_again():
    for name in parts.OPTIMIZERS:
        if hasattr(optax, name):  # another version of optax may not have it
            assert describe(getattr(optax, name)) == {"function": f"optax:{name}"}
            assert recreate({"function": f"optax:{name}"}) is getattr(optax, name)
            assert recreate({"function": f"optax._src.alias:{name}"}) is getattr(optax, name)
    assert {"sgd", "adam", "adamw", "lbfgs"} <= set(parts.OPTIMIZERS)


@pytest.fixture
def own_parts(tmp_path, monkeypatch):
    """A package with an optimizer of a user's own, not imported."""
    package = tmp_path / "own_parts_of_a_user"
    package.mkdir()
    (package / "__init__.py").write_text("import os\n")
    stage = "@fa.record\nclass Quiet(fa.Stage):\n    pass\n"
    (package / "steps.py").write_text(
        f"import optax\nimport fedjax_admm as fa\n\n{stage}\ndef slow_sgd(rate):\n    return optax.sgd(0.5 * rate)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
            del sys.modules[name]

    yield forget
    forget()


def test_a_run_with_a_part_of_ones_own_goes_on_if_its_module_is_trusted(tmp_path, own_parts, capsys):
    steps = importlib.import_module("own_parts_of_a_user.steps")
    example = fa.examples.linear_regression(num_clients=3, rows_per_client=4, dimension=2, rounds=2, max_epochs=2)
    local = fa.LocalSolver(0.01, 2, 2, steps.slow_sgd)
    run = {"progress": False, "run_dir": tmp_path / "run"} | example.run_settings
    whole = fa.simulate(example.problem, fa.fedavg(local), exchange=steps.Quiet(), **run)
    own_parts()
    with pytest.raises(CannotRecreate) as refused:
        fa.resume(run["run_dir"], progress=False)
    assert "own_parts_of_a_user.steps" not in sys.modules and "own_parts_of_a_user" not in sys.modules
    text = str(refused.value)
    assert "own_parts_of_a_user.steps:slow_sgd" in text and "--trust own_parts_of_a_user.steps" in text
    assert "call simulate" in text and str(run["run_dir"]) in text and "\n" not in text
    for other in ("own_parts", "own_parts_of_a_user.ste", "os"):
        assert main(["resume", str(run["run_dir"]), "--trust", other]) == 2
        assert "own_parts_of_a_user" not in sys.modules
    again = fa.resume(run["run_dir"], trust=["own_parts_of_a_user"], progress=False)
    np.testing.assert_array_equal(again.params, whole.params)
    capsys.readouterr()
    flags = ["--trust", "os", "--trust", "own_parts_of_a_user.steps", "--no-progress"]
    assert main(["resume", str(run["run_dir"]), *flags]) == 0


def test_a_trusted_module_does_not_vouch_for_what_it_imports(own_parts):
    with pytest.raises(CannotRecreate, match="does not define"):
        recreate({"function": "own_parts_of_a_user:os.system"}, ["own_parts_of_a_user"])
    with pytest.raises(CannotRecreate, match="does not define"):
        recreate({"function": "own_parts_of_a_user.steps:no_such_function"}, ["own_parts_of_a_user"])


def test_names_of_modules_to_trust_are_checked():
    for wrong in ("", "a b", "../x", 3):
        with pytest.raises(ValueError, match="trust must be names of modules"):
            fa.resume(STORED / "finished", trust=[wrong])


def comparison_at(tmp_path, folder):
    """A comparison one of whose cells is said to be in `folder`."""
    inside = tmp_path / "comparison"
    shutil.rmtree(inside, ignore_errors=True)
    shutil.copytree(STORED / "comparison", inside)
    plan = json.loads((inside / "comparison.json").read_text())
    plan["cells"]["FedDyn"]["folder"] = folder
    (inside / "comparison.json").write_text(json.dumps(plan))
    return inside


@pytest.mark.parametrize("way", ["absolute", "above", "in and out", "link", "link to a seed"])
def test_folders_of_a_comparison_that_lead_outside_are_refused(tmp_path, capsys, way):
    outside = tmp_path / "outside"
    shutil.copytree(STORED / "comparison" / "FedDyn", outside)
    names = {"absolute": str(outside), "above": "../outside", "in and out": "FedAvg/../../outside"}
    inside = comparison_at(tmp_path, names.get(way, "FedDyn"))
    if way == "link":
        shutil.rmtree(inside / "FedDyn")
        (inside / "FedDyn").symlink_to(outside)
    elif way == "link to a seed":
        shutil.rmtree(inside / "FedDyn" / "seed-0")
        (inside / "FedDyn" / "seed-0").symlink_to(outside / "seed-0")
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="leads outside"):
        fa.read_comparison(inside)
    for command in ("report", "resume"):
        assert main([command, str(inside)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "comparison.json" in error and "'FedDyn'" in error
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


def test_a_comparison_that_is_reached_by_a_link_is_read(tmp_path):
    shutil.copytree(STORED / "comparison", tmp_path / "kept elsewhere")
    (tmp_path / "comparison").symlink_to(tmp_path / "kept elsewhere")
    assert set(fa.read_comparison(tmp_path / "comparison").runs) == {"FedAvg", "FedADMM-In, eps", "FedDyn", "SCAFFOLD"}


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_runs_and_comparisons_refuse_the_same_differences(kind):
    def refuse(there, now, made_with=None):
        differences.refuse_differences("here", kind, there, now, made_with or environment.versions())

    problem = {"recipe": {"example": "a", "arguments": {"data_dir": "x", "n": 1}}, "computes": {"loss": "1"}}
    moved = {"recipe": {"example": "a", "arguments": {"data_dir": "y", "n": 1}}, "computes": {"loss": "1"}}
    refuse({"problem": problem, "label": "one"}, {"problem": moved, "label": "two"})
    with pytest.raises(ValueError, match=rf"has a {kind} with other settings \(problem.recipe.arguments.n: 1 there, 2"):
        refuse({"problem": problem}, {"problem": problem | {"recipe": {"example": "a", "arguments": {"n": 2}}}})
    other = {"problem": problem | {"computes": {"loss": "2"}}}
    with pytest.raises(ValueError, match="computes"):
        refuse({"problem": problem}, other)
    refuse({"problem": problem}, other, environment.versions() | {"jax": "0.0.1"})
    with pytest.raises(ValueError, match=r"begun by fedjax_admm 0\.0\.1 \(this is "):
        refuse({"rounds": 1}, {"rounds": 2}, environment.versions() | {"fedjax-admm": "0.0.1"})


def test_a_field_that_came_later_has_its_default():
    now = describe(fa.fedadmm_insa(fa.LocalSolver(0.1)))
    there = json.loads(json.dumps(now))
    del there["local"]["batch_size"]
    differences.refuse_differences("here", "run", {"algorithm": there}, {"algorithm": now}, environment.versions())
    assert jax.tree.structure(recreate(there)) == jax.tree.structure(recreate(now))


def test_a_functions_digest_is_of_what_it_computes():
    def scaled(factor):
        return lambda x: jax.jit(lambda y: factor * y)(x)

    x = jnp.ones(3)
    assert computation(scaled(2.0), x) == computation(scaled(2.0), x) != computation(scaled(3.0), x)
    table = np.arange(3.0)
    assert computation(lambda x: x * table, x) != computation(lambda x: x * (table + 1), x)


def test_a_partial_as_optimizer_is_the_same_in_another_process(tmp_path):
    local = fa.LocalSolver(0.05, 4, 3, functools.partial(optax.sgd, momentum=0.9))
    told = json.dumps(describe(fa.fedavg(local)))
    assert " at 0x" not in told and recreate(json.loads(told)).local.optimizer.keywords == {"momentum": 0.9}
