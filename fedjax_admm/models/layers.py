"""The layers that the models are made of. Arithmetic is done in the parameters' dtype.

Kernels and biases are declared as zeros: `start.py` draws them, all at once.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from .convolution import Padding, conv2d
from .pooling import conv2d_max_pool2
from .products import matmul

zeros, ones = nn.initializers.zeros, nn.initializers.ones


class Dense(nn.Module):
    """[..., inputs] -> [..., features]"""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", zeros, (x.shape[-1], self.features), jnp.float32)
        y = matmul(x.astype(kernel.dtype), kernel)
        if self.use_bias:
            y = y + self.param("bias", zeros, (self.features,), jnp.float32)
        return y


class Conv(nn.Module):
    """[N, H, W, Cin] -> [N, H', W', features], see `conv2d`; without a bias."""

    features: int
    kernel_size: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: Padding = "SAME"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", zeros, shape, jnp.float32)
        return conv2d(x.astype(kernel.dtype), kernel, self.strides, self.padding)


class ConvPoolRelu(nn.Module):
    """Convolution, bias, ReLU, 2 x 2 maximum: [N, H, W, Cin] -> [N, H' // 2, W' // 2, features].

    The bias and the ReLU come after the maximum, on a quarter of the numbers: both are monotone (also as rounded),
    so max(relu(y + b)) = relu(max(y) + b) exactly.
    """

    features: int
    kernel_size: tuple[int, int] = (5, 5)
    padding: Padding = "VALID"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", zeros, shape, jnp.float32)
        bias = self.param("bias", zeros, (self.features,), jnp.float32)
        return nn.relu(conv2d_max_pool2(x.astype(kernel.dtype), kernel, self.padding) + bias)


class LayerGroupNorm(nn.Module):
    """GroupNorm with one group: each image to mean 0, variance 1 over [H, W, C], then scale and bias a channel."""

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", zeros, (x.shape[-1],), jnp.float32)
        x = x - x.mean((1, 2, 3), keepdims=True)
        variance = jnp.square(x).mean((1, 2, 3), keepdims=True)
        return x * (jax.lax.rsqrt(variance + self.epsilon) * scale) + bias
