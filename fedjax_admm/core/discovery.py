"""Parts that are found by being in their folder: a new one is a new file, and no list has to know of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any


def find_modules(package: str, path: Iterable[str]) -> Iterator[ModuleType]:
    """A package's own modules, by its `__name__` and `__path__`."""
    for entry in pkgutil.iter_modules(path):
        yield importlib.import_module(f"{package}.{entry.name}")


def find_names(package: str, path: Iterable[str]) -> dict[str, Any]:
    """What the modules of a package offer: the names in their `__all__`, where they have one."""
    return {
        name: getattr(module, name) for module in find_modules(package, path) for name in getattr(module, "__all__", ())
    }
