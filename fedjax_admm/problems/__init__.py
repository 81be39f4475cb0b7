"""Ready-made losses for `fa.Problem`."""

from .standard import classification, next_token, regression

__all__ = ["classification", "next_token", "regression"]
