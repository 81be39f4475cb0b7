"""What is to be learned: a problem, ready-made losses, and how it is evaluated."""

from .standard import classification, next_token, regression

__all__ = ["classification", "next_token", "regression"]
