"""What the README and the other documents say about code: every Python block runs, and the recipes are what they say."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_stage
from federations import GAMMA, least_squares

import fedjax_admm as fa

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCES = {"python", "bibtex", "diff", "text", "bash", "sh", "console", "toml", "yaml", "json", "latex"}
SMALLER = {  # what a block says, and what is run
    r"linear_regression\(\)": "linear_regression(num_clients=20, rows_per_client=5, dimension=4, rounds=2)",
    r"rounds=\d+": "rounds=2",
    r"participation=40": "participation=4",
    r"num_clients=200": "num_clients=20",
    r"range\(5\)": "range(2)",
    r"/shared/run": "shared_run",
}
BEFORE_JAX = ("use_cpu_devices", "initialize_distributed")  # what only a new process can do
# Of a job of one process on this machine; the number decides the port.
SLURM = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"}
SLURM |= {"SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def blocks(document):
    """Its Python, block by block."""
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)


def programs(document):
    """A block that imports the package begins a program; one that does not goes on with the last."""
    joined = []
    for block in blocks(document):
        if "import fedjax_admm" in block:
            joined.append(block)
        else:
            assert joined, f"the first Python block of {document} has to import fedjax_admm"
            joined[-1] += block
    return joined


PROGRAMS = [
    pytest.param(program, id=f"{document.relative_to(ROOT).with_suffix('')}-{number}")
    for document in DOCUMENTS
    for number, program in enumerate(programs(document))
]


def shrink(program):
    for large, small in SMALLER.items():
        program = re.sub(large, small, program)
    return program


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_program_runs(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = shrink(program)
    if any(name in code for name in BEFORE_JAX):
        environment = os.environ | SLURM | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    else:
        exec(code, {})
        said = capsys.readouterr().out
        assert "print(comparison)" not in code or said.startswith("algorithm")
        assert "print(result)" not in code or said.startswith("Result(2 rounds")
    for name in re.findall(r"savefig\(\"(.*?)\"\)", code):
        assert (tmp_path / name).stat().st_size > 1000


def test_all_python_is_in_a_block_that_runs():
    """No other fence has Python in it, and no indented line."""
    for document in DOCUMENTS:
        text = document.read_text()
        fences = re.findall(r"^```(\w+)", text, re.MULTILINE)
        assert set(fences) <= FENCES, document
        outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        assert not re.findall(r"^    (?:(?:\w+ = )?fa\.|import |from ).*", outside, re.MULTILINE), document


def test_links_lead_somewhere():
    """Files that are there, and headings of theirs."""
    for document in DOCUMENTS:
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", document.read_text()):
            file, _, heading = link.partition("#")
            target = document.parent / file if file else document
            assert target.exists(), f"{document.name}: {link}"
            if heading:
                titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, link


def test_former_methods_are_told_a_page_that_is_there():
    former: Any = type("Former", (), {"subproblems": None, "update": None})()
    with pytest.raises(ValueError) as refused:
        fa.Simulation(least_squares([2, 2])[0], former)
    (page,) = re.findall(r"\((docs/.*?);", str(refused.value))
    assert "six pure functions" in (ROOT / page).read_text()


def test_the_changelogs_method_before_is_refused_and_after_is_fedavg():
    text = (ROOT / "CHANGELOG.md").read_text()
    before, after = re.findall(r"(?:FedAvg before|and after):\n\n((?:(?:    .*)?\n)+)", text)
    header = "@fa.record\nclass Mine:\n    local: Any\n    criterion: Any = fa.criteria.run_to_maximum()\n\n"
    local, problem = fa.LocalSolver(0.05, batch_size=4, max_epochs=2), least_squares([6, 11, 3])[0]
    names: dict[str, Any] = {"Any": Any, "fa": fa, "jax": jax, "jnp": jnp}
    exec(header + before, names)
    with pytest.raises(ValueError, match=r"Mine is written for version 0\.1"):
        fa.Simulation(problem, names["Mine"](local))
    exec(header + after, names)
    mine, packages = (fa.simulate(problem, one, 3, progress=False) for one in (names["Mine"](local), fa.fedavg(local)))
    np.testing.assert_allclose(mine.params, packages.params, rtol=1e-12)


def test_newcomers_questions_are_answered_by_files_that_have_the_answer():
    answers = dict(re.findall(r"^\| (.*\?) \| `(.*?)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    said = {"dual update": "(3.10b)", "data source": "def load(", "diverged": "def divergence_of_round("}
    assert len(answers) == len(said)
    for word, part in said.items():
        (file,) = (ROOT / answer for question, answer in answers.items() if word in question)
        having = [path for path in (ROOT / "fedjax_admm").rglob("*.py") if part in path.read_text()]
        assert having == [file]


def test_the_stage_that_is_explained_is_the_one_that_is_tested():
    (block,) = blocks(ROOT / "docs" / "exchange.md")
    assert inspect.getsource(test_stage.Halve) in block


def test_the_extrapolated_recipe_is_a_proximal_point_method_on_what_is_sent():
    """Against a NumPy loop over two of three clients a round: y = z + b (z - former z), one full gradient step at y."""
    recipe, *_, extrapolated = [
        code for code in blocks(ROOT / "docs" / "how-to" / "own_algorithm.md") if "@fa.record" in code
    ]
    names = {}
    exec(recipe, names)
    exec(extrapolated.partition("result =")[0], names)
    problem, xs, ys = least_squares([6, 11, 3])
    rate, penalty, beyond, rounds = 0.05, 0.8, 0.6, 6
    algorithm = names["Extrapolated"](
        fa.LocalSolver(learning_rate=rate, max_epochs=2), penalty=penalty, extrapolation=beyond
    )
    result = fa.simulate(problem, algorithm, rounds, participation=2, progress=False)
    z = former = np.zeros(5)
    alpha = np.array([len(x) for x in xs]) / sum(map(len, xs))
    for cohort in result.cohorts:
        y, total = z + beyond * (z - former), np.zeros(5)
        for i in cohort:
            u = y
            for _ in range(2):
                gradient = xs[i].T @ (xs[i] @ u - ys[i]) / len(xs[i]) + GAMMA * u
                u = u - rate * (gradient + penalty * (u - y))
            total += alpha[i] * u
        z, former = total / alpha[cohort].sum(), z
    np.testing.assert_allclose(result.params, z, rtol=1e-10)
    assert result.history["communicated_floats"][-1] == 2 * 2 * 5


def test_the_recipe_is_fedavg_with_momentum():
    """Against the formulas in NumPy: v = m v + sum alpha_i u_i - z, z = z + v, with one full gradient step a client."""
    (recipe,) = (code for code in blocks(ROOT / "docs" / "how-to" / "own_algorithm.md") if "class FedAvgM" in code)
    names = {}
    exec(recipe, names)
    problem, xs, ys = least_squares([6, 11, 3])
    rate, momentum, rounds = 0.05, 0.7, 6
    algorithm = names["FedAvgM"](fa.LocalSolver(learning_rate=rate), momentum=momentum)
    result = fa.simulate(problem, algorithm, rounds, progress=False)
    z = v = np.zeros(5)
    alpha = np.array([len(x) for x in xs]) / sum(map(len, xs))
    for _ in range(rounds):
        us = [z - rate * (x.T @ (x @ z - y) / len(x) + GAMMA * z) for x, y in zip(xs, ys, strict=True)]
        v = momentum * v + sum(a * u for a, u in zip(alpha, us, strict=True)) - z
        z = z + v
    np.testing.assert_allclose(result.params, z, rtol=1e-10)
    assert result.history["communicated_floats"][-1] == 2 * 3 * 5
    step = fa.ServerStep(partial(optax.sgd, momentum=momentum))
    ready_made = fa.fedavg(fa.LocalSolver(learning_rate=rate), server=step)
    np.testing.assert_allclose(fa.simulate(problem, ready_made, rounds, progress=False).params, z, rtol=1e-10)
