"""Digests of numbers, and of what functions compute: they change if data or functions do."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

from ..algorithms.local_solver import LocalSolver
from ..data.federated import FederatedData
from ..data.fields import sample
from ..data.rows import in_memory
from .description import drop_address


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


def digest_of_data(data: FederatedData) -> str | None:
    """A federation's digest: of one on disk by its checksums, else of rows that are not in memory by the first."""
    if in_memory(data.fields):
        return digest(data)
    known = {"sizes": data.sizes, "weights": data.weights, "index": data.index}
    if data.directory is not None:
        return digest(known | {"directory": np.frombuffer(data.directory.digest.encode(), np.uint8)})
    return digest(known | {"fields": sample(data.fields)})


def computation(function: Callable, *arguments: Any) -> str:
    """A digest of what a function computes, whatever its name: its jaxpr and the constants in it."""
    sha = hashlib.sha256()
    closed = jax.make_jaxpr(function)(*arguments)
    sha.update(drop_address(str(closed)).encode())
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


def optimizer_step(local: LocalSolver, params: Any) -> str:
    one = dataclasses.replace(local, learning_rate=1.0, options=dict.fromkeys(local.options or {}, 0.5))

    def step(params: Any, gradient: Any) -> Any:
        def value(params: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))

        return one.step(params, one.init(params), gradient, value(params), value)[0]

    return computation(step, params, params)
