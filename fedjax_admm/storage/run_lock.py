"""The lock of a run's directory: one process at a time writes there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import filelock

from ..core.files import refuse_link
from .run_files import stored_status


class RunLock:
    """Held by the process that writes into the directory, from `take` to `release`.

    Args:
        path: The file, in the run's directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: Any = None

    def take(self) -> None:
        """Takes the lock.

        Raises:
            ValueError: Another process holds it.
        """
        refuse_link(self._path)
        self._lock = filelock.FileLock(self._path, blocking=False)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            self._lock = None
            holder = stored_status(self._path.parent)
            who = f"process {holder.get('process', '?')} on {holder.get('host', '?')}"
            raise ValueError(
                f"run_dir {str(self._path.parent)!r} is in use by {who}: wait for it, or give another directory"
            ) from None

    def release(self) -> None:
        """Gives it back, if it was taken."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
