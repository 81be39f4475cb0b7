"""The command `fedjax-admm`."""

from .commands import main

__all__ = ["main"]
