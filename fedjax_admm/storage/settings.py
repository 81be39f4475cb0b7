"""A run's settings as JSON: every argument and default, and enough to make the run again.

Records, functions, arrays and numbers have a form in JSON from which `recreate` makes them, as far as `parts` knows
their names or a user trusts their modules. What has no name (a lambda, an object of the user's) is described, but
cannot be made again. A problem is described by digests of its data and of what its functions compute, and by the call
that made it where one is known (`Problem.recipe`).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from ..algorithms.base import Algorithm
from ..algorithms.local_solver import LocalSolver
from ..core.environment import versions
from ..core.record import display_name
from ..data.federated import FederatedData
from ..data.fields import sample
from ..data.rows import in_memory, kinds
from ..engine.execution import Execution
from ..exchange.client_time import ClientTime
from ..exchange.stage import Exchange
from ..problems.problem import Problem
from . import parts
from .parts import CannotRecreate

CONDITIONS = ("faults", "client_time", "exchange")  # settings that a run without them does not mention
# What is evaluated, where it is not this: likewise not mentioned.
EVALUATION = {"evaluate": "all", "evaluate_clients_every": None, "evaluate_clients": "all"}
ARRAYS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip


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
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {"record": parts.name_part(type(value)) or _display_name(type(value)), **fields}
    if hasattr(value, "__fspath__"):
        return str(value)
    if isinstance(value, functools.partial):
        return {"partial": describe(value.func), "arguments": describe(value.args), "named": describe(value.keywords)}
    if callable(value):
        name = parts.name_part(value)
        return {"opaque": _display_name(value)} if name is None else {"function": name}
    return {"opaque": _without_address(repr(value))}


def recreate(described: Any, trust: Sequence[str] = ()) -> Any:
    """Makes what `describe` described: plain values, and parts that `parts.find_part` finds.

    Args:
        described: What a file says, whoever wrote it.
        trust: Modules that may be imported for parts of the user's own.

    Returns:
        The value.

    Raises:
        CannotRecreate: If it needs anything else; nothing was imported then.

    >>> recreate(describe({"penalty": [0.1, float("inf")]}))
    {'penalty': [0.1, inf]}
    """
    if isinstance(described, list):
        return [recreate(item, trust) for item in described]
    if not isinstance(described, Mapping):
        return described
    if "opaque" in described:
        raise CannotRecreate(str(described["opaque"]))
    if "number" in described:
        return _recreate_number(described["number"])
    if "array" in described:
        return _recreate_array(described)
    if "function" in described:
        return _recreate_function(described, trust)
    if "partial" in described:
        return _recreate_partial(described, trust)
    if "record" in described:
        return _recreate_record(described, trust)
    return {key: recreate(item, trust) for key, item in described.items()}


def is_plain(described: Any) -> bool:
    """Whether a description is of numbers, words and lists of them alone.

    >>> is_plain([1, "auto", None]), is_plain([{"function": "timeit:timeit"}])
    (True, False)
    """
    if isinstance(described, list):
        return all(is_plain(item) for item in described)
    return not isinstance(described, Mapping) or "number" in described or "array" in described


def _recreate_number(text: Any) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise CannotRecreate(f"the number {text!r}")
    return float(text)


def _recreate_array(described: Mapping[str, Any]) -> np.ndarray:
    kind = described.get("dtype")
    if kind not in ARRAYS:
        raise CannotRecreate(f"an array of {kind!r}")
    try:
        return np.array(described["array"], kind)
    except (TypeError, ValueError):
        raise CannotRecreate(f"the array {_short(described['array'])}") from None


def _recreate_function(described: Any, trust: Sequence[str]) -> Callable:
    if not isinstance(described, Mapping) or "function" not in described:
        raise CannotRecreate(str(described.get("opaque") if isinstance(described, Mapping) else described))
    name = described["function"]
    function = parts.find_part(name, trust)
    if not callable(function) or function in parts.RECORDS.values():
        raise CannotRecreate(f"{name}, which is not a function,")
    return function


def _recreate_partial(described: Mapping[str, Any], trust: Sequence[str]) -> Callable:
    function = _recreate_function(described["partial"], trust)
    arguments, named = (recreate(described.get(key), trust) for key in ("arguments", "named"))
    if not isinstance(arguments, list) or not isinstance(named, dict):
        raise CannotRecreate("a partial function without its arguments")
    return functools.partial(function, *arguments, **named)


def _recreate_record(described: Mapping[str, Any], trust: Sequence[str]) -> Any:
    described = parts.move_fields(_with_current_names(described))
    name = described["record"]
    kind = parts.find_part(name, trust)
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        raise CannotRecreate(f"{name}, which is not a record,")
    items = {key: recreate(item, trust) for key, item in described.items() if key != "record"}
    for field in items.keys() - {field.name for field in dataclasses.fields(kind) if field.init}:
        raise CannotRecreate(f"{name} with {field!r}, which this version does not have,")
    try:
        return kind(**items)
    except (TypeError, AttributeError) as error:  # a part of it is of the wrong kind
        raise CannotRecreate(f"{name} ({error})") from None


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
        "data": _digest_of_data(problem.data),
        "eval_data": digest(sample(problem.eval_data)),
        **({} if problem.client_eval_data is None else {"client_eval_data": _digest_of_data(problem.client_eval_data)}),
        "optimal_loss": None if problem.optimal_loss is None else float(problem.optimal_loss),
        "computes": functions,
    }


def describe_algorithm(algorithm: Algorithm, problem: Problem) -> dict[str, Any]:
    """The algorithm's record, with a digest of what its optimizer computes: a function's name does not tell."""
    return describe(algorithm) | {"optimizer_step": _optimizer_step(algorithm.local, problem.params_shape)}


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


def differences(stored: Any, current: Any, place: str = "") -> Iterator[str]:
    """Where two descriptions differ, a line each: what, the stored value and the current one."""
    if isinstance(stored, Mapping) and isinstance(current, Mapping) and stored.keys() == current.keys():
        for key in stored:
            yield from differences(stored[key], current[key], f"{place}.{key}" if place else key)
    # 1 client is not all of them, 1.0.
    elif stored != current or isinstance(stored, float) != isinstance(current, float):
        yield f"{place}: {_short(stored)} there, {_short(current)} now"


def refuse_differences(
    run_dir: Any, kind: str, stored: Mapping[str, Any], current: Mapping[str, Any], made_with: Mapping[str, str]
) -> None:
    """Refuses to go on with other settings than those of the run or comparison in a directory.

    Args:
        run_dir: The directory.
        kind: "run" or "comparison".
        stored: Its settings, described.
        current: Those that were given now, described.
        made_with: The versions that wrote `stored`.

    Raises:
        ValueError: If they differ in more than may change.
    """
    lines = _lines(stored, current, made_with)
    if not lines:
        return
    shown = "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")
    begun, ours = (known.get("fedjax-admm") for known in (made_with, versions()))
    by = "" if begun == ours else f", begun by fedjax_admm {begun} (this is {ours}),"
    raise ValueError(f"run_dir {str(run_dir)!r} has a {kind}{by} with other settings ({shown}): give another directory")


def is_longer(stored: Mapping[str, Any], current: Mapping[str, Any], made_with: Mapping[str, str]) -> bool:
    """Whether a run's current settings are the stored ones with more rounds, and nothing else.

    Args:
        stored: Its settings, described.
        current: Those that were given now, described.
        made_with: The versions that wrote `stored`.
    """
    if stored["rounds"] >= current["rounds"]:
        return False
    return not _lines(stored, {**current, "rounds": stored["rounds"]}, made_with)


def _lines(stored: Mapping[str, Any], current: Mapping[str, Any], made_with: Mapping[str, str]) -> list[str]:
    """Where two descriptions differ in more than may change, a line each."""
    same_versions = made_with == versions()
    stored, current = _comparable(stored, same_versions), _comparable(current, same_versions)
    problems = [settings["problem"] for settings in (stored, current) if "problem" in settings]
    if any(problem.get("recipe") is None for problem in problems):
        for problem in problems:
            problem.pop("recipe", None)
    return list(differences(stored, current))


def _comparable(settings: Mapping[str, Any], same_versions: bool) -> dict[str, Any]:
    """Settings with present names and defaults, without what may differ: where the data is kept does not change it."""
    comparable = dict.fromkeys(CONDITIONS) | EVALUATION | _renew(settings)
    if isinstance(comparable.get("execution"), dict):
        comparable["execution"] = Execution().settings() | comparable["execution"]
    comparable.pop("label", None)
    if "problem" in comparable and comparable["problem"].get("recipe"):
        problem = comparable["problem"]
        # An argument that another version does not have is None where nobody asked for anything else. The rounds are
        # those of the run, which has them too.
        given = problem["recipe"]["arguments"].items()
        arguments = {k: v for k, v in given if k not in ("data_dir", "rounds") and v is not None}
        problem["recipe"] = problem["recipe"] | {"arguments": arguments}
        problem.pop("optimal_loss", None)  # follows from the recipe; solved for again, it may differ in rounding
    if not same_versions:  # another version of JAX or optax may write the same computation in another way
        for part in comparable.values():
            for name in ("computes", "optimizer_step"):
                if isinstance(part, dict):
                    part.pop(name, None)
    return comparable


def _renew(described: Any) -> Any:
    """A description as this version would write it: its names, and the defaults of fields that were not there yet."""
    if isinstance(described, list):
        return [_renew(item) for item in described]
    if not isinstance(described, Mapping):
        return described
    moved = parts.move_fields(_with_current_names(described))
    return parts.fill_defaults({key: _renew(item) for key, item in moved.items()}, describe)


def _with_current_names(described: Mapping[str, Any]) -> dict[str, Any]:
    names = {key: described.get(key) for key in ("record", "function")}
    return dict(described) | {key: parts.current_name(name) for key, name in names.items() if isinstance(name, str)}


def _digest_of_data(data: FederatedData) -> str | None:
    """A federation's digest: of one on disk by its checksums, else of rows that are not in memory by the first."""
    if in_memory(data.fields):
        return digest(data)
    known = {"sizes": data.sizes, "weights": data.weights, "index": data.index}
    if data.directory is not None:
        return digest(known | {"directory": np.frombuffer(data.directory.digest.encode(), np.uint8)})
    return digest(known | {"fields": sample(data.fields)})


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
    one = dataclasses.replace(local, learning_rate=1.0, options=dict.fromkeys(local.options or {}, 0.5))

    def step(params: Any, gradient: Any) -> Any:
        def value(params: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))

        return one.step(params, one.init(params), gradient, value(params), value)[0]

    return computation(step, params, params)


def _without_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _display_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or _without_address(repr(value))
    return f"{getattr(value, '__module__', '') or ''}:{name}".removeprefix(":")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
