"""What is to be learned: a problem, ready-made losses, and how it is evaluated."""

from .standard import classification, regression

__all__ = ["classification", "regression"]
