"""Federated methods. Each module of this folder is one family; `__all__` names its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.discovery import find_names

_METHODS = find_names(__name__, __path__)
__all__ = sorted(_METHODS)  # pyright: ignore[reportUnsupportedDunderAll]
globals().update(_METHODS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
