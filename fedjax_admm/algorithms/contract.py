"""Whether an algorithm and its parts keep to what the engine asks: told in one line, before anything is compiled.

`check_parts` looks at the members and fields that are there. `check_round` calls `init`, `subproblems`, `update`, the
criterion and the penalty rule once on abstract values, which have shapes and dtypes but no numbers, and compares what
they return. It runs under one trace, which JAX keeps: algorithms that differ in numbers alone are looked at once.
"""

from __future__ import annotations

import dataclasses
import inspect
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core import checks, trees
from ..core.vocabulary import Clients, LocalProgress, Solutions, State, Subproblem
from . import criteria
from .base import Algorithm, RenewableSums

MEMBERS = ("init", "subproblems", "update", "local", "criterion", "penalty_mean", "floats_down", "floats_up")
# What a state's attributes are already: rows are read as attributes where there is nothing else of the name.
NOT_ROWS = {*dir(State), *(field.name for field in dataclasses.fields(State))}
MAKERS = "fa.fedavg(...), fa.fedadmm_insa(...) and the like"


def check_parts(algorithm: Any) -> None:
    """The members are there, the words are known words, and every field is a number or compiled in."""
    checks.part("algorithm", algorithm, MEMBERS, MAKERS)
    checks.part("local", algorithm.local, ("step", "rows_per_trip"), "fa.LocalSolver(...)")
    criteria.checked(algorithm.criterion)
    if jax.tree_util.all_leaves([algorithm]):
        kind = type(algorithm).__name__
        raise ValueError(f"algorithm is a {kind}, whose numbers JAX cannot see: write @fa.record above class {kind}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(algorithm):
        if not _is_number(leaf):
            raise ValueError(_not_a_number(algorithm, path, leaf))


def check_round(algorithm: Algorithm, params: Any, num_clients: int, cohort: int) -> None:
    """A round of `cohort` clients on parameters like these: what the functions return has the shapes it should."""
    dtype = trees.scalar_dtype(params)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), params)
    some = {number: _clients(number, num_clients, dtype) for number in {1, num_clients, cohort}}
    jax.eval_shape(_abstract_round, algorithm, shapes, some[1], some[num_clients], some[cohort])
    for name in ("floats_down", "floats_up"):
        floats = getattr(algorithm, name)(sum(leaf.size for leaf in jax.tree.leaves(shapes)))
        if not isinstance(floats, numbers.Real):
            raise ValueError(f"{type(algorithm).__name__}.{name} must return one number, got {_shown(floats)}")


def _clients(number: int, population: int, dtype: Any) -> Clients:
    whole, real = (jax.ShapeDtypeStruct((number,), kind) for kind in (jnp.int32, dtype))
    return Clients(ids=whole, sizes=whole, weights=real, population=population)  # pyright: ignore[reportArgumentType]


def _abstract_round(algorithm: Algorithm, params: Any, one: Clients, everyone: Clients, cohort: Clients) -> None:
    kind, number = type(algorithm).__name__, cohort.ids.shape[0]
    zeros = jnp.zeros(number, cohort.weights.dtype)
    trees.take(trees.per_client(algorithm.local, cohort.ids), 0).init(params)
    _check_criterion(algorithm.criterion, cohort, zeros[0])
    _check_rule(getattr(algorithm, "penalty_rule", None), cohort, zeros)
    server, rows = _start(algorithm, params, everyone)
    _start(algorithm, params, one)  # populations in memory or on disk ask for the rows of some clients alone
    rows = jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape[1:]), leaf.dtype), rows)  # the cohort's
    stacked = trees.repeat(params, number)
    subproblem = algorithm.subproblems(params, server, rows, cohort)
    _check_subproblem(f"{kind}.subproblems", subproblem, stacked, algorithm.criterion)
    measured = jnp.ones(number, bool)
    solutions = Solutions(stacked, jnp.zeros(number, jnp.int32), consensus_gap=zeros, movement=zeros, measured=measured)
    updated = algorithm.update(params, server, rows, solutions, cohort)
    updated = _values(f"{kind}.update", updated, ("params", "server", "rows"))
    for name, got, given in zip(("params", "server", "rows"), updated, (params, server, rows), strict=True):
        _check_like(f"{kind}.update: {name}", got, given)
    _check_number(f"{kind}.penalty_mean", algorithm.penalty_mean(updated[1]), ())
    if isinstance(algorithm, RenewableSums):
        _check_number(f"{kind}.worn", algorithm.worn(server), ())
        _check_like(f"{kind}.count: server", algorithm.count(server, *trees.take((rows, cohort), 0)), server)


def _start(algorithm: Algorithm, params: Any, clients: Clients) -> tuple[Any, ...]:
    """The server's record and these clients' rows, a dict of leaves [clients, ...]."""
    place, number = f"{type(algorithm).__name__}.init", clients.ids.shape[0]
    server, rows = _values(place, algorithm.init(params, clients), ("server", "rows"))
    if not isinstance(rows, dict) or not all(isinstance(name, str) for name in rows):
        raise ValueError(
            f"{place} must return rows as a dict by names, {{}} if clients keep nothing, got {_shown(rows)}"
        )
    for name in rows:
        if name in NOT_ROWS:
            raise ValueError(f"{place}: rows[{name!r}] could not be read, state.{name} is another value: rename it")
    for path, leaf in _leaves(f"{place}: rows", rows):
        if jnp.shape(leaf)[:1] != (number,):
            raise ValueError(
                f"{place}: rows{path} must have a row for each of clients.ids, shape ({number}, ...) for "
                f"{number} of them, got {jnp.shape(leaf)}"
            )
    return server, rows


def _check_criterion(criterion: Any, cohort: Clients, zero: Any) -> None:
    """Its functions see one client's numbers."""
    kind, whole = type(criterion).__name__, jnp.int32(0)
    mine = trees.take(trees.per_client(criterion, cohort.ids), 0)
    progress = LocalProgress(whole, whole, zero, residual_noise=zero, reference_residual=zero, penalty=zero)
    for name in ("tolerance", "sigma"):
        _check_number(f"{kind}.{name}", getattr(mine, name)(progress), (), "one number, for one client")
    _check_number(f"{kind}.floor", mine.floor, (), "one number, or one per client", verb="be")


def _check_rule(rule: Any, cohort: Clients, zeros: Any) -> None:
    """Its arguments and what it returns are [cohort]."""
    if rule is not None:
        penalty = trees.per_client(rule, cohort.ids)(zeros, zeros, zeros)
        _check_number(type(rule).__name__, penalty, zeros.shape, f"one penalty for each client, shape {zeros.shape}")


def _check_subproblem(place: str, subproblem: Any, stacked: Any, criterion: Any) -> None:
    if not isinstance(subproblem, Subproblem):
        raise ValueError(f"{place} must return a fa.Subproblem, got {_shown(subproblem)}")
    for name in ("linear", "center", "start", "previous"):
        value = getattr(subproblem, name)
        if value is not None:  # solves begin at start, and measure at previous: there the dtype must be the same
            _check_like(f"{place}: {name}", value, stacked, exact=name in ("start", "previous"))
    penalty, number = subproblem.penalty, jax.tree.leaves(stacked)[0].shape[0]
    if penalty is not None and not (_is_number(penalty) and jnp.shape(penalty) in ((), (number,))):
        raise ValueError(f"{place}: penalty must be one number, or one per client ({number},), got {_shown(penalty)}")
    if criterion.reference == "client" and subproblem.previous is None:
        raise ValueError(
            f"{place} must give previous, the clients' former parameters, for reference='client' of "
            f"{type(criterion).__name__}: keep them as rows, or use 'server'"
        )


def _values(place: str, value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """A tuple of as many values."""
    if not isinstance(value, tuple) or len(value) != len(names):
        got = f"{len(value)} values" if isinstance(value, tuple) else _shown(value)
        raise ValueError(f"{place} must return {len(names)} values, ({', '.join(names)}), got {got}")
    return value


def _check_number(
    place: str, value: Any, shape: tuple[int, ...], what: str = "one number", verb: str = "return"
) -> None:
    if not _is_number(value) or jnp.shape(value) != shape:
        raise ValueError(f"{place} must {verb} {what}, got {_shown(value)}")


def _check_like(place: str, got: Any, given: Any, exact: bool = False) -> None:
    """The structure and shapes of what was given, and numbers that its dtypes can hold; `exact`: its dtypes."""
    there, wanted = dict(_leaves(place, got)), dict(_leaves(place, given))
    for path, leaf in wanted.items():
        if path not in there:
            raise ValueError(f"{place}{path} must be {_kind(leaf)}, got {'none' if path else _shown(got)}")
        if jnp.shape(there[path]) != jnp.shape(leaf):
            raise ValueError(f"{place}{path} must have shape {jnp.shape(leaf)}, got {jnp.shape(there[path])}")
        new, old = jnp.result_type(there[path]), jnp.result_type(leaf)
        lost = jnp.issubdtype(new, jnp.inexact) and not jnp.issubdtype(old, jnp.inexact)
        if lost or (exact and new != old):
            raise ValueError(f"{place}{path} must be {old}, got {new}: convert it, or begin with {new}")
    for path in there:
        if path not in wanted:
            raise ValueError(f"{place}{path} was not there before: return what was given, with new values")
    if jax.tree.structure(got) != jax.tree.structure(given):
        raise ValueError(f"{place} must be built as it was given, {_shown(given)}, got {_shown(got)}")


def _leaves(place: str, tree: Any) -> list[tuple[str, Any]]:
    leaves = [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
    for path, leaf in leaves:
        if not _is_number(leaf):
            raise ValueError(f"{place}{path} must be an array, got {_shown(leaf)}")
    return leaves


def _is_number(value: Any) -> bool:
    if not isinstance(value, (numbers.Number, np.ndarray, np.generic, jax.Array)):
        return False
    dtype = jnp.result_type(value) if isinstance(value, numbers.Number) else value.dtype
    return jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)


def _not_a_number(algorithm: Any, path: tuple[Any, ...], leaf: Any) -> str:
    """What to do about a field that cannot be traced."""
    owner = algorithm
    for key in path[:-1]:
        owner = getattr(owner, key.name) if hasattr(key, "name") else owner[getattr(key, "key", getattr(key, "idx", 0))]
    place = f"{type(owner).__name__}{jax.tree_util.keystr(path[-1:])}"
    field = getattr(path[-1], "name", "field")
    if isinstance(leaf, (str, bytes)) or inspect.isroutine(leaf):
        shown = getattr(leaf, "__qualname__", repr(leaf))
        advice = f"declare it {field}: ... = fa.static(default={shown})"
    else:
        shown = f"a {type(leaf).__name__}"
        advice = f"write @fa.record above class {type(leaf).__name__}, or declare it {field}: ... = fa.static()"
    return f"{place} is {shown}, and only numbers can be traced: {advice}"


def _kind(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _shown(value: Any) -> str:
    """A value in a few words: arrays by dtype and shape."""
    if value is None or isinstance(value, str):
        return repr(value)
    if _is_number(value):
        return _kind(value)
    names = ", ".join(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(value)[:3])
    return f"a {type(value).__name__}" + (f" with {names}" if names else "")
