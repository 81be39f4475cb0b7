"""Models as pairs of pure functions, `init: key -> params` and `apply: (params, x) -> outputs`.

The products and poolings of this package's own networks have their gradients written out, so they are differentiated
in reverse mode alone, as often as wanted: a Hessian-vector product is `jax.grad(lambda p: vdot(jax.grad(f)(p), v))`.
"""

from .conv_net import cnn
from .convolution import conv2d
from .dense import linear, logistic, mlp
from .model import Model, from_flax
from .normalization import CIFAR10, MNIST, Normalization
from .pooling import max_pool2
from .resnet import resnet20

__all__ = [
    "CIFAR10",
    "MNIST",
    "Model",
    "Normalization",
    "cnn",
    "conv2d",
    "from_flax",
    "linear",
    "logistic",
    "max_pool2",
    "mlp",
    "resnet20",
]
