"""What jax.tree and optax.tree do not have: selections along a leading axis, sums by parts, dtypes of numbers."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from .types import Params

T = TypeVar("T")


def where(mask: Array, new: Any, old: Any) -> Any:
    """`new` where the mask holds, else `old`, in `old`'s dtypes.

    The mask's axes are the leaves' leading ones: a mask [clients] selects rows of leaves [clients, ...].
    """

    def select(n: Array, o: Array) -> Array:
        n, o = jnp.asarray(n), jnp.asarray(o)
        return jnp.where(mask.reshape(mask.shape + (1,) * (o.ndim - mask.ndim)), n.astype(o.dtype), o)

    return jax.tree.map(select, new, old)


def take(tree: Any, ids: Array | int) -> Any:
    """Rows `ids` of every leaf's leading axis; numbers beyond the last are the last."""
    return jax.tree.map(lambda leaf: leaf.at[ids].get(mode="clip", wrap_negative_indices=False), tree)


def repeat(tree: Any, number: int) -> Any:
    """The same tree for each of `number` clients, leaves [number, ...]."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), tree)


def scale(factor: Any, tree: Any) -> Any:
    """factor * tree, in the tree's dtypes."""
    return jax.tree.map(lambda leaf: leaf * jnp.asarray(factor).astype(leaf.dtype), tree)


def per_client(tree: Any, ids: Array) -> Any:
    """The values of clients `ids`, of any shape, of leaves that are one number or one per client, [clients]."""

    def pick(leaf: Any) -> Array:
        leaf = jnp.asarray(leaf)
        return leaf[ids] if leaf.ndim else jnp.full(ids.shape, leaf)

    return jax.tree.map(pick, tree)


def all_finite(tree: Any) -> Array:
    """Whether every number of the tree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def scalar_dtype(params: Params) -> jnp.dtype:
    """The dtype of norms and hyperparameters: the parameters' own, but not below single precision."""
    return at_least_single(*(leaf.dtype for leaf in jax.tree.leaves(params)))


def at_least_single(*dtypes: Any) -> Any:
    """The dtype that holds all of these and float32, whatever rule of promotion the user has set."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*dtypes, jnp.float32)


def cast_floats(tree: Any, dtype: jnp.dtype) -> Any:
    """Floating-point leaves in `dtype`, integers in int32: so that no hyperparameter widens the parameters."""

    def cast(leaf: Any) -> Array:
        leaf = jnp.asarray(leaf)
        if leaf.dtype == bool:
            return leaf
        return leaf.astype(dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.int32)

    return jax.tree.map(cast, tree)


def strongly_typed(tree: Any) -> Any:
    """The tree as new arrays whose dtypes are named: weakly typed ones (`jnp.full(3, 0.0)`) at the start would make the
    second round, whose are not, another program."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, jnp.result_type(leaf)), tree)


def add_scaled(total: Any, share: Array, part: Any) -> Any:
    """total + share * part, in the total's dtypes."""
    return jax.tree.map(lambda t, p: t + share.astype(t.dtype) * p.astype(t.dtype), total, part)
