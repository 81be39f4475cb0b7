"""The paper's three examples, texts, and small examples that need no download."""

from .base import Example
from .images import cifar10_resnet20, mnist_cnn, mnist_mini
from .linear import linear_regression
from .texts import text, text_mini

__all__ = ["Example", "cifar10_resnet20", "linear_regression", "mnist_cnn", "mnist_mini", "text", "text_mini"]
