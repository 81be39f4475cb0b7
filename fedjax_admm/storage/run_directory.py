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

import filelock
import numpy as np

from ..core.environment import environment, versions
from ..core.files import DamagedFileError, check_writable, overwrite_json, read_json, refuse_link, write_json
from ..core.vocabulary import RunStatus, Solves
from ..engine import processes
from ..results import remarks
from ..results.client_metrics import evaluation_rounds
from ..results.history import DivergenceError, History, RunRecord
from . import settings as settings_module
from .checkpoints import Checkpoints
from .checksums import REBUILD, Checksums, check_records, name_rounds, refuse_damage
from .client_files import CLIENT_METRICS, ClientFiles, Evaluations, read_client_metrics
from .growing_files import HistoryFile, Row, SolvesFile, read_history, read_solves, sync

SETTINGS, EXECUTION, ENVIRONMENT, STATUS = "settings.json", "execution.json", "environment.json", "status.json"
HISTORY, SOLVES, LOCK = "history.csv", "solves.npy", "lock"
_LOST_STATUS = f"{STATUS} was lost or damaged"


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
        self._lock: Any = None
        self._rounds, cohort = settings["rounds"], execution["cohort"]
        self._history = HistoryFile(self.path / HISTORY)
        self._solves = SolvesFile(self.path / SOLVES, self._rounds, cohort, real)
        self._client_files = None if client_files is None else client_files(self.path)
        self._checksums = Checksums(self.path)
        try:
            if processes.is_first():
                with processes.before_the_others():
                    self._begin(settings, execution)
            else:
                processes.after_the_first()
                self._status = _stored_status(self.path)["status"]
            self.execution = read_json(self.path / EXECUTION)
            self._checkpoints = Checkpoints(self.path / "checkpoints", seconds)
        except OSError as error:
            self._unlock()
            reason = f"{error.strerror}: {error.filename}" if error.strerror else error
            raise ValueError(f"run_dir {str(path)!r} cannot be used ({reason}): give another directory") from error
        except BaseException:
            self._unlock()
            raise

    def _begin(self, settings: Mapping[str, Any], resolved: Mapping[str, Any]) -> None:
        check_place(self.path, SETTINGS)
        self.path.mkdir(parents=True, exist_ok=True)
        is_run = (self.path / SETTINGS).exists()
        self._take_lock()
        if is_run:
            before = _stored_status(self.path)
            self._status = before["status"]
            stored = read_run_settings(self.path)
            longer = settings_module.is_longer(stored, settings, begun_with(self.path))
            _refuse_differences(self.path, {**settings, "rounds": stored["rounds"]} if longer else settings)
            if self._status == RunStatus.DIVERGED:
                raise DivergenceError(before["round"], before["quantity"], read_history(self.path / HISTORY))
            if longer:
                self._lengthen(stored, settings)
            self._fit_files()
            self._keep_execution(resolved)
        else:
            write_json(self.path / EXECUTION, dict(resolved))
            write_json(self.path / ENVIRONMENT, [])
            self.say(RunStatus.RUNNING)
            write_json(self.path / SETTINGS, dict(settings))  # last: with it, the directory is a run

    def _lengthen(self, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        """Makes the run that is there one of more rounds; its files follow (`_fit_files`), also after a crash here."""
        former = stored["rounds"]
        if len(self._history.rows()) > former:  # with round 0: it is finished
            for name in ("evaluate_every", "evaluate_clients_every"):
                every = settings.get(name)
                if isinstance(every, int) and former % every:
                    raise ValueError(
                        f"run_dir {str(self.path)!r} has a finished run of {former} rounds, which cannot be made "
                        f"longer: with {name}={every}, round {former} was evaluated only because it was the last; "
                        "give another directory"
                    )
        self.say(RunStatus.INTERRUPTED, f"made longer, from {former} to {settings['rounds']} rounds")
        write_json(self.path / SETTINGS, {**stored, "rounds": settings["rounds"]})

    def _fit_files(self) -> None:
        """Makes files of full length that are a shorter run's as long as this run's."""
        files = {SOLVES: self._solves} | ({} if self._client_files is None else {CLIENT_METRICS: self._client_files})
        starts = {name: start for name, file in files.items() if (start := file.start_if_shorter()) is not None}
        self._checksums.restart(starts)  # first: after a crash in between, the files still say what is to be done
        for name in starts:
            files[name].lengthen()

    def _keep_execution(self, resolved: Mapping[str, Any]) -> None:
        """Sees to it that there is an execution.json, and says where the run may differ in rounding."""
        begun = _read_if_sound(self.path / EXECUTION, _is_execution)
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
                    started = _read_if_sound(self.path / ENVIRONMENT, _is_environment) or []
                    write_json(self.path / ENVIRONMENT, [*started, environment()])
                    self.say(RunStatus.RUNNING)
                self._cut_records(round + 1)
            if checkpoint is None:
                return None
            evaluations = {} if self._client_files is None else self._client_files.read(round)
            rows, (cohorts, solves) = self._history.rows(round + 1), self._solves.read(round)
            return Restored(round, checkpoint[1], rows, cohorts, solves, evaluations)
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
        written = self._checksums.rounds()  # with round 0
        if written is None:
            written = len(self._history.rows())
        damaged = self._checksums.damaged(written - 1)
        if at_most is not None:  # somebody goes back on purpose: what comes after is made again
            checkpoint = self._checkpoints.restore(like, min(at_most, self._last_sound_round(written, damaged)))
        elif self._rebuild:
            (last,) = processes.greatest(self._last_sound_round(written, damaged))
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

    def _last_sound_round(self, written: int, damaged: Mapping[str, list[int]]) -> int:
        """The round before all damage to the first `written` rounds; -1 if round 0 is damaged, or a whole file."""
        try:
            self._check_lengths()
        except OSError:
            return -1
        return min((rounds[0] for rounds in damaged.values()), default=written) - 1

    def _refuse_damage(self, checkpoint: tuple[int, Any] | None, damaged: Mapping[str, list[int]], last: int) -> None:
        """Refuses to go on from a checkpoint with damage before it, or from round 0 though there are checkpoints."""
        if checkpoint is not None:
            before = {name: [round for round in rounds if round <= checkpoint[0]] for name, rounds in damaged.items()}
            refuse_damage(self.path, {name: rounds for name, rounds in before.items() if rounds})
            self._check_lengths()
        elif self._checkpoints.exist():
            unfit = f"no checkpoint in {self.path / 'checkpoints'} can be read and fits the history's {max(0, last)}"
            raise DamagedFileError(f"{unfit} rounds", REBUILD)

    def _check_lengths(self) -> None:
        """Checks that the files of full length have it."""
        for file in (self._solves, self._client_files):
            if file is not None:
                file.check()

    def _cut_records(self, number: int) -> None:
        """Keeps the records of the first `number` rounds, round 0 counted."""
        if number:
            self._checksums.keep(number)  # first: a checksum is never without the bytes that it is about
            self._history.keep(number)
        else:
            self._checksums.begin(more=self._client_files is not None)
            self._history.keep(0)
            self._header = self._solves.begin()
            if self._client_files is not None:
                self._client_files.begin()

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
            # First, so that no round in the history is without its solves.
            solved = [self._header] if solves is None else self._solves.write(start, cohorts, solves)
            rounds = [int(row["round"]) for row in rows]
            clients = () if self._client_files is None else self._client_files.write(rounds, evaluations)
            self._checksums.append(rounds[0], self._history.append(rows), solved, *clients)
        except OSError as error:
            raise self._describe_failure(int(rows[-1]["round"]), error) from error

    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self._checkpoints.due()

    def save(self, round: int, state: Callable[[], Any]) -> bool:
        """A checkpoint of what `state` returns, after `round` rounds; whether there is one."""
        try:
            for path in (self._history.path, self._solves.path, self.path / CLIENT_METRICS, self._checksums.path):
                sync(path)
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
            self._unlock()

    def _describe_failure(self, round: int, error: Exception) -> RunDirectoryError:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        return RunDirectoryError(
            f"round {round}: writing to {self.path} failed: {reason}; what was saved before is kept, and the run can "
            "be resumed"
        )

    def _take_lock(self) -> None:
        refuse_link(self.path / LOCK)
        self._lock = filelock.FileLock(self.path / LOCK, blocking=False)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            self._lock = None
            holder = _stored_status(self.path)
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


@dataclass(frozen=True, repr=False)
class StoredRun(RunRecord):
    """A run as its directory has it, finished or not.

    >>> run = fa.read_run("runs/one")  # doctest: +SKIP
    >>> str(run.status), run.settings["rounds"], run.environment[-1]["versions"]["jax"]  # doctest: +SKIP
    ('finished', 300, '0.10.2')
    """

    settings: Mapping[str, Any]
    environment: list[Mapping[str, Any]]
    execution: Mapping[str, Any]
    status: RunStatus  # which equals its plain word: "finished"
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
    """Reads what a run directory has by now; the run may still be going on. Nothing is written there.

    Args:
        path: The directory.

    Returns:
        The run.

    Raises:
        ValueError: There is no run, or none of its rounds is done.
        DamagedFileError: A file of it is damaged; the message says which, and which rounds.

    >>> import tempfile
    >>> example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=3)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     settings = example.run_settings | {"run_dir": f"{place}/run", "progress": False}
    ...     result = fa.simulate(example.problem, example.algorithm("fedadmm_insa"), **settings)
    ...     run = read_run(f"{place}/run")
    ...     again = fa.resume(f"{place}/run", progress=False)  # it is finished, so it is read
    >>> str(run.status), bool(run.history["loss"][-1] == result.history["loss"][-1] == again.history["loss"][-1])
    ('finished', True)
    """
    folder = Path(path)
    settings = read_run_settings(folder)
    check_records(folder)
    history = read_history(folder / HISTORY) if (folder / HISTORY).exists() else History([])
    rounds = len(history["round"]) - 1 if len(history) else 0
    status = read_status(folder)
    if status["status"] == RunStatus.FINISHED and rounds < settings["rounds"]:
        missing = name_rounds(list(range(rounds + 1, settings["rounds"] + 1)))
        raise DamagedFileError(f"{folder / HISTORY} is damaged: {missing} of the finished run are missing", REBUILD)
    if rounds < 1:
        why = status["message"] or "wait, or resume it"
        raise ValueError(f"the run in {str(path)!r} has no round yet: {why}")
    cohorts, solves = read_solves(folder / SOLVES, rounds)
    every, client_metrics = settings.get("evaluate_clients_every"), None
    if isinstance(every, int):
        done = [round for round in evaluation_rounds(settings["rounds"], every) if round <= rounds]
        client_metrics = read_client_metrics(folder, done)
    return StoredRun(
        history=history,
        cohorts=cohorts,
        solves=solves,
        num_clients=settings["problem"]["clients"],
        client_metrics=client_metrics,
        evaluated=settings.get("evaluate", "all"),
        settings=settings,
        environment=_read_if_sound(folder / ENVIRONMENT, _is_environment) or [],
        execution=_read_if_sound(folder / EXECUTION, _is_execution) or {},
        status=status["status"],
        message=status["message"],
    )


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
    started = _read_if_sound(folder / ENVIRONMENT, _is_environment)
    return started[-1]["versions"] if started else versions()


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
    status = _stored_status(folder)
    if status["status"] == RunStatus.RUNNING:
        status["status"] = RunStatus.RUNNING if _in_use(folder) else RunStatus.KILLED
    return status


def _stored_status(folder: Path) -> dict[str, Any]:
    """What status.json says; if it is lost or damaged, what the history says."""
    content = _read_if_sound(folder / STATUS, _is_status)
    if content is not None:
        return {"message": None} | content | {"status": RunStatus(content["status"])}
    done = (folder / HISTORY).is_file() and (folder / HISTORY).read_bytes().count(b"\n") - 2  # a heading, and round 0
    finished = done and (folder / SETTINGS).is_file() and done == read_run_settings(folder)["rounds"]
    return {"status": RunStatus.FINISHED if finished else RunStatus.RUNNING, "message": _LOST_STATUS}


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


def _round(checkpoint: tuple[int, Any] | None) -> int:
    return 0 if checkpoint is None else checkpoint[0]


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=6)


def _refuse_differences(path: Path, now: Mapping[str, Any]) -> None:
    last = begun_with(path)
    if last != versions():
        changed = ", ".join(settings_module.differences(last, versions()))
        warnings.warn(f"{path} was made with other versions ({changed}): the rest may differ in rounding", stacklevel=5)
    settings_module.refuse_differences(path, "run", read_run_settings(path), now, last)
