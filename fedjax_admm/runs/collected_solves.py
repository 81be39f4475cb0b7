"""The solves of a run, collected block by block in memory that is the run's own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..core.vocabulary import Solves


class CollectedSolves:
    """Solves [rounds, cohort] that grow by blocks of rounds.

    What comes from a device may be a view of its buffer, which lives as long as the view and is larger by far than a
    round's few numbers. So blocks are copied, into one array per field whose room doubles when it is full.

    >>> import dataclasses
    >>> whole = Solves(*[np.zeros((3, 2))] * len(dataclasses.fields(Solves)))
    >>> collected = CollectedSolves()
    >>> collected.add(whole)
    >>> collected.add(whole)
    >>> collected.solves().epochs.shape
    (6, 2)
    """

    def __init__(self, axis: int = 0) -> None:
        """Starts without rounds.

        Args:
            axis: The rounds' axis; those before it, as that of several runs, are the same in every block.
        """
        self._before = (slice(None),) * axis
        self._axis = axis
        self._rounds = 0
        self._room: Any = None  # Solves [..., at least rounds, cohort]

    def add(self, block: Solves) -> None:
        """Copies the solves of further rounds.

        Args:
            block: Solves [..., rounds, cohort], with the dtypes of the first block.
        """
        end = self._rounds + block.epochs.shape[self._axis]
        if self._room is None:
            self._room = jax.tree.map(np.array, block)
        elif end > self._room.epochs.shape[self._axis]:
            self._room = jax.tree.map(lambda leaf: self._with_room(leaf, max(end, 2 * self._rounds)), self._room)
        new = (*self._before, slice(self._rounds, end))
        for room, leaf in zip(jax.tree.leaves(self._room), jax.tree.leaves(block), strict=True):
            room[new] = leaf
        self._rounds = end

    def solves(self) -> Solves:
        """Returns all solves so far, [..., rounds, cohort]; there must be a block."""
        return jax.tree.map(lambda leaf: leaf[*self._before, : self._rounds].copy(), self._room)

    def _with_room(self, leaf: np.ndarray, rounds: int) -> np.ndarray:
        """Returns an array with a leaf's rounds, and room for `rounds` in all."""
        shape = (*leaf.shape[: self._axis], rounds, *leaf.shape[self._axis + 1 :])
        room = np.empty(shape, leaf.dtype)
        room[*self._before, : self._rounds] = leaf[*self._before, : self._rounds]
        return room
