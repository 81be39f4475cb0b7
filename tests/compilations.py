"""Which programs JAX compiles, told by its own events: no name of the package is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax.monitoring


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Lists the names of the functions that are compiled within the context.

    Yields:
        The list, which grows.
    """
    names: list[str] = []

    def listen(event: str, seconds: float, **details: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
