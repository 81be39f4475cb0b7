"""Where a run ran: versions, devices, the user's commit."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from .._version import __version__

DEVICE_ERROR = jax.errors.JaxRuntimeError  # what a computation that a device cannot do raises, for want of memory say
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint")


def environment() -> dict[str, Any]:
    """What may matter for numbers and speed.

    >>> sorted(environment())
    ['commit', 'cores', 'devices', 'jax_enable_x64', 'machine', 'python', 'started', 'system', 'versions']
    """
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "python": sys.version.split()[0],
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cores": cores(),
        "devices": [f"{device.platform} {device.device_kind}" for device in jax.devices()],
        "jax_enable_x64": bool(jax.config.jax_enable_x64),  # pyright: ignore[reportAttributeAccessIssue]
        "commit": _commit(),
    }


def cores() -> int:
    """The cores that this process may use: a batch system or a container often allows fewer than there are."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """The installed versions of the packages that decide what is computed."""
    by_package = {"fedjax-admm": __version__}  # of this code: what is installed may be another
    for name in PACKAGES:
        try:
            by_package[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            by_package[name] = "not installed"
    return by_package


def peak_memory() -> int | None:
    """The most memory that this process has had, in bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_memory() -> int | None:
    """The memory that programs can still have without swapping, in bytes; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def processor() -> str:
    """A short name for this kind of processor: what is compiled for one may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        description = "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:  # no Linux
        description = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {description}".encode()).hexdigest()[:16]


def keep_programs(folder: Path) -> None:
    """Lets JAX keep what it compiles, so that a second run of the same shapes compiles nothing.

    Args:
        folder: Where, in a folder for this kind of processor; not if the user has chosen another.
    """
    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]
        jax.config.update("jax_compilation_cache_dir", str(folder / processor()))


def _commit() -> str | None:
    """The commit of the working directory, with "+" if files differ from it; None outside a repository."""
    try:
        ask = ["git", "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=40"]
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
