"""A run's settings as JSON: every argument and default, and enough to make the run again.

Records, functions, arrays and numbers have a form in JSON from which `recreate` makes them. Functions are named
by the module and name under which they can be imported; what has neither (a lambda, an object of the user's) is
described, but cannot be made again. A problem is described by digests of its data and of what its functions
compute, and by the call that made it where one is known (`Problem.recipe`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from ..algorithms.base import Algorithm
from ..algorithms.local_solver import LocalSolver
from ..problems.problem import Problem

CONDITIONS = ("faults", "client_time")  # settings that a run without them does not mention


class CannotRecreate(ValueError):
    """The settings describe something that they cannot make again.

    what: the sentence's subject.

    >>> print(CannotRecreate("initial_params", "runs/one"))
    initial_params cannot be made again from the settings: call simulate or compare as before, with run_dir=runs/one
    """

    def __init__(self, what: str, run_dir: Any = "the same directory") -> None:
        self.what = what
        super().__init__(
            f"{what} cannot be made again from the settings: call simulate or compare as before, with run_dir={run_dir}"
        )


def describe(value: Any) -> Any:
    """`value` as what JSON can hold.

    >>> describe({"penalty": 0.1, "optimizer": jnp.sin})
    {'penalty': 0.1, 'optimizer': {'function': 'jax.numpy:sin'}}
    """
    if value is None or isinstance(value, (bool, int, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"number": repr(value)}
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(value)
        return {"array": array.tolist(), "dtype": str(array.dtype)}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"record": _name(type(value)), **fields}
    if hasattr(value, "__fspath__"):
        return str(value)
    if isinstance(value, functools.partial):
        return {"partial": describe(value.func), "arguments": describe(value.args), "named": describe(value.keywords)}
    if callable(value):
        name = _name(value)
        return {"function" if _importable(name, value) else "opaque": name}
    return {"opaque": _without_address(repr(value))}


def recreate(described: Any) -> Any:
    """What `describe` described.

    >>> recreate(describe({"penalty": [0.1, float("inf")]}))
    {'penalty': [0.1, inf]}
    """
    if isinstance(described, list):
        return [recreate(item) for item in described]
    if not isinstance(described, Mapping):
        return described
    if "opaque" in described:
        raise CannotRecreate(described["opaque"])
    if "number" in described:
        return float(described["number"])
    if "array" in described:
        return np.array(described["array"], described["dtype"])
    if "function" in described:
        return _import(described["function"])
    if "partial" in described:
        function, arguments, named = (recreate(described[key]) for key in ("partial", "arguments", "named"))
        return functools.partial(function, *arguments, **named)
    items = {key: recreate(item) for key, item in described.items() if key != "record"}
    if "record" not in described:
        return items
    kind = _import(described["record"])
    if not dataclasses.is_dataclass(kind):
        raise CannotRecreate(f"{described['record']}, which is not a record,")
    return cast(type, kind)(**items)


def describe_problem(problem: Problem) -> dict[str, Any]:
    """The problem's recipe, its data in a few words, and digests that change if data or functions do."""
    params = problem.params_shape
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((3, *leaf.shape[1:]), leaf.dtype), problem.data.fields)
    functions = {
        "init": computation(problem.init, jax.eval_shape(lambda: jax.random.key(0))),
        "loss": computation(problem.loss, params, batch),
    }
    if problem.regularizer is not None:
        functions["regularizer"] = computation(problem.regularizer, params)
    if problem.metrics:
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((3, *leaf.shape[1:]), leaf.dtype), problem.eval_data)
        functions |= {f"metrics.{name}": computation(metric, params, rows) for name, metric in problem.metrics}
    return {
        "recipe": problem.recipe,
        "clients": problem.data.num_clients,
        "rows": problem.data.num_positions,
        "parameters": problem.num_params,
        "data": digest(problem.data),
        "eval_data": digest(problem.eval_data),
        "optimal_loss": None if problem.optimal_loss is None else float(problem.optimal_loss),
        "computes": functions,
    }


def describe_algorithm(algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """The algorithm's record, with a digest of what its optimizer computes: a function's name does not tell."""
    return describe(algorithm) | {"optimizer_step": _optimizer_step(algorithm.local, problem.params_shape)}


def describe_conditions(faults: Any, client_time: Any) -> dict[str, Any]:
    """Faults and the clients' time, where there are any."""
    given = zip(CONDITIONS, (faults, client_time), strict=True)
    return {name: describe(value) for name, value in given if value is not None}


def recreate_algorithm(described: Mapping[str, Any]) -> Any:
    """What `describe_algorithm` described."""
    return recreate({key: item for key, item in described.items() if key != "optimizer_step"})


def title(algorithm: Mapping[str, Any], recipe: Mapping[str, Any] | None, label: str | None = None) -> str:
    """What a run is of: the algorithm by its label, else by its described records, and the example, if it is one.

    >>> title({}, {"example": "linear_regression"}, "fedadmm-insa")
    'fedadmm-insa on linear regression'
    >>> title({"record": "my.module:Mine", "local": {}, "criterion": {"record": "my.module:Never"}}, None)
    'Mine, criterion Never'
    """
    name = label
    if name is None:
        parts = {
            key: part["record"] for key, part in algorithm.items() if isinstance(part, Mapping) and "record" in part
        }
        parts.pop("local", None)
        words = [f"{key.replace('_', ' ')} {part.rpartition(':')[2]}" for key, part in parts.items()]
        name = ", ".join([algorithm["record"].rpartition(":")[2], *words])
    problem = problem_name(recipe)
    return name if problem is None else f"{name} on {problem}"


def problem_name(recipe: Mapping[str, Any] | None) -> str | None:
    """The example's name; None for a problem that was made in Python."""
    return None if recipe is None else recipe["example"].replace("_", " ")


def differences(there: Any, now: Any, place: str = "") -> Iterator[str]:
    """Where two descriptions differ, a line each: what, the value there and the value now."""
    if isinstance(there, Mapping) and isinstance(now, Mapping) and there.keys() == now.keys():
        for key in there:
            yield from differences(there[key], now[key], f"{place}.{key}" if place else key)
    elif there != now or isinstance(there, float) != isinstance(now, float):  # 1 client is not all of them, 1.0
        yield f"{place}: {_short(there)} there, {_short(now)} now"


def without_computations(described: Mapping[str, Any]) -> dict[str, Any]:
    """A problem's or an algorithm's description without digests of what it computes.

    Another version of JAX or optax may write the same computation in another way.
    """
    return {name: value for name, value in described.items() if name not in ("computes", "optimizer_step")}


def digest(tree: Any) -> str | None:
    """A digest of every number of a pytree; None of None."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    if not leaves:
        return None
    sha = hashlib.sha256()
    for path, leaf in leaves:
        array = np.ascontiguousarray(leaf)
        sha.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}".encode())
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()[:16]


def computation(function: Callable, *arguments: Any) -> str:
    """A digest of what a function computes, whatever its name: its jaxpr and the constants in it."""
    sha = hashlib.sha256()
    closed = jax.make_jaxpr(function)(*arguments)
    sha.update(_without_address(str(closed)).encode())
    for constant in _constants(closed):
        sha.update(np.ascontiguousarray(constant).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()[:16]


def _constants(closed: Any) -> Iterator[np.ndarray]:
    yield from (np.asarray(constant) for constant in closed.consts if not _is_key(constant))
    for equation in closed.jaxpr.eqns:
        for value in jax.tree.leaves(equation.params, is_leaf=lambda leaf: isinstance(leaf, jex.ClosedJaxpr)):
            if isinstance(value, jex.ClosedJaxpr):
                yield from _constants(value)


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key)


def _optimizer_step(local: LocalSolver, params: Any) -> str:
    one = dataclasses.replace(local, learning_rate=1.0)

    def step(params: Any, gradient: Any) -> Any:
        def value(params: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))

        return one.step(params, one.init(params), gradient, value(params), value)[0]

    return computation(step, params, params)


def _without_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or _without_address(repr(value))
    return f"{getattr(value, '__module__', '') or ''}:{name}".removeprefix(":")


def _importable(name: str, value: Any) -> bool:
    try:
        return _import(name) is value
    except (CannotRecreate, ImportError):
        return False


def _import(name: str) -> Any:
    module, _, path = name.partition(":")
    if module == "__main__":
        raise CannotRecreate(f"{path}, which was defined in a script or a notebook,")
    try:
        value = importlib.import_module(module)
        for part in path.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError):
        raise CannotRecreate(f"{name}, which cannot be imported,") from None
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
