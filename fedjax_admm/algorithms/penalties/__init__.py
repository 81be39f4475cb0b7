"""How a client's penalty changes after its solve. Each rule is one module of this folder.

A simple rule is a `fa.record` with `__call__(penalty, consensus_gap, movement) -> penalty`, written for one client. A
rule that needs a memory of each client, or more than these two norms, also has `start(params) -> memory`, a dict of
arrays, and is called as `rule(penalty, seen, memory) -> (penalty, memory)` with an `Evidence`. Its numbers may be one
per client; the call sees those of its client. The engine keeps every penalty within the rule's bounds. It leaves
penalty and memory unchanged if the solve failed, was lost or was clipped, or if the adaptation has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.discovery import find_names
from .bounds import BOUNDS as BOUNDS
from .rule import Evidence as Evidence
from .rule import PenaltyRule as PenaltyRule

_RULES = find_names(__name__, __path__)
__all__ = ["Evidence", "PenaltyRule", *sorted(_RULES)]  # pyright: ignore[reportUnsupportedDunderAll]
globals().update(_RULES)

if TYPE_CHECKING:  # what editors complete; a rule that is missing here works all the same
    from .constant import constant as constant
    from .relative_balancing import relative_balancing as relative_balancing
    from .residual_balancing import residual_balancing as residual_balancing
    from .spectral import spectral as spectral
    from .stiffness import stiffness as stiffness

    def __getattr__(name: str) -> Any: ...
