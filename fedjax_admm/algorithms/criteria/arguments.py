"""A criterion as an algorithm's argument, checked."""

from __future__ import annotations

from ...core import checks
from .criterion import MEMBERS, REFERENCES, RESIDUALS, Criterion
from .run_to_maximum import run_to_maximum

MAKERS = "fa.criteria, such as fa.criteria.relative_residual(c=0.01), or None"


def checked(criterion: Criterion | None, *, unless_kept: str | None = None) -> Criterion:
    """A criterion as an algorithm's argument; None runs to the maximum.

    Args:
        criterion: The criterion.
        unless_kept: Of an algorithm whose clients do not keep their former parameters, what to use instead.
    """
    chosen = run_to_maximum() if criterion is None else criterion
    part = checks.part("criterion", chosen, MEMBERS, MAKERS)
    for name, words in (("residual", RESIDUALS), ("reference", REFERENCES)):
        checks.choice(f"{type(part).__name__}.{name}", getattr(part, name), (None, *words))
    if not isinstance(getattr(part, "needs_noise", False), bool):
        raise ValueError(f"{type(part).__name__}.needs_noise must be True or False, got {part.needs_noise!r}")  # pyright: ignore[reportAttributeAccessIssue]
    if unless_kept is not None and part.reference == "client":
        raise ValueError(f"reference='client' needs clients that keep their former parameters: use {unless_kept}")
    return part
