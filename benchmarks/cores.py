"""Clients dealt over host devices, one per core, against one device that has all cores.

    python benchmarks/cores.py

FedAvg, the same rounds with `Execution(mesh=1)`, with all devices and with the automatic choice, in turns in one
process; reported are ms a client-step of each one's best turn. Bar: logistic regression 1.6 times as fast on two
devices, the CNN not slower by the automatic choice.
"""

from __future__ import annotations

import argparse

import fedjax_admm as fa

NUMBER = fa.use_cpu_devices()

from common import KINDS, RATES, Rounds, best_seconds, problem  # noqa: E402  (JAX starts with the devices above)

SIZES = {"linear": (20, 250, 3), "logistic": (40, 300, 8), "cnn": (8, 300, 1)}  # clients, rows, rounds a turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    print(f"{NUMBER} devices; ms a client-step, best of {args.turns} turns")
    for kind in args.kinds:
        clients, rows, rounds = SIZES[kind]
        task = problem(kind, clients, rows)
        algorithm = fa.fedavg(fa.LocalSolver(learning_rate=RATES[kind], batch_size=50, max_epochs=2))
        executions = {"one": 1, "all": NUMBER, "auto": None}
        sims = {name: fa.Simulation(task, algorithm, execution=fa.Execution(mesh=n)) for name, n in executions.items()}
        best = best_seconds({name: Rounds(sim, rounds) for name, sim in sims.items()}, args.turns)
        steps = clients * -(-rows // 50) * 2 * rounds
        shown = ", ".join(f"{name} {1000 * seconds / steps:.4f}" for name, seconds in best.items())
        used = sims["auto"].resolved()["devices"]
        print(f"{kind:>9}: {shown}; all / one {best['one'] / best['all']:.2f} times as fast, auto uses {used}")


if __name__ == "__main__":
    main()
