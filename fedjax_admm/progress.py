"""How far a run is: a bar in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
import warnings
from types import TracebackType

from tqdm import TqdmWarning

with warnings.catch_warnings():  # in a notebook without ipywidgets; there are plain lines then
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

SECONDS_BETWEEN_LINES = 10.0  # in a file: enough to follow, too few to fill it


class Progress:
    """Shows rounds done of `total`, a summary such as the loss, and the time left; `done` were done before.

    >>> with Progress(total=10, show=False) as progress:
    ...     progress.update(1, "loss 2.3")
    """

    def __init__(self, total: int, show: bool, done: int = 0) -> None:
        self._total, self._show = total, show
        self._done, self._first, self._began, self._last = done, done, time.monotonic(), time.monotonic()
        in_notebook = any("notebook" in kind.__module__ for kind in tqdm.__mro__)  # what tqdm.auto chose
        self._bar = (
            tqdm(total=total, initial=done, unit="round") if show and (in_notebook or sys.stderr.isatty()) else None
        )

    def update(self, rounds: int, summary: str) -> None:
        self._done += rounds
        if self._bar is not None:
            self._bar.set_postfix_str(summary, refresh=False)
            self._bar.update(rounds)
            return
        now = time.monotonic()
        if self._show and (now - self._last > SECONDS_BETWEEN_LINES or self._done == self._total):
            self._last = now
            spent = now - self._began
            left = spent / (self._done - self._first) * (self._total - self._done)
            print(
                f"round {self._done}/{self._total}, {spent:.0f} s, {left:.0f} s left: {summary}",
                file=sys.stderr,
                flush=True,
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
