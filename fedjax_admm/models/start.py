"""Where the parameters of this package's own models start: all from one random draw.

A linen initialiser a parameter costs a third of a second of compiling each (a threefry generator is compiled for
every shape), ten seconds for ResNet-20; one draw for all costs one.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from ..core.types import Key, Params
from .model import Model, from_flax


def model(module: nn.Module, input_shape: tuple[int, ...], dtype: str = "uint8", *, he: bool = False) -> Model:
    """A model of a module made of `layers`.

    Weights and biases start uniform in +-1 / sqrt(fan_in), PyTorch's default for dense layers and convolutions,
    because the numbers that the paper reports are of a PyTorch program. Whatever has no weights beside it
    (the scale and bias of a normalisation) starts as the module says.

    Args:
        module: The linen module.
        input_shape: Of one example.
        dtype: Of the inputs.
        he: Convolutions start normal with variance 2 / fan_in instead (He et al. 2015).
    """
    sample = jax.ShapeDtypeStruct((1, *input_shape), dtype)
    return from_flax(module, sample)._replace(init=Start(module, sample, he))


@dataclasses.dataclass(frozen=True)
class Start:
    """key -> params"""

    module: nn.Module
    sample: jax.ShapeDtypeStruct
    he: bool

    @functools.partial(jax.jit, static_argnums=0)  # compiled, so that the module's outputs are never computed
    def __call__(self, key: Key) -> Params:
        declared = self.module.init(key, jnp.zeros(self.sample.shape, self.sample.dtype))["params"]
        size = sum(leaf.size for leaf in jax.tree.leaves(declared))
        # Without -1 itself, where the inverse of the error function is infinite.
        noise = jax.random.uniform(key, (size,), jnp.float32, -1.0 + 2.0**-24, 1.0)
        return _scale(declared, noise, self.he)


def _scale(params: Params, noise: jax.Array, he: bool) -> Params:
    """Fill a tree's layers (the dictionaries with a kernel) with successive pieces of the noise, scaled."""
    start, taken = {}, 0
    for name, value in sorted(params.items()):
        if isinstance(value, dict):
            size = sum(leaf.size for leaf in jax.tree.leaves(value))
            start[name], taken = _scale(value, noise[taken : taken + size], he), taken + size
        elif "kernel" in params:
            fan_in = math.prod(params["kernel"].shape[:-1])
            piece, taken = noise[taken : taken + value.size].reshape(value.shape), taken + value.size
            if he and value.ndim == 4:
                # If u is uniform in (-1, 1), sqrt(2) erfinv(u) is standard normal.
                piece = jax.lax.erf_inv(piece) * (2.0 / math.sqrt(fan_in))
            else:
                piece = piece / math.sqrt(fan_in)
            start[name] = piece.astype(value.dtype)
        else:
            start[name] = value
    return start
