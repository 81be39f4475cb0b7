"""The documentation site has every public name and every page; that it can be built is the business of `.ci/run`."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import fedjax_admm as fa
from fedjax_admm.core import vocabulary

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def asked_for(kind):
    """What the pages of the reference ask for by lines `{{ kind names }}`."""
    text = "\n".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    lists = re.findall(rf"^\{{\{{ {kind} (\S+) \}}\}}$", text, re.MULTILINE)
    return [name for names in lists for name in names.split(",")]


def test_every_public_name_is_in_the_reference_once():
    members, entries = asked_for("members"), asked_for("entries")
    modules = {name for name in fa.__all__ if isinstance(getattr(fa, name), ModuleType)}
    assert sorted(members) == sorted(modules), "give a page of docs/reference a line {{ members NAME }}"
    through_modules = {name for module in members for name in vars(getattr(fa, module))}
    assert len(entries) == len(set(entries))
    missing = set(fa.__all__) - modules - {"__version__"} - set(entries) - through_modules
    assert not missing, "give a page of docs/reference a line {{ entries NAME }}"
    assert set(entries) <= set(fa.__all__)
    assert all(hasattr(vocabulary, name) for name in asked_for("records"))


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    pages |= {f"tutorials/{notebook.stem}.md" for notebook in (ROOT / "notebooks").glob("*.ipynb")}
    elsewhere = set(re.findall(r'": "(.*?\.md)"', (DOCS / "_hooks" / "outside.py").read_text()))
    assert elsewhere >= {"index.md", "project/changelog.md"}
    assert named == pages | elsewhere, "what differs has to be in, or out of, `nav` of mkdocs.yml"
