"""Solves that a run collects: all of them, in memory of their own that grows with their numbers alone."""

from __future__ import annotations

import dataclasses
import gc
import sys

import jax
import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.core.vocabulary import Solves
from fedjax_admm.runs.collected_solves import CollectedSolves

FIELDS = [field.name for field in dataclasses.fields(Solves)]
INSA = fa.fedadmm_insa(fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3), penalty=0.1)


@pytest.mark.parametrize("before", [(), (3,)], ids=["one run", "three runs"])
def test_collected_blocks_are_the_blocks_one_after_another(before):
    """Blocks of many lengths, each overwritten once it was added, as a device may do with its buffers."""
    rng, kept, collected = np.random.default_rng(0), [], CollectedSolves(axis=len(before))
    for rounds in rng.integers(1, 9, 40):
        block = Solves(**{name: rng.integers(0, 100, (*before, rounds, 2)).astype(np.float32) for name in FIELDS})
        kept.append(jax.tree.map(np.copy, block))
        collected.add(block)
        for leaf in jax.tree.leaves(block):
            leaf[:] = -1
        expected = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=len(before)), *kept)
        for got, wanted in zip(jax.tree.leaves(collected.solves()), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


def test_a_round_of_a_long_run_takes_little_memory():
    """A view of a device's buffer takes two kilobytes for two numbers, and there would be twelve in each round.

    Counted are the blocks that Python's allocator has handed out, which unlike the process's size is no matter of luck.
    """
    problem, *_ = least_squares([6, 11, 3, 8, 5], dtype=np.float32)
    blocks = {}

    def look(row):
        if row["round"] in (100, 300):
            gc.collect()
            blocks[row["round"]] = sys.getallocatedblocks()

    fa.simulate(problem, INSA, 300, participation=2, progress=False, on_round=look)
    history = 20  # the round's record: a dictionary and its numbers
    assert (blocks[300] - blocks[100]) / 200 < history
