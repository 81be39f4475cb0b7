"""A run on disk: what it was asked to do, where it ran, what it did, and how to go on.

settings.json     every argument and default: recreates the run (see `settings`)
execution.json    lanes and devices as they were chosen at the start; kept when the run is resumed
environment.json  versions, devices, commit; one entry for each time the run was started
status.json       running, finished, interrupted, diverged or failed
history.csv       one line per round
solves.npy        every local solve: client, epochs, penalties, residuals, ... [rounds, cohort]
client_metrics.npy  every evaluated client's losses and metrics [evaluations, clients], of runs that evaluate clients
clients.npy       whose they are: number, rows, weight, rows of each label [clients]
checksums.csv     one line per round: what the round wrote into the files above (see `checksums`)
checkpoints/      the last two complete states (orbax)
lock              held by the process that writes here

Of several processes only the first writes; checkpoints they make together. Without settings.json there is no run;
execution.json, environment.json and status.json are made anew where they are lost.
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

import numpy as np

from ..core.environment import environment, versions
from ..core.files import DamagedFileError, overwrite_json, read_json, write_json
from ..core.vocabulary import RunStatus, Solves
from ..engine import processes
from ..results.history import DivergenceError
from .checkpoints import Checkpoints
from .checksums import REBUILD, refuse_damage
from .client_files import ClientFiles, Evaluations
from .differences import differences, is_longer, refuse_differences
from .growing_files import Row, read_history
from .lengthening import refuse_uneven_end
from .run_files import (
    ENVIRONMENT,
    EXECUTION,
    HISTORY,
    LOCK,
    SETTINGS,
    STATUS,
    begun_with,
    check_place,
    read_environment,
    read_execution,
    read_run_settings,
    stored_status,
)
from .run_lock import RunLock
from .run_records import RunRecords


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
    cohorts: np.ndarray  # [rounds, cohort] of the rounds done
    solves: Solves  # of the rounds done
    evaluations: Evaluations  # of clients


class RunDirectory:
    """The directory of one run, held by this process, or by the first of several, while it is open.

    Args:
        path: The directory; made if it is not there.
        settings: The run's, as JSON can hold them.
        execution: How it would run here (`Simulation.resolved`); a run that was begun keeps its own.
        real: The dtype of residuals and penalties.
        seconds: The least time between two checkpoints.
        rebuild: Where records or checkpoints are damaged, the run goes back to before the damage; else it is an error.
        client_files: Makes the files of clients' evaluations in a folder; None for a run without.

    Raises:
        ValueError: The directory cannot be used, or has another run.
        DivergenceError: The run that is there diverged.
    """

    def __init__(
        self,
        path: Any,
        settings: Mapping[str, Any],
        execution: Mapping[str, Any],
        real: Any,
        seconds: float,
        rebuild: bool = False,
        client_files: Callable[[Path], ClientFiles] | None = None,
    ) -> None:
        self.path, self._rebuild = Path(path), rebuild
        self._lock = RunLock(self.path / LOCK)
        self._rounds, cohort = settings["rounds"], execution["cohort"]
        files = None if client_files is None else client_files(self.path)
        self._records = RunRecords(self.path, self._rounds, cohort, real, files)
        try:
            if processes.is_first():
                with processes.before_the_others():
                    self._begin(settings, execution)
            else:
                processes.after_the_first()
                self._status = stored_status(self.path)["status"]
            self.execution = read_json(self.path / EXECUTION)
            self._checkpoints = Checkpoints(self.path / "checkpoints", seconds)
        except OSError as error:
            self._lock.release()
            reason = f"{error.strerror}: {error.filename}" if error.strerror else error
            raise ValueError(f"run_dir {str(path)!r} cannot be used ({reason}): give another directory") from error
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, settings: Mapping[str, Any], resolved: Mapping[str, Any]) -> None:
        check_place(self.path, SETTINGS)
        self.path.mkdir(parents=True, exist_ok=True)
        is_run = (self.path / SETTINGS).exists()
        self._lock.take()
        if is_run:
            before = stored_status(self.path)
            self._status = before["status"]
            stored = read_run_settings(self.path)
            longer = is_longer(stored, settings, begun_with(self.path))
            _refuse_differences(self.path, {**settings, "rounds": stored["rounds"]} if longer else settings)
            if self._status == RunStatus.DIVERGED:
                raise DivergenceError(before["round"], before["quantity"], read_history(self.path / HISTORY))
            if longer:
                self._lengthen(stored, settings)
            self._records.fit()
            for name in self._records.mend():
                _warn(f"{self.path / name} was damaged or lost, and is written again")
            self._keep_execution(resolved)
        else:
            write_json(self.path / EXECUTION, dict(resolved))
            write_json(self.path / ENVIRONMENT, [])
            self.say(RunStatus.RUNNING)
            write_json(self.path / SETTINGS, dict(settings))  # last: with it, the directory is a run

    def _lengthen(self, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Makes the run that is there one of more rounds; its records follow (`fit`), also after a crash here."""
        former = stored["rounds"]
        if self._records.written() > former:  # with round 0: it is finished
            refuse_uneven_end(self.path, settings, former)
        self.say(RunStatus.INTERRUPTED, f"made longer, from {former} to {settings['rounds']} rounds")
        write_json(self.path / SETTINGS, {**stored, "rounds": settings["rounds"]})

    def _keep_execution(self, resolved: Mapping[str, Any]) -> None:
        """Sees to it that there is an execution.json, and says where the run may differ in rounding."""
        begun = read_execution(self.path)
        if begun is None:
            write_json(self.path / EXECUTION, dict(resolved))
            lost = f"{self.path / EXECUTION} was lost or damaged, and is made anew for this machine"
            warnings.warn(f"{lost}: the rest may differ in rounding", stacklevel=5)
        elif begun["platform"] != resolved["platform"]:
            platforms = f"{begun['platform']}, now on {resolved['platform']}"
            warnings.warn(f"{self.path} was begun on {platforms}: the rest may differ in rounding", stacklevel=5)

    def restore(self, like: Any, at_most: int | None = None) -> Restored | None:
        """Goes back to the last state that is sound and has sound records.

        Args:
            like: A pytree with the state's structure, and with shardings where they matter.
            at_most: The state is of at most so many rounds; where none is kept of those, the run begins again.

        Returns:
            The state and what was recorded up to it; None at the beginning.

        Raises:
            RunDirectoryError: Nothing there is sound, or records before the last checkpoint are damaged.
            ValueError: Another version of the package began the run, and kept other state.
        """
        self._refuse_other_state(like)
        try:
            checkpoint = self._sound_checkpoint(like, at_most)
            round = -1 if checkpoint is None else checkpoint[0]
            if processes.is_first():
                if round < self._rounds:
                    started = read_environment(self.path)
                    write_json(self.path / ENVIRONMENT, [*started, environment()])
                    self.say(RunStatus.RUNNING)
                self._records.keep(round + 1)
            if checkpoint is None:
                return None
            return Restored(round, checkpoint[1], *self._records.read(round))
        except OSError as error:
            raise RunDirectoryError(f"{self.path} cannot be resumed: {error}") from error

    def _refuse_other_state(self, like: Any) -> None:
        begun, ours = begun_with(self.path).get("fedjax-admm"), versions()["fedjax-admm"]
        if begun != ours and not self._checkpoints.fit(like):
            raise ValueError(
                f"run_dir {str(self.path)!r} was begun by fedjax_admm {begun}, which kept other state; this is {ours}: "
                f"go on with {begun}, or give another directory to run it anew"
            )

    def _sound_checkpoint(self, like: Any, at_most: int | None) -> tuple[int, Any] | None:
        """Finds the last checkpoint whose records are there and sound, and removes newer ones.

        Args:
            like: A pytree with the state's structure.
            at_most: The rounds that it may have, or None.

        Returns:
            Its round and the state; None where the run begins.

        Raises:
            DamagedFileError: What is damaged would have to be computed again, which nobody asked for.
        """
        written = self._records.checked()
        damaged = self._records.damaged(written)
        if at_most is not None:  # somebody goes back on purpose: what comes after is made again
            checkpoint = self._checkpoints.restore(like, min(at_most, self._records.last_sound_round(written, damaged)))
        elif self._rebuild:
            (last,) = processes.greatest(self._records.last_sound_round(written, damaged))
            checkpoint = self._checkpoints.restore(like, last)
            if last + 1 < written:
                start = _round(checkpoint)
                _warn(f"{self.path} is damaged from round {last + 1} on: computing it again from round {start}")
        else:
            (last,) = processes.greatest(written - 1)
            checkpoint = self._checkpoints.restore(like, last)
            self._refuse_damage(checkpoint, damaged, last)
            if checkpoint is None and written > 1 and self._status == RunStatus.FINISHED:
                _warn(f"{self.path} has lost its checkpoints: running it again")
        self._checkpoints.forget_after(-1 if checkpoint is None else checkpoint[0])
        return checkpoint

    def _refuse_damage(self, checkpoint: tuple[int, Any] | None, damaged: Mapping[str, list[int]], last: int) -> None:
        """Refuses to go on from a checkpoint with damage before it, or from round 0 though there are checkpoints."""
        if checkpoint is not None:
            before = {name: [round for round in rounds if round <= checkpoint[0]] for name, rounds in damaged.items()}
            refuse_damage(self.path, {name: rounds for name, rounds in before.items() if rounds})
            self._records.check_lengths()
        elif self._checkpoints.exist():
            unfit = f"no checkpoint in {self.path / 'checkpoints'} can be read and fits the history's {max(0, last)}"
            raise DamagedFileError(f"{unfit} rounds", REBUILD)

    def record(
        self, rows: list[Row], start: int, cohorts: np.ndarray, solves: Solves | None, evaluations: Evaluations
    ) -> None:
        """Adds the records of rounds that were done.

        Args:
            rows: Of the history, one per round.
            start: Rounds done before them.
            cohorts: The rounds' clients [rounds, cohort].
            solves: The rounds' solves [rounds, cohort]; None for round 0.
            evaluations: Of clients, after those of the rounds that were followed by one.

        Raises:
            RunDirectoryError: They could not be written.
        """
        if not processes.is_first():
            return
        try:
            self._records.append(rows, start, cohorts, solves, evaluations)
        except OSError as error:
            raise self._describe_failure(int(rows[-1]["round"]), error) from error

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._checkpoints.due()

    def save(self, round: int, state: Callable[[], Any]) -> bool:
        """A checkpoint of what `state` returns, after `round` rounds; whether there is one."""
        try:
            self._records.sync()
            self._checkpoints.save(round, state())
        except Exception as error:  # a full disk surfaces in orbax as nearly any type of exception
            raise self._describe_failure(round, error) from error
        return True

    def say(self, status: RunStatus, message: str | None = None, **more: Any) -> None:
        """Writes how the run stands.

        Args:
            status: How.
            message: Why, if it ended otherwise than planned.
            more: What else is to be known about it.
        """
        if processes.is_first():
            who = {"process": os.getpid(), "host": socket.gethostname()}
            entries = {"status": status, "message": message, **who, **more}
            try:
                write_json(self.path / STATUS, entries)
            except OSError:
                if status in (RunStatus.RUNNING, RunStatus.FINISHED):
                    raise
                overwrite_json(self.path / STATUS, entries)  # on a full disk, where it takes no more room
        self._status = status  # once it is written down

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            # What comes after a run's end changes nothing of it.
            if kind is not None and self._status not in (RunStatus.FINISHED, RunStatus.DIVERGED):
                ends = {KeyboardInterrupt: RunStatus.INTERRUPTED, DivergenceError: RunStatus.DIVERGED}
                status = next((ends[known] for known in ends if issubclass(kind, known)), RunStatus.FAILED)
                where = {"round": error.round, "quantity": error.quantity} if isinstance(error, DivergenceError) else {}
                self.say(status, str(error).splitlines()[0] if str(error) else kind.__name__, **where)
            self._checkpoints.close()
        except Exception:
            if kind is None:
                raise
            # else the first error is the one to tell
        finally:
            self._lock.release()

    def _describe_failure(self, round: int, error: Exception) -> RunDirectoryError:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        return RunDirectoryError(
            f"round {round}: writing to {self.path} failed: {reason}; what was saved before is kept, and the run can "
            "be resumed"
        )


class NoDirectory:
    """A run that is not kept: the same calls, without effect."""

    path = None

    def restore(self, like: Any, at_most: int | None = None) -> Restored | None:
        return None

    def record(
        self, rows: list[Row], start: int, cohorts: np.ndarray, solves: Solves | None, evaluations: Evaluations
    ) -> None:
        pass

    def due(self) -> bool:
        return False

    def save(self, round: int, state: Callable[[], Any]) -> bool:
        return False

    def say(self, status: RunStatus, message: str | None = None, **more: Any) -> None:
        pass


def _round(checkpoint: tuple[int, Any] | None) -> int:
    return 0 if checkpoint is None else checkpoint[0]


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=6)


def _refuse_differences(path: Path, now: Mapping[str, Any]) -> None:
    last = begun_with(path)
    if last != versions():
        changed = ", ".join(differences(last, versions()))
        warnings.warn(f"{path} was made with other versions ({changed}): the rest may differ in rounding", stacklevel=5)
    refuse_differences(path, "run", read_run_settings(path), now, last)
