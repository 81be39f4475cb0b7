"""Ctrl-C, and SIGTERM where a run is kept on disk: it ends after the round; a second Ctrl-C ends it at once."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

import jax

from ..core.errors import SharedError


class Interrupted(KeyboardInterrupt, SharedError):
    """Raised when a run was asked to stop (by Ctrl-C or SIGTERM) and has ended after a round.

    Attributes:
        round: How many rounds are done.
        run_dir: The directory with everything up to that round; None if the run has none.
        result: What `simulate`, `compare` or `simulate_many` would have returned, as far as it is done; None
            after it was passed to another process.

    >>> try:
    ...     result = fa.simulate(problem, algorithm, rounds=300)  # Ctrl-C
    ... except fa.Interrupted as stopped:  # doctest: +SKIP
    ...     result = stopped.result
    """

    round: int
    run_dir: str | None
    result: Any

    def __init__(self, round: int, run_dir: str | None, result: Any = None) -> None:
        self.round, self.run_dir, self.result = round, run_dir, result
        kept = (
            f"everything is in {run_dir}. To go on: make the same call with the same run_dir, or, for one of the "
            f"package's examples, fedjax-admm resume {shlex.quote(run_dir)}"
            if run_dir is not None
            else "what was done is this error's result: in a notebook, `import sys; result = sys.last_value.result`. "
            "With run_dir= it could go on"
        )
        super().__init__(f"stopped after round {round}; {kept}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Interrupted, (self.round, self.run_dir)


class Interrupts:
    """Within it, the first Ctrl-C or SIGTERM sets `requested`; a second Ctrl-C raises KeyboardInterrupt.

    Signals go to the main thread only; in any other this does nothing.

    Args:
        kept: Whether the run is on disk; if it is not, SIGTERM ends the process at once, as usual.

    >>> with Interrupts() as interrupts:
    ...     interrupts.requested
    False
    """

    def __init__(self, kept: bool = True) -> None:
        self.requested, self._kept = False, kept
        self._heard: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM) if self._kept else (signal.SIGINT,):
                self._former[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        if self._heard is not None and not isinstance(error, KeyboardInterrupt):
            os.kill(os.getpid(), self._heard)  # the run ended before it could stop: whoever is around it is to know

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped at once" + "; the run is on disk as it was last saved" * self._kept)
        if not self.requested:
            print("\nstopping after this round; Ctrl-C again stops at once", file=sys.stderr, flush=True)
        self.requested, self._heard = True, number

    def wait(self, values: Any) -> Any:
        """The values on the host, once they are computed; signals are heard while it waits."""
        began = time.perf_counter()
        # A blocking wait would hold back Python's signal handlers until the round's end.
        arrays: list[Any] = [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]
        while self._former and not all(leaf.is_ready() for leaf in arrays):
            time.sleep(min(0.01, 2e-5 + 0.02 * (time.perf_counter() - began)))
        return jax.device_get(values)
