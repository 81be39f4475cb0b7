"""The time of a round against the size of the population, and a population that no memory holds.

    python benchmarks/population.py
    python benchmarks/population.py --giant

FedADMM-InSa, 40 clients a round, on the same 2,000 rows whatever the number of clients: client i's rows are shared
with others. Each population size and kind is a process of its own, in turns. Reported are us a gradient of the best
turn, and the most memory that the process had. Bar: from 200 to 200,000 clients at most 1.15 times, on the device and
on disk.
`--giant`: 200,000 clients of 40,555 parameters, 65 GB of clients' state, and how much memory the process had; clients
that were never selected take no room, so disk space is that of the rounds run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import numpy as np

SIZES = (200, 2_000, 20_000, 200_000)
COHORT, ROWS = 40, 50


def child(clients: int, kind: str, hidden: int, rounds: int) -> None:
    """Runs rounds when told to; prints their seconds and the memory."""
    import jax

    import fedjax_admm as fa
    from fedjax_admm.core.environment import peak_memory

    rng = np.random.default_rng(0)
    number = 2000
    fields = {
        "x": rng.integers(256, size=(number, 28, 28, 1), dtype=np.uint8),
        "y": rng.integers(10, size=number).astype(np.int32),
    }
    starts = rng.integers(number - ROWS, size=clients)
    data = fa.FederatedData.from_arrays(fields, [np.arange(s, s + ROWS) for s in starts], allow_overlap=True)
    layers = (hidden,) if hidden else ()
    model = fa.models.mlp((28, 28, 1), hidden=layers, normalization=fa.models.MNIST)
    task = fa.problems.classification(model)
    problem = fa.Problem(init=task["init"], loss=task["loss"], data=data)
    algorithm = fa.fedadmm_insa(fa.LocalSolver(learning_rate=0.01, batch_size=10, max_epochs=4))
    execution = fa.Execution(population=kind, mesh=1)
    estimate = fa.estimate(problem, algorithm, participation=COHORT, execution=execution)
    sim = fa.Simulation(problem, algorithm, participation=COHORT, execution=execution)
    state = sim.init()
    done = 0
    for _ in sys.stdin:
        cohorts = np.stack([sim.cohorts[done + k] for k in range(rounds)])
        began = time.perf_counter()
        state, infos, _ = sim.run_rounds(state, cohorts, rounds)
        jax.block_until_ready(state.params)
        seconds = time.perf_counter() - began
        samples = int(np.sum(jax.device_get(infos.solves.gradient_samples)))
        done += rounds
        told = {"seconds": seconds / rounds, "samples": samples / rounds, "memory": peak_memory()}
        nominal = max(estimate.disk, estimate.host_state, estimate.device_state)
        print(json.dumps(told | {"nominal": nominal}), flush=True)


class Child:
    def __init__(self, clients: int, kind: str, hidden: int = 0, rounds: int = 10) -> None:
        command = [sys.executable, __file__, "--child", str(clients), kind, str(hidden), str(rounds)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self) -> dict[str, float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--giant", action="store_true")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        clients, kind, hidden, rounds = args.child
        child(int(clients), kind, int(hidden), int(rounds))
        return
    if args.giant:
        giant = Child(200_000, "disk", hidden=51, rounds=5)
        for _ in range(args.turns):
            told = giant.turn()
            print(
                f"nominal state {told['nominal'] / 1e9:.0f} GB, {1000 * told['seconds']:.0f} ms a round, "
                f"memory at most {told['memory'] / 2**30:.2f} GiB",
                flush=True,
            )
        giant.close()
        return
    for kind in ("device", "disk"):
        children = {clients: Child(clients, kind) for clients in SIZES}
        turns: dict[int, list[dict[str, float]]] = {clients: [] for clients in SIZES}
        for _ in range(args.turns + 1):
            for clients, one in children.items():
                turns[clients].append(one.turn())
        best = {clients: min(t["seconds"] / t["samples"] for t in found[1:]) for clients, found in turns.items()}
        for clients, found in turns.items():
            print(
                f"{kind:>6}, {clients:>7,} clients: {1e6 * best[clients]:.2f} us a gradient, "
                f"{best[clients] / best[SIZES[0]]:.2f} times that of {SIZES[0]}, "
                f"memory at most {found[-1]['memory'] / 2**20:.0f} MiB",
                flush=True,
            )
        for one in children.values():
            one.close()


if __name__ == "__main__":
    main()
