"""Whether an algorithm and its parts keep to what the engine asks: told in one line, before anything is compiled.

`check_parts` looks at the members and fields that are there. `check_round` calls the six functions, the criterion and
the penalty rule once on abstract values, which have shapes and dtypes but no numbers, and compares what they return. It
runs under one trace, which JAX keeps: algorithms that differ in numbers alone are looked at once.
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
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, LocalProgress, Received, Round, Solution, State, Subproblem
from . import criteria
from .base import Algorithm, RenewableSums, SeparateIterate, SilentRounds
from .penalties import Evidence
from .penalties.level import pools

MEMBERS = ("init", "start", "broadcast", "subproblem", "reply", "aggregate", "local", "criterion")
FORMER = ("subproblems", "update")  # what version 0.1 asked for, of all clients at once
# What a state's attributes are already: rows are read as attributes where there is nothing else of the name.
NOT_ROWS = {*dir(State), *(field.name for field in dataclasses.fields(State)), "exchange"}
MAKERS = "fa.fedavg(...), fa.fedadmm_insa(...) and the like"


def check_parts(algorithm: Any, name: str = "algorithm") -> None:
    """The members are there, the words are known words, and every field is a number or compiled in.

    Args:
        algorithm: What a user gave.
        name: The argument's name, for messages.

    Raises:
        ValueError: It is not so.
    """
    if all(hasattr(algorithm, name) for name in FORMER) and not hasattr(algorithm, "reply"):
        raise ValueError(
            f"algorithm {type(algorithm).__name__} is written for version 0.1, with subproblems and update of all "
            "clients: since 0.2 a method is init, start, broadcast, subproblem, reply and aggregate, for one client "
            "each (docs/how-to/own_algorithm.md; CHANGELOG, 0.2.0)"
        )
    checks.part(name, algorithm, MEMBERS, MAKERS)
    checks.part("local", algorithm.local, ("step", "rows_per_trip"), "fa.LocalSolver(...)")
    criteria.checked(algorithm.criterion)
    if jax.tree_util.all_leaves([algorithm]):
        kind = type(algorithm).__name__
        raise ValueError(f"algorithm is a {kind}, whose numbers JAX cannot see: write @fa.record above class {kind}")
    check_numbers(algorithm)


def check_numbers(part: Any) -> None:
    """Every field of a record that is traced is a number or numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(part):
        if not _is_number(leaf):
            raise ValueError(_not_a_number(part, path, leaf))


def check_round(algorithm: Algorithm, params: Params, clients: Clients) -> tuple[Any, Any]:
    """A round on parameters like these, of abstract clients: what the functions return has the shapes it should.

    Returns:
        The shapes of what a client receives and of what it sends.
    """
    return jax.eval_shape(_abstract_round, algorithm, shapes_of(params), clients)


def count_floats(tree: Any) -> int:
    """The numbers in a tree of arrays or shapes."""
    return sum(int(np.prod(jnp.shape(leaf))) for leaf in jax.tree.leaves(tree))


def shapes_of(tree: Any) -> Any:
    """The tree's shapes and dtypes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)


def abstract_client(everyone: Clients) -> Client:
    """Any one of them."""
    return Client(everyone.ids[0], everyone.sizes[0], everyone.weights[0], everyone.population)


def abstract_round(id: Any) -> Round:
    """Some round, with a key that depends on anything traced."""
    return Round(jnp.int32(0), jax.random.fold_in(jax.random.key(0), id))


def abstract_clients(number: int, params: Params) -> Clients:
    """All of them."""
    dtype = trees.scalar_dtype(params)
    whole, real = (jax.ShapeDtypeStruct((number,), kind) for kind in (jnp.int32, dtype))
    return Clients(ids=whole, sizes=whole, weights=real, population=number)  # pyright: ignore[reportArgumentType]


def _abstract_round(algorithm: Algorithm, params: Params, everyone: Clients) -> tuple[Any, Any]:
    """What is sent and what is replied."""
    kind, client, zero = type(algorithm).__name__, abstract_client(everyone), jnp.zeros((), everyone.weights.dtype)
    round, none = abstract_round(client.id), jnp.int32(0)
    mine: Any = trees.per_client(algorithm, client.id)
    mine.local.init(params)
    _check_criterion(mine.criterion, zero)
    server = algorithm.init(params, everyone)
    _leaves(f"{kind}.init", server)
    row = _start(mine, params, client)
    sent = algorithm.broadcast(params, server, round)
    _leaves(f"{kind}.broadcast", sent)
    subproblem = mine.subproblem(sent, row, client, round)
    _check_subproblem(f"{kind}.subproblem", subproblem, params, algorithm.criterion)
    _check_is_sent(kind, subproblem, sent, _model(algorithm, params, server))
    _check_rule(getattr(mine, "penalty_rule", None), params, zero)
    solution = Solution(
        params,
        steps=none,
        epochs=none,
        consensus_gap=zero,
        movement=zero,
        measured=jnp.bool_(True),
        linear=None if subproblem.local_rounds is None else params,
        gradient=params if getattr(algorithm, "needs_gradient", False) else None,
    )
    replied = check_values(f"{kind}.reply", mine.reply(sent, row, solution, client, round), ("message", "row"))
    _leaves(f"{kind}.reply: message", replied[0])
    check_like(f"{kind}.reply: row", replied[1], row)
    total = jax.tree.map(lambda leaf: jnp.asarray(leaf, trees.at_least_single(jnp.result_type(leaf))), replied[0])
    updated = algorithm.aggregate(params, server, Received(total, zero, none), round)
    updated = check_values(f"{kind}.aggregate", updated, ("params", "server"))
    for name, new, old in zip(("params", "server"), updated, (params, server), strict=True):
        check_like(f"{kind}.aggregate: {name}", new, old)
    if isinstance(algorithm, RenewableSums):
        check_number(f"{kind}.worn", algorithm.worn(server), ())
        check_like(f"{kind}.count: server", mine.count(server, row, client), server)
    if isinstance(algorithm, SeparateIterate):
        check_like(f"{kind}.iterate", algorithm.iterate(params, server), params)
    if isinstance(algorithm, SilentRounds):
        check_number(f"{kind}.communicates", algorithm.communicates(round), (), "one bool, for all clients")
    return sent, replied[0]


def _start(mine: Any, params: Params, client: Client) -> Rows:
    """One client's row, a dict of arrays."""
    place = f"{type(mine).__name__}.start"
    row = mine.start(params, client)
    check_rows(place, row)
    for name in row:
        if name in NOT_ROWS:
            raise ValueError(f"{place}: [{name!r}] could not be read, state.{name} is another value: rename it")
    if "penalties" in row:
        check_number(f"{place}: ['penalties']", row["penalties"], (), "one number, the client's penalty", verb="be")
    return dict(row)


def check_rows(place: str, row: Any) -> None:
    """What is kept of a client is a dict of arrays by names."""
    if not isinstance(row, dict) or not all(isinstance(name, str) for name in row):
        raise ValueError(
            f"{place} must return a client's row as a dict by names, {{}} if it keeps nothing, got {_shown(row)}"
        )
    _leaves(place, row)


def _check_criterion(mine: Any, zero: Any) -> None:
    """Its functions see one client's numbers."""
    kind, whole = type(mine).__name__, jnp.int32(0)
    progress = LocalProgress(whole, whole, zero, residual_noise=zero, reference_residual=zero, penalty=zero)
    for name in ("tolerance", "sigma"):
        check_number(f"{kind}.{name}", getattr(mine, name)(progress), (), "one number, for one client")
    check_number(f"{kind}.floor", mine.floor, (), "one number, or one per client", verb="be")


def _check_rule(rule: Any, params: Params, zero: Any) -> None:
    """It is for one client: (penalty, gap, movement) -> penalty, or with memory (penalty, seen, memory) -> both."""
    if rule is None:
        return
    kind, none = type(rule).__name__, jnp.int32(0)
    seen = Evidence(zero, zero, jnp.bool_(True), none, *[params] * 5, round=none, start_residual=zero)
    if pools(rule):
        proposed = check_values(f"{kind}.propose", rule.propose(zero, seen), ("proposal", "known"))
        check_number(f"{kind}.propose", proposed[0], (), "one number, the proposal")
        check_number(f"{kind}.propose", proposed[1], (), "whether there is one")
    if not hasattr(rule, "start"):
        check_number(kind, rule(zero, zero, zero), (), "one penalty, for one client")
        return
    memory = rule.start(params)
    check_rows(f"{kind}.start", memory)
    answer = check_values(kind, rule(zero, seen, memory), ("penalty", "memory"))
    check_number(kind, answer[0], (), "one penalty, for one client")
    check_like(f"{kind}: memory", answer[1], memory)


def _check_subproblem(place: str, subproblem: Any, params: Params, criterion: Any) -> None:
    if not isinstance(subproblem, Subproblem):
        raise ValueError(f"{place} must return a fa.Subproblem, got {_shown(subproblem)}")
    for name in ("linear", "center", "start", "previous"):
        value = getattr(subproblem, name)
        if value is not None:  # solves begin at start, and measure at previous: there the dtype must be the same
            check_like(f"{place}: {name}", value, params, exact=name in ("start", "previous"))
    together = (subproblem.local_rounds is None) == (subproblem.dual_step is None)
    if not together:
        raise ValueError(f"{place}: local_rounds and dual_step belong together: give both or none")
    for name in ("penalty", "local_rounds", "dual_step"):
        value = getattr(subproblem, name)
        if value is not None and not (_is_number(value) and jnp.shape(value) == ()):
            raise ValueError(f"{place}: {name} must be one number, got {_shown(value)}")
    if criterion.reference == "client" and subproblem.previous is None:
        raise ValueError(
            f"{place} must give previous, the client's former parameters, for reference='client' of "
            f"{type(criterion).__name__}: keep them in its row, or use 'server'"
        )


def _model(algorithm: Any, params: Params, server: Any) -> Params:
    """The server's parameters from which clients start."""
    return algorithm.iterate(params, server) if isinstance(algorithm, SeparateIterate) else params


def _check_is_sent(kind: str, subproblem: Subproblem, sent: Any, model: Params) -> None:
    """A subproblem that leaves out start or center means the server's parameters, so clients must get these."""
    names = ["start"] * (subproblem.start is None)
    names += ["center"] * (subproblem.center is None and subproblem.penalty is not None)
    got = {id(leaf) for leaf in jax.tree.leaves(sent)}
    if names and not all(id(leaf) in got for leaf in jax.tree.leaves(model)):
        given = " and ".join(f"{name}=" for name in names)
        raise ValueError(
            f"{kind}.subproblem leaves out {given}, which then are the server's params, but {kind}.broadcast does not "
            f"send these as they are: give {given} from what is sent, or send params too"
        )


def check_values(place: str, value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """A tuple of as many values."""
    if not isinstance(value, tuple) or len(value) != len(names):
        got = f"{len(value)} values" if isinstance(value, tuple) else _shown(value)
        raise ValueError(f"{place} must return {len(names)} values, ({', '.join(names)}), got {got}")
    return value


def check_number(
    place: str, value: Any, shape: tuple[int, ...], what: str = "one number", verb: str = "return"
) -> None:
    if not _is_number(value) or jnp.shape(value) != shape:
        raise ValueError(f"{place} must {verb} {what}, got {_shown(value)}")


def check_like(place: str, value: Any, like: Any, exact: bool = False) -> None:
    """Checks that a value has the structure and shapes of another, and numbers that its dtypes can hold.

    Args:
        place: What the value is, for messages.
        value: What a function returned.
        like: What it was given.
        exact: Whether the dtypes must be the same.

    Raises:
        ValueError: It is not so.
    """
    leaves, expected = dict(_leaves(place, value)), dict(_leaves(place, like))
    for path, leaf in expected.items():
        if path not in leaves:
            raise ValueError(f"{place}{path} must be {_kind(leaf)}, got {'none' if path else _shown(value)}")
        if jnp.shape(leaves[path]) != jnp.shape(leaf):
            raise ValueError(f"{place}{path} must have shape {jnp.shape(leaf)}, got {jnp.shape(leaves[path])}")
        new, old = jnp.result_type(leaves[path]), jnp.result_type(leaf)
        lost = jnp.issubdtype(new, jnp.inexact) and not jnp.issubdtype(old, jnp.inexact)
        if lost or (exact and new != old):
            raise ValueError(f"{place}{path} must be {old}, got {new}: convert it, or begin with {new}")
    for path in leaves:
        if path not in expected:
            raise ValueError(f"{place}{path} was not there before: return what was given, with new values")
    if jax.tree.structure(value) != jax.tree.structure(like):
        raise ValueError(f"{place} must be built as it was given, {_shown(like)}, got {_shown(value)}")


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
