"""Checks of arguments: one line that names the argument, its value and the remedy."""

from __future__ import annotations

import difflib
import inspect
import numbers
from typing import Any

import jax
import jax.core
import numpy as np


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    per_client: bool = False,
    per_round: bool = False,
) -> Any:
    """Checks that an argument is finite and within its bounds.

    Args:
        name: The argument's name, for messages.
        value: Its value. A traced one passes as it is: its bounds are unknown until it has one.
        above: What it must be above.
        at_least: The least that it may be.
        below: What it must be below.
        at_most: The most that it may be.
        per_client: Whether it may also be one number per client, [clients].
        per_round: Whether it may also be one per round and client, [rounds, clients].

    Returns:
        A Python float or a float64 NumPy array, so that a penalty of 1 and one of 1.0 are the same leaf to `jax.jit`.

    Raises:
        ValueError: It is not as said.

    >>> number("penalty", 1, above=0)
    1.0
    """
    if isinstance(value, jax.core.Tracer):
        return value
    kinds = ("a number", "a number, or one per client", "a number, one per client, or one per round and client")
    most_axes = 2 if per_round else int(per_client)
    kind = kinds[most_axes]
    array = _as_array(name, value, kind)
    if array.ndim > most_axes or array.size == 0:
        raise ValueError(f"{name} must be {kind}, got an array of shape {array.shape}")
    bounds = [
        (np.isfinite(array), "be finite"),
        (_survives(array), "be a number that single precision can hold"),
    ]
    if above is not None:
        bounds.append((array > above, f"be above {above:g}"))
    if at_least is not None:
        bounds.append((array >= at_least, f"be at least {at_least:g}"))
    if below is not None:
        bounds.append((array < below, f"be below {below:g}"))
    if at_most is not None:
        bounds.append((array <= at_most, f"be at most {at_most:g}"))
    for holds, rule in bounds:
        if not np.all(holds):
            raise ValueError(f"{name} must {rule}, got {_first_offender(array, holds)}")
    return float(array) if array.ndim == 0 else array


def numbers_by_name(name: str, value: Any, *, per_client: bool = False) -> dict[str, Any] | None:
    """Checks that an argument has finite numbers by names, or is None.

    Args:
        name: The argument's name, for messages.
        value: Its value.
        per_client: Whether each may also be one number per client, [clients].

    Returns:
        The numbers in the order of their names, as `number` returns them; None where there are none.

    Raises:
        ValueError: It is not as said.

    >>> numbers_by_name("options", {"momentum": 1})
    {'momentum': 1.0}
    """
    if not value and (value is None or isinstance(value, dict)):
        return None
    if not isinstance(value, dict) or not all(isinstance(word, str) for word in value):
        raise ValueError(f'{name} must be numbers by names, such as {{"momentum": 0.9}}, got {value!r}')
    return {word: number(f"{name}[{word!r}]", value[word], per_client=per_client) for word in sorted(value)}


def integer(name: str, value: Any, *, at_least: int, per_client: bool = False) -> Any:
    """An integer from `at_least` to 2^31 - 1; with `per_client` also one value per client, [clients]."""
    if isinstance(value, jax.core.Tracer):
        return value
    kind = "a whole number, or one per client" if per_client else "a whole number"
    array = _as_array(name, value, kind)
    if array.ndim > (1 if per_client else 0) or array.size == 0:
        raise ValueError(f"{name} must be {kind}, got an array of shape {array.shape}")
    whole = np.isfinite(array) & (array == np.floor(array))
    rules = (
        (whole, f"be {kind}"),
        (array >= at_least, f"be at least {at_least}"),
        (array < 2**31, "be below 2147483648"),
    )
    for holds, rule in rules:
        if not np.all(holds):
            raise ValueError(f"{name} must {rule}, got {_first_offender(array, holds)}")
    return int(array) if array.ndim == 0 else array.astype(np.int32)


def counted(number: int, noun: str) -> str:
    """A number of things, in words that agree with it.

    >>> counted(1, "lane"), counted(1200, "lane")
    ('1 lane', '1,200 lanes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def choice(name: str, value: Any, options: tuple[str | None, ...]) -> Any:
    """One of a few words, or None where that is an option."""
    if not isinstance(value, str | None) or value not in options:
        shown = [repr(option) for option in options]
        words = " or ".join(shown) if len(shown) <= 3 else f"one of {', '.join(shown)}"
        near = difflib.get_close_matches(str(value), [option for option in options if option], n=1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be {words}, got {value!r}{hint}")
    return value


def part(name: str, value: Any, members: tuple[str, ...], maker: str) -> Any:
    """A part of an algorithm: an object, not the function that makes it, with the members that the engine asks for."""
    missing = [member for member in members if not hasattr(value, member)]
    if isinstance(value, type) or inspect.isfunction(value):
        makes_one = not missing or value.__module__.startswith("fedjax_admm.")
        call = f": call it, {value.__name__}(...)" if makes_one else ""
        raise ValueError(f"{name} must be an object made by {maker}, got {value.__qualname__}{call}")
    if len(missing) == len(members):
        raise ValueError(f"{name} must be an object made by {maker}, got {short(value)}")
    if missing:
        kind = type(value).__name__
        raise ValueError(
            f"{name} must have {' and '.join(missing)}, which {kind} lacks: add to class {kind} "
            f"(asked for are {', '.join(members)})"
        )
    return value


def short(value: Any) -> str:
    """A value as Python shows it, in at most 80 letters.

    >>> short("exact"), len(short(list(range(100))))
    ("'exact'", 80)
    """
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def function(name: str, value: Any, form: str, arguments: tuple[int, ...] = ()) -> None:
    """Something that can be called, with one of these numbers of arguments if any are given."""
    if not callable(value):
        raise ValueError(f"{name} must be a function, {form}, got {short(value)}")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # of a function that Python cannot look into
        return
    if arguments and not any(_takes(signature, number) for number in arguments):
        raise ValueError(f"{name} must be a function, {form}, got one of {signature}")


def _takes(signature: inspect.Signature, arguments: int) -> bool:
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def client_axis(name: str, value: Any, num_clients: int) -> None:
    """A value per client must have as many entries as there are clients, on the last axis."""
    if np.ndim(value) and np.shape(value)[-1] != num_clients:
        raise ValueError(
            f"{name} has {np.shape(value)[-1]} entries for {num_clients} clients: give one number, or one per client"
        )


def client_numbers(name: str, value: Any, num_clients: int, *, may_be_empty: bool = False) -> np.ndarray:
    """Different clients by their numbers: [clients named] int32, each known and named once."""
    ids = np.asarray(value)
    if ids.size == 0:
        if may_be_empty:
            return np.empty(0, np.int32)
        raise ValueError(f"{name} is empty: name one client at least")
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        got = f"{ids.dtype} of shape {ids.shape}" if ids.ndim else repr(ids.item())
        raise ValueError(f"{name} must be client numbers, integers [cohort], got {got}")
    unknown = ids[(ids < 0) | (ids >= num_clients)]
    if unknown.size:
        raise ValueError(f"{name} names client {unknown[0]}, but the clients are 0 to {num_clients - 1}")
    values, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{name} names client {values[counts > 1][0]} twice: name each client once")
    return ids.astype(np.int32)


def _as_array(name: str, value: Any, kind: str) -> np.ndarray:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number and not isinstance(value, (np.ndarray, jax.Array, list, tuple)):
        raise ValueError(f"{name} must be {kind}, got {value!r}")
    try:
        if np.asarray(value).dtype.kind in "US":
            raise ValueError  # words would be read as numbers
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be {kind}, got {value!r}") from None


def _survives(array: np.ndarray) -> np.ndarray:
    """Whether numbers stay finite, and other than zero, in the widest precision that JAX computes in."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = array.astype(jax.dtypes.canonicalize_dtype(np.float64))
    return np.isfinite(rounded) & ((rounded != 0) | (array == 0))


def _first_offender(array: np.ndarray, holds: np.ndarray) -> str:
    if array.ndim == 0:
        return f"{array:.0f}" if array == np.floor(array) and abs(array) < 1e15 else f"{array:g}"
    place = tuple(np.argwhere(~holds)[0])
    where = f"client {place[-1]}" + (f" in round {place[0]}" if len(place) > 1 else "")
    return f"{array[place]:g} for {where}"
