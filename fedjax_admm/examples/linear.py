"""Example 1: linear regression on synthetic rows from three distributions."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.sparse.linalg import cg

from ..algorithms.local_solver import LocalSolver
from ..core import checks, environment
from ..core.types import Key
from ..data import cache
from ..data.federated import FederatedData
from ..exchange.cohorts import Cohorts
from ..problems.evaluation import evaluate
from ..problems.problem import Problem
from .base import Example, recipe

GAMMA = 0.01
_ROWS_A_PIECE = 500  # rows of the data that are drawn together, each piece from its own seed


@recipe
def linear_regression(
    *,
    num_clients: int = 200,
    rows_per_client: int = 250,
    dimension: int = 5000,
    data_seed: int = 0,
    learning_rate: float = 0.001,
    batch_size: int | None = 50,
    max_epochs: int = 20,
    rounds: int = 300,
    participation: Any = 0.2,
) -> Example:
    """Example 1 of the paper: f_i(u) = 1 / (2 N_i) sum_j (u'a_j - b_j)^2 + gamma / 2 ||u||^2, gamma = 0.01.

    A third of the rows (a, b) has entries from the standard normal, a third from Student's t with five degrees
    of freedom, the rest from the uniform distribution on [-5, 5]; they are shuffled and dealt evenly. There is
    no planted solution: b is drawn like a. The defaults are the paper's size (50,000 rows of 5,000 numbers, 1 GB).

    The problem comes with its exact optimum, so the history has `excess_loss`, F(z) - F*. The optimum is computed once
    by conjugate gradients and kept in the cache folder.

    Args:
        num_clients: How many clients there are.
        rows_per_client: Rows of each client.
        dimension: The length of a row, and the number of parameters.
        data_seed: The seed from which the rows are drawn.
        learning_rate: The step size of the local solver.
        batch_size: Rows per step; None is the full gradient.
        max_epochs: The most passes over its rows that a client does in a round.
        rounds: How many rounds a run has.
        participation: The fraction of the clients that take part in a round, or their number.

    >>> example = linear_regression(num_clients=4, rows_per_client=10, dimension=5)
    >>> example.problem.data.num_clients, example.rounds
    (4, 300)
    """
    num_clients = checks.integer("num_clients", num_clients, at_least=1)
    rows_per_client = checks.integer("rows_per_client", rows_per_client, at_least=1)
    dimension = checks.integer("dimension", dimension, at_least=1)
    data_seed = checks.integer("data_seed", data_seed, at_least=0)
    local = LocalSolver(learning_rate=learning_rate, batch_size=batch_size, max_epochs=max_epochs)
    Cohorts(participation, num_clients, seed=0).check_rounds(checks.integer("rounds", rounds, at_least=1))
    number = num_clients * rows_per_client
    features, targets = draw(number, dimension, data_seed)
    # The rows are drawn in shuffled order, so that consecutive ones are a random share.
    parts = np.split(np.arange(number), num_clients)
    data = FederatedData.from_arrays({"x": features, "y": targets}, parts)
    problem = Problem(init=initializer(dimension), loss=squared_error, data=data, regularizer=ridge)
    key = {"rows": number, "dimension": dimension, "seed": data_seed, "gamma": GAMMA, "stream": 1}
    return Example(
        name="linear",
        problem=problem.with_optimum(_find_optimum(problem, key)),
        local=local,
        rounds=rounds,
        participation=participation,
        c=GAMMA,
    )


def squared_error(w: Array, batch: Any) -> Array:
    """Half the squared error, [batch]."""
    return 0.5 * (batch["x"] @ w - batch["y"]) ** 2


def ridge(w: Array) -> Array:
    return 0.5 * GAMMA * jnp.sum(w**2)


@lru_cache
def initializer(dimension: int) -> Any:
    """key -> uniform in +-1 / sqrt(dimension); one function per dimension, so that code compiles once."""
    return partial(_uniform_start, dimension)


def _uniform_start(dimension: int, key: Key) -> Array:
    bound = dimension**-0.5
    return jax.random.uniform(key, (dimension,), minval=-bound, maxval=bound)


def draw(number: int, dimension: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [number, dimension] and targets [number], float32, in shuffled order."""
    third = -(-number // 3)
    kinds = np.repeat([0, 1, 2], [third, third, number - 2 * third]) if number >= 3 else np.arange(number)
    kinds = np.random.default_rng([seed, number]).permutation(kinds)
    features, targets = np.empty((number, dimension), np.float32), np.empty(number, np.float32)

    def fill(start: int) -> None:
        rng = np.random.default_rng([seed, number, start])
        piece = kinds[start : start + _ROWS_A_PIECE]
        for kind, sample in enumerate((_normal, _student, _uniform)):
            rows = start + np.flatnonzero(piece == kind)
            values = sample(rng, (len(rows), dimension + 1))
            features[rows], targets[rows] = values[:, :-1], values[:, -1]

    with ThreadPoolExecutor(environment.cores()) as pool:  # NumPy draws without holding the interpreter's lock
        list(pool.map(fill, range(0, number, _ROWS_A_PIECE)))
    return features, targets


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _student(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Student's t with 5 degrees of freedom: normal / sqrt(chi-square / 5), a chi-square being 2 gamma(5 / 2)."""
    chi_square = 2 * rng.standard_gamma(2.5, shape, np.float32)
    return rng.standard_normal(shape, np.float32) / np.sqrt(chi_square / 5)


def _uniform(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return rng.random(shape, np.float32) * 10 - 5


def _find_optimum(problem: Problem, key: dict[str, Any]) -> float:
    text = json.dumps(key, sort_keys=True)
    name = "-".join(f"{value}" for value in key.values())
    path = cache.folder() / f"linear-optimum-{name}.npz"
    arrays = cache.get_or_make(path, text, ["optimum"], lambda: {"optimum": np.array(solve(problem))})
    return float(arrays["optimum"])


def solve(problem: Problem) -> float:
    """F* = min F: the loss at the solution of (X'X / N + gamma) w = X'y / N.

    The loss is flat at its minimum: an error of 1e-4 in w, more than conjugate gradients leave in single
    precision, is one of 1e-8 in F*.
    """
    return evaluate(problem, _minimiser(problem))["loss"]


@jax.jit
def _minimiser(problem: Problem) -> Array:
    x, y = problem.data.fields["x"], problem.data.fields["y"]
    number = x.shape[0]
    right = y @ x / number
    return cg(lambda w: (x @ w) @ x / number + GAMMA * w, right, tol=1e-7, maxiter=200)[0]
