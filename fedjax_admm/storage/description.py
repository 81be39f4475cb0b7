"""A value as JSON and back.

Records, functions, arrays and numbers have a form in JSON from which `recreate` makes them, as far as `parts` knows
their names or a user trusts their modules. What has no name (a lambda, an object of the user's) is described, but
cannot be made again.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from . import parts
from .parts import CannotRecreate

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
        return {"record": parts.name_part(type(value)) or spell_name(type(value)), **fields}
    if hasattr(value, "__fspath__"):
        return str(value)
    if isinstance(value, functools.partial):
        return {"partial": describe(value.func), "arguments": describe(value.args), "named": describe(value.keywords)}
    if callable(value):
        name = parts.name_part(value)
        return {"opaque": spell_name(value)} if name is None else {"function": name}
    return {"opaque": drop_address(repr(value))}


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
        raise CannotRecreate(f"the array {shorten(described['array'])}") from None


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
    described = parts.move_fields(parts.renew_names(described))
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


def drop_address(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def spell_name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or drop_address(repr(value))
    return f"{getattr(value, '__module__', '') or ''}:{name}".removeprefix(":")


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
