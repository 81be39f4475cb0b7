"""How far a run is: a bar in a terminal or a notebook, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from tqdm import TqdmWarning

from ..core import checks
from ..engine import processes

with warnings.catch_warnings():  # in a notebook without ipywidgets; there are plain lines then
    warnings.simplefilter("ignore", TqdmWarning)
    from tqdm.auto import tqdm

SECONDS_BETWEEN_LINES = 10.0  # in a file: enough to follow, too few to fill it
SECONDS_IN_SILENCE = 1.0  # long enough for whatever refuses its arguments


class Progress:
    """Shows the rounds done, a summary such as the loss, and the time left.

    The first call of `update` ends the rounds that were compiled: the time left is told from the later ones.

    Args:
        total: The rounds of the run.
        show: Whether to show anything.
        done: Rounds that were done before.
        unit: What is counted, if not rounds.

    >>> with Progress(total=10, show=False) as progress:
    ...     progress.update(1, "loss 2.3")
    """

    def __init__(self, total: int, show: bool, done: int = 0, unit: str = "round") -> None:
        self._total, self._show, self._unit = total, show, unit
        self._done, self._began, self._last = done, time.monotonic(), time.monotonic()
        self._compiled: tuple[int, float] | None = None  # rounds done and the time after the first update
        in_notebook = any("notebook" in kind.__module__ for kind in tqdm.__mro__)  # what tqdm.auto chose
        show = show and done < total
        self._bar = (
            tqdm(total=total, initial=done, unit=unit, postfix="compiling")
            if show and (in_notebook or sys.stderr.isatty())
            else None
        )
        if show and self._bar is None:
            print(f"compiling, then {unit} {done + 1} of {total}", file=sys.stderr, flush=True)

    def update(self, rounds: int, summary: str) -> None:
        self._done += rounds
        now, first = time.monotonic(), self._compiled is None
        if self._compiled is None:
            self._compiled = (self._done, now)
        if self._bar is not None:
            self._bar.set_postfix_str(summary, refresh=False)
            if first:  # as if the bar began here, or its rate would be the compiler's
                self._bar.n = self._bar.initial = self._bar.last_print_n = self._done
                self._bar.last_print_t = self._bar.start_t = time.time()
                self._bar.refresh()
            else:
                self._bar.update(rounds)
            return
        if self._show and (now - self._last > SECONDS_BETWEEN_LINES or self._done == self._total):
            self._last = now
            line = f"{self._unit} {self._done}/{self._total}, {now - self._began:.0f} s{self._left(now)}: {summary}"
            print(line, file=sys.stderr, flush=True)

    def _left(self, now: float) -> str:
        done, since = self._compiled or (self._done, now)
        if self._done == done or self._done == self._total:
            return ""
        return f", {(now - since) / (self._done - done) * (self._total - self._done):.0f} s left"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


@contextlib.contextmanager
def making(name: str, arguments: Mapping[str, Any], progress: bool) -> Iterator[None]:
    """Says what is being made, if it takes a while: drawing a large example's data does."""
    clients = arguments.get("num_clients")
    of = "" if clients is None else f" of {checks.counted(clients, 'client')}"
    later = threading.Timer(
        SECONDS_IN_SILENCE,
        print,
        [f"making the problem: {name.replace('_', ' ')}{of}"],
        {"file": sys.stderr, "flush": True},
    )
    if progress and processes.is_first():
        later.start()
    try:
        yield
    finally:
        later.cancel()
