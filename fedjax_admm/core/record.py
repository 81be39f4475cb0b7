"""Records: frozen dataclasses that are pytrees, whose numbers are traced and whose words are compiled in."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, dataclass_transform

import jax

from .notebook import html

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """Declares a field of a `record` as compiled in: functions, strings, shapes. All other fields are leaves of the
    pytree.

    Args:
        kwargs: Arguments of `dataclasses.field`, such as `default`.

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
    """Makes a class a frozen dataclass that is a JAX pytree: its numbers may change without recompiling.

    Unlike with `jax.tree_util.register_dataclass`, rebuilding a record from its leaves does not run `__post_init__`:
    arguments are checked when a user makes the record, and JAX may then put tracers in their place. Functions are
    shown by their names, and the record itself by its `display_name`, if it has one.

    Args:
        cls: A class with annotated fields.

    Returns:
        The class, made a dataclass.

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
        cls._repr_html_ = _html  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def display_name(value: Any) -> str:
    """What a record shows itself as: one class may be several methods by its parts."""
    return getattr(value, "display_name", type(value).__name__)


def without_addresses(text: str) -> str:
    """A representation in which functions are named and addresses left out.

    >>> without_addresses("loss=<function squared at 0x7f00>, key=<object at 0x7f01>")
    'loss=squared, key=<object>'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", re.sub(r"<function ([^ ]+) at 0x[0-9a-f]+>", r"\1", text))


def _with_names(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """A dataclass's representation under the record's display name, without addresses, which differ in every run."""

    @functools.wraps(show)
    def shown(value: Any) -> str:
        return display_name(value) + without_addresses(show(value)).removeprefix(type(value).__qualname__)

    return shown


def _html(value: Any) -> str:
    """A record in a notebook."""
    return html(value)
