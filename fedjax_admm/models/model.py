"""What a model is to the rest of the library, and how to make one of any flax module."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
from flax import linen, nnx

from ..core.types import Key, Params

__all__ = ["Model", "from_flax"]


class Model(NamedTuple):
    """Two pure functions. Models built twice from equal arguments are equal and hash equal, so that what was
    compiled for one is found again for the other."""

    init: Callable[[Key], Params]  # key -> params
    apply: Callable[[Params, jax.Array], jax.Array]  # (params, x [N, ...]) -> outputs [N, ...]


def from_flax(module: Any, sample_input: Any = None) -> Model:
    """Make a model of a flax module, linen or nnx; parameters become plain nested dictionaries.

    Args:
        module: A linen module; or a function of `nnx.Rngs` that builds an nnx module; or an nnx module, of which
            `init` then returns the parameters that it has, whatever the key.
        sample_input: For linen, a batch (or its `jax.ShapeDtypeStruct`) that tells the shapes.

    Raises:
        ValueError: Where the module has anything but parameters, such as BatchNorm's running statistics or a
            dropout's random state: a client would have nowhere to keep it.

    >>> model = from_flax(linen.Dense(10), jnp.ones((1, 784)))
    >>> model = from_flax(lambda rngs: nnx.Linear(784, 10, rngs=rngs))
    """
    if isinstance(module, linen.Module):
        if sample_input is None:
            raise ValueError("a linen module needs sample_input, a batch of inputs that tells the shapes; got None")
        sample = jax.ShapeDtypeStruct(sample_input.shape, sample_input.dtype)
        _check_linen(module, sample)
        return Model(_LinenInit(module, sample), _LinenApply(module))
    if isinstance(module, nnx.Module):
        graph, params = _split_nnx(module)
        return Model(_Constant(params), _NnxApply(graph))
    if not callable(module):
        raise ValueError(
            f"module must be a flax linen or nnx module, or a function of nnx.Rngs that builds one, got {module=}"
        )
    build = cast(Callable[[nnx.Rngs], nnx.Module], module)
    graph, _ = _split_nnx(nnx.eval_shape(lambda: build(nnx.Rngs(0))))
    return Model(_NnxInit(build), _NnxApply(graph))


# Dataclasses instead of closures or bound methods, which are equal only to themselves.


@dataclasses.dataclass(frozen=True)
class _LinenInit:
    module: linen.Module
    sample: jax.ShapeDtypeStruct

    @functools.partial(jax.jit, static_argnums=0)  # compiled, so that the outputs are never computed
    def __call__(self, key: Key) -> Params:
        return self.module.init(key, jax.numpy.zeros(self.sample.shape, self.sample.dtype))["params"]


@dataclasses.dataclass(frozen=True)
class _LinenApply:
    module: linen.Module

    def __call__(self, params: Params, x: jax.Array) -> jax.Array:
        return cast(jax.Array, self.module.apply({"params": params}, x))


@dataclasses.dataclass(frozen=True)
class _NnxInit:
    build: Callable[[nnx.Rngs], nnx.Module]

    def __call__(self, key: Key) -> Params:
        return _split_nnx(self.build(nnx.Rngs(key)))[1]


@dataclasses.dataclass(frozen=True)
class _NnxApply:
    graph: nnx.GraphDef

    def __call__(self, params: Params, x: jax.Array) -> jax.Array:
        return nnx.merge(self.graph, nnx.State(params))(x)


@dataclasses.dataclass(frozen=True, eq=False)
class _Constant:
    params: Params

    def __call__(self, key: Key) -> Params:
        return jax.tree.map(jax.numpy.array, self.params)  # copies: the caller may donate them


def _check_linen(module: linen.Module, sample: jax.ShapeDtypeStruct) -> None:
    variables = jax.eval_shape(module.init, jax.random.key(0), sample)
    others = sorted(set(variables) - {"params"})
    if others:
        raise ValueError(_STATE_MESSAGE.format(f"the collections {others}"))


def _split_nnx(module: nnx.Module) -> tuple[nnx.GraphDef, Params]:
    graph, params, others = nnx.split(module, nnx.Param, ...)
    if jax.tree.leaves(others):
        names = sorted({type(leaf).__name__ for _, leaf in nnx.to_flat_state(others)})
        raise ValueError(_STATE_MESSAGE.format(f"variables of the types {names}"))
    return graph, nnx.to_pure_dict(params)


_STATE_MESSAGE = (
    "the module has state that is not a parameter: {}. Replace BatchNorm by GroupNorm or LayerNorm, and leave out "
    "dropout and other modules that keep statistics or random state."
)
