"""Tables of text, and the forms in which people want them."""

from __future__ import annotations

import csv
import html
import io
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "^": r"\^{}",
    "&": r"\&",
    "%": r"\%",
    "_": r"\_",
    "#": r"\#",
    "$": r"\$",
    "±": r"$\pm$",
    "~": r"\~{}",
}


@dataclass(frozen=True, repr=False)
class Table:
    """A header and rows of cells, all text; the first column is a label.

    >>> print(Table(("algorithm", "loss"), (("FedAvg", "1.65"), ("FedADMM-In", "1.6"))))
    algorithm   loss
    FedAvg      1.65
    FedADMM-In   1.6
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Columns side by side."""
        lines = (self.header, *self.rows)
        widths = [max(len(line[j]) for line in lines) for j in range(len(self.header))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if j == 0 else cell.rjust(width)
                for j, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def csv(self) -> str:
        """Comma-separated values."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows((self.header, *self.rows))
        return text.getvalue()

    def markdown(self) -> str:
        """A Markdown table."""
        rule = ("---", *("---:" for _ in self.header[1:]))
        lines = (self.header, rule, *self.rows)
        escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped)

    def latex(self) -> str:
        r"""A LaTeX tabular for the package booktabs."""
        head, *body = (
            " & ".join("".join(_LATEX.get(letter, letter) for letter in cell) for cell in line) + r" \\"
            for line in (self.header, *self.rows)
        )
        begin = rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}"
        return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
