"""The speed of this version against another one's, whose interpreter is given: the same rounds, process by process.

    python -m venv envs/old && envs/old/bin/pip install CLONE  # with the other version checked out
    python benchmarks/versions.py --other-python envs/old/bin/python

Rounds as in `lanes.py` (FedADMM-In, equal clients and unequal ones, one device, the automatic number of lanes) and as
in `cores.py` (FedAvg, a device per core). The two versions' processes take turns; reported is by how many times the
samples a second of this version's best turn are the other's: the median over the pairs of processes, and the range.
With one core (`taskset -c 0`), lanes and devices are those of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

KINDS = ("linear", "logistic", "cnn")
# clients, rows, epochs; turns: one of logistic regression is 30 ms, and the best of few is noise
SIZES = {"linear": (16, 250, 4, 10), "logistic": (24, 300, 4, 40), "cnn": (8, 150, 2, 4)}


def worker(kind: str) -> dict[str, float]:
    """Seconds of the best turn of each case, in this process."""
    import fedjax_admm as fa

    devices = fa.use_cpu_devices()

    from common import RATES, Rounds, best_seconds, problem

    clients, rows, epochs, turns = SIZES[kind]
    equal, unequal = (problem(kind, clients, rows, uneven=uneven) for uneven in (False, True))
    local = fa.LocalSolver(learning_rate=RATES[kind], batch_size=50, max_epochs=epochs)
    inexact, average = fa.fedadmm_in(local, penalty=1.0, c=0.1), fa.fedavg(local)
    cases = {"equal": (equal, inexact, 1), "unequal": (unequal, inexact, 1)}
    if devices > 1:
        cases[f"{devices} devices"] = (equal, average, devices)
    sims = {name: fa.Simulation(task, how, execution=fa.Execution(mesh=n)) for name, (task, how, n) in cases.items()}
    return best_seconds({name: Rounds(sim, 1) for name, sim in sims.items()}, turns)


def measure(python: str, kind: str) -> dict[str, float]:
    """`worker` in a process of an interpreter."""
    command = [python, __file__, "--worker", kind]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" or python == sys.executable
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{python} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other-python", help="the interpreter that has the other version")
    parser.add_argument("--pairs", type=int, default=5, help="of processes")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(worker(args.worker)))
        return
    if not args.other_python:
        parser.error("--other-python is missing: give the interpreter that has the other version")
    for kind in args.kinds:
        ratios: dict[str, list[float]] = {}
        for _ in range(args.pairs):
            other, this = measure(args.other_python, kind), measure(sys.executable, kind)
            for case, seconds in other.items():
                ratios.setdefault(case, []).append(seconds / this[case])
        for case, values in ratios.items():
            shown = f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"
            print(f"{kind:>9}, {case:>9}: {shown} times as fast as the other", flush=True)


if __name__ == "__main__":
    main()
