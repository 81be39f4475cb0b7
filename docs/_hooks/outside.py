"""What pages link to outside of `docs`: pictures and a few documents come into the site, of code the path is shown."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "results/benchmarks.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the documents of the repository's top, and the measured pictures."""
    for name, place in DOCUMENTS.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    for picture in sorted(ROOT.glob("benchmarks/results/*.png")):
        files.append(File.generated(config, f"assets/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """The page's text, whose links lead to places of the site."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]  # there is nothing beside it
    came_from = {place: name for name, place in DOCUMENTS.items()}
    source = came_from.get(uri) or f"docs/{uri}"
    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(lambda link: _lead(link, source, uri), part) for part in parts[::2]]
    return "".join(parts)


def _lead(link: re.Match[str], source: str, uri: str) -> str:
    """The link as it is to be on the page `uri`, whose text is the repository's file `source`."""
    mark, text, target, heading = link.groups()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in DOCUMENTS:
        place = DOCUMENTS[path]
    elif path.startswith("docs/"):
        place = path.removeprefix("docs/")
    elif path.startswith("notebooks/"):
        place = f"tutorials/{posixpath.basename(path).removesuffix('.ipynb')}.md"
    elif mark and path.startswith("benchmarks/results/"):
        place = f"assets/{posixpath.basename(path)}"
    else:  # of the repository's files that are no page
        return text if path in text or posixpath.basename(path) in text else f"{text} (`{path}`)"
    return f"{mark}[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{heading or ''})"
