"""Flags from functions: their help is what the docstrings say, and an argument of which they say nothing is refused."""

from __future__ import annotations

import dataclasses

import pytest

import fedjax_admm as fa
from fedjax_admm.cli import demo, main
from fedjax_admm.cli.flags import Flags


def fit(*, seed: int = 0, rate: float = 0.1):
    """Fits.

    rate: this is not in the section of arguments.

    Args:
        seed: Where the draws
            begin.
    """


def refit(*, rate: float = 0.1, seed: int = 1):
    """Fits again.

    Args:
        rate: How fast.
        seed: Another text.
    """


@dataclasses.dataclass
class Fit:
    """A fit.

    Attributes:
        seed: Where the draws begin.
    """

    seed: int = 0


def helps(flags):
    return {parameter.name: parameter.annotation.__metadata__[0].help for parameter in flags.parameters()}


def test_the_demo_shows_every_method_and_writes_a_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "ROUNDS", 2)
    monkeypatch.setattr(demo, "CLIENTS", 4)
    opened = []
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    assert main(["demo", "--out", str(tmp_path / "demo"), "--no-progress"]) == 0 and not opened
    out, report = capsys.readouterr().out, tmp_path / "demo" / "report.html"
    lines = out.splitlines()
    for name in demo.METHODS:
        assert sum(line.startswith(name.replace("_", "-") + "  ") for line in lines) == 1
    assert f"report with pictures: {report}" in lines and report.read_text().startswith("<!doctype html>")
    run = fa.read_run(tmp_path / "demo" / "fedavg" / "seed-0")
    (row,) = [line.split() for line in lines if line.startswith("fedavg  ")]
    assert row[2] == f"{run.history['excess_loss'][-1]:.3f}" and row[3] == f"{run.epochs.sum():,}"
    assert main(["demo", "--out", str(tmp_path / "demo"), "--no-progress", "--open"]) == 0
    assert opened == [report.as_uri()]


def test_messages_speak_of_flags_and_flags_without_effect_are_refused(capsys):
    for text, told in {
        "run linear --clients 0": "--clients must be at least",
        "run linear --rounds 0": "--rounds must be at least 1, got 0",
        "run linear --seed -1": "--seed must be at least 0",
        "run linear --algorithm fedavgg": "--algorithm must be ",
        "run linear --algorithm fedavg --penalty 5": "--penalty has no effect on fedavg",
        "compare linear --seeds 1,1": "--seeds must be different",
    }.items():
        assert main(text.split()) == 2, text
        said = capsys.readouterr().err
        assert told in said and "num_clients" not in said and said.count("\n") == 1, said


def test_explain_says_what_each_column_and_figure_is(tmp_path, capsys):
    small = "--clients 4 --rows-per-client 6 --dimension 3 --rounds 2 --no-progress"
    for command, names in {
        f"compare linear {small} --algorithms fedavg,fedadmm-insa": ["loss, last 2", "of criterion", "floats"],
        f"run linear {small}": ["excess loss", "of the criterion", "penalty, mean over clients"],
        f"tune linear {small} --grid penalty=0.1,1": ["place", "penalty", "gradients"],
    }.items():
        assert main([*command.split(), "--explain"]) == 0
        out = capsys.readouterr().out
        assert all(f"\n{name}: " in out for name in names)
        assert main(command.split()) == 0 and f"\n{names[-1]}: " not in capsys.readouterr().out


def test_names_in_a_grid_are_checked_before_anything_is_made(capsys):
    assert main("tune linear --algorithm fedadmm --grid pen=1,2".split()) == 2
    assert "--grid: a name must be one of 'learning-rate'" in (said := capsys.readouterr().err)
    assert "did you mean 'penalty'?" in said


def test_resume_with_more_rounds_makes_a_run_longer(tmp_path, capsys):
    small = "run linear --clients 4 --rows-per-client 6 --dimension 3 --no-progress --out"
    assert main([*small.split(), str(tmp_path / "run"), "--rounds", "2"]) == 0
    assert main(["resume", str(tmp_path / "run"), "--rounds", "4", "--no-progress"]) == 0
    assert main([*small.split(), str(tmp_path / "once"), "--rounds", "4"]) == 0
    longer, once = (fa.read_run(tmp_path / name) for name in ("run", "once"))
    assert longer.status == "finished" and longer.history["loss"].tolist() == once.history["loss"].tolist()
    assert main([*small.split(), str(tmp_path / "run"), "--rounds", "4"]) == 0
    assert "is already complete: 4 rounds" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "run"), "--rounds", "3"]) == 2
    assert "rounds: 4 there, 3 now" in capsys.readouterr().err


def test_a_comparison_and_a_tuning_are_made_longer_by_either_command(tmp_path, capsys):
    small = "linear --clients 4 --rows-per-client 6 --dimension 3 --no-progress --out"
    compare = f"compare {small} {tmp_path}/c --algorithms fedavg,fedadmm".split()
    tune = f"tune {small} {tmp_path}/t --algorithm fedadmm --grid penalty=0.1,1".split()
    for command, name, read in ((compare, "c", fa.read_comparison), (tune, "t", fa.read_tuning)):
        assert main([*command, "--rounds", "2"]) == 0
        assert main([*command, "--rounds", "4"]) == 0
        assert main(["resume", str(tmp_path / name), "--rounds", "6", "--no-progress"]) == 0
        runs = read(tmp_path / name).runs
        assert len(runs) == 2 and all(len(run.cohorts) == 6 for seeds in runs.values() for run in seeds.values())
    capsys.readouterr()
    assert main([*compare, "--rounds", "8", "--algorithms", "fedavg"]) == 2
    assert "can only be made longer as a whole" in capsys.readouterr().err


def test_an_argument_without_help_is_refused():
    with pytest.raises(ValueError, match=r'fit has no help for rate: add it to "Args:"'):
        Flags([fit], "Fit")


def test_an_argument_that_is_no_flag_needs_no_help():
    assert helps(Flags([fit], "Fit", renamed={"rate": None})) == {"seed": "Where the draws begin."}


def test_the_first_function_that_documents_an_argument_gives_its_help():
    assert helps(Flags([fit, refit], "Fit")) == {"seed": "Where the draws begin.", "rate": "How fast."}


def test_a_record_documents_its_fields():
    assert helps(Flags([Fit], "Fit")) == {"seed": "Where the draws begin."}
