"""The notebooks: they run, their committed outputs are clean, and they use the public interface alone."""

from __future__ import annotations

import ast
import json
import os
import re
import types
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import fedjax_admm as fa

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
SIZE = "FEDJAX_ADMM_NOTEBOOK_SIZE"
MOST_BYTES = 600_000
MACHINE = re.compile(r"/home/|/Users/|/root/|/tmp/|[A-Z]:\\|site-packages")  # paths of whoever ran it

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.filterwarnings("default")  # Jupyter's own, about its event loops and paths
@every_notebook
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv(SIZE, "small")
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(fa.__file__).parents[1]))  # the code that the other tests test
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # most of the time is compiling
    for name in ("FEDJAX_ADMM_CACHE", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, os.fspath(tmp_path / name.lower()))
    notebook = read(path)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()  # raises at a cell's error
    noise = [o.text for cell in notebook.cells for o in cell.get("outputs", ()) if o.get("name") == "stderr"]
    assert not noise


@every_notebook
def test_committed_outputs_are_whole_and_clean(path):
    assert path.stat().st_size < MOST_BYTES
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", ()) for output in outputs)
    for output in outputs:
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
        texts = {kind: value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")}
        found = MACHINE.search(json.dumps([texts, output.get("text", "")]))
        assert found is None, f"an output names {found}"


@every_notebook
def test_begins_with_what_it_shows_and_how_long_it_takes(path):
    first, *_ = read(path).cells
    assert first.cell_type == "markdown" and first.source.startswith("# ")
    assert re.search(r"This notebook .*\. It takes .* on two cores\.", first.source, re.DOTALL)
    assert f'os.environ.get("{SIZE}", "full")' in code_cells(path)[0].source


@every_notebook
def test_uses_public_names_alone(path):
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("fedjax_admm"), ast.unparse(node)
            if isinstance(node, ast.Import):
                ours = [(name.name, name.asname) for name in node.names if name.name.startswith("fedjax_admm")]
                assert ours in ([], [("fedjax_admm", "fa")]), ast.unparse(node)
            if isinstance(node, ast.Attribute):
                assert not node.attr.startswith("_"), ast.unparse(node)
                module = public_module(node.value)
                assert module is None or is_public(module, node.attr), ast.unparse(node)


def public_module(node):
    """The module that an expression such as `fa` or `fa.plots` names, if it names one."""
    if isinstance(node, ast.Name):
        return fa if node.id == "fa" else None
    parent = public_module(node.value) if isinstance(node, ast.Attribute) else None
    value = None if parent is None else getattr(parent, node.attr, None)
    return value if isinstance(value, types.ModuleType) else None


def is_public(module, name):
    """Whether a module offers a name: in its `__all__`, or defined in it where it has none."""
    if hasattr(module, "__all__"):
        return name in module.__all__
    return getattr(getattr(module, name, None), "__module__", None) == module.__name__


@pytest.mark.parametrize(
    "source, allowed",
    [("fa.plots.overview", True), ("fa.criteria.relative_residual", True), ("fa.partition.np", False),
     ("fa.rounds.cohort_round", False), ("fa.simulation.Simulation", False)],
)  # fmt: skip
def test_what_public_means(source, allowed):
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    modules = [(public_module(node.value), node.attr) for node in nodes]
    assert all(module is None or is_public(module, name) for module, name in modules) is allowed
