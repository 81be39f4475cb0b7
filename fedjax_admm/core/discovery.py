"""Parts that are found by being in their folder: a new one is a new file, and no list has to know of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any


def find_modules(package: str, path: Iterable[str], nested: bool = False) -> Iterator[ModuleType]:
    """A package's own modules, by its `__name__` and `__path__`.

    Args:
        package: The package's name.
        path: Its own folder; folders without an `__init__` are none of its packages, and are left alone.
        nested: Whether the packages in it, and their modules, are found too.

    Yields:
        Each module, imported.
    """
    for entry in pkgutil.iter_modules(path):
        if entry.ispkg and not nested:
            continue
        module = importlib.import_module(f"{package}.{entry.name}")
        yield module
        if entry.ispkg:
            yield from find_modules(module.__name__, module.__path__, nested)


def find_names(package: str, path: Iterable[str]) -> dict[str, Any]:
    """What the modules of a package offer: the names in their `__all__`, where they have one."""
    return {
        name: getattr(module, name) for module in find_modules(package, path) for name in getattr(module, "__all__", ())
    }
