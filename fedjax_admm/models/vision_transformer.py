"""A small vision transformer (Dosovitskiy et al. 2021), of flax's own layers.

Patches of pixels become vectors, to which a position is added; blocks of attention and a perceptron, each after a
LayerNorm and around a shortcut, act on them; the logits are of their mean. There is no dropout, which would need random
numbers, and no class token.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ..core import checks
from .model import Model, from_flax
from .normalization import CIFAR10, Normalization, to_float
from .precision import checked

__all__ = ["vit"]


class TransformerBlock(nn.Module):
    """[N, patches, width] -> [N, patches, width]"""

    heads: int
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width, precision = x.shape[-1], {"dtype": self.dtype, "param_dtype": self.param_dtype}
        y = nn.LayerNorm(param_dtype=self.param_dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads, deterministic=True, **precision)(y).astype(x.dtype)
        y = nn.LayerNorm(param_dtype=self.param_dtype)(x)
        y = nn.Dense(width, **precision)(nn.gelu(nn.Dense(2 * width, **precision)(y)))
        return x + y.astype(x.dtype)


class VisionTransformer(nn.Module):
    """[N, H, W, C] -> logits [N, classes]"""

    patch: int
    width: int
    depth: int
    heads: int
    classes: int
    normalization: Normalization | None = CIFAR10
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = to_float(x, self.normalization)
        n, height, width, channels = x.shape
        rows, columns = height // self.patch, width // self.patch
        x = x.reshape(n, rows, self.patch, columns, self.patch, channels).transpose(0, 1, 3, 2, 4, 5)
        x = nn.Dense(self.width, **precision)(x.reshape(n, rows * columns, -1)).astype(self.param_dtype)
        x = x + self.param("position", nn.initializers.normal(0.02), (rows * columns, self.width), self.param_dtype)
        for _ in range(self.depth):
            x = TransformerBlock(self.heads, **precision)(x)
        x = nn.LayerNorm(param_dtype=self.param_dtype)(x).mean(1)
        return nn.Dense(self.classes, param_dtype=self.param_dtype)(x)


def vit(
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    *,
    patch: int = 4,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    normalization: Normalization | None = CIFAR10,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """A vision transformer: with its defaults 546,058 parameters on CIFAR-10.

    Args:
        input_shape: The shape of one image, of uint8 pixels or of floats that are already in [0, 1].
        classes: The number of logits.
        patch: The side of a patch in pixels; it has to divide the image's.
        width: Numbers of a patch's vector.
        depth: Blocks.
        heads: Attention heads of a block; they have to divide the width.
        normalization: Mean and standard deviation per channel.
        dtype: Of the arithmetic of dense layers and attention, such as "bfloat16"; None is that of the parameters.
            Norms, shortcuts and logits have the latter.
        param_dtype: The dtype of the parameters.

    >>> model = vit(depth=1)
    >>> jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), jnp.zeros((2, 32, 32, 3))).shape
    (2, 10)
    """
    sizes = {"patch": patch, "width": width, "depth": depth, "heads": heads, "classes": classes}
    sizes = {name: checks.integer(name, size, at_least=1) for name, size in sizes.items()}
    if any(side % patch for side in input_shape[:2]):
        raise ValueError(f"patch must divide the image's sides {tuple(input_shape[:2])}, got {patch}")
    if width % heads:
        raise ValueError(f"heads must divide width={width}, got {heads}")
    module = VisionTransformer(**sizes, normalization=normalization, **checked(dtype, param_dtype))
    return from_flax(module, jax.ShapeDtypeStruct((1, *input_shape), "uint8"))
