"""Kills a run with SIGKILL at random moments, resumes it, and compares it with one that was never disturbed.

    python benchmarks/kill_and_resume.py --kills 20

A checkpoint is written after every dispatch, so that kills fall into rounds, into checkpoints and into writes of the
history alike; where each fell is printed. Ends with exit code 1 if parameters, clients' states, solves or history
(but for the seconds) differ in a single bit.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

import fedjax_admm as fa
from fedjax_admm.storage import checkpoints

ROUNDS = 200


def run(run_dir: str | None, on_round=None, population: str = "device") -> fa.Result:
    """The run that is killed: every kind of client state, unequal epochs, rounds without an evaluation."""
    example = fa.examples.linear_regression(
        num_clients=12, rows_per_client=40, dimension=200, batch_size=5, learning_rate=0.002, rounds=ROUNDS
    )
    algorithm = example.algorithm("fedadmm_insa", penalty=0.1, unselected_penalty="sent")
    return fa.simulate(
        example.problem,
        algorithm,
        seed=3,
        evaluate_every=3,
        run_dir=run_dir,
        progress=False,
        on_round=on_round,
        checkpoint_seconds=0,
        execution=fa.Execution(population=population),
        **example.run_settings,
    )


def differences(one: fa.Result, other: fa.Result) -> list[str]:
    """What differs between two results, the seconds apart."""
    parts = {"params": lambda r: r.params, "clients": lambda r: dict(r.state.clients), "solves": lambda r: r.solves}
    found = []
    for name, part in parts.items():
        pairs = zip(jax.tree.leaves(part(one)), jax.tree.leaves(part(other)), strict=True)
        if not all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs):
            found.append(name)
    for column in one.history:
        equal = np.array_equal(one.history[column], other.history[column], equal_nan=True)
        if not equal and "seconds" not in column:
            found.append(f"history[{column!r}]")
    return found


def kill_once(folder: Path, wait: float, population: str) -> str:
    """Starts the run in a process of its own and kills it `wait` seconds after its first new round."""
    command = [sys.executable, __file__, "--child", str(folder), "--population", population]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.readline()
    if first.strip() == "0":  # before any round: what follows is compiling
        first = process.stdout.readline()
    if first:
        time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    lines = [first, *process.stdout.readlines()]
    said = process.stderr.read()
    if process.wait() not in (0, -signal.SIGKILL):
        raise SystemExit(f"the run failed by itself:\n{said}")
    print(said, end="", file=sys.stderr)
    rounds = [line for line in lines if line.endswith("\n")]
    last = rounds[-1].strip() if rounds else "-"
    beside = [p.name for p in (folder / "checkpoints").glob("*tmp*")]
    written = (folder / "history.csv").read_bytes() if (folder / "history.csv").exists() else b""
    place = "in a checkpoint" if beside else "in a history write" if not written.endswith(b"\n") else "elsewhere"
    return f"after round {last}, {place}" + ("; it had finished" if process.returncode == 0 else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--population", choices=("device", "host", "disk"), default="device")
    parser.add_argument("--child", metavar="DIR", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        checkpoints.SHARE = np.inf  # save after every dispatch, whatever share of the time that takes
        run(args.child, lambda row: print(row["round"], flush=True), args.population)
        return 0
    undisturbed, moments = run(None), random.Random(args.seed)
    done = 0
    while done < args.kills:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            folder = Path(temporary) / "run"
            for _ in range(min(5, args.kills - done)):  # several in one run: each resumes what the last one left
                print(f"kill {done + 1}: {kill_once(folder, moments.uniform(0, 1.0), args.population)}", flush=True)
                done += 1
            found = differences(undisturbed, run(str(folder), population=args.population))
            if found:
                print(f"the resumed run differs in {', '.join(found)}")
                return 1
            print("resumed to the end: identical", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
