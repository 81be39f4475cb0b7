"""What a model is to the rest of the library, and how to make one of any flax module."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
from flax import errors, linen, nnx
from jax.interpreters import partial_eval

from ..core.types import Key, Params
from .precision import cast_floats, floating

__all__ = ["Model", "from_flax"]


class Model(NamedTuple):
    """Two pure functions, `init` and `apply`. Models built from equal arguments are equal, so nothing is compiled
    twice."""

    init: Callable[[Key], Params]  # key -> params
    apply: Callable[[Params, jax.Array], jax.Array]  # (params, x [N, ...]) -> outputs [N, ...]


def from_flax(module: Any, sample_input: Any = None, *, dtype: Any = None, param_dtype: Any = None) -> Model:
    """Makes a model from a flax module, linen or nnx; parameters become plain nested dictionaries.

    Args:
        module: A linen module; a function of `nnx.Rngs` that builds an nnx module; or an nnx module, whose current
            parameters `init` then returns, whatever the key.
        sample_input: For linen, a batch (or its `jax.ShapeDtypeStruct`), to find the shapes.
        dtype: The dtype of the arithmetic, such as "bfloat16": parameters and inputs are cast to it, and outputs back.
            None leaves it to the module, whose layers may each have a `dtype`; norms and sums are then more exact.
        param_dtype: The dtype of the parameters; None leaves it to the module.

    Modules may have a random state that does not affect their outputs, such as `nnx.RNN` with cells that start at
    zero.

    Raises:
        ValueError: The module has state besides its parameters, such as BatchNorm's running statistics, which is not
            supported. If the outputs are random, as with dropout, `apply` raises this for nnx. The message names the
            submodule.

    >>> model = from_flax(linen.Dense(10), jnp.ones((1, 784)))
    >>> model = from_flax(lambda rngs: nnx.Linear(784, 10, rngs=rngs))
    """
    return cast_model(_from_flax(module, sample_input), dtype, param_dtype)


def cast_model(model: Model, dtype: Any, param_dtype: Any) -> Model:
    """A model that computes in another precision, or keeps its parameters in another; None leaves it."""
    if param_dtype is not None:
        model = model._replace(init=_CastInit(model.init, floating("param_dtype", param_dtype)))
    return model if dtype is None else model._replace(apply=_CastApply(model.apply, floating("dtype", dtype)))


def _from_flax(module: Any, sample_input: Any) -> Model:
    if isinstance(module, linen.Module):
        if sample_input is None:
            raise ValueError("a linen module needs sample_input, a batch of inputs that tells the shapes; got None")
        if not hasattr(sample_input, "shape") or not hasattr(sample_input, "dtype"):
            raise ValueError(f"sample_input must be an array, such as jnp.zeros((1, 784)), got {sample_input!r}")
        sample = jax.ShapeDtypeStruct(sample_input.shape, sample_input.dtype)
        _check_linen(module, sample)
        return Model(_LinenInit(module, sample), _LinenApply(module))
    if isinstance(module, nnx.Module):
        params, apply = _split_nnx(module)
        return Model(_Constant(params), apply)
    if isinstance(module, type) and issubclass(module, linen.Module):
        raise ValueError(f"module must be a flax module, got the class {module.__name__}: give {module.__name__}(...)")
    if not callable(module):
        raise ValueError(
            f"module must be a flax linen or nnx module, or a function of nnx.Rngs that builds one, got {module=}"
        )
    build = cast(Callable[[nnx.Rngs], nnx.Module], module)
    try:
        abstract = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    except TypeError as error:
        if not isinstance(module, type):
            raise
        # A class will do if its only argument is the nnx.Rngs.
        name = module.__name__
        raise ValueError(
            f"module must be a flax module, got the class {name}: give lambda rngs: {name}(...) ({error})"
        ) from error
    return Model(_NnxInit(build), _split_nnx(abstract)[1])


# Dataclasses instead of closures or bound methods, which are equal only to themselves.


@dataclasses.dataclass(frozen=True)
class _CastInit:
    init: Callable[[Key], Params]
    dtype: Any

    def __call__(self, key: Key) -> Params:
        return cast_floats(self.init(key), self.dtype)


@dataclasses.dataclass(frozen=True)
class _CastApply:
    apply: Callable[[Params, jax.Array], jax.Array]
    dtype: Any

    def __call__(self, params: Params, x: jax.Array) -> jax.Array:
        outputs = self.apply(cast_floats(params, self.dtype), cast_floats(x, self.dtype))
        return outputs.astype(jax.numpy.result_type(*jax.tree.leaves(params)))


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
        return _split_nnx(self.build(nnx.Rngs(key)))[0]


@dataclasses.dataclass(frozen=True)
class _NnxApply:
    graph: nnx.GraphDef
    streams: tuple[tuple[Any, Any, Any], ...]  # the random state: paths, shapes and dtypes of its variables

    def __call__(self, params: Params, x: jax.Array) -> jax.Array:
        if self.streams:
            shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x))
            _check_streams(self, *(_Hashable.of(part) for part in shape))
        return self.run(self.start(), params, x)

    def start(self) -> list[Any]:
        """Any random state: which one makes no difference."""
        return [_zeros(shape, dtype) for _, shape, dtype in self.streams]

    def run(self, state: list[Any], params: Params, x: jax.Array) -> jax.Array:
        others = {path: value for (path, _, _), value in zip(self.streams, state, strict=True)}
        return nnx.merge(self.graph, nnx.State(params), nnx.from_flat_state(others))(x)


@dataclasses.dataclass(frozen=True, eq=False)
class _Constant:
    params: Params

    def __call__(self, key: Key) -> Params:
        return jax.tree.map(jax.numpy.array, self.params)  # copies: the caller may donate them


class _Hashable(NamedTuple):
    """A tree of shapes as a key of a cache."""

    leaves: tuple[Any, ...]
    structure: Any

    @classmethod
    def of(cls, tree: Any) -> "_Hashable":
        leaves, structure = jax.tree.flatten(tree)
        return cls(tuple(leaves), structure)

    @property
    def tree(self) -> Any:
        return jax.tree.unflatten(self.structure, self.leaves)


def _check_linen(module: linen.Module, sample: jax.ShapeDtypeStruct) -> None:
    variables = jax.eval_shape(module.init, jax.random.key(0), sample)
    for collection in sorted(set(variables) - {"params"}):
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(variables[collection])]
        where = _dotted([part.key for part in paths[0][:-1]])
        raise ValueError(_STATE_MESSAGE.format(f"{where} has the collection {collection!r}"))
    try:
        jax.eval_shape(lambda variables, x: module.apply(variables, x), variables, sample)
    except errors.InvalidRngError as error:
        raise ValueError(_RANDOM_MESSAGE.format(f"the module ({error})")) from error


def _split_nnx(module: nnx.Module) -> tuple[Params, _NnxApply]:
    graph, params, randoms, others = nnx.split(module, nnx.Param, nnx.RngState, ...)
    for path, leaf in nnx.to_flat_state(others):
        what = f"{_submodule(module, path)} has {path[-1]!r}, a {type(leaf).__name__}"
        raise ValueError(_STATE_MESSAGE.format(what))
    streams = [(path, leaf.get_value()) for path, leaf in nnx.to_flat_state(randoms)]
    return nnx.to_pure_dict(params), _NnxApply(graph, tuple((path, v.shape, v.dtype) for path, v in streams))


@functools.lru_cache(maxsize=64)
def _check_streams(apply: _NnxApply, params: _Hashable, x: _Hashable) -> None:
    """Refuses random state on which the outputs depend: they would be drawn from the same numbers in every step."""
    traced = jax.make_jaxpr(apply.run)(apply.start(), params.tree, x.tree)
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(traced.jaxpr.outvars))
    for (path, _, _), uses in zip(apply.streams, used[: len(apply.streams)], strict=True):
        if uses:
            others = {path: _zeros(shape, dtype) for path, shape, dtype in apply.streams}
            module = nnx.merge(apply.graph, nnx.State(params.tree), nnx.from_flat_state(others))
            raise ValueError(_RANDOM_MESSAGE.format(_submodule(module, path)))


def _zeros(shape: tuple[int, ...], dtype: Any) -> jax.Array:
    if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.numpy.broadcast_to(jax.random.key(0), shape)
    return jax.numpy.zeros(shape, dtype)


def _submodule(module: nnx.Module, path: tuple[Any, ...]) -> str:
    """Where in the module a variable is, and the type of what has it."""
    nodes: list[Any] = [module]
    for key in path[:-1]:
        node = nodes[-1]
        nodes.append(getattr(node, key) if isinstance(key, str) and hasattr(node, key) else node[key])
    modules = [isinstance(node, nnx.Module) and not isinstance(node, nnx.Rngs | nnx.RngStream) for node in nodes]
    place = max(depth for depth, is_module in enumerate(modules) if is_module)
    return f"{_dotted(path[:place])} ({type(nodes[place]).__name__})"


def _dotted(path: Sequence[Any]) -> str:
    return "the submodule " + ".".join(str(part) for part in path) if path else "the module itself"


_STATE_MESSAGE = (
    "{}, which is no parameter, and a client would have nowhere to keep it. Replace BatchNorm by GroupNorm or "
    "LayerNorm, and leave out other modules that keep statistics or caches."
)
_RANDOM_MESSAGE = (
    "{} draws random numbers when it is applied, and a loss has none to give it. Leave dropout out, or make it "
    "deterministic."
)
