"""One form of docstrings in the whole package, Google's: editors, the documentation and the flags' help read it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import fedjax_admm as fa

PACKAGE = Path(fa.__file__).parent
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parameters_of(node: Documented) -> set[str]:
    """A function's arguments; a class's fields and the arguments of its constructor."""
    if isinstance(node, ast.ClassDef):
        fields = {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        makers = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        return fields.union(*map(parameters_of, makers))
    return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}


def sections_of(doc: str) -> dict[str, list[str]]:
    """Heading -> the lines below it, of a docstring without its indentation."""
    pattern = rf"^({'|'.join(SECTIONS)}):\n((?:(?: .*)?(?:\n|$))+)"
    return {heading: body.rstrip().split("\n") for heading, body in re.findall(pattern, doc, flags=re.MULTILINE)}


def faults(doc: str, parameters: set[str]) -> list[str]:
    """What is wrong with the form of a docstring."""
    wrong = []
    for line in doc.splitlines():
        item = re.match(r"[`*]*(\w+)[`*]*(, [`*]*\w+[`*]*)*: ", line)
        if item and item[1] in parameters:
            wrong.append(f"{item[1]} is documented outside of Args or Attributes")
    for heading, lines in sections_of(doc).items():
        if any(not re.match(r"(    ){1,2}\S", line) and line for line in lines):
            wrong.append(f"{heading} is not indented by four, and what goes on by eight")
        if heading in ("Args", "Attributes"):
            names = [line.strip().partition(":")[0] for line in lines if re.match(r" {4}\S", line)]
            wrong += [f"{heading} has {name!r}, which is none" for name in names if name not in parameters]
    return wrong


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arguments_are_documented_in_a_section(path):
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Documented)]
    wrong = {node.name: faults(ast.get_docstring(node) or "", parameters_of(node)) for node in nodes}
    assert not {name: lines for name, lines in wrong.items() if lines}


@pytest.mark.parametrize(
    "doc",
    [
        "Fits.\n\nseed: where it begins.",
        "Fits.\n\n`seed`: where it begins.",
        "Fits.\n\nrate, seed: numbers.",
        "Fits.\n\nArgs:\n  seed: Where it begins.",
        "Fits.\n\nArgs:\n    sede: Where it begins.",
    ],
)
def test_other_forms_are_noticed(doc):
    assert faults(doc, {"seed", "rate"})


def public_functions() -> dict[str, object]:
    """The functions of `fa`, and those of the modules in it."""
    values = {name: getattr(fa, name) for name in fa.__all__}
    for module, value in list(values.items()):
        if isinstance(value, ModuleType):
            own = {name for name, part in vars(value).items() if getattr(part, "__module__", "") == value.__name__}
            names = getattr(value, "__all__", {name for name in own if not name.startswith("_")})
            values |= {f"{module}.{name}": getattr(value, name) for name in names}
    return {name: value for name, value in values.items() if inspect.isfunction(value)}


@pytest.mark.parametrize("name", sorted(public_functions()))
def test_public_functions_document_all_their_arguments(name):
    function = public_functions()[name]
    doc, parameters = inspect.getdoc(function) or "", inspect.signature(function).parameters
    lines = sections_of(doc).get("Args", [])
    missing = [each for each in parameters if not any(line.startswith(f"    {each}: ") for line in lines)]
    assert not missing or re.search(r"The (other )?arguments are `", doc), f"{name} does not document {missing}"
