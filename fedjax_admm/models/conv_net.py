"""The convolutional network of the paper's Example 2."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from . import start
from .layers import ConvPoolRelu, Dense
from .model import Model
from .normalization import MNIST, Normalization, to_float
from .precision import checked

__all__ = ["cnn"]


class ConvNet(nn.Module):
    """[N, H, W, C], or [N, H, W] for one channel, -> logits [N, classes]."""

    classes: int = 10
    padded: bool = False
    normalization: Normalization | None = MNIST
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        padding = "SAME" if self.padded else "VALID"
        precision = {"dtype": self.dtype, "param_dtype": self.param_dtype}
        x = to_float(x[..., None] if x.ndim == 3 else x, self.normalization)
        x = ConvPoolRelu(32, padding=padding, **precision)(x)
        x = ConvPoolRelu(64, padding=padding, **precision)(x)
        x = nn.relu(Dense(512, **precision)(x.reshape(x.shape[0], -1)))
        return Dense(self.classes, **precision)(x)


def cnn(
    input_shape: tuple[int, ...] = (28, 28, 1),
    classes: int = 10,
    *,
    padded: bool = False,
    normalization: Normalization | None = MNIST,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """Convolution 5x5 x 32, pool, convolution 5x5 x 64, pool, dense 512, dense 10, with ReLU between.

    Args:
        input_shape: The shape of one image, of uint8 pixels or of floats that are already in [0, 1].
        classes: The number of logits.
        padded: False is the paper's network (582,026 parameters on MNIST), True that of McMahan et al. 2017, whose
            convolutions keep the image's size (1,663,370).
        normalization: Mean and standard deviation per channel.
        dtype: The dtype of products, such as "bfloat16"; sums, and by default products, have that of the parameters.
        param_dtype: The dtype of the parameters.

    >>> model = cnn()
    >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((2, 28, 28, 1), jnp.uint8)).shape
    (2, 10)
    """
    return start.model(ConvNet(classes, padded, normalization, **checked(dtype, param_dtype)), input_shape)
