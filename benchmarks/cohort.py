"""What a round needs against the size of its cohort: memory of the compiled program, of the process, and time.

    python benchmarks/cohort.py
    python benchmarks/cohort.py --lanes 1
    python benchmarks/cohort.py --million

FedAvg, which keeps nothing, and FedADMM-InSa, with cohorts of 16 to 1,024 of 1,024 clients and with 5,000 and
1,000,000 parameters; each case is a process of its own. Reported are the temporaries of the compiled round in copies of
the parameters, and the most memory that the process had without the clients' rows. Bars: both constant within 5 % in
the cohort; at most 16 copies per lane and 12 besides; a process with FedAvg, a cohort of 200 and a million parameters
below 0.9 GiB, and FedADMM-InSa below that and its clients' rows.
`--million`: 10,000 of 1,000,000 clients of 10,000 parameters a round, rows on disk (80 GB if all were selected): memory
and time of a round, beside rounds of 40 clients of this population and of 200 clients. Bars: below 3 GiB; the large
round takes as long for a client as the small one, and 40 clients as long in either population, within 1.15.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

COHORTS, SIZES, CLIENTS, LANES = (16, 64, 256, 1024), (5_000, 1_000_000), 1024, 2
LARGE = {"clients": 200, "cohort": 200}  # of a million parameters: their rows must fit
METHODS = ("fedavg", "fedadmm_insa")
FEATURES, ROWS = 8, 4


def loss(params: Any, batch: Any) -> Any:
    """Least squares in the first few parameters; the others are only carried, as in a model that is hardly used."""
    return 0.5 * (batch["x"] @ params[:FEATURES] - batch["y"]) ** 2


def make(clients: int, size: int, method: str, cohort: int, lanes: int = LANES, kind: str = "device") -> Any:
    """A simulation."""
    import jax.numpy as jnp

    import fedjax_admm as fa

    rng = np.random.default_rng(0)
    rows = 4_096
    fields = {"x": rng.normal(size=(rows, FEATURES)).astype("f"), "y": rng.normal(size=rows).astype("f")}
    starts = rng.integers(rows - ROWS, size=clients)
    data = fa.FederatedData.from_arrays(fields, list(starts[:, None] + np.arange(ROWS)), allow_overlap=True)
    problem = fa.Problem(init=lambda key: jnp.zeros(size), loss=loss, data=data)
    local = fa.LocalSolver(learning_rate=0.1, batch_size=2, max_epochs=2)
    algorithm = fa.fedavg(local) if method == "fedavg" else fa.fedadmm_insa(local, penalty=0.5)
    execution = fa.Execution(lanes=lanes, population=kind, mesh=1)
    return fa.Simulation(problem, algorithm, participation=cohort, execution=execution)


def child(clients: int, size: int, method: str, cohort: int, lanes: int) -> dict[str, float]:
    """Two rounds, and what they needed."""
    import jax
    import jax.numpy as jnp

    from fedjax_admm.core.environment import peak_memory
    from fedjax_admm.engine.population import device_rounds

    sim = make(clients, size, method, cohort, lanes)
    state = sim.init()
    ids = jnp.asarray(sim.cohorts[0])[None]
    compiled = device_rounds.lower(
        sim.population.placed, state, ids, jnp.int32(0), jnp.int32(1), layout=sim.layout
    ).compile()
    rows = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients))
    for _ in range(2):
        state, _ = sim.round(state)
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    return {"copies": temporaries / (4 * size), "peak": peak_memory() - rows, "rows": rows}


def rounds_of(clients: int, cohort: int, rounds: int) -> dict[str, float]:
    """Seconds of a round on disk, the best of several, and the memory."""
    from fedjax_admm.core.environment import peak_memory

    sim = make(clients, 10_000, "fedadmm_insa", cohort, kind="disk")
    state, seconds = sim.init(), []
    for _ in range(rounds):
        began = time.perf_counter()
        state, _ = sim.round(state)
        seconds.append(time.perf_counter() - began)
    return {"first": seconds[0], "seconds": min(seconds[1:]), "memory": peak_memory()}


def run_child(name: str, *arguments: Any) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", name, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(lanes: int) -> None:
    """Cohorts, sizes and methods."""
    for method in METHODS:
        for size in SIZES:
            # A million parameters of 1,024 clients are 8 GB of rows: with fewer clients there, and cohorts as they fit.
            clients = CLIENTS if size < 1_000_000 or method == "fedavg" else LARGE["clients"]
            cohorts = [c for c in (*COHORTS, LARGE["cohort"]) if c <= clients]
            cases = {cohort: run_child("memory", clients, size, method, cohort, lanes) for cohort in sorted(cohorts)}
            first = cases[min(cases)]
            for cohort, told in cases.items():
                print(
                    f"{method:>12}, {size:>9,} parameters, cohort {cohort:>5,} of {clients:>5,}: "
                    f"{told['copies']:.1f} copies ({told['copies'] / first['copies']:.3f} of the first), "
                    f"process {told['peak'] / 2**30:.2f} GiB without {told['rows'] / 2**30:.2f} GiB of rows",
                    flush=True,
                )


def million() -> None:
    """A cohort of 10,000 of a million clients."""
    cases = {"large": (1_000_000, 10_000, 3), "small": (1_000_000, 40, 12), "few": (200, 40, 12)}
    told = {name: run_child("rounds", *case) for name, case in cases.items()}
    for name, (clients, cohort, _) in cases.items():
        one = told[name]
        print(
            f"{cohort:>6,} of {clients:>9,} clients: {1000 * one['seconds']:.0f} ms a round, "
            f"{1000 * one['seconds'] / cohort:.3f} ms a client, memory at most {one['memory'] / 2**30:.2f} GiB",
            flush=True,
        )
    print(f"40 of 1,000,000 against 40 of 200: {told['small']['seconds'] / told['few']['seconds']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", action="store_true", help="the cohort of 10,000 of a million clients")
    parser.add_argument("--lanes", type=int, default=LANES, help="of the table")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        name, *rest = args.child
        if name == "memory":
            clients, size, method, cohort, lanes = rest
            print(json.dumps(child(int(clients), int(size), method, int(cohort), int(lanes))))
        else:
            print(json.dumps(rounds_of(*map(int, rest))))
        return
    million() if args.million else table(args.lanes)


if __name__ == "__main__":
    main()
