"""Errors that all processes of a run have at the same time, after which none waits for another."""

from __future__ import annotations


class SharedError:
    """What an error's class inherits from besides, if all processes of a run come to it together."""


def share(error: BaseException) -> BaseException:
    """Marks an error of any class as one that all processes have; returns it."""
    error._shared_by_all = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


def is_shared(error: BaseException | None) -> bool:
    """Whether all processes have this error, or the one that it was raised from.

    >>> is_shared(share(ValueError("told to all"))), is_shared(ValueError("mine"))
    (True, False)
    """
    if error is None:
        return False
    return isinstance(error, SharedError) or getattr(error, "_shared_by_all", False) or is_shared(error.__cause__)
