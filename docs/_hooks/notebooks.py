"""The notebooks as pages, with the outputs that are stored in them; nothing is executed."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from traitlets.config import Config

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
FOLDER = PurePosixPath("tutorials")


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for every notebook, and its pictures."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, pictures = _convert(path)
        files.append(File.generated(config, str(FOLDER / f"{path.stem}.md"), content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, str(FOLDER / name), content=content))
    return files


def _convert(path: Path) -> tuple[str, dict[str, bytes]]:
    """Its Markdown, and file name -> picture."""
    notebook = nbformat.read(path, as_version=4)
    names = f"{path.stem}_{{cell_index}}_{{index}}{{extension}}"
    settings = Config({"ExtractOutputPreprocessor": {"output_filename_template": names}})
    text, resources = MarkdownExporter(config=settings).from_notebook_node(notebook)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # pandas', where the site has its own
    text = re.sub(r"<div>\s*<table.*?</table>", lambda table: re.sub(r"\n\s*", "", table[0]), text, flags=re.DOTALL)
    text = re.sub(r"!\[png\]", "![picture]", text)
    note = f"*This page is the notebook `notebooks/{path.name}` with the outputs stored in it.*"
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{note}\n\n{rest}", dict(resources["outputs"])
