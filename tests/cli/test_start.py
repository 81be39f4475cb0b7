"""The command before and around its work: while it imports, and where it prints."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import fedjax_admm as fa
from fedjax_admm import cli

ROOT = Path(__file__).parents[2]


def python(script, *folders):
    paths = os.pathsep.join([*map(str, folders), str(ROOT)])
    command = [sys.executable, "-c", script]
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=300, check=False
    )


def test_ctrl_c_while_python_imports_leaves_no_trace(tmp_path):
    (tmp_path / "jax.py").write_text("raise KeyboardInterrupt")  # as if it was pressed during this import
    done = python("import sys; from fedjax_admm.cli import main; sys.exit(main(['--version']))", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "fedjax-admm: stopped\n")


def test_names_are_imported_when_they_are_asked_for():
    script = """
import sys, fedjax_admm as fa
assert "jax" not in sys.modules and "numpy" not in sys.modules
assert set(fa.__all__) <= set(dir(fa)) and "simulate" in fa.__all__
fa.loggers, fa.plots, fa.algorithms  # modules, which no other import has brought
from fedjax_admm import *
assert simulate is fa.simulate and callable(record)
assert all(getattr(fa, name) is globals()[name] for name in fa.__all__)
try:
    fa.simulator
except AttributeError as error:
    assert "simulator" in str(error)
else:
    assert False
"""
    done = python(script)
    assert done.returncode == 0, done.stderr


def test_a_locale_without_a_character_is_no_failure(tmp_path, monkeypatch):
    example = fa.examples.linear_regression(num_clients=4, rows_per_client=6, dimension=3, rounds=1)
    place = tmp_path / "r\N{LATIN SMALL LETTER U WITH DIAERESIS}n"
    settings = example.run_settings | {"run_dir": place, "progress": False, "label": "\N{GREEK SMALL LETTER BETA}"}
    fa.simulate(example.problem, example.algorithm("fedavg"), **settings)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    for words in (["report", str(place)], ["resume", str(place), "--no-progress"]):
        assert cli.main(words) == 0
    sys.stdout.flush()
    assert b"r\\xfcn" in sys.stdout.buffer.getvalue() and b"\\u03b2" in sys.stdout.buffer.getvalue()


def test_ctrl_c_in_the_middle_of_an_import_is_not_the_imports_failure(tmp_path):
    """An extension that is interrupted while it loads raises an ImportError of its own."""
    lines = ["import os, signal", "try:", "    os.kill(os.getpid(), signal.SIGINT)", "except BaseException:"]
    (tmp_path / "jax.py").write_text("\n".join([*lines, "    raise ImportError('extension')"]))
    done = python("import sys; from fedjax_admm.cli import main; sys.exit(main(['--version']))", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "fedjax-admm: stopped\n")
