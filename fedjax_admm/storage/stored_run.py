"""A run as its directory has it, read without changing anything there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import DamagedFileError
from ..core.vocabulary import RunStatus
from ..results import remarks
from ..results.client_metrics import evaluation_rounds
from ..results.history import History, RunRecord
from . import settings as settings_module
from .checksums import REBUILD, check_records, name_rounds
from .client_files import read_client_metrics
from .growing_files import read_history, read_solves
from .run_files import HISTORY, SOLVES, read_environment, read_execution, read_run_settings, read_status


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
        environment=read_environment(folder),
        execution=read_execution(folder) or {},
        status=status["status"],
        message=status["message"],
    )
