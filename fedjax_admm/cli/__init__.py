"""The command `fedjax-admm`."""

import io
import sys


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
        from . import commands  # JAX and all else: seconds in which Ctrl-C is no accident to be traced

        return commands.main(arguments)
    except KeyboardInterrupt:
        print("fedjax-admm: stopped", file=sys.stderr, flush=True)
        return 1
