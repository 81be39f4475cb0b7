"""The small files of a run directory: what was asked for, where it ran, and how it stands.

Only settings.json has to be there and sound. What the others say is made anew, or left out, where they are lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import filelock

from ..core.environment import versions
from ..core.files import DamagedFileError, check_writable, read_json
from ..core.vocabulary import RunStatus

SETTINGS, EXECUTION, ENVIRONMENT, STATUS = "settings.json", "execution.json", "environment.json", "status.json"
HISTORY, SOLVES, LOCK = "history.csv", "solves.npy", "lock"


def as_folder(run_dir: Any) -> Path:
    """A run_dir that was given, as a path."""
    if not isinstance(run_dir, (str, os.PathLike)) or not str(run_dir):
        raise ValueError(f"run_dir must be a path, got {run_dir!r}")
    return Path(run_dir)


def check_place(path: Path, mark: str) -> None:
    """A directory that has the file `mark` already, or is empty, or is not there and can be made."""
    if str(path) == ".":
        path = Path.cwd()
    check_writable(path, f"run_dir {str(path)!r}")
    if not path.exists() or (path / mark).exists():
        return
    unfinished = {EXECUTION, ENVIRONMENT, STATUS, LOCK}  # of a run that was killed as it began
    foreign = sorted(p.name for p in path.iterdir() if p.name not in unfinished and not p.name.startswith("."))
    if foreign:
        raise ValueError(f"run_dir {str(path)!r} has other files ({foreign[0]}) and no {mark}: give a new directory")


def read_run_settings(path: Any) -> dict[str, Any]:
    """Reads the settings of the run in a directory.

    Args:
        path: The directory.

    Returns:
        The settings, as `simulate` wrote them.

    Raises:
        ValueError: There are none.
        DamagedFileError: They are not what `simulate` writes.
    """
    file = Path(path) / SETTINGS
    if not file.exists():
        why = f"it has no {SETTINGS}" if file.parent.exists() else "there is no such directory"
        for kind in ("comparison", "tuning"):
            if (file.parent / f"{kind}.json").exists():
                why = f"it has a {kind}, which fa.read_{kind} reads and 'fedjax-admm resume' goes on with"
        raise ValueError(f"no run in {str(path)!r}: {why}")
    settings = read_json(file)
    kinds = {
        "problem": dict, "algorithm": dict, "rounds": int, "execution": dict,
        "participation": object, "seed": int, "evaluate_every": int, "initial_params": object,
    }  # fmt: skip
    _check_entries(file, settings, kinds)
    _check_entries(file, settings["problem"], {"clients": int, "recipe": dict | None})
    if settings["problem"]["recipe"] is not None:
        _check_entries(file, settings["problem"]["recipe"], {"example": str, "arguments": dict})
    parts = [part for part in settings["algorithm"].values() if isinstance(part, dict) and "record" in part]
    for part in (settings["algorithm"], *parts):
        _check_entries(file, part, {"opaque" if "opaque" in part else "record": str})
    return settings


def begun_with(folder: Path) -> Mapping[str, str]:
    """The versions that a run was last started with; this process's own where that is not known."""
    started = read_environment(folder)
    return started[-1]["versions"] if started else versions()


def read_environment(folder: Path) -> list[Mapping[str, Any]]:
    """Reads where the run was started, one entry for each time; none where that is lost or damaged."""
    return _read_if_sound(folder / ENVIRONMENT, _is_environment) or []


def read_execution(folder: Path) -> dict[str, Any] | None:
    """Reads how the run was begun on its devices; None where that is lost or damaged."""
    return _read_if_sound(folder / EXECUTION, _is_execution)


def _check_entries(file: Path, content: Any, kinds: Mapping[str, Any]) -> None:
    """Checks that what a JSON file holds is an object with entries of these kinds."""
    if not isinstance(content, dict):
        raise DamagedFileError(f"{file} is damaged: it holds {type(content).__name__} where entries should be")
    for name, kind in kinds.items():
        if name not in content or not isinstance(content[name], kind):
            raise DamagedFileError(f"{file} is damaged: it has no {name!r}, or a wrong one")


def read_status(folder: Path) -> dict[str, Any]:
    """Reads how the run in a directory stands.

    A run that could not say how it ended, since its process was killed or the disk was full, is killed. Where the
    status is lost, a run that has all its rounds is finished.

    Args:
        folder: The directory.

    Returns:
        Its `status`, and a `message` or None.
    """
    status = stored_status(folder)
    if status["status"] == RunStatus.RUNNING:
        status["status"] = RunStatus.RUNNING if _in_use(folder) else RunStatus.KILLED
    return status


def stored_status(folder: Path) -> dict[str, Any]:
    """Reads what status.json says; if it is lost or damaged, what the history says."""
    content = _read_if_sound(folder / STATUS, _is_status)
    if content is not None:
        return {"message": None} | content | {"status": RunStatus(content["status"])}
    done = (folder / HISTORY).is_file() and (folder / HISTORY).read_bytes().count(b"\n") - 2  # a heading, and round 0
    finished = done and (folder / SETTINGS).is_file() and done == read_run_settings(folder)["rounds"]
    return {"status": RunStatus.FINISHED if finished else RunStatus.RUNNING, "message": f"{STATUS} was lost or damaged"}


def _read_if_sound(path: Path, is_sound: Callable[[Any], bool]) -> Any:
    """What a JSON file holds that a run can do without; None if it is lost or damaged."""
    try:
        content = read_json(path)
    except OSError:
        return None
    return content if is_sound(content) else None


def _is_status(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("status") not in list(RunStatus):
        return False
    where = isinstance(content.get("round"), int) and isinstance(content.get("quantity"), str)
    return isinstance(content.get("message", ""), str | None) and (where or content["status"] != RunStatus.DIVERGED)


def _is_execution(content: Any) -> bool:
    counts, words = ("lanes", "cohort", "devices"), ("population", "platform")
    return (
        isinstance(content, dict)
        and all(type(content.get(name)) is int and content[name] > 0 for name in counts)
        and all(isinstance(content.get(name), str) for name in words)
    )


def _is_environment(content: Any) -> bool:
    return isinstance(content, list) and all(
        isinstance(start, dict) and isinstance(start.get("versions"), dict) for start in content
    )


def _in_use(folder: Path) -> bool:
    """Whether a process holds the lock. Nothing is made or changed: the directory may be a read-only one."""
    try:
        import fcntl
    except ImportError:  # not Unix
        return _cannot_lock(folder)
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(lock)


def _cannot_lock(folder: Path) -> bool:
    try:
        with filelock.FileLock(folder / LOCK, blocking=False):
            return False
    except (filelock.Timeout, OSError):
        return True
