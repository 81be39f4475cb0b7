"""The layers that the models are made of.

Parameters have `param_dtype`. With a `dtype`, the factors of all matrix products are rounded to it, in the gradients
too; their sums, and all that is between products, have the parameters' dtype.

Kernels and biases are declared as zeros: `start.py` draws them, all at once.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from .convolution import Padding, conv2d
from .group_norm import group_norm, group_norm_relu
from .pooling import conv2d_max_pool2
from .products import matmul

zeros, ones = nn.initializers.zeros, nn.initializers.ones


class Dense(nn.Module):
    """[..., inputs] -> [..., features]"""

    features: int
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", zeros, (x.shape[-1], self.features), self.param_dtype)
        y: Any = matmul(x.astype(kernel.dtype), kernel, self.dtype)
        if self.use_bias:
            y = y + self.param("bias", zeros, (self.features,), self.param_dtype)
        return y


class Conv(nn.Module):
    """[N, H, W, Cin] -> [N, H', W', features], see `conv2d`; without a bias."""

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: Padding = "SAME"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", zeros, shape, self.param_dtype)
        return conv2d(x.astype(kernel.dtype), kernel, self.strides, self.padding, self.dtype)


class ConvPoolRelu(nn.Module):
    """Convolution, bias, ReLU, 2 x 2 maximum: [N, H, W, Cin] -> [N, H' // 2, W' // 2, features].

    The bias and the ReLU come after the maximum, on a quarter of the numbers: both are monotone (also as rounded),
    so max(relu(y + b)) = relu(max(y) + b) exactly.
    """

    features: int
    kernel_size: tuple[int, int] = (5, 5)
    padding: Padding = "VALID"
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", zeros, shape, self.param_dtype)
        bias = self.param("bias", zeros, (self.features,), self.param_dtype)
        return nn.relu(conv2d_max_pool2(x.astype(kernel.dtype), kernel, self.padding, self.dtype) + bias)


class LayerGroupNorm(nn.Module):
    """Each image's groups of channels, by default all, to mean 0 and variance 1; then scale and bias by channel."""

    groups: int = 1
    epsilon: float = 1e-5
    relu: bool = False  # afterwards, also after the addition of a shortcut
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, shortcut: jax.Array | None = None) -> jax.Array:
        scale = self.param("scale", ones, (x.shape[-1],), self.param_dtype)
        bias = self.param("bias", zeros, (x.shape[-1],), self.param_dtype)
        if self.relu:
            return group_norm_relu(x, scale, bias, shortcut, self.groups, self.epsilon)
        y = group_norm(x, scale, bias, self.groups, self.epsilon)
        return y if shortcut is None else y + shortcut
