"""How near the machine's limits: Example 1 against memory bandwidth, the CNN against sgemm.

    python benchmarks/limits.py

A client-epoch of Example 1 reads its 5 MB of rows; the time to read as much memory is measured beside it, by a sum
over an array that no cache holds. The CNN's multiplications are counted by its definition, 2 a multiply-add, and
compared with a square product of 2,048. In turns in one process, best of several. Bar: Example 1 within 1.5 times the
time of reading.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from common import RATES, Rounds, best_seconds, problem
from local_step import multiplications

import fedjax_admm as fa


def rounds(kind: str, clients: int, rows: int, lanes: int) -> Rounds:
    local = fa.LocalSolver(learning_rate=RATES[kind], batch_size=50, max_epochs=4)
    execution = fa.Execution(lanes=lanes, mesh=1)
    return Rounds(fa.Simulation(problem(kind, clients, rows), fa.fedadmm(local, penalty=1.0), execution=execution), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    args = parser.parse_args()
    array = jnp.asarray(np.ones(64_000_000, np.float32))  # 256 MB
    total = jax.jit(jnp.sum)
    matrix, product = jnp.ones((2048, 2048)), jax.jit(jnp.matmul)
    best = best_seconds(
        {
            "read": lambda: total(array).block_until_ready(),
            "sgemm": lambda: product(matrix, matrix).block_until_ready(),
            "Example 1, 1 lane": rounds("linear", 40, 250, 1),
            "Example 1, 2 lanes": rounds("linear", 40, 250, 2),
            "CNN": rounds("cnn", 4, 300, 1),
        },
        args.turns,
    )
    bandwidth, flops = array.nbytes / best["read"], 2 * 2048**3 / best["sgemm"]
    print(f"reading {bandwidth / 1e9:.1f} GB/s, sgemm {flops / 1e9:.0f} GFLOP/s")
    ideal = 250 * 5000 * 4 / bandwidth
    for name in ("Example 1, 1 lane", "Example 1, 2 lanes"):
        epoch = best[name] / (40 * 4)
        print(f"{name}: {1000 * epoch:.3f} ms a client-epoch, {epoch / ideal:.2f} times the reading of its rows")
    step = best["CNN"] / (4 * 4 * 6)
    share = 50 * multiplications("cnn") / step / flops
    print(f"CNN: {1000 * step:.1f} ms a client-step of 50 rows, {100 * share:.0f} % of sgemm")


if __name__ == "__main__":
    main()
