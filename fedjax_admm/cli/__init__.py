"""The command `fedjax-admm`."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

STOPPED = "fedjax-admm: stopped"


def main(arguments: list[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The words after `fedjax-admm`; by default those that the process was started with.

    Returns:
        The exit code: 0 done, 2 bad input, 1 failed or stopped.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a locale without a character is no reason to fail
    try:
        with _ctrl_c_ends_at_once():
            from . import commands  # JAX and everything else, which takes seconds

        return commands.main(arguments)
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr, flush=True)
        return 1


@contextlib.contextmanager
def _ctrl_c_ends_at_once() -> Iterator[None]:
    """Ctrl-C ends the process here: an exception in the middle of an import may come out as any other."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(*_: Any) -> None:
    os.write(2, f"{STOPPED}\n".encode())
    os._exit(1)
