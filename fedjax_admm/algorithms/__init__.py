"""Federated methods, one file per family: whatever a module here names in its `__all__`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.discovery import find_names

_METHODS = find_names(__name__, __path__)
__all__ = sorted(_METHODS)  # pyright: ignore[reportUnsupportedDunderAll]
globals().update(_METHODS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
