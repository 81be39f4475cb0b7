"""Tables of text, and the forms in which people want them."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

_GROUPED = re.compile(r"\d{1,3}(,\d{3})+")  # a number with commas between its thousands
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

    def text(self, width: int | None = None) -> str:
        """Columns side by side; those beyond `width` characters follow below, each time with the labels.

        >>> print(Table(("algorithm", "loss", "floats"), (("FedAvg", "1.65", "1.00 x"),)).text(width=18))
        algorithm  loss
        FedAvg     1.65
        <BLANKLINE>
        algorithm  floats
        FedAvg     1.00 x
        """
        lines = (self.header, *self.rows)
        widths = [max(len(line[j]) for line in lines) for j in range(len(self.header))]
        blocks, used = [[0]], widths[0]
        for j, needed in enumerate(widths[1:], start=1):
            if width is not None and used + 2 + needed > width and len(blocks[-1]) > 1:
                blocks.append([0])
                used = widths[0]
            blocks[-1].append(j)
            used += 2 + needed
        return "\n\n".join("\n".join(_line(line, block, widths) for line in lines) for block in blocks)

    def csv(self) -> str:
        """Comma-separated values; numbers without commas of their own.

        >>> Table(("algorithm", "gradients"), (("FedAvg", "1,250,000"),)).csv().splitlines()[1]
        'FedAvg,1250000'
        """
        text = io.StringIO()
        rows = ([cell.replace(",", "") if _GROUPED.fullmatch(cell) else cell for cell in row] for row in self.rows)
        csv.writer(text, lineterminator="\n").writerows((self.header, *rows))
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


def _line(cells: Sequence[str], columns: Sequence[int], widths: Sequence[int]) -> str:
    label, *others = columns
    return "  ".join([cells[label].ljust(widths[label]), *(cells[j].rjust(widths[j]) for j in others)]).rstrip()
