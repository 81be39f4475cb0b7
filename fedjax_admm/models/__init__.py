"""Models as pairs of pure functions, `init: key -> params` and `apply: (params, x) -> outputs`.

The products and poolings of this package's own networks have their gradients written out, so they are differentiated
in reverse mode alone, as often as wanted: a Hessian-vector product is `jax.grad(lambda p: vdot(jax.grad(f)(p), v))`.
"""

from fedjax_admm.models.conv_net import cnn
from fedjax_admm.models.convolution import conv2d
from fedjax_admm.models.dense import linear, logistic, mlp
from fedjax_admm.models.model import Model, from_flax
from fedjax_admm.models.normalization import CIFAR10, MNIST, Normalization
from fedjax_admm.models.pooling import max_pool2
from fedjax_admm.models.resnet import resnet20

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
