"""ResNet-20 of He et al. 2016 for CIFAR-10 with GroupNorm, the network of the paper's Example 3.

Three stages of three blocks of two 3x3 convolutions with 16, 32 and 64 channels. Shortcuts have no parameters
(option A): where a stage halves the image they take every second pixel and add zero channels on both sides.
BatchNorm is replaced by GroupNorm with one group, because its running statistics have no meaning across clients.
Convolutions start normal with variance 2 / fan_in, as in the common PyTorch code for this network; the last layer
as dense layers do elsewhere in this package.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from . import start
from .layers import Conv, Dense, LayerGroupNorm
from .model import Model
from .normalization import CIFAR10, Normalization, to_float
from .precision import checked

__all__ = ["resnet20"]

# PyTorch pads by one on both sides, also at stride 2, where "SAME" would pad by one at the end only.
PADDING = ((1, 1), (1, 1))


class Block(nn.Module):
    """[N, H, W, C] -> [N, H / stride, W / stride, features]"""

    features: int
    stride: int = 1
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        y = Conv(self.features, strides=(self.stride, self.stride), padding=PADDING, **precision)(x)
        y = nn.relu(LayerGroupNorm(param_dtype=self.param_dtype)(y))
        y = LayerGroupNorm(param_dtype=self.param_dtype)(Conv(self.features, padding=PADDING, **precision)(y))
        extra = self.features - x.shape[-1]
        if extra or self.stride > 1:
            x = x[:, :: self.stride, :: self.stride]
            x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (extra // 2, extra - extra // 2)))
        return nn.relu(x + y)


class ResNet20(nn.Module):
    """[N, H, W, C] -> logits [N, classes]"""

    classes: int = 10
    normalization: Normalization | None = CIFAR10
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = to_float(x, self.normalization)
        x = nn.relu(LayerGroupNorm(param_dtype=self.param_dtype)(Conv(16, padding=PADDING, **precision)(x)))
        for features in (16, 32, 64):
            for block in range(3):
                x = Block(features, 2 if features > 16 and block == 0 else 1, **precision)(x)
        return Dense(self.classes, **precision)(x.mean((1, 2)))


def resnet20(
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    *,
    normalization: Normalization | None = CIFAR10,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """ResNet-20 with GroupNorm: 269,722 parameters on CIFAR-10.

    Args:
        input_shape: Of one image, as uint8 pixels (floats: already in [0, 1]).
        classes: Number of logits.
        normalization: Mean and standard deviation by channel.
        dtype: Of the products' factors, such as "bfloat16"; None is that of the parameters. Sums have the latter.
        param_dtype: Of the parameters.

    >>> model = resnet20()
    >>> sum(leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0))))
    269722
    """
    return start.model(ResNet20(classes, normalization, **checked(dtype, param_dtype)), input_shape, he=True)
