"""FedDR: randomized Douglas-Rachford splitting, which is FedADMM with relaxation.

Tran-Dinh, Pham, Phan and Nguyen, "FedDR - Randomized Douglas-Rachford Splitting Algorithms for Nonconvex Federated
Composite Optimization", NeurIPS 2021, and its program, github.com/unc-optimization/FedDR.

Its lines and FedADMM's are the same in other letters. Let y_i = u_i + lambda_i / beta_i. Then its step
y_i+ = y_i + alpha (z - u_i) is y_i+ = c_i + lambda_i / beta_i around the center c_i = alpha z + (1 - alpha) u_i; its
proximal map of f_i at y_i+ minimises f_i(u) - <lambda_i, u> + beta_i / 2 ||u - c_i||^2; and what it averages,
2 u_i+ - y_i+, is u_i+ - lambda_i+ / beta_i with lambda_i+ = lambda_i - beta_i (u_i+ - c_i). At alpha = 1 the center is
z.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..core import checks
from .admm import FedADMM
from .criteria import Criterion
from .fedadmm import fedadmm
from .local_solver import LocalSolver

__all__ = ["feddr"]


def feddr(
    local: LocalSolver,
    penalty: Any,
    *,
    relaxation: float = 1.9,
    criterion: Criterion | None = None,
    server_prox: Any = None,
    start: str = "server",
) -> FedADMM:
    """FedDR: Douglas-Rachford splitting of min sum alpha_i f_i(x) + g(x), with any number of clients per round.

    Each selected client moves y_i+ = y_i + relaxation (z - u_i) and solves

        u_i+ = argmin f_i(u) + beta_i / 2 ||u - y_i+||^2.

    Then z is the proximal map of g at the mean of 2 u_i - y_i over all clients, selected or not, weighted by alpha_i
    beta_i. With `relaxation=1` it is `fedadmm`.

    A client's state is that of `fedadmm`: `client_params` u_i, and `duals`, beta_i (y_i - u_i).

    Args:
        local: How a client computes its proximal map.
        penalty: beta_i = 1 / eta above 0, a number or one per client [clients].
        relaxation: The paper's alpha, above 0 and below 2. The authors' program uses 1.9.
        criterion: When a local solve may stop early; by default it does its maximum of epochs.
        server_prox: The proximal map of g, see `fedadmm`.
        start: Where a solve starts: at the "server"'s z, or at the "client"'s own u_i, as in the authors' program.

    >>> feddr(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0).relaxation
    1.9
    """
    made = fedadmm(local, penalty, criterion=criterion, server_prox=server_prox, start=start)
    return dataclasses.replace(made, relaxation=checks.number("relaxation", relaxation, above=0, below=2))
