"""Methods that must be the same under certain conditions: how far apart they are. And some that must not converge.

    python benchmarks/identities.py

In double precision, on quadratics f_i(w) = h_i / 2 ||w - e_i||^2 of ten clients with curvatures h_i from 0.37 to 2.7.
In the first table, z after 20 rounds by two methods, or after one by a method and its limit: the largest difference of
a coordinate. In the second, the distance of z from the optimum after 400 rounds of exact solves.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_admm as fa
from fedjax_admm.results.tables import Table

CLIENTS, DIMENSION = 10, 3
RNG = np.random.default_rng(0)
CURVATURES, OPTIMA = np.exp(RNG.uniform(-1, 1, CLIENTS)), 2 * RNG.normal(size=(CLIENTS, DIMENSION))
UNEQUAL = RNG.uniform(1, 3, CLIENTS)
PENALTIES = RNG.uniform(0.5, 2, CLIENTS)
LOCAL = fa.LocalSolver(learning_rate=0.1, max_epochs=5)  # inexact
EXACT = fa.LocalSolver(learning_rate=1 / (CURVATURES + 1))  # one step, with a penalty of 1
HALF = 0.5


def bowl(w: Any, batch: Any) -> Any:
    return 0.5 * batch["h"] * jnp.sum((w - batch["e"]) ** 2, axis=-1)


def start(key: Any) -> Any:
    return jnp.ones(DIMENSION)


def problem(weights: Any = None, optima: np.ndarray = OPTIMA) -> fa.Problem:
    data = {"h": CURVATURES, "e": optima}
    return fa.Problem(
        init=start, loss=bowl, data=fa.FederatedData.from_arrays(data, np.arange(10)[:, None], weights=weights)
    )


def end(algorithm: Any, participation: float, rounds: int = 20, **options: Any) -> np.ndarray:
    made = problem(**options)
    settings = dict(participation=participation, evaluate_every=rounds, progress=False)
    return np.asarray(fa.simulate(made, algorithm, rounds, **settings).params)


def gradient_step() -> np.ndarray:
    """z - sum alpha_i grad f_i(z) / sum alpha_i beta_i from z^0, with equal weights and beta_i = 1."""
    return 1 - (CURVATURES[:, None] * (1 - OPTIMA)).mean(axis=0)


def pairs() -> list[tuple[str, str, float]]:
    """(the identity, the clients in a round, how far apart)."""
    weights = UNEQUAL / UNEQUAL.sum()
    admm = end(fa.fedadmm(LOCAL, PENALTIES), HALF, weights=weights)
    equal = end(fa.fedadmm(LOCAL, 0.7), HALF)
    average = end(fa.fedavg(LOCAL), HALF, weights=weights)
    prox = end(fa.fedprox(LOCAL, 0.5), HALF, weights=weights)
    of_all = end(fa.fedprox(LOCAL, 0.5, average="all"), HALF, weights=weights)
    everyone = end(fa.fedadmm(LOCAL, PENALTIES), 1.0, weights=weights)
    own = end(fa.fedadmm(LOCAL, PENALTIES, start="client"), 1.0, weights=weights)
    heavy = fa.LocalSolver(0.1, max_epochs=5, options={"momentum": 0.6})
    heavy_average = end(fa.fedavg(heavy), HALF, weights=weights)
    limit = end(fa.fedadmm(EXACT, 1.0, local_rounds=500), 1.0, rounds=1)
    no_g, share = fa.prox.l2(0.0), "Gong et al., eta = clients in a round / clients = FedADMM"
    cases = {
        "FedDR, relaxation 1 = FedADMM": (fa.feddr(LOCAL, PENALTIES, relaxation=1.0), HALF, weights, admm),
        "Wang et al., g = 0 = FedADMM": (fa.fedadmm(LOCAL, PENALTIES, server_prox=no_g), HALF, weights, admm),
        share: (fa.fedadmm(LOCAL, 0.7, server_step=HALF), HALF, None, equal),
        "FedPD, skip 0 = FedADMM from clients' own starts": (fa.fedpd(LOCAL, PENALTIES), 1.0, weights, own),
        "FedDyn = FedADMM": (fa.feddyn(LOCAL, PENALTIES), 1.0, weights, everyone),
        "FedADMM, dual step 0 = FedProx, all averaged": (fa.fedadmm(LOCAL, 0.5, dual_step=0.0), HALF, weights, of_all),
        "FedNova, equal steps = FedAvg": (fa.fednova(LOCAL), HALF, weights, average),
        "the same with momentum, by norm": (fa.fednova(heavy, effective="norm"), HALF, weights, heavy_average),
        "FedNova by norm, equal proximal steps = FedProx": (
            fa.fednova(LOCAL, proximal=0.5, effective="norm"), HALF, weights, prox,
        ),
        "FedAvgM, momentum 0 = FedAvg": (fa.fedavgm(LOCAL, server_momentum=0.0), HALF, weights, average),
    }  # fmt: skip
    rows = [
        (name, "half" if part == HALF else "all", float(np.abs(end(method, part, weights=w) - other).max()))
        for name, (method, part, w, other) in cases.items()
    ]
    rows.insert(
        5, ("FedADMM, 500 local rounds = a step of gradient descent", "all", np.abs(limit - gradient_step()).max())
    )
    return rows


def distances() -> list[tuple[str, str, float]]:
    """(the method, the clients in a round, how far from the optimum)."""
    optimum = CURVATURES @ OPTIMA / CURVATURES.sum()
    alike = np.tile(OPTIMA[0], (CLIENTS, 1))
    cases: dict[str, tuple[Any, float, dict, np.ndarray]] = {
        "FedADMM": (fa.fedadmm(EXACT, 1.0), HALF, {}, optimum),
        "FedDR, relaxation 1.6": (fa.feddr(EXACT, 1.0, relaxation=1.6), HALF, {}, optimum),
        "Gong et al., eta 1": (fa.fedadmm(EXACT, 1.0, server_step=1.0), HALF, {}, optimum),
        "FedPD, skip 0": (fa.fedpd(EXACT, 1.0), 1.0, {}, optimum),
        "FedPD, skip 0.5": (fa.fedpd(EXACT, 1.0, skip=0.5), 1.0, {}, optimum),
        "FedPD, skip 0.5, all f_i with one minimiser": (
            fa.fedpd(EXACT, 1.0, skip=0.5),
            1.0,
            {"optima": alike},
            alike[0],
        ),
    }
    return [
        (name, "half" if part == HALF else "all", float(np.linalg.norm(end(method, part, 400, **options) - truth)))
        for name, (method, part, options, truth) in cases.items()
    ]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    jax.config.update("jax_enable_x64", True)
    for header, rows in (("identity", pairs()), ("method", distances())):
        what = "largest difference" if header == "identity" else "from the optimum"
        cells = tuple((name, who, f"{away:.0e}") for name, who, away in rows)
        print(Table((header, "clients in a round", what), cells).markdown(), end="\n\n")


if __name__ == "__main__":
    main()
