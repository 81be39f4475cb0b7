"""How many lanes: samples a second for several widths, and whether a criterion costs what it computes.

    python benchmarks/lanes.py

FedADMM-In (unequal epochs) in rounds of all clients, with equal clients and with clients of very unequal size
(Dirichlet(0.3) over labels), in turns in one process; reported are samples a second of each width's best turn and the
share of useful samples. Then FedADMM-InSa against FedADMM: its seconds over theirs, divided by its gradients over
theirs; 1 is a criterion that costs its gradients and nothing else. Bars: the automatic width within 10 % of the best,
and that quotient at most 1.15. One device: `cores.py` is about several.
"""

from __future__ import annotations

import argparse

from common import KINDS, RATES, Rounds, best_seconds, problem

import fedjax_admm as fa

SIZES = {"linear": (16, 250), "logistic": (24, 300), "cnn": (8, 150)}  # clients, rows
EPOCHS = {"linear": 4, "logistic": 4, "cnn": 2}
TURNS = {"linear": 10, "logistic": 40, "cnn": 5}  # a turn of logistic regression is 30 ms, and the best of few is noise


def contestant(task: fa.Problem, algorithm, lanes) -> Rounds:
    return Rounds(fa.Simulation(task, algorithm, execution=fa.Execution(lanes=lanes, mesh=1)), 1)


def widths(kind: str, uneven: bool, turns: int) -> None:
    clients, rows = SIZES[kind]
    task = problem(kind, clients, rows, uneven=uneven)
    local = fa.LocalSolver(learning_rate=RATES[kind], batch_size=50, max_epochs=EPOCHS[kind])
    algorithm = fa.fedadmm_in(local, penalty=1.0, c=0.1)
    auto = fa.Simulation(task, algorithm, execution=fa.Execution(mesh=1)).width
    runs = {w: contestant(task, algorithm, w) for w in sorted({1, 2, 4, 8, clients, auto}) if w <= clients}
    best = best_seconds(runs, turns)
    speed = {width: runs[width].samples / seconds for width, seconds in best.items()}
    shown = ", ".join(f"{width}: {value:,.0f}" for width, value in speed.items())
    share = speed[auto] / max(speed.values())
    print(
        f"{kind:>9}, {'unequal' if uneven else 'equal':>7}: {shown}; auto is {auto}, {share:.2f} of the best",
        flush=True,
    )


def price(kind: str, turns: int) -> None:
    clients, rows = SIZES[kind]
    task = problem(kind, clients, rows)
    local = fa.LocalSolver(learning_rate=RATES[kind], batch_size=50, max_epochs=EPOCHS[kind])
    runs = {
        "FedADMM": contestant(task, fa.fedadmm(local, penalty=1.0), "auto"),
        "InSa": contestant(task, fa.fedadmm_insa(local, penalty=1.0), "auto"),
    }
    best = best_seconds(runs, turns)
    seconds, samples = best["InSa"] / best["FedADMM"], runs["InSa"].samples / runs["FedADMM"].samples
    print(
        f"{kind:>9}: InSa {seconds:.2f} times the seconds, {samples:.2f} times the gradients: {seconds / samples:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, help=f"default: {TURNS}")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    turns = {kind: TURNS[kind] if args.turns is None else args.turns for kind in args.kinds}
    print("samples a second by width, best turn of", ", ".join(f"{turns[kind]} ({kind})" for kind in turns))
    for kind in turns:
        for uneven in (False, True):
            widths(kind, uneven, turns[kind])
    for kind in turns:
        price(kind, turns[kind])


if __name__ == "__main__":
    main()
