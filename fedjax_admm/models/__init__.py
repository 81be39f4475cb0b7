"""Models as pairs of pure functions, `init: key -> params` and `apply: (params, x) -> outputs`.

The package's own networks have hand-written gradients of their products and poolings. So they can only be
differentiated in reverse mode, but repeatedly: a Hessian-vector product is `jax.grad(lambda p: vdot(jax.grad(f)(p),
v))`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.discovery import find_names

_MODELS = find_names(__name__, __path__)
__all__ = sorted(_MODELS)  # pyright: ignore[reportUnsupportedDunderAll]
globals().update(_MODELS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
