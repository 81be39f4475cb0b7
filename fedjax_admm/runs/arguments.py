"""What a simulation is given, checked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..algorithms.base import Algorithm
from ..core import checks, trees
from ..core.record import display_name
from ..core.vocabulary import State
from ..engine.population import StoredClients
from ..exchange.client_time import ClientTime
from ..exchange.faults import Faults
from ..problems.problem import Problem, check_params


def check_state(state: Any) -> None:
    """A state whose memory, or whose clients' rows, no later one has taken over."""
    if not isinstance(state, State):
        raise ValueError(f"state must come from init or round, got {type(state).__name__}")
    deleted = any(leaf.is_deleted() for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))
    if deleted or (isinstance(state.clients, StoredClients) and state.clients.round != state.round):
        raise ValueError(
            "state was used before, and the state which that round returned has taken over its memory: go on with that "
            "one, or give round a copy, jax.tree.map(jnp.copy, state), where the population is on the device"
        )


def check_conditions(faults: Any, client_time: Any) -> None:
    """Faults and the clients' time must be objects of their kinds, or None."""
    if faults is not None and not isinstance(faults, Faults):
        raise ValueError(f"faults must be a fedjax_admm.Faults, got {faults!r}")
    if client_time is not None and not isinstance(client_time, ClientTime):
        raise ValueError(f"client_time must be a fedjax_admm.ClientTime, got {client_time!r}")


def check_everyone(algorithm: Algorithm, cohort: int, clients: int, may_vary: bool = False) -> None:
    """A method that is not defined for a part of the clients gets all of them."""
    if getattr(algorithm, "needs_everyone", False) and (may_vary or cohort < clients):
        got = "cohorts that may vary" if may_vary else f"{cohort} of {clients}"
        raise ValueError(
            f"participation must be 1.0 for {display_name(algorithm)}, which is only defined for all clients in every "
            f"round, got {got}"
        )


def check_client_axes(algorithm: Algorithm, num_clients: int) -> None:
    """Every number of the algorithm is one, or one per client."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(algorithm):
        checks.client_axis(jax.tree_util.keystr(path).lstrip("."), leaf, num_clients)


def check_initial_params(problem: Problem, initial_params: Any) -> Any:
    """z^0 as arrays that no device has yet; None where `problem.init` is to make it."""
    if initial_params is None:
        return None
    check_params(initial_params, "initial_params has")
    expected, passed = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (problem.params_shape, initial_params)
    )
    if expected.keys() != passed.keys():
        raise ValueError(
            f"initial_params must have the structure of init's parameters, {list(expected)}, got {list(passed)}"
        )
    for place, like in expected.items():
        if like.shape != (shape := jnp.shape(passed[place])):
            raise ValueError(
                f"initial_params{place} must have the shape of init's parameters, {like.shape}, got {shape}"
            )
    if not bool(trees.all_finite(initial_params)):
        raise ValueError("initial_params is not finite: remove NaN and inf")
    # Python's own numbers have no precision; NumPy's, which may be instances of float, have one. A run's parameters are
    # bound to its devices, and another run may have others.
    free = {place: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for place, leaf in passed.items()}
    arrays = [
        jnp.asarray(free[place], like.dtype if type(free[place]) is float else None) for place, like in expected.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(problem.params_shape), arrays)
