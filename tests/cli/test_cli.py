"""The command line: what it prints, its exit codes, and that every example in its help and in the documents runs."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedjax_admm as fa
from fedjax_admm.cli.commands import main
from fedjax_admm.cli.examples import EXAMPLES
from fedjax_admm.runs import progress

ROOT = Path(__file__).parents[2]
SMALL = "--clients 4 --rows-per-client 6 --dimension 3 --batch-size 2 --rounds 3 --max-epochs 2 --no-progress"


def call(text, capsys):
    """(exit code, stdout, stderr) of a command line without its first word."""
    code = main(shlex.split(text))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_list(tmp_path, capsys):
    assert call(f"data list --data-dir {tmp_path}", capsys) == (0, "mnist_mini\n", "")


def test_prepare_of_an_unknown_set_suggests(tmp_path, capsys):
    code, _, error = call(f"data prepare mnsit --data-dir {tmp_path}", capsys)
    assert code == 2 and error.count("\n") == 1 and "mnsit" in error and "mnist" in error


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_prepare_without_tensorflow_says_how_to_get_it(tmp_path, capsys):
    code, _, error = call(f"data prepare mnist --data-dir {tmp_path}", capsys)
    assert code == 2 and "fedjax_admm[tfds-download]" in error


BAD = {
    f"compare linear {SMALL} --target 1.5": "--target must be COLUMN=VALUE, such as loss=1.5",
    f"compare linear {SMALL} --target accuracy=0.9": "target must be 'loss' or 'excess_loss', got 'accuracy'",
    "": "",  # help
    "rnu linear": "Did you mean 'run'",
    "dta": "Did you mean 'data'",
    "run": "",
    "run lienar": "Did you mean 'linear'",
    "run linear --penlty 3": "--penalty",
    "run linear --rouns 3": "--rounds",
    "run linear --rounds": "--rounds",
    "run linear --rounds x": "'x' is not a whole number",
    "run linear --rounds 0": "rounds must be at least 1, got 0",
    "run linear --rounds 2.5": "'2.5' is not a whole number",
    "run linear --clients 0": "--clients must be at least 1, got 0",
    "run linear --clients many": "'many' is not a whole number",
    "run linear --dimension -3": "dimension must be at least 1, got -3",
    "run linear --seed -1": "seed must be at least 0, got -1",
    "run linear --penalty 0": "penalty must be above 0, got 0",
    "run linear --penalty much": "penalty must be a number, or one per client, got 'much'",
    "run linear --penalty nan": "penalty must be finite",
    "run linear --algorithm fedadm": "did you mean 'fedadmm'",
    "run linear --algorithm fedavg --mu 3": "mu is not an argument of fedavg",
    "run linear --mu 0.5": "mu must be above 1, got 0.5",
    "run linear --tau big": "'big' is not a number",
    "run linear --reference clinet": "did you mean 'client'",
    "run linear --residual exakt": "did you mean 'exact'",
    "run linear --unselected-penalty never": "--unselected-penalty must be 'current' or 'sent', got 'never'",
    "run linear --sigma-factor 2": "--sigma-factor must be below 1, got 2",
    "run linear --learning-rate -1": "--learning-rate must be above 0, got -1",
    "run linear --batch-size 0": "--batch-size must be at least 1, got 0",
    "run linear --max-epochs 0": "--max-epochs must be at least 1, got 0",
    "run linear --participation 2.5": "participation as a fraction must be at most 1, got 2.5",
    "run linear --participation 0": "participation as a number of clients must be 1 to 200, got 0",
    "run linear --evaluate-every 0": "--evaluate-every must be at least 1, got 0",
    "run linear --dropout 1.5": "dropout must be at most 1, got 1.5",
    "run linear --corruption noise": "corrupted which of them: give both",
    "run linear --corruption nois --corrupted 3": "did you mean 'noise'",
    "run linear --clip-norm 0": "--clip-norm must be above 0, got 0",
    "run linear --deadline 3": "--deadline needs --gradients-per-second",
    "run linear --penalty 1,2": "penalty has 2 entries for 200 clients",
    "run linear --out /dev/null/x": "--out '/dev/null/x': /dev/null is a file: give a directory",
    "compare linear --penalties 1,none": "penalty must be a number, got None",
    "compare linear --penalties 1,2,1.0": "--penalties must be different numbers, got 1, 2, 1.0",
    "run linear --algorithm fedsgd": "'fedadmm-insa'",
    "run linear --seed 2147483648": "seed must be below 2147483648, got 2147483648",
    "run linear --gradients-per-second 100 --deadline x": "deadline must be a number, got 'x'",
    "compare linear --quarantine-after 0": "--quarantine-after must be at least 1, got 0",
    "run linear --checkpoint-seconds -1": "--checkpoint-seconds must be at least 0, got -1",
    "run linear --lanes 0": "lanes must be at least 1, got 0",
    "run linear --lanes few": "lanes must be a whole number or 'auto', got 'few'",
    "run linear --population cloud": "population must be",
    "run linear extra": "unexpected extra argument",
    "run mnist-mini --labels-per-client 0": "--labels-per-client",
    "run mnist-mini --partition-seed -1": "--partition-seed must be at least 0, got -1",
    "run mnist --data-dir /nowhere": "/nowhere",
    "run text --data-dir /nowhere": "data set 'tiny_shakespeare' not found in /nowhere",
    "run text --source no/such.txt": "there is no file no/such.txt",
    "run text-mini --model lstm": "model must be 'gru' or 'transformer', got 'lstm'",
    "run text-mini --clients 29": "--clients 29 is more than the 28 speakers",
    "run text-mini --fraction 1": "fraction must be below 1, got 1",
    "compare linear --algorithms fedavg,fedadm": "did you mean 'fedadmm'",
    "compare linear --algorithms ,": "at least one",
    "compare linear --criteria ,": "at least one",
    "compare linear --criteria fixed,exakt": "got 'exakt': did you mean 'exact'?",
    "compare linear --algorithms fedavg --criteria exact": "takes its sigma from the penalty, and fedavg has none",
    "run linear --criterion 'sampling_noise(-1)'": "factor must be above 0, got -1",
    "run linear --criterion 'relative_residual(0.5)'": "it takes c, sigma, reference",
    "run linear --criterion 'fixed(3)'": "criterion must be a word, or NAME(NUMBER, ...), got 'fixed(3)'",
    "run linear --criterion verified --residual exact": "criterion 'verified' is instead of residual",
    "compare linear --penalties a": "penalty must be a number",
    "compare linear --penalties 0.1,-1": "penalty must be above 0, got -1",
    "compare linear --algorithms fedavg --mu 3": "--mu is not an option of any of fedavg",
    f"compare linear --seeds 1,1 {SMALL}": "seeds must be different numbers",
    f"compare linear --seeds x {SMALL}": "seeds must be a whole number, got 'x'",
    "resume": "Missing argument 'DIR'",
    "resume nowhere": "no run in 'nowhere'",
    "report nowhere": "no run in 'nowhere'",
    "data prepare": "Missing argument 'NAME'",
    "--verison": "--version",
    "--distributed 10.0.0.1:1234,2,2 run linear": "--distributed must be auto or HOST:PORT,PROCESSES,THIS (from 0)",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_command_lines_get_one_line(text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, error = call(text, capsys)
    if BAD[text]:
        assert BAD[text] in error and error.count("\n") == 1 and error.startswith("fedjax-admm: ")
    else:
        assert "Usage" in out + error
        assert "fedjax-admm: \n" not in error
    assert code == 2
    assert not list(tmp_path.iterdir())


def test_only_flags_that_are_near_are_suggested(capsys):
    error = call("run linear --round 3", capsys)[2]
    assert "--rounds" in error and "--dropout" not in error and "--out" not in error
    assert call("run linear --qqq 3", capsys)[2] == "fedjax-admm: No such option: --qqq\n"


def test_run_and_resume_and_report(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, first = call(
        f"run linear {SMALL} --algorithm fedadmm-in --penalty 0.5 --c 0.1 --seed 4 --out run", capsys
    )
    assert code == 0 and "local epochs saved" in out
    stored = fa.read_run("run")
    assert stored.settings["seed"] == 4 and stored.settings["algorithm"]["criterion"]["c"] == 0.1
    example = fa.examples.linear_regression(
        num_clients=4, rows_per_client=6, dimension=3, batch_size=2, rounds=3, max_epochs=2
    )
    same = fa.simulate(
        example.problem, example.algorithm("fedadmm_in", 0.5, c=0.1), seed=4, progress=False, **example.run_settings
    )
    assert stored.history["loss"].tolist() == same.history["loss"].tolist()
    again = call("resume run", capsys)
    assert again[0] == 0 and again[1].partition("memory")[0] == out.partition("memory")[0]
    assert out.startswith("fedadmm-in on linear regression\n")
    assert "run is already complete: 3 rounds\n" in again[2] and "complete" not in first
    code, _, error = call(f"run linear {SMALL} --penalty 2 --out run", capsys)
    assert code == 2 and "algorithm.penalty: 0.5 there, 2.0 now" in error
    code, out, _ = call("report run", capsys)
    assert code == 0 and Path(out.strip()).read_text().startswith("<!doctype html>")
    assert "<p>fedadmm-in on linear regression: 3 rounds done" in Path(out.strip()).read_text()


def test_faults_and_client_time_as_flags(tmp_path, capsys):
    flags = "--dropout 0.3 --corruption constant --corrupted 1,2 --strength 1e38 --clip-norm 5 --quarantine-after 1"
    time = "--gradients-per-second 10,20,30,40 --floats-per-second 100 --deadline 2"
    code, out, _ = call(f"run linear {SMALL} --participation 4 {flags} {time} --out {tmp_path / 'run'}", capsys)
    assert code == 0 and "rejected solves" in out and "simulated seconds" in out
    ends = {name: int(number) for name, number in re.findall(r"^(.*solves.*?)  +(\d+)$", out, re.MULTILINE)}
    assert len(ends) == 9 and sum(ends.values()) == 3 * 4  # each solve of each round ended in one way
    there = fa.read_run(tmp_path / "run").settings
    assert there["faults"]["dropout"] == 0.3 and there["faults"]["strength"] == 1e38
    assert there["faults"]["corrupted"]["array"] == [1, 2] and there["client_time"]["deadline"] == 2.0
    assert call(f"resume {tmp_path / 'run'}", capsys)[1].partition("memory")[0] == out.partition("memory")[0]


def test_a_run_that_used_nothing_says_so_with_the_remedy(tmp_path, capsys):
    time = "--participation 4 --gradients-per-second 12 --floats-per-second 6"
    flags = f"run linear {SMALL} --algorithm fedavg {time}"
    code, out, _ = call(f"{flags} --deadline 0.5 --out {tmp_path / 'run'}", capsys)
    # Two epochs of six rows take a second, and three floats there and three back another.
    said = "no client's solve was ever used (12 late), so nothing was learned: raise the deadline"
    assert code == 0 and f"{said} (the shortest solve took 2 simulated s)\n" in out
    assert f"{said} (the shortest solve took 2 simulated s)\n" in call(f"resume {tmp_path / 'run'}", capsys)[1]
    call(f"report {tmp_path / 'run'}", capsys)
    page = (tmp_path / "run" / "report.html").read_text().replace("&#x27;", "'")
    assert f"<li>{said} (the shortest solve took 2 simulated s)</li>" in page
    assert "ever used" not in call(f"{flags} --deadline 2.01", capsys)[1]
    assert "lower dropout" in call(f"run linear {SMALL} --dropout 1", capsys)[1]
    compared = call(f"compare linear {SMALL} --algorithms fedavg {time} --deadline 0.5", capsys)[1]
    assert f"fedavg, seed 0: {said}\n" in compared


def test_what_takes_long_to_make_is_said(capsys, monkeypatch):
    assert "making" not in call(f"run linear {SMALL} --progress", capsys)[2]
    monkeypatch.setattr(progress, "SECONDS_IN_SILENCE", 0)
    error = call(f"run linear {SMALL} --progress", capsys)[2]
    assert error.startswith("making the problem: linear regression of 4 clients\ncompiling, then round 1 of 3\n")
    assert "making" not in call(f"run linear {SMALL}", capsys)[2]


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"problem": 1}'])
@pytest.mark.parametrize("name", ["settings.json", "comparison.json"])
def test_damaged_files_get_one_line(tmp_path, capsys, content, name):
    (tmp_path / name).write_text(content)
    for text in (f"resume {tmp_path}", f"report {tmp_path}"):
        code, _, error = call(text, capsys)
        assert code == 2 and error.count("\n") == 1 and f"{name} is damaged" in error


def test_a_report_goes_where_it_can(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(f"run linear {SMALL} --out run", capsys)[0] == 0
    for output in ("missing/report.html", "run"):
        code, _, error = call(f"report run --output {output}", capsys)
        assert code == 2 and "output must be a file in a folder that is there" in error


def test_a_run_that_diverges_says_in_which_round(tmp_path, capsys):
    code, _, error = call(f"run linear {SMALL} --learning-rate 1e30 --out {tmp_path / 'run'}", capsys)
    assert code == 1 and error.count("\n") == 1 and "round 1" in error and f"{tmp_path / 'run'} has what was" in error
    code, _, error = call(f"run linear {SMALL} --learning-rate 1e30", capsys)
    assert code == 1 and error.count("\n") == 1 and "round 1" in error and "resumed" not in error


def test_compare_goes_on_and_grows(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"compare linear {SMALL} --algorithms fedavg,fedadmm --penalties 0.1,1 --out all"
    code, out, _ = call(f"{text} --seeds 0", capsys)
    assert code == 0 and out.splitlines()[0].startswith("algorithm")
    assert [line.split("  ")[0] for line in out.splitlines()[1:4]] == ["fedavg", "fedadmm 0.1", "fedadmm 1"]
    before = {path: path.stat().st_mtime_ns for path in Path("all").rglob("seed-0/history.csv")}
    assert call(f"{text} --seeds 0,1", capsys)[0] == 0
    assert len(before) == 3 and {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(Path("all").rglob("seed-1/history.csv"))) == 3
    for ending in ("txt", "csv", "md", "tex"):
        assert "fedadmm 0.1" in Path(f"all/table.{ending}").read_text()
    table = Path("all/table.txt").read_text()
    assert call("resume all --no-progress", capsys)[1].startswith(table.rstrip("\n"))
    assert call("report all", capsys)[0] == 0


def test_criteria_are_compared_and_kept(tmp_path, capsys, monkeypatch):
    """The same subproblems, stopped differently; a criterion in words is in the settings, and resumed."""
    monkeypatch.chdir(tmp_path)
    text = f"compare linear {SMALL} --max-epochs 9 --algorithms fedprox,fedadmm --out all"
    code, _, _ = call(f"{text} --criteria 'fixed,relative_residual(sigma=0.9),sampling_noise(2)'", capsys)
    rows = list(csv.DictReader(Path("all/table.csv").read_text().splitlines()))
    assert code == 0 and [row["algorithm"] for row in rows] == [
        f"{name} 1, {words}"
        for name in ("fedprox", "fedadmm")
        for words in ("fixed", "relative_residual(sigma=0.9)", "sampling_noise(2)")
    ]
    for fixed, relative, noise in (rows[:3], rows[3:]):
        assert float(relative["epochs"]) < float(fixed["epochs"]) and float(relative["criterion_gradients"]) > 0
        assert float(fixed["criterion_gradients"]) == float(noise["criterion_gradients"]) == 0
    assert call("resume all --no-progress", capsys)[2] == "all is already complete\n"


def test_what_is_added_to_a_comparison_joins_its_tables(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"compare linear {SMALL} --out 'my runs'"
    assert call(f"{text} --algorithms fedavg,fedadmm --seeds 0,1", capsys)[0] == 0
    code, out, _ = call(f"{text} --algorithms fedadmm-insa --seeds 0", capsys)
    rows = [line.split("  ")[0] for line in Path("my runs/table.txt").read_text().splitlines()]
    assert code == 0 and rows[:4] == ["algorithm", "fedavg", "fedadmm 1", "fedadmm-insa 1"]
    assert "fedadmm-insa 1, seed 1: not begun" in rows
    assert out.startswith(Path("my runs/table.txt").read_text())
    assert out.endswith("for pictures: fedjax-admm report 'my runs'\n")  # as a shell takes it


def test_a_comparison_without_a_sound_run_failed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = call(f"compare linear {SMALL} --algorithms fedavg --learning-rate 1e30 --out all", capsys)
    assert code == 1 and "every run diverged (fedavg, seed 0: round 1: " in error
    code, _, error = call("report all", capsys)
    assert code == 2 and "has no finished run: fedavg, seed 0: round 1" in error
    assert call(f"compare linear {SMALL} --algorithms fedavg --out mixed", capsys)[0] == 0  # what was there is sound
    code, out, error = call(f"compare linear {SMALL} --algorithms fedadmm --learning-rate 1e30 --out mixed", capsys)
    assert code == 1 and "every run diverged (fedadmm 1, seed 0: round 1" in error
    assert [line.split("  ")[0] for line in out.splitlines()[1:3]] == ["fedavg", "fedadmm 1"]


def test_a_target_is_kept_with_the_comparison(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"compare linear {SMALL} --algorithms fedavg,fedadmm --out all"
    code, out, _ = call(f"{text} --target loss=100", capsys)
    table = out.partition("until loss is 100:\n")[2].partition("\n\n")[0]
    assert code == 0 and table.splitlines()[1].split() == ["fedavg", "1", "of", "1", "0", "0", "0", "0", "0"]
    _, again, error = call("resume all --no-progress", capsys)
    assert error == "all is already complete\n"
    assert f"until loss is 100:\n{table}\n" in again
    assert f"until loss is 100:\n{table}\n" in Path("all/table.txt").read_text()
    # Others are added, and each is shown once.
    code, both, _ = call(f"{text} --target excess-loss=1e6 --target loss=0", capsys)
    assert both.count("until") == 3 and "until excess loss is 1e+06:" in both and "until loss is 0:" in both
    for ending in ("md", "tex"):
        assert "until loss is 100" in Path(f"all/table.{ending}").read_text()
    call("report all", capsys)
    page = Path("all/report.html").read_text()
    assert "Work until loss is 100" in page and '<th scope="col">reached</th>' in page and "1 of 1" in page


def test_a_wide_table_fits_a_terminal_and_is_a_line_a_row_elsewhere(tmp_path, capsys, monkeypatch):
    text = f"compare linear {SMALL} --algorithms fedavg,fedadmm --seeds 0,1"
    _, whole, _ = call(text, capsys)
    monkeypatch.setenv("COLUMNS", "80")
    assert call(text, capsys)[1] == whole and len(whole.splitlines()) == 3 and len(whole.splitlines()[0]) > 100
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    lines = call(text, capsys)[1].splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line for line in lines if line.startswith("algorithm")]
    assert len(heads) > 1 and "loss, difference" in " ".join(heads) and "floats" in heads[-1]
    assert [line.split()[0] for line in lines if line].count("fedadmm") == len(heads)


def test_an_interrupted_command_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "fedjax_admm", *shlex.split(f"run linear {SMALL} --rounds 100000 --out run")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=environment)
    history = tmp_path / "run" / "history.csv"
    while not history.exists() or history.read_bytes().count(b"\n") < 4:
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"stopped after round \d+; to go on: fedjax-admm resume run\n", said)
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "interrupted"


def help_of(*words):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main([*words, "--help"]) == 0
    return shown.getvalue()


def examples(text):
    """Command lines in a text, put together where they are broken."""
    lines = [re.sub(r"^[│\s]*|[│\s]*$", "", line) for line in text.splitlines()]
    found, current = [], None
    for line in lines:
        if line.startswith("fedjax-admm "):
            current = [line]
            found.append(current)
        elif line and current is not None:
            current.append(line)
        else:
            current = None
    return [" ".join(parts).replace("\\ ", "") for parts in found]


def test_every_example_in_the_help_and_in_the_documents_runs(tmp_path, monkeypatch, capsys):
    """As written, but for the rounds of the documents', for what needs the network, and for the paper's full sizes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    texts = [
        help_of(*words) for words in ((), ("run",), ("compare",), ("tune",), ("resume",), ("report",), ("data", "list"))
    ]
    in_help = [command for text in texts for command in examples(text)]
    documents = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
    texts = [document.read_text().replace("\\\n", " ") for document in documents]
    lines = [line for text in texts for line in re.findall(r"^    .*?(fedjax-admm [^`\n]*)", text, re.MULTILINE)]
    in_documents = [re.sub(r"--rounds \d+", "--rounds 4", " ".join(line.split())) for line in lines]
    for commands in (in_help, in_documents):
        assert {command.split()[1] for command in commands} >= {"run", "compare", "tune", "resume", "report", "data"}
    done = set()
    for command in in_help + in_documents:
        words = command.removeprefix("fedjax-admm ")
        full_size = "linear" in words and "--clients" not in words
        if full_size or words.startswith(("data prepare", "run mnist ", "run cifar10")) or command in done:
            continue
        assert call(words, capsys)[0] == 0, command
        done.add(command)
    assert len(done) >= 9


def test_help_shows_shapes(monkeypatch):
    """Rich takes what is in brackets for markup."""
    monkeypatch.setenv("COLUMNS", "200")
    text = help_of("run", "linear")
    assert "[clients]" in text and "[rounds, clients]" in text and "\\[" not in text


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_help_explains_every_flag(command, example, monkeypatch):
    """In words: a default or the kind of value that a flag takes is no explanation."""
    monkeypatch.setenv("COLUMNS", "2000")  # one line for each flag
    lines = re.findall(r"│ +\*? *(--[a-z-]+)(.*)│", help_of(command, example))
    assert {"--clients", "--seed" if command == "run" else "--seeds", "--mu", "--dropout"} <= {
        flag for flag, _ in lines
    }
    for flag, rest in lines:
        words = re.sub(r"--no-[a-z-]+|\[default: .*?\] *$|\b[A-Z]{2,}\b", "", rest)
        assert re.search(r"\w+ \w+", words), f"{command} {example} {flag} has no help"
