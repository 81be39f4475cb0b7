"""A run's settings as JSON: every argument and default, and enough to make the run again.

A problem is described by digests of its data and of what its functions compute, and by the call that made it where one
is known (`Problem.recipe`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ..algorithms.base import Algorithm
from ..core.record import display_name
from ..data.fields import sample
from ..data.rows import kinds
from ..exchange.client_time import ClientTime
from ..exchange.stage import Exchange
from ..problems.problem import Problem
from .description import describe, recreate
from .digests import computation, digest, digest_of_data, optimizer_step

CONDITIONS = ("faults", "client_time", "exchange")  # settings that a run without them does not mention
# What is evaluated, where it is not this: likewise not mentioned.
EVALUATION = {"evaluate": "all", "evaluate_clients_every": None, "evaluate_clients": "all"}


def describe_problem(problem: Problem) -> dict[str, Any]:
    """The problem's recipe, its data in a few words, and digests that change if data or functions do."""
    params = problem.params_shape
    batch = kinds(problem.data.fields, rows=3)
    functions = {
        "init": computation(problem.init, jax.eval_shape(lambda: jax.random.key(0))),
        "loss": computation(problem.loss, params, batch),
    }
    if problem.regularizer is not None:
        functions["regularizer"] = computation(problem.regularizer, params)
    if problem.metrics:
        rows = kinds(problem.eval_data, rows=3)
        functions |= {f"metrics.{name}": computation(metric, params, rows) for name, metric in problem.metrics}
    return {
        "recipe": problem.recipe,
        "clients": problem.data.num_clients,
        "rows": problem.data.num_positions,
        "parameters": problem.num_params,
        "data": digest_of_data(problem.data),
        "eval_data": digest(sample(problem.eval_data)),
        **({} if problem.client_eval_data is None else {"client_eval_data": digest_of_data(problem.client_eval_data)}),
        "optimal_loss": None if problem.optimal_loss is None else float(problem.optimal_loss),
        "computes": functions,
    }


def describe_algorithm(algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """The algorithm's record, with a digest of what its optimizer computes: a function's name does not tell."""
    return describe(algorithm) | {"optimizer_step": optimizer_step(algorithm.local, problem.params_shape)}


def describe_conditions(faults: Any, client_time: Any, exchange: Any = ()) -> dict[str, Any]:
    """Faults, the clients' time and stages of the exchange, where there are any."""
    stages = list(Exchange.of(exchange or ()).stages) or None
    values = zip(CONDITIONS, (faults, client_time, stages), strict=True)
    return {name: describe(value) for name, value in values if value is not None}


def describe_evaluation(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is evaluated, where it is not what is usual.

    >>> describe_evaluation({"evaluate": "all", "evaluate_clients_every": 10})
    {'evaluate_clients_every': 10}
    """
    return {name: describe(values[name]) for name, usual in EVALUATION.items() if values.get(name, usual) != usual}


def recreate_algorithm(described: Mapping[str, Any], trust: Sequence[str] = ()) -> Any:
    """Makes what `describe_algorithm` described; see `recreate`."""
    return recreate({key: item for key, item in described.items() if key != "optimizer_step"}, trust)


def recreate_client_time(described: Any, num_clients: int) -> ClientTime | None:
    """Makes a client time from its numbers alone, whatever the description calls itself.

    Args:
        described: What settings say of `client_time`, or None.
        num_clients: The number that speeds per client must fit.

    Returns:
        The client time, without its deadline; None where there is none, or its speeds are no numbers.
    """
    if not isinstance(described, Mapping):
        return None
    speeds = [described.get(name) for name in ("gradients_per_second", "floats_per_second")]
    plain = [item.get("array") if isinstance(item, Mapping) else item for item in speeds]
    try:
        client_time = ClientTime(*plain)
        client_time.check(num_clients)
        return client_time
    except (TypeError, ValueError):
        return None


def title(algorithm: Mapping[str, Any], recipe: Mapping[str, Any] | None, label: str | None = None) -> str:
    """What a run is of: the algorithm by its label, else by what it is called, and the example, if it is one.

    >>> title({}, {"example": "linear_regression"}, "fedadmm-insa")
    'fedadmm-insa on linear regression'
    >>> title(describe(fa.fedadmm_insa(fa.LocalSolver(learning_rate=0.1))), None)
    'FedADMM-InSa'
    >>> title({"record": "my.module:Mine", "local": {}, "criterion": {"record": "my.module:Never"}}, None)
    'Mine, criterion Never'
    """
    name = _algorithm_name(algorithm) if label is None else label
    problem = problem_name(recipe)
    return name if problem is None else f"{name} on {problem}"


def _algorithm_name(algorithm: Mapping[str, Any]) -> str:
    """What the package calls its own; of others, which are not made here, the names of the records."""
    try:
        return display_name(recreate_algorithm(algorithm))
    except (TypeError, ValueError):  # it is not the package's, or of a version with other fields
        pass
    parts = {key: part["record"] for key, part in algorithm.items() if isinstance(part, Mapping) and "record" in part}
    parts.pop("local", None)
    words = [f"{key.replace('_', ' ')} {part.rpartition(':')[2]}" for key, part in parts.items()]
    return ", ".join([algorithm["record"].rpartition(":")[2], *words])


def problem_name(recipe: Mapping[str, Any] | None) -> str | None:
    """The example's name; None for a problem that was made in Python."""
    return None if recipe is None else recipe["example"].replace("_", " ")
