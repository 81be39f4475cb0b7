"""fedjax_admm: a vectorized simulator of federated optimisation in JAX.

The names are those in `__init__.pyi`. Each is imported when it is first asked for: JAX takes seconds, which not every
use needs, and during which a command must already be able to hear Ctrl-C.
"""

import ast
import importlib
import pkgutil
from typing import Any


def _find_names() -> dict[str, str]:
    """name -> the module that has it, from the import statements in `__init__.pyi`."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    statements = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: "." + (node.module or "") for node in statements for alias in node.names}


_MODULES = _find_names()
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _MODULES[name]
    module = importlib.import_module(place, __name__)
    if place == "." or not hasattr(module, name):  # a module in it, which nobody has imported yet
        value = importlib.import_module(f"{place}.{name}".replace("..", "."), __name__)
    else:
        value = getattr(module, name)
    if place != "._version":
        importlib.import_module(".show", __name__)  # which notebooks ask to display values
    globals()[name] = value  # from now on without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
