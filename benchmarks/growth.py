"""How the time of a round grows: with clients per round, epochs, rows of a client and parameters.

    python benchmarks/growth.py

FedADMM on dense networks of MNIST's shape, one quantity at a time, four sizes each in turns in one process; reported is
the exponent of the fitted power, 1 being linear. Small sizes are dominated by what each step costs at least, so the
exponent of the parameters lies below 1 until matrix products fill the machine.
"""

from __future__ import annotations

import argparse

import numpy as np
from common import Rounds, best_seconds

import fedjax_admm as fa

BASE = {"clients": 8, "epochs": 2, "rows": 200, "hidden": 64}
SWEEPS = {
    "clients": (4, 8, 16, 32),
    "epochs": (1, 2, 4, 8),
    "rows": (100, 200, 400, 800),
    "hidden": (64, 256, 1024, 4096),
}


def contestant(clients: int, epochs: int, rows: int, hidden: int) -> tuple[Rounds, int]:
    rng = np.random.default_rng(0)
    number = clients * rows
    fields = {
        "x": rng.integers(256, size=(number, 28, 28, 1), dtype=np.uint8),
        "y": rng.integers(10, size=number).astype(np.int32),
    }
    data = fa.FederatedData.from_arrays(fields, np.split(np.arange(number), clients))
    task = fa.problems.classification(fa.models.mlp((28, 28, 1), hidden=(hidden,), normalization=fa.models.MNIST))
    problem = fa.Problem(init=task["init"], loss=task["loss"], data=data)
    local = fa.LocalSolver(learning_rate=0.01, batch_size=50, max_epochs=epochs)
    sim = fa.Simulation(problem, fa.fedadmm(local), execution=fa.Execution(mesh=1))
    return Rounds(sim, 1), problem.num_params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    for name, sizes in SWEEPS.items():
        made = {size: contestant(**BASE | {name: size}) for size in sizes}
        best = best_seconds({str(size): run for size, (run, _) in made.items()}, args.turns)
        at = [made[size][1] if name == "hidden" else size for size in sizes]
        power = np.polyfit(np.log(at), np.log([best[str(size)] for size in sizes]), 1)[0]
        shown = ", ".join(f"{x:,}: {1000 * best[str(size)]:.2f} ms" for x, size in zip(at, sizes, strict=True))
        label = "parameters" if name == "hidden" else name
        print(f"{label:>10}: {shown}; exponent {power:.2f}", flush=True)


if __name__ == "__main__":
    main()
