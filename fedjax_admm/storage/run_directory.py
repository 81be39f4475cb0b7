"""A run on disk: what it was asked to do, where it ran, what it did, and how to go on.

settings.json     every argument and default: recreates the run (see `settings`)
execution.json    lanes and devices as they were chosen at the start; kept when the run is resumed
environment.json  versions, devices, commit; one entry for each time the run was started
status.json       running, finished, interrupted, diverged or failed
history.csv       a line a round
solves.npy        every local solve: client, epochs, penalties, residuals, ... [rounds, cohort]
checkpoints/      the last two complete states (orbax)
lock              held by the process that writes here

Of several processes only the first writes; checkpoints they make together.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock
import numpy as np

from ..core.environment import environment, versions
from ..core.files import DamagedFileError, check_writable, read_json, write_json
from ..core.vocabulary import Solves
from ..engine import processes
from ..results import remarks
from ..results.history import DivergenceError, History, RunRecord
from . import settings as settings_module
from .checkpoints import Checkpoints
from .growing_files import HistoryFile, Row, SolvesFile, read_history, read_solves

SETTINGS, EXECUTION, ENVIRONMENT, STATUS = "settings.json", "execution.json", "environment.json", "status.json"


class RunDirectoryError(OSError):
    """The run directory could not be written or read; what was saved before is still there.

    >>> issubclass(RunDirectoryError, OSError)
    True
    """


@dataclass(frozen=True)
class Restored:
    """Where a run on disk stands."""

    round: int
    state: Any
    rows: list[Row]  # of the history, rounds 0 to `round`
    solves: Solves  # of the rounds done


class RunDirectory:
    """The directory of one run, held by this process, or by the first of several, while it is open."""

    def __init__(
        self, path: Any, settings: Mapping[str, Any], execution: Mapping[str, Any], real: Any, seconds: float
    ) -> None:
        self.path = Path(path)
        self._lock: Any = None
        try:
            if processes.is_first():
                with processes.before_the_others():
                    self._begin(settings, execution)
            else:
                processes.after_the_first()
                self._status = read_json(self.path / STATUS)["status"]
            self.execution, self._rounds = read_json(self.path / EXECUTION), settings["rounds"]
            cohort, rounds = execution["cohort"], settings["rounds"]
            self._history = HistoryFile(self.path / "history.csv")
            self._solves = SolvesFile(self.path / "solves.npy", rounds, cohort, real)
            self._checkpoints = Checkpoints(self.path / "checkpoints", seconds)
        except OSError as error:
            self._unlock()
            reason = f"{error.strerror}: {error.filename}" if error.strerror else error
            raise ValueError(f"run_dir {str(path)!r} cannot be used ({reason}): choose another, or mend it") from error
        except BaseException:
            self._unlock()
            raise

    def _begin(self, settings: Mapping[str, Any], resolved: Mapping[str, Any]) -> None:
        check_place(self.path, SETTINGS)
        self.path.mkdir(parents=True, exist_ok=True)
        is_run = (self.path / SETTINGS).exists()
        self._take_lock()
        if is_run:
            _refuse_differences(self.path, settings)
            execution = read_json(self.path / EXECUTION)
            before = read_json(self.path / STATUS)
            self._status = before["status"]
            if self._status == "diverged":
                history = read_history(self.path / "history.csv")
                raise DivergenceError(before["round"], before["quantity"], history)
            if execution["platform"] != resolved["platform"]:
                platforms = f"{execution['platform']}, now on {resolved['platform']}"
                warnings.warn(f"{self.path} was begun on {platforms}: the rest may differ in rounding", stacklevel=4)
        else:
            write_json(self.path / EXECUTION, dict(resolved))
            write_json(self.path / ENVIRONMENT, [])
            self.say("running")
            write_json(self.path / SETTINGS, dict(settings))  # last: with it, the directory is a run

    def restore(self, like: Any) -> Restored | None:
        """The last good state and what was recorded up to it; None at the beginning."""
        self._refuse_other_state(like)
        try:
            (written,) = processes.greatest(len(self._history.rows()))
            found = self._checkpoints.restore(like, last=written - 1)
            round = 0 if found is None else found[0]
            if found is not None:
                self._checkpoints.forget_after(round)
            elif written > 1 and self._status == "finished":
                warnings.warn(f"{self.path} has lost its checkpoints: running it again", RuntimeWarning, stacklevel=4)
            if processes.is_first():
                if round < self._rounds:
                    write_json(self.path / ENVIRONMENT, [*read_json(self.path / ENVIRONMENT), environment()])
                    self.say("running")
                self._history.keep(round + 1 if found else 0)
            if found is None:
                return None
            return Restored(round, found[1], self._history.rows()[: round + 1], self._solves.read(round)[1])
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be resumed: {error}") from error

    def _refuse_other_state(self, like: Any) -> None:
        begun, ours = begun_with(self.path).get("fedjax-admm"), versions()["fedjax-admm"]
        if begun != ours and not self._checkpoints.fit(like):
            raise ValueError(
                f"run_dir {str(self.path)!r} was begun by fedjax_admm {begun}, which kept other state; this is {ours}: "
                f"go on with {begun}, or give another directory to run it anew"
            )

    def record(self, rows: list[Row], start: int, cohorts: np.ndarray, solves: Solves | None) -> None:
        """Adds the rows of the rounds that were done, and the solves of the rounds from `start` on."""
        if not processes.is_first():
            return
        try:
            if solves is not None:  # first, so that no round in the history is without its solves
                self._solves.write(start, cohorts, solves)
            self._history.append(rows)
        except OSError as error:
            raise self._failed(int(rows[-1]["round"]), error) from error

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._checkpoints.due()

    def save(self, round: int, state: Callable[[], Any]) -> bool:
        """A checkpoint of what `state` returns, after `round` rounds; whether there is one."""
        try:
            self._history.sync()
            self._solves.sync()
            self._checkpoints.save(round, state())
        except Exception as error:  # a full disk surfaces in orbax as nearly any type of exception
            raise self._failed(round, error) from error
        return True

    def say(self, status: str, message: str | None = None, **more: Any) -> None:
        """Writes how the run stands."""
        if processes.is_first():
            who = {"process": os.getpid(), "host": socket.gethostname()}
            write_json(self.path / STATUS, {"status": status, "message": message, **who, **more})
        self._status = status  # once it is written down

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is not None and self._status != "finished":  # what comes after the last round changes nothing of it
                ends = {KeyboardInterrupt: "interrupted", DivergenceError: "diverged"}
                status = next((ends[known] for known in ends if issubclass(kind, known)), "failed")
                where = {"round": error.round, "quantity": error.quantity} if isinstance(error, DivergenceError) else {}
                self.say(status, str(error).splitlines()[0] if str(error) else kind.__name__, **where)
            self._checkpoints.close()
        except Exception:
            if kind is None:
                raise
            # else the first error is the one to tell
        finally:
            self._unlock()

    def _failed(self, round: int, error: Exception) -> RunDirectoryError:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        return RunDirectoryError(
            f"round {round}: writing to {self.path} failed: {reason}; what was saved before is kept, and the run can "
            "be resumed"
        )

    def _take_lock(self) -> None:
        self._lock = filelock.FileLock(self.path / "lock", blocking=False)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            self._lock = None
            holder = read_json(self.path / STATUS) if (self.path / STATUS).exists() else {}
            who = f"process {holder.get('process', '?')} on {holder.get('host', '?')}"
            raise ValueError(
                f"run_dir {str(self.path)!r} is in use by {who}: wait for it, or give another directory"
            ) from None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class NoDirectory:
    """A run that is not kept: the same calls, without effect."""

    path = None

    def restore(self, like: Any) -> None:
        return None

    def record(self, rows: list[Row], start: int, cohorts: np.ndarray, solves: Solves | None) -> None:
        pass

    def due(self) -> bool:
        return False

    def save(self, round: int, state: Callable[[], Any]) -> bool:
        return False

    def say(self, status: str, message: str | None = None) -> None:
        pass


@dataclass(frozen=True, repr=False)
class StoredRun(RunRecord):
    """A run as its directory has it, finished or not.

    >>> run = fa.read_run("runs/one")  # doctest: +SKIP
    >>> run.status, run.settings["rounds"], run.environment[-1]["versions"]["jax"]  # doctest: +SKIP
    ('finished', 300, '0.10.2')
    """

    settings: Mapping[str, Any]
    environment: list[Mapping[str, Any]]
    execution: Mapping[str, Any]
    status: str  # running, killed, finished, interrupted, diverged, failed
    message: str | None  # why it ended, if it failed

    @property
    def rounds(self) -> int:
        """Rounds that were asked for."""
        return self.settings["rounds"]

    @property
    def title(self) -> str:
        """The algorithm, and the problem where it has a name."""
        label = self.settings.get("label")
        return settings_module.title(self.settings["algorithm"], self.settings["problem"]["recipe"], label)

    @property
    def note(self) -> str | None:
        """What to say of a run of which the server used nothing; None for any other."""
        client_time = settings_module.recreate_client_time(self.settings.get("client_time"), self.num_clients)
        down, up = (self.execution.get(name) for name in ("floats_down", "floats_up"))  # 0.1.0 did not write them
        floats = down + up if isinstance(down, int) and isinstance(up, int) else None
        if client_time is None or (floats is None and client_time.floats_per_second is not None):
            return remarks.note(self)
        return remarks.note(self, client_time.shortest_solve(self.cohorts, self.solves, floats or 0))

    @property
    def problem_name(self) -> str | None:
        """The example's name; None for a problem that was made in Python."""
        return settings_module.problem_name(self.settings["problem"]["recipe"])


def read_run(path: Any) -> StoredRun:
    """What a run directory has by now; the run may still be going on.

    Raises ValueError where there is no run, `DamagedFileError` where a file of it is damaged.

    >>> import tempfile
    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     settings = example.run_settings | {"run_dir": f"{place}/run", "progress": False}
    ...     result = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), **settings)
    ...     run = read_run(f"{place}/run")
    ...     again = fa.resume(f"{place}/run", progress=False)  # it is finished, so it is read
    >>> run.status, bool(run.history["loss"][-1] == result.history["loss"][-1] == again.history["loss"][-1])
    ('finished', True)
    """
    folder = Path(path)
    settings, execution = read_run_settings(folder), read_json(folder / EXECUTION)
    history = read_history(folder / "history.csv") if (folder / "history.csv").exists() else History([])
    rounds = len(history["round"]) - 1 if len(history) else 0
    status = read_status(folder)
    if rounds < 1:
        why = status["message"] or "wait, or resume it"
        raise ValueError(f"the run in {str(path)!r} has no round yet: {why}")
    cohorts, solves = read_solves(folder / "solves.npy", rounds)
    return StoredRun(
        history=history,
        cohorts=cohorts,
        solves=solves,
        num_clients=settings["problem"]["clients"],
        settings=settings,
        environment=read_json(folder / ENVIRONMENT),
        execution=execution,
        status=status["status"],
        message=status["message"],
    )


def read_run_settings(path: Any) -> dict[str, Any]:
    """The settings of the run in a directory."""
    if not (Path(path) / SETTINGS).is_file():
        raise ValueError(f"{str(path)!r} has no run: it needs a {SETTINGS}")
    settings = read_json(Path(path) / SETTINGS)
    missing = {"problem", "algorithm", "rounds", "execution"} - set(settings if isinstance(settings, dict) else ())
    if missing:
        raise DamagedFileError(f"{Path(path) / SETTINGS} is damaged: it has no {min(missing)!r}")
    return settings


def begun_with(folder: Path) -> Mapping[str, str]:
    """The versions that a run was last started with; this process's own where that is not known."""
    try:
        return dict(read_json(folder / ENVIRONMENT)[-1]["versions"])
    except (OSError, LookupError, TypeError, ValueError):
        return versions()


def read_status(folder: Path) -> dict[str, Any]:
    """How the run in a directory stands: its `status`, and a `message` or None."""
    status = read_json(folder / STATUS)
    if status["status"] == "running" and not _in_use(folder):
        status["status"] = "killed"
    return status


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
    unfinished = {EXECUTION, ENVIRONMENT, STATUS, "lock"}  # of a run that was killed as it began
    foreign = sorted(p.name for p in path.iterdir() if p.name not in unfinished and not p.name.startswith("."))
    if foreign:
        raise ValueError(f"run_dir {str(path)!r} has other files ({foreign[0]}) and no {mark}: give a new directory")


def _in_use(folder: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        with filelock.FileLock(folder / "lock", blocking=False):
            return False
    except (filelock.Timeout, OSError):
        return True


def _refuse_differences(path: Path, now: Mapping[str, Any]) -> None:
    last = begun_with(path)
    if last != versions():
        changed = ", ".join(settings_module.differences(last, versions()))
        warnings.warn(f"{path} was made with other versions ({changed}): the rest may differ in rounding", stacklevel=5)
    settings_module.refuse_differences(path, "run", read_run_settings(path), now, last)
