"""Models as pairs of pure functions, `init: key -> params` and `apply: (params, x) -> outputs`.

The products and poolings of this package's own networks have their gradients written out, so they are differentiated
in reverse mode alone, as often as wanted: a Hessian-vector product is `jax.grad(lambda p: vdot(jax.grad(f)(p), v))`.
What is offered here is whatever a module of the folder names in its `__all__`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.discovery import find_names

_MODELS = find_names(__name__, __path__)
__all__ = sorted(_MODELS)  # pyright: ignore[reportUnsupportedDunderAll]
globals().update(_MODELS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
