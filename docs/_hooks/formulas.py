"""Formulas as MathML, which browsers draw without any script: TeX between dollars, in pages and in docstrings."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """The page's HTML, with each formula that arithmatex has marked as MathML."""
    return FORMULA.sub(_draw, content)


def _draw(formula: re.Match[str]) -> str:
    display = "block" if formula[1] == "div" else "inline"
    return f'<{formula[1]} class="formula">{convert(html.unescape(formula[2]), display=display)}</{formula[1]}>'
