"""What the README says about code: it runs, and its recipe for an algorithm is one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from federations import GAMMA, least_squares

import fedjax_admm as fa

README = (Path(__file__).parents[2] / "README.md").read_text()


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("mark", ["comparison.plot", "def loss(params, batch)"])
def test_the_first_programs_run(mark, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = (code for code in BLOCKS if mark in code)
    exec(re.sub(r"rounds=\d+", "rounds=3", block), {})
    said = capsys.readouterr().out
    assert said.startswith(("algorithm", "Result(3 rounds"))
    assert "savefig" not in block or (tmp_path / "comparison.png").stat().st_size > 1000


def test_the_recipe_is_fedavg_with_momentum():
    """Against the formulas in NumPy: v = m v + sum alpha_i u_i - z, z = z + v, with one full gradient step a client."""
    (recipe,) = (code for code in BLOCKS if "class FedAvgM" in code)
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
