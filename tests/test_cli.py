"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import importlib.util

import pytest

from fedjax_admm.cli import main


def test_list(tmp_path, capsys):
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == ["mnist_mini"]


def test_prepare_of_an_unknown_set_suggests(tmp_path, capsys):
    assert main(["data", "prepare", "mnsit", "--data-dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "mnsit" in error and "mnist" in error


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_prepare_without_tensorflow_says_how_to_get_it(tmp_path, capsys):
    assert main(["data", "prepare", "mnist", "--data-dir", str(tmp_path)]) == 2
    assert "fedjax_admm[tfds-download]" in capsys.readouterr().err


def test_usage_is_bad_input():
    with pytest.raises(SystemExit) as stopped:
        main(["dta"])
    assert stopped.value.code == 2
