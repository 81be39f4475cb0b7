"""When what is on disk can go on with more rounds: the checks that runs, comparisons and tunings have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.vocabulary import RunStatus
from .run_files import SETTINGS, read_run_settings, read_status


def refuse_uneven_end(run_dir: Any, settings: Mapping[str, Any], rounds: int) -> None:
    """Refuses to make a finished run longer whose last round was evaluated out of turn.

    Args:
        run_dir: Its directory, for the message.
        settings: The run's, described.
        rounds: Those that it has.

    Raises:
        ValueError: A longer run would not have evaluated its last round.
    """
    for name in ("evaluate_every", "evaluate_clients_every"):
        every = settings.get(name)
        if isinstance(every, int) and rounds % every:
            raise ValueError(
                f"run_dir {str(run_dir)!r} has a finished run of {rounds} rounds, which cannot be made longer: with "
                f"{name}={every}, round {rounds} was evaluated only because it was the last; give another directory"
            )


def refuse_uneven_ends(run_dir: Any, places: Iterable[Path]) -> None:
    """The same for all finished runs of a comparison or a tuning, so that either all go on or none.

    Args:
        run_dir: The whole directory, for the message.
        places: Its run directories, which need not be there.

    Raises:
        ValueError: One of the runs cannot be made longer.
    """
    for place in places:
        if (place / SETTINGS).exists() and read_status(place)["status"] == RunStatus.FINISHED:
            settings = read_run_settings(place)
            refuse_uneven_end(run_dir, settings, settings["rounds"])
