"""A federation of 100 GB on one machine: memory, the time of a round, the time to open it.

    python benchmarks/data.py --folder /tmp/large

Makes a federation on disk whose files have holes: only the rows of clients that the rounds select are real, random
bytes; the rest takes no disk, and nobody reads it. Then one process runs rounds on it with data="host", and another the
same rounds on those clients alone, with their rows on the device. They take turns. Reported are the best turn's ms a
round and their ratio (bar: 1.15 where a round computes for at least 50 ms), the most memory that the process with the
large federation had (bar: 3 GiB), and how long it took to open it (bar: a second).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np

GIGABYTES, COHORT, DISTINCT, ROUNDS = 100, 20, 60, 6
IMAGE = (32, 32, 3)
KINDS = {"logistic": (None, 8), "mlp": (64, 2)}  # hidden units, epochs


def make(folder: Path) -> None:
    """Writes the federation, once."""
    from fedjax_admm.core.files import write_whole
    from fedjax_admm.data import directory

    if (folder / directory.INDEX).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    each = int(np.prod(IMAGE)) + 4
    sizes = rng.integers(100, 300, GIGABYTES * 10**9 // (200 * each))
    rows, ends = int(sizes.sum()), np.cumsum(sizes)
    kinds = {"x": np.empty((0, *IMAGE), np.uint8), "y": np.empty(0, np.int32)}
    checksums = np.zeros((len(sizes), 2), np.uint32)  # of the clients that are used
    for k, (name, kind) in enumerate(kinds.items()):
        path = folder / f"field.{name}.npy"
        with path.open("wb") as file:
            directory._write_header(file, kind, rows)
            file.truncate(file.tell() + rows * int(np.prod(kind.shape[1:])) * kind.itemsize)
        leaf = np.lib.format.open_memmap(path, mode="r+")
        for i in used(len(sizes)):
            values = rng.integers(256 if name == "x" else 10, size=(sizes[i], *kind.shape[1:]), dtype=kind.dtype)
            leaf[ends[i] - sizes[i] : ends[i]] = values
            checksums[i, k] = zlib.crc32(values)
        leaf.flush()
    arrays = {"sizes": sizes, "weights": sizes / rows, "checksums": checksums}
    write_whole(folder / directory.CLIENTS, lambda file: np.savez(file, **arrays))
    index = {"format": directory.FORMAT, "clients": len(sizes), "rows": rows}
    index["fields"] = directory._describe(kinds)[0]
    index["clients_crc32"] = zlib.crc32((folder / directory.CLIENTS).read_bytes())
    text = json.dumps(index | {"crc32": directory._index_crc(index)})
    write_whole(folder / directory.INDEX, lambda file: file.write(text.encode()))


def used(clients: int) -> np.ndarray:
    """The clients of all cohorts."""
    return np.sort(np.random.default_rng(1).choice(clients, DISTINCT, replace=False))


def child(folder: Path, where: str, kind: str, population: str) -> None:
    """Runs rounds when told to; prints their seconds and the memory."""
    import jax

    import fedjax_admm as fa
    from fedjax_admm.core.environment import peak_memory

    began = time.perf_counter()
    data = fa.FederatedData.open(folder)
    opened = time.perf_counter() - began
    known = used(data.num_clients)
    picks = np.random.default_rng(2)
    cohorts = np.stack([np.sort(picks.choice(DISTINCT, COHORT, replace=False)) for _ in range(ROUNDS)])
    if where == "host":
        cohorts = known[cohorts]
    else:
        data = fa.FederatedData.from_clients([data.client(int(i)) for i in known])
    hidden, epochs = KINDS[kind]
    model = (
        fa.models.logistic(IMAGE, normalization=fa.models.CIFAR10)
        if hidden is None
        else fa.models.mlp(IMAGE, hidden=(hidden,), normalization=fa.models.CIFAR10)
    )
    task = fa.problems.classification(model, accuracy=False)
    problem = fa.Problem(init=task["init"], loss=task["loss"], data=data)
    local = fa.LocalSolver(learning_rate=0.001, batch_size=20, max_epochs=epochs)
    algorithm = fa.fedavg(local) if population == "device" else fa.fedadmm(local, penalty=0.1)
    execution = fa.Execution(data=where, population=population, mesh=1)
    sim = fa.Simulation(problem, algorithm, participation=COHORT, execution=execution)
    state = sim.init()
    for _ in sys.stdin:
        began = time.perf_counter()
        state, _, _ = sim.run_rounds(state, cohorts.astype(np.int32), ROUNDS)
        jax.block_until_ready(state.params)
        seconds = (time.perf_counter() - began) / ROUNDS
        told = {"seconds": seconds, "memory": peak_memory(), "opened": opened, "clients": data.num_clients}
        print(json.dumps(told | {"rows": int(np.asarray(data.sizes)[cohorts].sum(1).mean())}), flush=True)


class Child:
    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, __file__, "--child", *arguments]
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
    parser.add_argument("--folder", type=Path, required=True, help="where the federation is, or is to be")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    if sys.argv[1:2] == ["--child"]:
        folder, where, kind, population = sys.argv[2:]
        child(Path(folder), where, kind, population)
        return
    args = parser.parse_args()
    make(args.folder)
    for kind in args.kinds.split(","):
        for population in ("device", "disk"):
            children = [Child(str(args.folder), where, kind, population) for where in ("host", "device")]
            turns = [[one.turn() for one in children] for _ in range(args.turns + 1)][1:]
            host, device = (min(turn[k]["seconds"] for turn in turns) for k in (0, 1))
            last = turns[-1][0]
            print(
                f"{kind:>8}, population={population!r}: {last['clients']:,} clients, {last['rows']:,} rows a round: "
                f"{1000 * host:.0f} ms on the host, {1000 * device:.0f} ms on the device, ratio {host / device:.2f}; "
                f"memory at most {last['memory'] / 2**30:.2f} GiB, opened in {1000 * last['opened']:.0f} ms",
                flush=True,
            )
            for one in children:
                one.close()


if __name__ == "__main__":
    main()
