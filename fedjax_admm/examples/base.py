"""What the paper's experiments have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import algorithms, checks
from ..local_solver import LocalSolver
from ..problem import Problem


@dataclass(frozen=True)
class Example:
    """A problem with the settings of a column of the paper's Table 1.

    >>> import fedjax_admm as fa
    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5)
    >>> example.algorithm("fedadmm_insa", penalty=0.1).penalty
    0.1
    """

    name: str
    problem: Problem
    local: LocalSolver
    rounds: int
    participation: Any
    c: float
    delta: float = 0.01
    mu: float = 5.0
    tau: float = 2.0

    @property
    def run_settings(self) -> dict[str, Any]:
        """Arguments of `simulate` besides the problem and the algorithm."""
        return {"rounds": self.rounds, "participation": self.participation}

    def algorithm(self, name: str, penalty: Any = 1.0, **options: Any) -> Any:
        """The paper's configuration of fedavg, fedprox, fedadmm, fedadmm_in or fedadmm_insa.

        FedAvg averages all clients' last models, as in the paper's experiments; `options` override this or any
        other argument. FedAvg has no penalty and leaves it out.
        """
        inexact = {"c": self.c, "delta": self.delta}
        makers = {
            "fedavg": lambda: algorithms.fedavg(self.local, **{"average": "all"} | options),
            "fedprox": lambda: algorithms.fedprox(self.local, penalty, **options),
            "fedadmm": lambda: algorithms.fedadmm(self.local, penalty, **options),
            "fedadmm_in": lambda: algorithms.fedadmm_in(self.local, penalty, **inexact | options),
            "fedadmm_insa": lambda: algorithms.fedadmm_insa(
                self.local, penalty, **inexact | {"mu": self.mu, "tau": self.tau} | options
            ),
        }
        return makers[checks.choice("name", name, tuple(makers))]()
