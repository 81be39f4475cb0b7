"""For the reference: what its reader of source code cannot know of the package's docstrings.

`fa.record` makes dataclasses; a comment behind a field is the field's documentation; examples outside of a section are
examples; and formulas, which docstrings have as plain text to be read in a terminal, become TeX.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

GREEK = ["alpha", "beta", "gamma", "delta", "epsilon", "eta", "lambda", "mu", "rho", "sigma", "tau", "theta"]
GREEK_NAME = "|".join(GREEK)
# One symbol of a sentence: beta_i, u_i+, lambda_i^k, z^{k+1}.
SYMBOL = re.compile(
    rf"(?<![\w`$\"'.\[])(?:(?:{GREEK_NAME}|[A-Za-z])_[ijg](?:\^\{{[^}}]*\}}|\^\w|\+(?![\w(]))?"
    rf"|(?:{GREEK_NAME}|[a-zA-Z])\^(?:\{{[^}}]*\}}|\w))(?![\w`])"
)
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
FORMULA = re.compile(r"(?<=\n\n)(?: {4}.*(?:\n|$))+")


class Docstrings(griffe.Extension):
    """Makes dataclasses of records, documentation of comments, and TeX of formulas."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewrite(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        made = [decorator for decorator in cls.decorators if str(decorator.value) in ("record", "fa.record")]
        if made:
            name = griffe.ExprName("dataclasses.dataclass")
            cls.decorators.append(griffe.Decorator(name, lineno=None, endlineno=None))
        if made or any(str(base) == "NamedTuple" for base in cls.bases):
            _document_fields(cls)


def _document_fields(cls: griffe.Class) -> None:
    """Comments behind fields as the section Attributes, unless the class has one; defaults without `static(...)`."""
    lines = []
    for field in [member for member in cls.members.values() if isinstance(member, griffe.Attribute)]:
        if "property" in field.labels or not field.lineno:
            continue
        _, mark, comment = field.lines_collection[field.filepath][field.lineno - 1].partition("  # ")
        lines += [f"    {field.name}: {_tell_symbols(comment)}"] if mark else []
        if isinstance(field.value, griffe.ExprCall) and str(field.value.function) in ("static", "note"):
            keywords = {each.name: each.value for each in field.value.arguments if isinstance(each, griffe.ExprKeyword)}
            field.value = keywords.get("default")
    doc = cls.docstring
    if lines and doc is not None and not re.search(r"^(Attributes|Args):$", doc.value, re.MULTILINE):
        doc.value = doc.value.rstrip() + "\n\nAttributes:\n" + "\n".join(lines) + "\n"


def rewrite(doc: str) -> str:
    """A docstring as Markdown with TeX."""
    doc = EXAMPLE.sub(lambda example: f"```pycon\n{example[0]}\n```", doc)
    first = re.search(r"^(Args|Attributes|Returns|Yields|Raises):$", doc, re.MULTILINE)
    end = first.start() if first else len(doc)  # the lines of sections are indented too
    return _tell_symbols(FORMULA.sub(lambda block: _tell_formula(block[0]), doc[:end]) + doc[end:])


def _tell_symbols(text: str) -> str:
    """Symbols in sentences as TeX, and no bracket that a browser takes for a tag; code stays."""
    parts = re.split(r"(```.*?```|`[^`]*`|\$\$.*?\$\$)", text, flags=re.DOTALL)
    parts[::2] = [
        SYMBOL.sub(lambda symbol: f"${to_tex(symbol[0])}$", re.sub(r"<(?=\w)", "&lt;", part)) for part in parts[::2]
    ]
    return "".join(parts)


def _tell_formula(block: str) -> str:
    """Indented lines as one displayed formula; what is behind a wide gap is said in words. Other lines stay."""
    lines = [line.strip() for line in block.rstrip().splitlines()]
    if not all(" = " in line or line.startswith("min_") for line in lines) or re.search(r"[\"#]", block):
        return block
    rows = []
    for line in lines:
        formula, *words = re.split(r" {3,}", re.sub(r" +=", " =", line))
        rows.append(to_tex(formula) + "".join(rf"\quad \text{{{word}}}" for word in words))
    return "$$\n" + r" \\ ".join(rows).join([r"\begin{array}{l} ", r" \end{array}"]) + "\n$$\n"


def to_tex(formula: str) -> str:
    r"""A formula as it is typed in docstrings, as TeX.

    >>> print(to_tex("z_hat = sum_i alpha_i (beta_i u_i+ - lambda_i+)"))
    \hat{z} = \sum_{i} \alpha_{i} (\beta_{i} u_{i}^{+} - \lambda_{i}^{+})
    """
    tex = re.sub(r"<([^<>]*,[^<>]*)>", r"\\langle \1 \\rangle ", formula)
    tex = re.sub(r"\b([A-Za-z]+)_hat\b", r"\\hat{\1}", tex)
    tex = re.sub(r"(?<=\w)\+(?=[\s),.;/|]|$)", "^{+}", tex)
    tex = re.sub(
        r"_(\w+)", lambda index: "_{" + (index[1] if len(index[1]) < 3 else rf"\text{{{index[1]}}}") + "}", tex
    )
    tex = tex.replace("||", r"\|").replace(" * ", r" \cdot ").replace("->", r"\to ").replace(">=", r"\ge ")
    tex = re.sub(rf"(?<![\\\w])({GREEK_NAME}|sum|min|max|sqrt)(?![A-Za-z])", r"\\\1", tex).replace(
        "argmin", r"\operatorname{argmin}"
    )
    return re.sub(r"(?<![\\{\w])([A-Za-z]{3,})(?![\w}])", r"\\text{\1}", tex)
