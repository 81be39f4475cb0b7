"""The tree is the architecture: which folder may import which, read from the sources without running them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "fedjax_admm"
TOP = {"__init__", "__main__", "_version", "py.typed"}
# In the order in which data and control flow: a folder imports what stands above it, and not all of that.
MAY_IMPORT = {
    "core": "",
    "data": "core",
    "models": "core",
    "problems": "core data models",
    "algorithms": "core",
    "exchange": "core algorithms",
    "engine": "core data problems algorithms exchange",
    "results": "core",
    "storage": "core data models problems algorithms exchange engine results",
    "examples": "core data models problems algorithms exchange engine results storage",
    "runs": "core data models problems algorithms exchange engine results storage examples",
    "show": "core data results storage",
    "cli": "core data models problems algorithms exchange engine results storage examples runs show",
}
# Of these folders only the modules that say what a method or a stage is, none that is one.
CONTRACTS = {
    ("exchange", "algorithms"): {"contract"},
    ("engine", "algorithms"): {"base", "criteria", "local_solver"},
    ("engine", "exchange"): {"stage"},
}
WITHOUT_JAX = {"results", "show", "cli"}
# Three that may import the package when they are called: a run, a comparison and a tuning draw themselves.
PLOTS = {("results.history", "plot"), ("results.comparison", "plot"), ("results.tuning", "plot")}
START = ("cli", "main")  # a fourth: it hears Ctrl-C while the rest of the package is imported


class Edge(NamedTuple):
    """An import: by whom, of what, and in which function, "" at a module's top."""

    importer: str  # a module of the package, such as "results.history"
    imported: str  # likewise, or the name of another package
    function: str
    inside: bool  # whether it is of the package

    @property
    def folders(self) -> tuple[str, str]:
        return self.importer.partition(".")[0], self.imported.partition(".")[0]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def imports(node: ast.AST, function: str = "") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import below a node, with the function that has it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, function
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports(child, child.name if is_function else function)


def edges_of(name: str, source: str, is_package: bool = False) -> set[Edge]:
    """What the module of this name imports."""
    edges = set()
    for statement, function in imports(ast.parse(source)):
        if isinstance(statement, ast.Import):
            targets = [alias.name.split(".") for alias in statement.names]
        else:
            start = []
            if statement.level:
                parts = [PACKAGE.name, *name.split(".")] if name else [PACKAGE.name]
                start = parts[: len(parts) - statement.level + is_package]
            start += statement.module.split(".") if statement.module else []
            targets = [[*start, alias.name] for alias in statement.names]
        for target in targets:
            inside = target[0] == PACKAGE.name
            edges.add(Edge(name, known_module(target[1:]) if inside else target[0], function, inside))
    return edges


def known_module(parts: list[str]) -> str:
    """The longest part of a dotted name that is a module: the rest is a name in it."""
    return next((".".join(parts[:k]) for k in range(len(parts), 0, -1) if ".".join(parts[:k]) in MODULES), "")


EDGES = {
    edge
    for name, path in MODULES.items()
    for edge in edges_of(name, path.read_text(encoding="utf-8"), path.stem == "__init__")
}


def breaks_the_order(edge: Edge) -> bool:
    importer, imported = edge.folders
    if not edge.inside or importer == imported or importer not in MAY_IMPORT or imported == "_version":
        return False
    if imported not in MAY_IMPORT[importer].split():
        return True
    allowed = CONTRACTS.get((importer, imported))
    return allowed is not None and edge.imported.split(".")[1:2] not in [[module] for module in allowed]


def test_the_top_has_no_code():
    """Folders, and what Python and packaging ask for."""
    names = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    here = {name.removesuffix(".pyi").removesuffix(".py") for name in names}
    assert here == TOP | set(MAY_IMPORT)


def test_folders_import_in_one_direction():
    """A folder is listed after all that it may import, so that there is no circle."""
    order = list(MAY_IMPORT)
    for folder, others in MAY_IMPORT.items():
        assert all(order.index(other) < order.index(folder) for other in others.split())


def test_imports_keep_to_the_order():
    drawn = {(edge.importer, edge.function) for edge in EDGES} & PLOTS
    assert drawn == PLOTS
    broken = {
        (edge.importer, edge.imported)
        for edge in EDGES
        if breaks_the_order(edge) and (edge.importer, edge.function) not in PLOTS
    }
    assert broken == set(), "these modules may not import those"


def test_the_documents_table_is_this_one():
    """docs/architecture.md tells every folder, in the same order, with what it may import."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| [^|]+ \| ([\w, ]+) \|$", text, re.MULTILINE)
    assert rows == [(folder, others.replace(" ", ", ") or "nothing") for folder, others in MAY_IMPORT.items()]
    narrow = re.findall(r"^\| `(\w+)/` \| `(\w+)/` \| (.*) \|$", text, re.MULTILINE)
    assert {(a, b): set(re.findall(r"`(\w+)`", only)) for a, b, only in narrow} == CONTRACTS


def test_no_allowance_is_idle():
    """What nobody imports need not be allowed."""
    for (importer, imported), allowed in CONTRACTS.items():
        used = {edge.imported.split(".")[1] for edge in EDGES if edge.inside and edge.folders == (importer, imported)}
        assert used == allowed, (importer, imported)


def test_the_package_is_imported_at_the_top_of_modules():
    late = {(edge.importer, edge.function) for edge in EDGES if edge.inside and edge.function}
    assert late == PLOTS | {START}


def test_what_only_shows_needs_no_jax():
    users = {edge.importer for edge in EDGES if edge.imported in ("jax", "jaxlib") and edge.folders[0] in WITHOUT_JAX}
    assert users == set()


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("core.checks", "from ..data import partition"),
        ("core.checks", "from ..data.partition import dirichlet"),
        ("core.checks", "from .. import data"),
        ("core.checks", "import fedjax_admm.data.partition"),
        ("core.checks", "def f():\n    if True:\n        from ..data import partition"),
        ("engine.rounds", "from ..algorithms.scaffold import Scaffold"),
        ("engine.rounds", "from ..algorithms import scaffold"),
        ("engine.rounds", "from ..algorithms import fedavg"),
        ("engine.rounds", "from .. import algorithms"),
        ("engine.rounds", "from ..exchange.faults import Faults"),
        ("exchange.stage", "from ..algorithms.admm import FedADMM"),
        ("exchange.stage", "from ..engine.rounds import Setup"),
        ("show.report", "from ...runs.compare import compare"),
    ],
)
def test_an_import_that_breaks_the_order_is_seen(name, source):
    (edge,) = edges_of(name, source, is_package=name == "show.report")
    assert breaks_the_order(edge)
