"""What rounding does to the residual that the stopping criterion looks at: its noise floor in float32 and bfloat16.

    python benchmarks/precision.py

One client of `mnist_mini` minimises its subproblem, f(u) + penalty / 2 * ||u - z||^2, from u = z by full gradients in
float64. Where the residual e(u) has fallen to a share of e(z), it is computed again in float32 and with products of
bfloat16 factors, at the same u. The distance from float64's residual is what rounding adds: a residual that is computed
so hardly falls below it, and a relative criterion cannot be met where sigma * ||e(z)|| is smaller.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import fedjax_admm as fa
from fedjax_admm import models, problems

MODELS: dict[str, Callable[..., models.Model]] = {
    "logistic": lambda **precision: models.logistic((28, 28, 1), normalization=models.MNIST, **precision),
    "CNN": models.cnn,
}
SHARES = (1.0, 0.1, 0.01, 0.001)


def residual(build: Callable[..., models.Model], batch: Any, penalty: float, **precision: Any) -> Callable:
    """(u, z) -> e(u) in a precision, as float64."""
    task = problems.classification(build(**precision))
    param_dtype = precision.get("param_dtype", "float32")

    @jax.jit
    def compute(u, z):
        low = jax.tree.map(lambda leaf: leaf.astype(param_dtype), u)
        gradient = jax.grad(lambda p: task["loss"](p, batch).mean())(low)
        return jax.tree.map(lambda g, u, z: g.astype("float64") + penalty * (u - z), gradient, u, z)

    return compute


def measure(name: str, penalty: float, rate: float, steps: int, client: int) -> None:
    build, data = MODELS[name], fa.examples.mnist_mini().problem.data
    rows = slice(int(data.offsets[client]), int(data.offsets[client] + data.sizes[client]))
    batch = {field: np.asarray(values)[rows] for field, values in data.fields.items()}
    exact = residual(build, batch, penalty, param_dtype="float64")
    rough = {"float32": residual(build, batch, penalty), "bfloat16": residual(build, batch, penalty, dtype="bfloat16")}
    # Numbers that float32 has, so that only the arithmetic differs.
    z = jax.tree.map(lambda leaf: leaf.astype("float64"), build().init(jax.random.key(0)))
    u, shares = z, list(SHARES)
    start = float(optax.tree.norm(exact(z, z)))
    print(f"\n{name}, {len(batch['y'])} rows, penalty {penalty}: ||e(z)|| = {start:.3g}")
    print("| residual, of ||e(z)|| | float32 sees | bfloat16 sees | float32's distance | bfloat16's distance |")
    print("|---:|---:|---:|---:|---:|")
    for _ in range(steps):
        e = exact(u, z)
        if float(optax.tree.norm(e)) <= shares[0] * start:
            at = jax.tree.map(lambda leaf: leaf.astype("float32").astype("float64"), u)
            e = exact(at, z)
            others = [compute(at, z) for compute in rough.values()]
            seen = [float(optax.tree.norm(other)) / start for other in others]
            apart = [float(optax.tree.norm(optax.tree.sub(other, e))) / start for other in others]
            numbers = [float(optax.tree.norm(e)) / start, *seen, *apart]
            print(f"| {' | '.join(f'{number:.2g}' for number in numbers)} |", flush=True)
            shares.pop(0)
            if not shares:
                return
        u = jax.tree.map(lambda leaf, g: leaf - rate * g, u, exact(u, z))
    print(f"after {steps} steps it had not fallen to {shares[0]} of its start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--penalty", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--client", type=int, default=0)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in arguments.models.split(","):
        measure(name, arguments.penalty, arguments.rate, arguments.steps, arguments.client)


if __name__ == "__main__":
    main()
