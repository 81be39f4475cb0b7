"""The paper's three examples, at full size by default, smaller by argument; and a small one that needs no data."""

from .base import Example
from .images import cifar10_resnet20, mnist_cnn, mnist_mini
from .linear import linear_regression

__all__ = ["Example", "cifar10_resnet20", "linear_regression", "mnist_cnn", "mnist_mini"]
