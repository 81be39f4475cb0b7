"""Checkpoints of a run's state: the last two, each written beside and renamed, checked on reading."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..core.files import DamagedFileError, refuse_link
from ..engine import processes

SHARE = 0.03  # of a run's time that saving may take
T = TypeVar("T")


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: The folder; made if it is not there.
        seconds: The least time between two; more where saving takes so long that it would exceed its share of the run.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        refuse_link(folder)  # what it leads to would be written, and older checkpoints there removed
        if folder.exists() and not folder.is_dir():
            raise DamagedFileError(f"{folder} is a file where a folder should be", "move it away")
        import orbax.checkpoint as ocp  # half a second that only runs on disk pay

        self._ocp = ocp
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, enable_async_checkpointing=False, cleanup_tmp_directories=True
        )
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)
        self._folder, self._seconds = folder, seconds
        self._next = time.monotonic() + seconds

    def due(self) -> bool:
        """Tells whether it is time for one."""
        return time.monotonic() >= self._next

    def save(self, round: int, state: Any) -> None:
        """Keeps `state` as it is after `round` rounds, and the checkpoint before this one.

        Args:
            round: Rounds done.
            state: A pytree of arrays.
        """
        began = time.monotonic()
        if round not in self._manager.all_steps():
            args = self._ocp.args
            leaves = _named_leaves(state)
            described = {name: _describe(path, leaf) for name, (path, leaf) in leaves.items()}
            arrays = {name: leaf for name, (_, leaf) in leaves.items() if leaf.size}  # tensorstore has no empty ones
            self._manager.save(
                round, args=args.Composite(state=args.StandardSave(arrays), leaves=args.JsonSave(described))
            )
        took = time.monotonic() - began
        self._next = time.monotonic() + max(self._seconds, took / SHARE)

    def restore(self, like: Any, last: int) -> tuple[int, Any] | None:
        """Finds the newest state that is sound. A checkpoint that is damaged is a warning and passed over.

        Args:
            like: A pytree with the state's structure, and with shardings where they matter.
            last: The state is of at most so many rounds.

        Returns:
            Its round and the state; None where there is none.
        """
        steps = sorted(self._manager.all_steps(), reverse=True)
        for round in steps:
            if round > last:
                continue
            try:
                written, leaves = _in_every_process(lambda round=round: self._read(round, like))
                _in_every_process(lambda written=written, leaves=leaves: _check(like, written, leaves))
                return round, jax.tree.unflatten(jax.tree.structure(like), list(leaves.values()))
            except MemoryError:
                raise
            except Exception as error:  # damage surfaces in orbax and tensorstore as nearly any type of exception
                if processes.tells_of_a_loss(error):
                    raise
                reason = str(error).splitlines()[0][:200]
                warnings.warn(
                    f"the checkpoint {self._folder / str(round)} is damaged ({reason}): going on from an older one",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return None

    def fit(self, like: Any) -> bool:
        """Tells whether the newest checkpoint is of a state like this program's: another version may keep another.

        Args:
            like: A pytree with the state's structure.

        Returns:
            False where it has other leaves; True where there is no checkpoint, or none that can be read.
        """
        expected = [(path, str(leaf.dtype), list(leaf.shape)) for path, leaf in _named_leaves(like).values()]
        for round in sorted(self._manager.all_steps(), reverse=True):
            try:
                written = self._describe_leaves(round).values()
                return [(leaf["path"], leaf["dtype"], leaf["shape"]) for leaf in written] == expected
            except Exception as error:  # damage, which `restore` warns of
                if processes.tells_of_a_loss(error):
                    raise
        return True

    def forget_after(self, round: int) -> None:
        """Removes newer checkpoints, which could not be read or do not fit the records."""
        for newer in self._manager.all_steps():
            if newer > round:
                self._manager.delete(newer)

    def exist(self) -> bool:
        """Tells whether there are any, sound or not."""
        return bool(self._manager.all_steps())

    def close(self) -> None:
        self._manager.close()

    def _describe_leaves(self, round: int) -> dict[str, Any]:
        """What was written about the leaves, by number."""
        args = self._ocp.args
        return self._manager.restore(round, args=args.Composite(leaves=args.JsonRestore()))["leaves"]

    def _read(self, round: int, like: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was written about the leaves, and the leaves, by number."""
        leaves, args = _named_leaves(like), self._ocp.args
        written = self._describe_leaves(round)
        if {name: path for name, (path, _) in leaves.items()} != {name: leaf["path"] for name, leaf in written.items()}:
            raise ValueError("it has another structure")
        here = jnp.zeros(()).sharding
        shapes = {
            name: jax.ShapeDtypeStruct(
                written[name]["shape"], written[name]["dtype"], sharding=getattr(leaf, "sharding", None) or here
            )
            for name, (_, leaf) in leaves.items()
        }
        stored = {name: shape for name, shape in shapes.items() if shape.size}
        arrays = self._manager.restore(round, args=args.Composite(state=args.StandardRestore(stored)))["state"]
        return written, {name: arrays[name] if name in stored else _empty(shapes[name]) for name in leaves}


def _in_every_process(read: Callable[[], T]) -> T:
    """What `read` returns, if it returns in all processes; they must not go on from different checkpoints."""
    try:
        value, error = read(), None
    except Exception as failed:
        value, error = None, failed
    if processes.greatest(error is not None)[0]:
        raise error or ValueError("another process could not read it")
    return value  # pyright: ignore[reportReturnType]


def _check(like: Any, written: dict[str, Any], leaves: dict[str, Any]) -> None:
    for name, (path, _) in _named_leaves(like).items():
        if written[name] != _describe(path, leaves[name]):
            raise ValueError(f"{path} is not what was written")


def _empty(shape: jax.ShapeDtypeStruct) -> Any:
    """An array without entries, of which the checkpoint has only the description."""
    array = np.empty(shape.shape, shape.dtype)
    return jax.make_array_from_callback(shape.shape, shape.sharding, lambda part: array[part])


def _named_leaves(tree: Any) -> dict[str, tuple[str, Any]]:
    """Leaves by number, since paths may have characters that file names may not."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{k:04d}": (jax.tree_util.keystr(path), leaf) for k, (path, leaf) in enumerate(leaves)}


def _describe(path: str, leaf: Any) -> dict[str, Any]:
    crc = zlib.crc32(np.ascontiguousarray(processes.whole(leaf)).reshape(-1).view(np.uint8).data)
    return {"path": path, "dtype": str(leaf.dtype), "shape": list(leaf.shape), "crc32": crc}
