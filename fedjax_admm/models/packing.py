"""Models with their parameters in one array: many small ones are many small programs to be compiled.

XLA makes a kernel for every array in every elementwise operation, and a round has dozens of those. With one array it
compiles little besides the gradient, and what is computed is the same.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..core.types import Key, Params
from .model import Model

__all__ = ["packed", "unpacked"]


def packed(model: Model) -> Model:
    """The same model with all its parameters in one array, which compiles faster.

    Args:
        model: A model whose parameters have the same dtype.

    Raises:
        ValueError: The parameters have several dtypes.

    >>> model = packed(fa.models.mlp((28, 28, 1), hidden=(128, 64)))
    >>> params = model.init(jax.random.key(0))
    >>> params.shape, len(jax.tree.leaves(unpacked(model, params)))
    ((109386,), 6)
    """
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten(shapes)
    kinds = sorted({str(leaf.dtype) for leaf in leaves})
    if len(kinds) != 1:
        raise ValueError(f"model must have parameters of one dtype to be packed, got {', '.join(kinds)}")
    places = _Places(tuple(leaf.shape for leaf in leaves), structure)
    return Model(_PackedInit(model), _PackedApply(model, places))


def unpacked(model: Model, params: Any) -> Params:
    """The parameters of a packed model, in the structure of the original model.

    Args:
        model: What `packed` returned.
        params: Its parameters, or several clients' [clients, n].
    """
    if not isinstance(model.apply, _PackedApply):
        raise ValueError(f"model must be one that fa.models.packed returned, got {model!r}")
    return model.apply.places.unpack(params)


@dataclasses.dataclass(frozen=True)
class _Places:
    """Where each parameter is."""

    shapes: tuple[tuple[int, ...], ...]
    structure: Any

    def unpack(self, params: jax.Array) -> Params:
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = lax.split(params, sizes, axis=params.ndim - 1)
        before = params.shape[:-1]
        leaves = [part.reshape(before + shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)


@dataclasses.dataclass(frozen=True)
class _PackedInit:
    model: Model

    def __call__(self, key: Key) -> Params:
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(self.model.init(key))])


@dataclasses.dataclass(frozen=True)
class _PackedApply:
    model: Model
    places: _Places

    def __call__(self, params: Params, x: jax.Array) -> jax.Array:
        return self.model.apply(self.places.unpack(params), x)
