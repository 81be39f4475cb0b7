"""Double precision for all tests, so that comparisons are tight; single precision where a test says so."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import pytest

# Tests share helpers across folders, and so do the processes that they start.
TESTS = Path(__file__).parent
FOLDERS = [str(folder) for folder in (TESTS, *sorted(TESTS.iterdir())) if folder.is_dir()]
sys.path[:0] = FOLDERS
os.environ["PYTHONPATH"] = os.pathsep.join([*FOLDERS, *filter(None, [os.environ.get("PYTHONPATH")])])

jax.config.update("jax_enable_x64", True)
# Users run with XLA's usual optimisations, and so do the tests if the environment has this as 0. It is what processes
# that tests start read; of this one see `programs`.
COMPILED_FAST = os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") != "0"
if COMPILED_FAST and jax.__version_info__[:2] == (0, 10):  # another version may not know these flags, and would end
    # Together they halve what is left of the compiling.
    os.environ["XLA_FLAGS"] = " ".join(
        [
            os.environ.get("XLA_FLAGS", ""),
            "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
        ]
    ).strip()


MAPS = Path("/proc/self/maps")
MANY_MAPS = 20_000  # of 65,530 that Linux lets a process have


@pytest.fixture(autouse=True)
def memory_maps():
    """Programs compiled as users' are take so many memory maps that a module's would not fit into a process."""
    yield
    if not COMPILED_FAST and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MANY_MAPS:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def programs(request: pytest.FixtureRequest):
    """Programs are compiled fast rather than to be fast, and then forgotten.

    They are compiled as users' are where the environment says so, or a module OPTIMIZED = True.

    Most tests compile longer than they compute. Compiled programs take memory maps, of which a process may have some
    ten thousand; without forgetting them, XLA crashes.
    """
    module = getattr(request.node, "obj", None)
    jax.config.update("jax_disable_most_optimizations", COMPILED_FAST and not getattr(module, "OPTIMIZED", False))
    yield
    jax.clear_caches()
    if "matplotlib.pyplot" in sys.modules:  # which warns of more than 20 figures, whoever left them open
        sys.modules["matplotlib.pyplot"].close("all")


SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(scope="session")
def golden() -> Path:
    """Where the authors' own trajectories are; skips where they are not."""
    folder = SHARED / "golden"
    if not folder.is_dir():
        pytest.skip(f"no golden trajectories: {folder.name} is not beside the checkout")
    return folder
