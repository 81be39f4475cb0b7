"""The benchmarks' scripts run, at toy size, and say what they did not do."""

import importlib
import json
import math
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot

import fedjax_admm as fa

ROOT = Path(__file__).parents[2]


def ran(script, arguments, code=0, **options):
    """What it prints; where it is to fail, what it says of that."""
    path = os.pathsep.join([str(ROOT), str(options.get("cwd", "")), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / script, *arguments],
        env=os.environ | {"PYTHONPATH": path, "JAX_ENABLE_X64": "0"},
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == code, done.stderr
    return done.stderr if code else done.stdout


def test_peers_prints_its_table_without_any_peer():
    size = "--algorithms fedavg --models logistic --turns 1 --rounds 1 --clients 3 --cohort 2 --rows 10,30 --batch 10"
    lines = ran("peers.py", size.split()).splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    table = {name: cells for name, *cells in rows[2:]}
    assert float(table["fedjax_admm"][0]) > 0
    assert table["fedjax_admm"][2] == "1.00"  # each row of a batch has one gradient
    assert 0 < float(table["fedjax_admm"][3]) < 2 * math.log(10)  # the loss
    assert {table[name][0] for name in ("fedjax", "pfl", "Flower", "PyTorch loop")} == {"not run"}


def test_paper_table_says_what_is_less_than_the_papers(tmp_path):
    """Two of the table's rows, tiny; then the same from what is on disk."""
    size = "--example 1 --clients 4 --rounds 2 --max-epochs 1 --seeds 0 --out runs --rows".split()
    arguments = [*size, "FedAvg (all),FedADMM-In 0.1", "--results", "table"]
    printed = ran("paper_table.py", arguments, cwd=tmp_path)
    assert "1.64" in printed and "94.3" in printed  # the paper's
    assert "* every row: 2 rounds of 300, 4 clients of 200, 1 epochs of 20" in printed
    assert "here 1 of 5 rows ran" in printed
    assert ran("paper_table.py", [*arguments, "--report"], cwd=tmp_path) == printed
    other = "--example 2 --seeds 0 --report --out runs".split()
    assert "has runs of linear_regression" in ran("paper_table.py", other, code=2, cwd=tmp_path)
    written = (tmp_path / "table.csv").read_text().splitlines()
    assert written[0].startswith("# python benchmarks/paper_table.py --example 1") and "jax" in written[2]
    assert [line.split(",")[0] for line in written if not line.startswith("#")][1:] == [
        "FedAvg (all)*",
        "FedADMM-In 0.1*",
    ]
    assert (tmp_path / "table.png").stat().st_size > 1000
    curves = [line.split(",") for line in (tmp_path / "table-curves.csv").read_text().splitlines() if line[0] != "#"]
    assert (
        curves[0] == "method seed round epochs gradient_samples criterion_samples penalty_mean loss excess_loss".split()
    )
    rounds = {(line[0], line[2]): [float(number) for number in line[3:]] for line in curves[1:]}
    assert list(rounds) == [(row, k) for row in ("FedAvg (all)", "FedADMM-In 0.1") for k in "02"]  # those evaluated
    assert rounds["FedAvg (all)", "2"][:2] == [2, 2 * 250]  # a client of 250 rows a round, an epoch
    assert rounds["FedADMM-In 0.1", "2"][2] == 2 * 250  # the reference at z
    (begun,) = tmp_path.glob("runs/seed-0/FedADMM-In*/seed-0/history.csv")
    begun.write_text("".join(begun.read_text().splitlines(keepends=True)[:2]))  # round 0 alone
    for name in ("status.json", "checksums.csv"):  # which say that there were more rounds
        (begun.parent / name).unlink()
    assert "FedADMM-In 0.1" not in ran("paper_table.py", [*arguments, "--report"], cwd=tmp_path)


def test_paper_table_leaves_out_seeds_that_are_behind(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    paper_table = importlib.import_module("paper_table")
    far, near = (fa.RunRecord(fa.History([]), np.zeros((rounds, 1), int), None, 10) for rounds in (20, 2))
    kept, notes = paper_table.furthest({"FedADMM 10": {0: far, 1: near, 2: far}})
    assert kept == {"FedADMM 10": {0: far, 2: far}}
    assert notes == ["FedADMM 10, seed 1: left out, at round 2 of 20"]


def test_results_say_when_their_runs_were_made(tmp_path, monkeypatch):
    """Runs that are read say so themselves; what has no place on disk was made now."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    results = importlib.import_module("results")
    example = fa.examples.linear_regression(num_clients=4, rows_per_client=6, dimension=3, rounds=2)
    algorithms = {"a": example.algorithm("fedavg")}
    fa.compare(example.problem, algorithms, run_dir=tmp_path, progress=False, **example.run_settings)
    (place,) = tmp_path.glob("*/seed-0/environment.json")
    told = json.loads(place.read_text())
    place.write_text(json.dumps([{**told[-1], "started": "2020-01-01T00:00:00+00:00", "commit": "abc"}]))
    assert results.origin(results.every_run([fa.read_comparison(tmp_path)]))[1] == "2020-01-01, commit abc"
    assert "2020" not in results.origin()[1]


def test_paper_table_draws_where_the_papers_runs_end(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    paper_table = importlib.import_module("paper_table")
    history = fa.History([{"round": k, "accuracy": k / 10, "gradient_samples": 7} for k in range(3)])
    run = fa.RunRecord(history, cohorts=np.zeros((2, 1), int), solves=None, num_clients=10)
    monkeypatch.setattr(pyplot.Figure, "savefig", lambda figure, path, **options: kept.append(figure))
    kept = []
    paper_table.draw(tmp_path / "table.png", {row: {0: run} for row in ("FedADMM 10", "FedADMM-InSa 10")}, 2)
    for axes in kept[0].axes:  # against rounds and against gradients
        lines = {line.get_label(): line.get_ydata()[-1] for line in axes.lines}
        assert lines == {
            "FedADMM": 0.2,
            "FedADMM-InSa": 0.2,
            "FedADMM, the paper after 300 rounds": pytest.approx(0.897),
            "FedADMM-InSa, the paper after 300 rounds": pytest.approx(0.975),
        }
    pyplot.close(kept[0])


def test_criteria_on_a_problem_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import fedjax_admm as fa\n"
        "def tiny(rounds=3, **sizes):\n"
        "    return fa.examples.linear_regression(num_clients=4, dimension=5, rounds=rounds, **sizes)\n"
    )
    criteria = "fixed,verified,exact-client,decaying_squared_tolerance(4,0.5,verified),relative_residual(sigma=0.5)"
    arguments = ["mine:tiny", "--set", "rows_per_client=20", "--set", "batch_size=5", "--criteria", criteria]
    arguments += ["--target", "loss=100", "--target", "loss=0", "--results", "out/criteria", "--rounds", "2"]
    printed = ran("criteria.py", [*arguments, "--out", "runs"], cwd=tmp_path)
    assert "fedadmm-insa, decaying_squared_tolerance(4,0.5,verified) " in printed
    assert printed.count("1 of 1") == 5 and printed.count("0 of 1") == 5  # the two targets
    # Of looks, at each of two epochs at most in each solve, some refuse; of an absolute criterion there is no reference.
    for words in ("verified", "decaying_squared_tolerance(4,0.5,verified)"):
        refused, asked = re.search(rf"insa, {re.escape(words)}: (\d+) of (\d+) exact looks refused", printed).groups()
        assert 0 <= int(refused) <= int(asked)
    grown = ran("criteria.py", [*arguments, "--criteria", "fixed", "--out", "runs"], cwd=tmp_path)
    assert "exact-client" in grown  # which was there
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "criteria-target.csv", "criteria.csv", "criteria.png",
    ]  # fmt: skip
    works = (tmp_path / "out/criteria-target.csv").read_text().splitlines()[-1]
    assert works == '1,loss=0,"fedadmm-insa, relative_residual(sigma=0.5)",0 of 1,-,-,-,-,-'


def test_refused_looks_by_hand(monkeypatch):
    """Passes for the criterion without the reference's, less the looks that agreed; with full gradients there are none."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    criteria = importlib.import_module("criteria")
    solves = types.SimpleNamespace(
        criterion_samples=np.array([[8, 15, 4, 5]]),
        stop_reason=np.array([["criterion", "maximum", "maximum", "maximum"]]),
    )
    run = fa.RunRecord(None, cohorts=np.arange(4)[None], solves=solves, num_clients=4)
    comparison = fa.Comparison({"a": {0: run}}, {}, "a")
    relative = fa.criteria.relative_residual(c=0.1, residual="verified")
    method = fa.fedadmm(fa.LocalSolver(0.1, batch_size=2), criterion=relative)
    # 1, 2, 0 and 0 looks of clients with 4, 5, 4 and 5 rows; the first client's agreed.
    told = "a: 2 of 3 exact looks refused, 67%; 2 of them in solves that went on to the maximum"
    assert criteria.refusals(comparison, {"a": method}, np.array([4, 5, 4, 5])) == [told]
    full = fa.fedadmm(fa.LocalSolver(0.1), criterion=relative)
    assert criteria.refusals(comparison, {"a": full}, np.array([4, 5, 4, 5])) == []


def test_criteria_names_what_is_wrong(capsys, monkeypatch):
    """Before anything is run; in this process, since only arguments are read."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr("fedjax_admm.use_cpu_devices", lambda number: None)  # JAX has begun
    criteria, results = importlib.import_module("criteria"), importlib.import_module("results")

    def told(*arguments):
        monkeypatch.setattr("sys.argv", ["criteria.py", *arguments])
        with pytest.raises(SystemExit):
            results.one_line_errors(criteria.main)
        return capsys.readouterr().err

    assert "got 'exakt': did you mean 'exact'?" in told("logistic", "--criteria", "exakt")
    assert "--set must be one of 'num_clients', " in told("logistic", "--set", "clients=3")
    assert "--results: '/dev/null/x': /dev/null is a file" in told("logistic", "--results", "/dev/null/x")
    assert "problem 'nomodule:f' must be a module and a function in it" in told("nomodule:f")
    assert "fedavg has none: give relative_residual(sigma=0.5,exact)" in told(
        "logistic", "--algorithms", "fedavg", "--criteria", "exact"
    )
    assert "problem 'json:nothing' must be a module and a function in it" in told("json:nothing")


def test_refusals_prints_a_row_a_problem():
    lines = ran("refusals.py", "--problems mnist-mini --rounds 1 --clients 2".split()).splitlines()
    name, clients, *numbers = (cell.strip() for cell in lines[-1].split("|")[1:-1])
    assert (name, clients) == ("mnist-mini", "2") and all(float(number) > 0 for number in numbers[:3])
    assert all(re.fullmatch(r"\d+ of \d+", number) for number in numbers[3:])


def test_every_client_tells_each_kind_of_model(tmp_path):
    printed = ran("every_client.py", "--rounds 1 --clients 5 --no-text --results found".split(), cwd=tmp_path)
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("| mnist-mini")]
    assert len(rows) == 2 * (4 * 2 + 1)  # two partitions, four methods with two kinds of models, and one with own ones
    assert all(0 <= float(worst) <= float(decile) <= 1 for *_, decile, worst in rows)
    assert (tmp_path / "found.csv").read_text().startswith("# python benchmarks/every_client.py --rounds 1")
