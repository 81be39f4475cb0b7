"""The memory of one process that has all clients, and of two that have half of them each.

    python benchmarks/hosts/memory.py --folder /tmp/clients

Makes a federation on disk, once: 4,000 clients with 2 rows of 20,000 numbers each, 0.64 GB. A round of FedADMM-InSa
with all of them keeps the clients' states, as much again, on the device with the rows, in memory, or on disk. Printed
is by how much the most memory that a process had grew from before the federation was opened to the last round's end,
less the same of the program itself, with 40 such clients. Pages of files that are mapped count as memory. (The result,
which is made after that, is whole in every process.)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from two_processes import free_address

import fedjax_admm as fa
from fedjax_admm.core.environment import peak_memory
from fedjax_admm.examples.linear import initializer, squared_error

CLIENTS, FEW, ROWS, DIMENSION = 4_000, 40, 2, 20_000
PLACES = {"device": "device", "host": "host", "disk": "host"}  # of the states, and of the rows


def clients(number: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(number):
        x = rng.standard_normal((ROWS, DIMENSION), np.float32)
        yield {"x": x, "y": x[:, 0]}


def run(folder: str, out: str, population: str, address: str, process: int, processes: int) -> None:
    """What every process does."""
    if processes > 1:
        fa.initialize_distributed(address, num_processes=processes, process_id=process)
    before = peak_memory() or 0
    data = fa.FederatedData.open(folder)
    problem = fa.Problem(init=initializer(DIMENSION), loss=squared_error, data=data)
    algorithm = fa.fedadmm_insa(fa.LocalSolver(1e-5, batch_size=2, max_epochs=1), penalty=0.1)
    execution = fa.Execution(population=population, data=PLACES[population])
    seen = []
    fa.simulate(
        problem, algorithm, 2, participation=1.0, evaluate=None, execution=execution, run_dir=out, progress=False,
        on_round=lambda row: seen.append(peak_memory() or 0),
    )  # fmt: skip
    print((seen[-1] - before) / 2**20, flush=True)


def measure(folder: Path, population: str, processes: int) -> list[float]:
    """MiB that each process took."""
    with tempfile.TemporaryDirectory() as place:
        shared = ["--join", str(folder), f"{place}/run", population, free_address()]
        commands = [[sys.executable, __file__, *shared, str(k), str(processes)] for k in range(processes)]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        return [float(one.communicate()[0].splitlines()[-1]) for one in started]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the federation is, or is to be")
    parser.add_argument("--populations", default=",".join(PLACES))
    parser.add_argument("--join", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.join:
        folder, out, population, address, process, processes = args.join
        run(folder, out, population, address, int(process), int(processes))
        return
    folders = {number: args.folder / str(number) for number in (CLIENTS, FEW)}
    for number, folder in folders.items():
        if not folder.exists():
            fa.FederatedData.from_clients(clients(number)).save(folder)
    print("| states | the program (MiB) | one process (MiB) | each of two (MiB) | of one |")
    print("|---|---:|---:|---:|---:|")
    for population in args.populations.split(","):
        (program,) = measure(folders[FEW], population, 1)
        (alone,), both = ([one - program for one in measure(folders[CLIENTS], population, k)] for k in (1, 2))
        each = " and ".join(f"{one:,.0f}" for one in both)
        print(f"| {population} | {program:,.0f} | {alone:,.0f} | {each} | {max(both) / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
