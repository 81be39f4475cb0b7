"""Two processes on this machine do one run, as two machines would.

    python benchmarks/hosts/two_processes.py --out runs/two

Starts itself twice and waits for both. A script of your own needs the call of `fa.initialize_distributed` alone; how
its processes are started, and on which machines, is the cluster's business (`slurm.sh`). Kill one of them, and the
other ends; the same command goes on with the run.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys

import fedjax_admm as fa


def run(address: str, process: int, out: str | None) -> None:
    """What every process does."""
    fa.initialize_distributed(address, num_processes=2, process_id=process)
    example = fa.examples.linear_regression(
        num_clients=20, rows_per_client=50, dimension=100, batch_size=10, learning_rate=0.002, rounds=30
    )
    algorithm = example.algorithm("fedadmm_insa", penalty=0.1)
    result = fa.simulate(example.problem, algorithm, run_dir=out, **example.run_settings)
    if process == 0:
        print(result)


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="the run's directory")
    parser.add_argument("--join", nargs=2, metavar=("ADDRESS", "PROCESS"), help="be one of the processes")
    arguments = parser.parse_args()
    if arguments.join:
        run(arguments.join[0], int(arguments.join[1]), arguments.out)
        return 0
    address, out = free_address(), ["--out", arguments.out] if arguments.out else []
    commands = [[sys.executable, __file__, *out, "--join", address, str(process)] for process in (0, 1)]
    processes = [subprocess.Popen(command) for command in commands]
    return max(abs(process.wait()) for process in processes)


if __name__ == "__main__":
    sys.exit(main())
