"""Stop reasons: their numbers in files, and that whatever is known of one is known from its entry."""

from __future__ import annotations

import ast
import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import fedjax_admm as fa
from fedjax_admm.core.vocabulary import Solves, StopReason
from fedjax_admm.results.remarks import note
from fedjax_admm.show import report

NUMBERS = {"criterion": 0, "maximum": 1, "floor": 2, "failed": 3, "dropped": 4, "quarantined": 5, "late": 6,
           "corrupted": 7, "rejected": 8, "nobody": 9}  # fmt: skip
every_reason = pytest.mark.parametrize("reason", StopReason)


def run_of(*reasons: StopReason) -> fa.RunRecord:
    """A run of one round whose solves ended for these reasons."""
    zeros = dict.fromkeys(Solves.__dataclass_fields__, np.zeros((1, len(reasons))))
    solves = Solves(**zeros | {"stop_code": np.array([[reason.code for reason in reasons]], np.int8)})
    history = fa.History([{"round": k, "loss": 1.0} for k in range(2)])
    return fa.RunRecord(history, np.arange(len(reasons))[None], solves, num_clients=len(reasons))


def test_files_keep_the_numbers_of_the_reasons():
    assert {str(reason): reason.code for reason in StopReason} == NUMBERS


@every_reason
def test_a_reason_is_its_word(reason):
    assert StopReason(str(reason)) is reason is pickle.loads(pickle.dumps(reason)) is copy.deepcopy(reason)
    assert run_of(reason).solves.stop_reason.tolist() == [[str(reason)]]


def test_reasons_are_counted_together_and_apart():
    solves = run_of(StopReason.LATE, StopReason.FAILED, StopReason.LATE, StopReason.DROPPED).solves
    assert solves.count(StopReason.LATE) == 2 and solves.count(StopReason.LATE, StopReason.DROPPED) == 3
    assert solves.took_place.tolist() == [[True, True, True, False]]


@every_reason
def test_a_run_that_used_nothing_is_told_the_remedy(reason):
    """Used are solves that ended by their own rules, and corrupted ones, which nothing kept out."""
    used = reason in ("criterion", "maximum", "floor", "corrupted")
    said = note(run_of(reason, reason))
    assert (said is None) == used
    assert used or (said is not None and said.endswith(reason.fate.remedy) and f"2 {reason}" in said)


@every_reason
def test_a_reason_has_a_colour_that_the_page_knows(reason):
    style = report.style()
    (fill,) = re.findall(rf"^\.{reason} {{ background: (.*); }}$", style, re.MULTILINE)
    (colour,) = re.findall(r"var\((--\w+)\)", fill)
    assert len(re.findall(rf"{colour}: #", style)) == 2, "in light and in dark"


def test_no_other_table_of_reasons():
    """Three of them in one literal are a table, which would have to follow this one."""
    package, tables = Path(fa.__file__).parent, []
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
            named = [part for part in parts if part is not None and ast.unparse(part).startswith("StopReason.")]
            if len(named) > 2:
                tables.append(f"{path.relative_to(package)}:{node.lineno}")
    styles = (package / "show" / "report" / "page.css").read_text()
    assert tables == [] and not re.search(rf"\.({'|'.join(StopReason)})\b", styles)
