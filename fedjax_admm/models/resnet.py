"""Residual networks of He et al. 2016 for small images, with GroupNorm instead of BatchNorm.

ResNet-20 is the network of the paper's Example 3: three stages of three blocks of two 3x3 convolutions with 16, 32 and
64 channels, and shortcuts without parameters (option A): where a stage halves the image they take every second pixel
and add zero channels on both sides. ResNet-18, as it is used for CIFAR, has a 3x3 convolution first and four stages of
two blocks with 64 to 512 channels; where a stage changes the shape, its shortcut is a 1x1 convolution and a norm.

BatchNorm's running statistics have no meaning across clients. Convolutions start normal with variance 2 / fan_in, as in
the common PyTorch code for these networks; the last layer as dense layers do elsewhere in this package.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ..core import checks
from . import start
from .layers import Conv, Dense, LayerGroupNorm
from .model import Model
from .normalization import CIFAR10, Normalization, to_float
from .precision import checked

__all__ = ["resnet18", "resnet20"]

# PyTorch pads by one on both sides, also at stride 2, where "SAME" would pad by one at the end only.
PADDING = ((1, 1), (1, 1))
NOTHING = ((0, 0), (0, 0))


class Block(nn.Module):
    """[N, H, W, C] -> [N, H / stride, W / stride, features]"""

    features: int
    stride: int = 1
    groups: int = 1
    projection: bool = False
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        strides, precision = (self.stride, self.stride), {"dtype": self.dtype, "param_dtype": self.param_dtype}
        norm = functools.partial(LayerGroupNorm, self.groups, param_dtype=self.param_dtype)
        y = Conv(self.features, strides=strides, padding=PADDING, **precision)(x)
        y = norm(relu=True)(y)
        y = Conv(self.features, padding=PADDING, **precision)(y)
        second = norm(relu=True)
        extra = self.features - x.shape[-1]
        if extra or self.stride > 1:
            if self.projection:
                x = Conv(self.features, (1, 1), strides, NOTHING, **precision)(x)
                x = norm()(x)
            else:
                x = _every(self.stride, x)
                x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (extra // 2, extra - extra // 2)))
        return second(y, x)


def _every(stride: int, x: jax.Array) -> jax.Array:
    """x[:, ::stride, ::stride] without strides, which cost several times as much in the gradient."""
    n, height, width, channels = x.shape
    if height % stride or width % stride:
        return x[:, ::stride, ::stride]
    return x.reshape(n, height // stride, stride, width // stride, stride, channels)[:, :, 0, :, 0]


class ResNet(nn.Module):
    """[N, H, W, C] -> logits [N, classes]"""

    stages: tuple[int, ...]  # each one's channels
    blocks: int  # of a stage
    classes: int = 10
    groups: int = 1
    projection: bool = False
    normalization: Normalization | None = CIFAR10
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = Conv(self.stages[0], padding=PADDING, **precision)(to_float(x, self.normalization))
        x = LayerGroupNorm(self.groups, relu=True, param_dtype=self.param_dtype)(x)
        for stage, features in enumerate(self.stages):
            for block in range(self.blocks):
                stride = 2 if stage and not block else 1
                x = Block(features, stride, self.groups, self.projection, **precision)(x)
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
        input_shape: The shape of one image, of uint8 pixels or of floats that are already in [0, 1].
        classes: The number of logits.
        normalization: Mean and standard deviation per channel.
        dtype: The dtype of products, such as "bfloat16"; sums, and by default products, have that of the parameters.
        param_dtype: The dtype of the parameters.

    >>> model = resnet20()
    >>> sum(leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0))))
    269722
    """
    classes = checks.integer("classes", classes, at_least=1)
    module = ResNet((16, 32, 64), 3, classes, normalization=normalization, **checked(dtype, param_dtype))
    return start.model(module, input_shape, he=True)


def resnet18(
    input_shape: tuple[int, int, int] = (32, 32, 3),
    classes: int = 10,
    *,
    groups: int = 2,
    normalization: Normalization | None = CIFAR10,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """ResNet-18 for small images, with GroupNorm: 11,173,962 parameters on CIFAR-10.

    Args:
        input_shape: The shape of one image, of uint8 pixels or of floats that are already in [0, 1].
        classes: The number of logits.
        groups: Into how many groups a norm divides the channels; it has to divide 64.
        normalization: Mean and standard deviation per channel.
        dtype: The dtype of products, such as "bfloat16"; sums, and by default products, have that of the parameters.
        param_dtype: The dtype of the parameters.

    >>> jax.eval_shape(resnet18(classes=100).init, jax.random.key(0))["Dense_0"]["kernel"].shape
    (512, 100)
    """
    if 64 % checks.integer("groups", groups, at_least=1):
        raise ValueError(f"groups must divide the 64 channels of the first stage, got {groups}")
    module = ResNet(
        (64, 128, 256, 512),
        2,
        checks.integer("classes", classes, at_least=1),
        groups,
        projection=True,
        normalization=normalization,
        **checked(dtype, param_dtype),
    )
    return start.model(module, input_shape, he=True)
