"""How a command ends: every error as one line on stderr, and the exit code."""

from __future__ import annotations

import difflib
import errno
import functools
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.exceptions import TyperException

from ..core import environment
from ..core.files import DamagedFileError
from ..engine import processes
from ..results.history import DivergenceError
from ..runs.interrupts import Interrupted
from . import output
from .flags import with_flags

_UNFIT_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EROFS)


class _Stopped(Exception):
    """A KeyboardInterrupt, past typer, which would end the process by itself."""


class _Diverged(Exception):
    """A DivergenceError; its argument is where the run is, if it is anywhere."""


def carry_past_typer(function: Callable) -> Callable:
    @functools.wraps(function)
    def run(*arguments: Any, **values: Any) -> None:
        try:
            function(*arguments, **values)
        except KeyboardInterrupt as error:
            raise _Stopped from error
        except DivergenceError as error:
            raise _Diverged(values.get("out") or values.get("directory")) from error

    return run


def run(application: typer.Typer, arguments: list[str] | None) -> int:
    """Runs a command of an application; see `fedjax_admm.cli.main`."""
    try:
        code = typer.main.get_command(application).main(arguments, prog_name="fedjax-admm", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        word = getattr(error, "option_name", None)
        if word and getattr(error, "possibilities", None):
            error.possibilities = _find_near(word, error.possibilities)  # pyright: ignore[reportAttributeAccessIssue]
        text = getattr(error, "format_message", error.__str__)()
        return _say(text, 2) if text else 2  # without arguments there is help, and no more to say
    except _Diverged as error:
        # It can be resumed, as any run on disk; with the same settings it will end in the same round.
        kept = (
            f"; {error.args[0]} has what was done and can be resumed, but will end there again" if error.args[0] else ""
        )
        return _say(f"{error.__cause__}{kept}", 1)
    except _Stopped as stopped:
        return _report_stop(stopped.__cause__)
    except (ValueError, DamagedFileError, FileNotFoundError, ImportError) as error:
        return _say(with_flags(str(error), getattr(error, "flags", {})), 2)
    except output.EveryRunDivergedError as error:
        return _say(str(error), 1)
    except (OSError, MemoryError, processes.LostProcessError, environment.DEVICE_ERROR) as error:
        if isinstance(error.__cause__, DamagedFileError):
            return _say(str(error), 2)
        if isinstance(error, OSError) and error.errno in _UNFIT_PATH:
            return _say(f"{str(error.filename)!r} cannot be used ({error.strerror}): give another directory", 2)
        return _say(f"the run failed: {str(error) or type(error).__name__}", 1)


def _find_near(word: str, known: list[str]) -> list[str]:
    """Of the flags that typer would suggest those that a slip of the finger explains.

    >>> _find_near("--round", ["--dropout", "--out", "--rounds"])
    ['--rounds']
    """
    words = {name.lstrip("-"): name for name in known}
    return [words[near] for near in difflib.get_close_matches(word.lstrip("-"), words, n=3, cutoff=0.75)]


def _report_stop(cause: BaseException | None) -> int:
    if isinstance(cause, Interrupted) and cause.run_dir is not None:
        return _say(f"stopped after round {cause.round}; to go on: fedjax-admm resume {shlex.quote(cause.run_dir)}", 1)
    text = "" if isinstance(cause, Interrupted) else str(cause)  # which speaks of Python
    _say(text or "stopped; of a run with --out everything is kept that was saved", 1)
    sys.stdout.flush()
    os._exit(1)  # at once: an orderly exit would wait for the round that is being computed


def _say(text: str, code: int) -> int:
    print(f"fedjax-admm: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return code
