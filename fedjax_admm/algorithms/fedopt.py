"""FedAvgM, FedAdam, FedYogi and FedAdagrad: FedAvg with a server that steps along the averaged update.

Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification", 2019
(FedAvgM). Reddi et al., "Adaptive Federated Optimization", ICLR 2021, Algorithm 2 (the others).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import optax

from ..core import checks
from . import server_optimizers
from .averaging import Averaging, fedavg
from .criteria import Criterion
from .local_solver import LocalSolver
from .server_step import ServerStep

__all__ = ["fedadagrad", "fedadam", "fedavgm", "fedyogi"]


def fedavgm(
    local: LocalSolver,
    *,
    server_learning_rate: float = 1.0,
    server_momentum: float = 0.9,
    criterion: Criterion | None = None,
) -> Averaging:
    """FedAvgM: the server's step has momentum.

        v+ = beta v + Delta,
        z+ = z + eta v+.

    Delta = sum alpha_i (u_i+ - z) / sum alpha_i over the selected clients, and v = 0 at the start.

    Args:
        local: How a client minimises its loss.
        server_learning_rate: eta, above 0.
        server_momentum: beta, at least 0 and below 1. Hsu et al. try 0, 0.7, 0.9, 0.97, 0.99 and 0.997.
        criterion: When a local solve may stop early; by default it runs to `local.max_epochs`.

    >>> fedavgm(LocalSolver(learning_rate=0.1, max_epochs=5), server_momentum=0.7).server.options
    {'momentum': 0.7}
    """
    momentum = checks.number("server_momentum", server_momentum, at_least=0, below=1)
    return _with_server(local, "FedAvgM", criterion, optax.sgd, server_learning_rate, momentum=momentum)


def fedadagrad(
    local: LocalSolver,
    *,
    server_learning_rate: float = 0.1,
    beta1: float = 0.0,
    server_tau: float = 1e-3,
    criterion: Criterion | None = None,
) -> Averaging:
    """FedAdagrad: the server's steps adapt to the squares of all updates so far.

        m+ = beta1 m + (1 - beta1) Delta,
        v+ = v + Delta^2,
        z+ = z + eta m+ / (sqrt(v+) + tau).

    Delta is as in `fedavgm`; m = 0 and v = tau^2 at the start.

    Args:
        local: How a client minimises its loss.
        server_learning_rate: eta, above 0. Reddi et al. tune it over powers of 10^(1/2).
        beta1: How much of m stays, at least 0 and below 1.
        server_tau: tau, above 0: the smaller it is, the more adaptive the server.
        criterion: When a local solve may stop early; by default it runs to `local.max_epochs`.

    >>> fedadagrad(LocalSolver(learning_rate=0.1, max_epochs=5)).server.options["tau"]
    0.001
    """
    rule, numbers = server_optimizers.adagrad, {"beta1": beta1, "tau": server_tau}
    return _adaptive(local, "FedAdagrad", criterion, rule, server_learning_rate, numbers)


def fedadam(
    local: LocalSolver,
    *,
    server_learning_rate: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    server_tau: float = 1e-3,
    criterion: Criterion | None = None,
) -> Averaging:
    """FedAdam: FedAdagrad with a running mean of the squares.

        v+ = beta2 v + (1 - beta2) Delta^2.

    As in the paper, without Adam's usual bias correction, so with a large beta1 the first steps are short.

    Args:
        beta2: How much of v stays, at least 0 and below 1.

    The other arguments are `fedadagrad`'s.

    >>> fedadam(LocalSolver(learning_rate=0.1, max_epochs=5)).server.options["beta2"]
    0.99
    """
    rule, numbers = server_optimizers.adam, {"beta1": beta1, "beta2": beta2, "tau": server_tau}
    return _adaptive(local, "FedAdam", criterion, rule, server_learning_rate, numbers)


def fedyogi(
    local: LocalSolver,
    *,
    server_learning_rate: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    server_tau: float = 1e-3,
    criterion: Criterion | None = None,
) -> Averaging:
    """FedYogi: FedAdam with squares that decrease more slowly.

        v+ = v - (1 - beta2) Delta^2 sign(v - Delta^2).

    Args:
        beta2: v moves by 1 - beta2 times the square; at least 0 and below 1.

    The other arguments are `fedadagrad`'s.

    >>> fedyogi(LocalSolver(learning_rate=0.1, max_epochs=5)).server.learning_rate
    0.1
    """
    rule, numbers = server_optimizers.yogi, {"beta1": beta1, "beta2": beta2, "tau": server_tau}
    return _adaptive(local, "FedYogi", criterion, rule, server_learning_rate, numbers)


def _adaptive(
    local: LocalSolver, name: str, criterion: Criterion | None, rule: Callable, rate: Any, numbers: dict[str, Any]
) -> Averaging:
    checked = {
        word: checks.number("server_tau", n, above=0) if word == "tau" else checks.number(word, n, at_least=0, below=1)
        for word, n in numbers.items()
    }
    return _with_server(local, name, criterion, rule, rate, **checked)


def _with_server(
    local: LocalSolver, name: str, criterion: Criterion | None, rule: Callable, rate: Any, **options: Any
) -> Averaging:
    rate = checks.number("server_learning_rate", rate, above=0)
    made = fedavg(local, criterion=criterion, server=ServerStep(rule, learning_rate=rate, options=options))
    return dataclasses.replace(made, name=name)
