"""What the paper's experiments have in common."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import algorithms
from ..algorithms.local_solver import LocalSolver
from ..algorithms.named_criteria import named
from ..core import checks
from ..problems.problem import Problem
from ..storage.description import describe


@dataclass(frozen=True)
class Example:
    """A problem with the settings of one of the paper's experiments (Table 1).

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
    c: float  # the modulus of strong convexity that the inexactness criterion assumes

    @property
    def run_settings(self) -> dict[str, Any]:
        """The arguments of `simulate` other than the problem and the algorithm."""
        return {"rounds": self.rounds, "participation": self.participation}

    def algorithm(self, name: str, penalty: Any = 1.0, **options: Any) -> Any:
        """An algorithm by its name in `fedjax_admm.algorithms`, such as "fedadmm_insa", configured as in the paper.

        FedAvg averages all clients' last models, as in the paper's experiments.

        Args:
            name: The name of the algorithm.
            penalty: Its penalty; ignored by algorithms without one, such as FedAvg.
            options: Other arguments of the algorithm, which replace the paper's. `criterion` may be given in words:
                "fixed", "epoch_mean", "sampling_noise(1)", ...
        """
        presets = {"fedavg": {"average": "all"}, "fedadmm_in": {"c": self.c}, "fedadmm_insa": {"c": self.c}}
        make = getattr(algorithms, checks.choice("name", name, tuple(algorithms.__all__)))
        known = inspect.signature(make).parameters
        for option in options:
            if option not in known:
                names = ", ".join(known)
                raise ValueError(f"{option} is not an argument of {name}, which takes {names}")
        if isinstance(words := options.get("criterion"), str):
            options["criterion"] = self._criterion(words, options)
            if "penalty" not in known and getattr(options["criterion"], "c", None) is not None:
                raise ValueError(
                    f"criterion {words!r} takes its sigma from the penalty, and {name} has none: give "
                    f"relative_residual(sigma=0.5,{options['criterion'].residual}), or another number"
                )
        shared = {"penalty": penalty} if "penalty" in known else {}
        return make(self.local, **shared | presets.get(name, {}) | options)

    def _criterion(self, words: str, options: dict[str, Any]) -> Any:
        for option in ("residual", "reference", "sigma_factor"):
            if option in options:
                raise ValueError(f"criterion {words!r} is instead of {option}: leave {option}={options[option]!r} out")
        return named(words, options.get("c", self.c))


def recipe(make: Callable[..., Example]) -> Callable[..., Example]:
    """Notes in an example's problem the call that makes it, so that a run on disk can be resumed from its settings."""

    @functools.wraps(make)
    def noted(*args: Any, **arguments: Any) -> Example:
        example = make(*args, **arguments)
        call = inspect.signature(make).bind(*args, **arguments)
        call.apply_defaults()
        problem = example.problem.with_recipe({"example": make.__name__, "arguments": describe(call.arguments)})
        return dataclasses.replace(example, problem=problem)

    return noted
