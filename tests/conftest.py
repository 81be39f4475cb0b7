"""Double precision for all tests, so that comparisons are tight; single precision where a test says so."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Compiled programs take memory maps, of which a process may have some ten thousand; without this, XLA crashes."""
    yield
    jax.clear_caches()


SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Where the authors' own trajectories are; skips where they are not."""
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip(f"no golden trajectories: {folder.name} is not beside the checkout")
    return folder
