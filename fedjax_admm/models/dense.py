"""Linear models and the multilayer perceptron, on inputs of any shape, which they flatten."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ..core import checks
from . import start
from .layers import Dense
from .model import Model
from .normalization import Normalization, to_float
from .precision import checked

__all__ = ["linear", "logistic", "mlp"]


class Perceptron(nn.Module):
    """Dense layers with ReLU between them: [N, ...] -> [N, outputs], or [N] where `scalar`."""

    sizes: tuple[int, ...]
    use_bias: bool = True
    scalar: bool = False
    normalization: Normalization | None = None
    dtype: Any = None
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = to_float(x, self.normalization).reshape(x.shape[0], -1)
        for size in self.sizes[:-1]:
            x = nn.relu(Dense(size, self.use_bias, self.dtype, self.param_dtype)(x))
        x = Dense(self.sizes[-1], self.use_bias, self.dtype, self.param_dtype)(x)
        return x[:, 0] if self.scalar else x


def linear(inputs: int, *, use_bias: bool = False, dtype: Any = None, param_dtype: Any = jnp.float32) -> Model:
    """x -> <w, x>: [N, inputs] -> [N], the paper's Example 1. uint8 inputs are taken for pixels and divided by 255.

    Args:
        inputs: The length of x.
        use_bias: Whether a number is added.
        dtype: The dtype of products, such as "bfloat16"; sums, and by default products, have that of the parameters.
        param_dtype: The dtype of the parameters.

    >>> model = linear(5000)
    >>> model.init(jax.random.key(0))["Dense_0"]["kernel"].shape
    (5000, 1)
    """
    precision = checked(dtype, param_dtype)
    return start.model(Perceptron((1,), use_bias, scalar=True, **precision), (inputs,), "float32")


def logistic(
    input_shape: int | Sequence[int],
    classes: int = 10,
    *,
    normalization: Normalization | None = None,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """Multinomial logistic regression: [N, *input_shape] -> logits [N, classes].

    uint8 inputs are taken for pixels and divided by 255.

    Args:
        input_shape: The shape of one example; a number is the length of a vector.
        classes: The number of logits.
        normalization: Mean and standard deviation per channel.
        dtype: The dtype of products, such as "bfloat16"; sums, and by default products, have that of the parameters.
        param_dtype: The dtype of the parameters.

    >>> model = logistic((28, 28, 1), normalization=fa.models.MNIST)
    >>> sum(leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0))))
    7850
    """
    return mlp(input_shape, (), classes, normalization=normalization, dtype=dtype, param_dtype=param_dtype)


def mlp(
    input_shape: int | Sequence[int],
    hidden: int | Sequence[int] = (200, 200),
    classes: int = 10,
    *,
    normalization: Normalization | None = None,
    dtype: Any = None,
    param_dtype: Any = jnp.float32,
) -> Model:
    """Multilayer perceptron with ReLU: [N, *input_shape] -> logits [N, classes].

    uint8 inputs are taken for pixels and divided by 255.

    Args:
        input_shape: The shape of one example; a number is the length of a vector.
        hidden: Sizes of the hidden layers; a number is that of one layer.
        classes: The number of logits.
        normalization: Mean and standard deviation per channel.
        dtype: The dtype of products, such as "bfloat16"; sums, and by default products, have that of the parameters.
        param_dtype: The dtype of the parameters.

    >>> model = mlp((28, 28, 1), hidden=(200, 200), normalization=fa.models.MNIST)    # McMahan's 2NN
    >>> sum(leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0))))
    199210
    """
    classes = checks.integer("classes", classes, at_least=1)
    sizes = (*_sizes("hidden", hidden), classes)
    module = Perceptron(sizes, normalization=normalization, **checked(dtype, param_dtype))
    return start.model(module, _sizes("input_shape", input_shape), "float32")


def _sizes(name: str, value: int | Sequence[int]) -> tuple[int, ...]:
    """Whole numbers, one or several."""
    several = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    return tuple(checks.integer(name, size, at_least=1) for size in several)
