"""Why an exact look refuses what the epoch mean proposes: overshooting steps, or the noise of the batches?

    python benchmarks/refusals.py

Some clients of FedADMM-InSa, after some rounds, solve their subproblem by SGD, once with batches and once with the full
gradient in every step, which has no noise: after each epoch the mean of its residuals and the exact residual at its end
are compared with the tolerance, until the exact one is met or the maximum is near. A mean below it with an exact one
above is a refusal. Where steps overshoot, refusals are there in both ways; where batches are noisy, in the first alone.
Printed beside them: S, steps an epoch, and eta h, the learning rate times the subproblem's largest curvature at z, by
power iteration. The problems are those of `criteria.py`'s results.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ablation import SMALL
from criteria import logistic
from jax.flatten_util import ravel_pytree
from results import one_line_errors

import fedjax_admm as fa
from fedjax_admm.core import checks
from fedjax_admm.core.vocabulary import LocalProgress
from fedjax_admm.results.tables import Table

PROBLEMS: dict[str, tuple[Callable[[], fa.examples.Example], float]] = {  # with the initial penalty
    "linear": (lambda: fa.examples.linear_regression(**SMALL), 0.1),
    "logistic": (logistic, 0.1),
    "mnist-mini": (fa.examples.mnist_mini, 1.0),
}


def solve(example: fa.examples.Example, residual: Callable, rows: np.ndarray, z: Any, sigma: Any, noisy: bool) -> Any:
    """(looks, refusals) of one client's solve with the exact criterion, where the mean would have asked for a look."""
    rng, w = np.random.default_rng(0), z
    tolerance = sigma * jnp.linalg.norm(residual(z, rows))
    looks = refused = 0
    for _ in range(int(example.local.max_epochs) - 1):  # nothing is looked at once the maximum is reached
        order, mean = rng.permutation(rows), jnp.zeros_like(z)
        for batch in np.split(order, np.arange(example.local.batch_size, len(rows), example.local.batch_size)):
            step = residual(w, batch if noisy else rows)
            mean, w = mean + len(batch) / len(rows) * step, w - example.local.learning_rate * step
        proposed, met = (bool(jnp.linalg.norm(e) <= tolerance) for e in (mean, residual(w, rows)))
        looks, refused = looks + proposed, refused + (proposed and not met)
        if met:
            break
    return np.array([looks, refused])


def study(name: str, rounds: int, clients: int) -> tuple[str, ...]:
    """A row of the table."""
    make, penalty = PROBLEMS[name]
    example = make()
    method = example.algorithm("fedadmm_insa", penalty)
    sim = fa.Simulation(example.problem, method, participation=example.participation)
    state = sim.init()
    for _ in range(rounds):
        state, _ = sim.round(state)
    problem, data = example.problem, example.problem.data
    z, unravel = ravel_pytree(state.params)

    @jax.jit
    def objective(w: Any, rows: Any, dual: Any, beta: Any) -> Any:
        value = jnp.mean(problem.loss(unravel(w), data.take(rows)))
        if problem.regularizer is not None:
            value += problem.regularizer(unravel(w))
        return value - dual @ w + 0.5 * beta * jnp.sum((w - z) ** 2)

    gradient = jax.jit(jax.grad(objective))
    curved = jax.jit(jax.grad(lambda w, v, *rest: gradient(w, *rest) @ v))
    counts, curvatures = np.zeros((2, 2), int), []
    chosen = np.random.default_rng(0).choice(data.num_clients, min(clients, data.num_clients), replace=False)
    for client in chosen:
        rows = int(data.offsets[client]) + np.arange(int(data.sizes[client]))
        dual, beta = ravel_pytree(jax.tree.map(itemgetter(client), state.duals))[0], state.penalties[client]
        sigma = method.criterion.sigma(LocalProgress(*[jnp.nan] * 5, penalty=beta))
        v = jnp.ones_like(z)
        for _ in range(30):
            v = curved(z, v / jnp.linalg.norm(v), rows, dual, beta)
        curvatures.append(float(jnp.linalg.norm(v)))
        for way, noisy in enumerate((True, False)):
            counts[way] += solve(example, partial(gradient, dual=dual, beta=beta), rows, z, sigma, noisy)
    steps = np.mean(np.ceil(np.asarray(data.sizes) / example.local.batch_size))
    rate = example.local.learning_rate * np.median(curvatures)
    shown = (f"{refused} of {looks}" for looks, refused in counts)
    return (name, str(len(chosen)), f"{steps:.1f}", f"{rate:.2f}", f"{steps * rate:.1f}", *shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=",".join(PROBLEMS), help="with commas between them")
    parser.add_argument("--rounds", type=int, default=30, help="before the solves that are looked at")
    parser.add_argument("--clients", type=int, default=20, help="how many solve")
    args = parser.parse_args()
    names = [checks.choice("--problems", name.strip(), tuple(PROBLEMS)) for name in args.problems.split(",")]
    for name, least in (("rounds", 0), ("clients", 1)):
        checks.integer(f"--{name}", getattr(args, name), at_least=least)
    header = ("problem", "clients", "S", "eta h", "S eta h", "refused, batches", "refused, full gradients")
    print(Table(header, tuple(study(name, args.rounds, args.clients) for name in names)).markdown())


if __name__ == "__main__":
    one_line_errors(main)
