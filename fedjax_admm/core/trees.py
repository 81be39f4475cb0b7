"""What jax.tree and optax.tree do not have: checked records as pytrees, selections along a leading axis."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax import Array

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """A field of a `record` that is compiled in: functions, words, shapes. All other fields are leaves.

    >>> @record
    ... class Tolerance:
    ...     eps: float = 0.1
    ...     residual: str = static(default="exact")
    >>> jax.tree.leaves(Tolerance())
    [0.1]
    """
    return dataclasses.field(metadata={"static": True}, **kwargs)


def note(**kwargs: Any) -> Any:
    """A field of a `record` that says where the record came from: no leaf, not compiled in, its default inside JAX."""
    return dataclasses.field(metadata={"note": True}, compare=False, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static, note, dataclasses.field))
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass that is a pytree.

    Unlike `jax.tree_util.register_dataclass`, rebuilding one from its leaves does not run `__post_init__`: a
    record checks its arguments when a user makes it, and JAX may put tracers or anything else in their place.
    It shows functions by their names; `display_name`, where a class has one, is what it shows itself as.

    >>> @record
    ... class Point:
    ...     x: float
    ...     name: str = static(default="p")
    >>> jax.tree.leaves(Point(1.0))
    [1.0]
    """
    shows_itself = "__repr__" in vars(cls)
    cls = dataclasses.dataclass(frozen=True)(cls)
    if not shows_itself:
        cls.__repr__ = _with_names(cls.__repr__)  # pyright: ignore[reportAttributeAccessIssue]
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    constant = tuple(f.name for f in fields if f.metadata.get("static"))
    notes = {f.name: f.default for f in fields if f.metadata.get("note")}
    leaves = tuple(f.name for f in fields if f.name not in constant and f.name not in notes)
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in leaves)

    def flatten(value: Any) -> tuple[tuple, tuple]:
        return tuple(getattr(value, n) for n in leaves), tuple(getattr(value, n) for n in constant)

    def flatten_with_keys(value: Any) -> tuple[tuple, tuple]:
        children, constants = flatten(value)
        return tuple(zip(keys, children, strict=True)), constants

    def unflatten(constants: tuple, children: Iterable[Any]) -> Any:
        value = object.__new__(cls)
        named = (*zip(leaves, children, strict=True), *zip(constant, constants, strict=True), *notes.items())
        for name, item in named:
            object.__setattr__(value, name, item)
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    if not hasattr(cls, "_repr_html_"):
        cls._repr_html_ = _record_html  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def display_name(value: Any) -> str:
    """What a record shows itself as: one class may be several methods by its parts."""
    return getattr(value, "display_name", type(value).__name__)


def _with_names(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """A dataclass's representation under the record's display name, without addresses, which differ in every run."""

    @functools.wraps(show)
    def shown(value: Any) -> str:
        text = re.sub(r"<function ([^ ]+) at 0x[0-9a-f]+>", r"\1", show(value))
        return display_name(value) + re.sub(r" at 0x[0-9a-f]+", "", text).removeprefix(type(value).__qualname__)

    return shown


def _record_html(value: Any) -> str:
    """A record in a notebook."""
    from ..show.notebook import record_html  # which needs tables, which need nothing from here

    return record_html(value)


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


def minus(rows: Any, shared: Any) -> Any:
    """rows_i - shared for leaves [rows, ...] and [...]."""
    return jax.tree.map(lambda row, one: row - one[None], rows, shared)


def scale_rows(factors: Array, rows: Any) -> Any:
    """factors_i * rows_i for leaves [rows, ...], in their dtypes."""
    return jax.tree.map(lambda leaf: leaf * factors.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1)), rows)


def per_client(tree: Any, ids: Array) -> Any:
    """The values of clients `ids`, [ids], of leaves that are one number or one per client, [clients]."""

    def pick(leaf: Any) -> Array:
        leaf = jnp.asarray(leaf)
        return leaf[ids] if leaf.ndim else jnp.full(ids.shape, leaf)

    return jax.tree.map(pick, tree)


def all_finite(tree: Any) -> Array:
    """Whether every number of the tree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def scalar_dtype(params: Any) -> jnp.dtype:
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
