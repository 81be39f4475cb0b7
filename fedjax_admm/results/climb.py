"""From rung to rung: settings run, are judged, and the best of them go on. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .history import DivergenceError, RunRecord
from .tuning import Objective, Tuning

Found = Mapping[tuple[int, int], RunRecord | DivergenceError]  # (a setting's number, seed) -> its run


def climb(
    settings: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    search: Mapping[str, Any],
    find: Callable[[Sequence[tuple[int, int]], int], Found],
    algorithms: Sequence[Any] | None = None,
) -> Tuning:
    """Goes from rung to rung with the settings that each leaves.

    Args:
        settings: All of them.
        labels: A name for each.
        search: seeds, objective, rungs and halving, as a plan has them.
        find: Returns runs of (setting's number, seed) up to a round, those that there are.
        algorithms: One for each setting.

    Returns:
        What was found; it ends at the first rung at which a run is missing.
    """
    seeds, rungs, objective = search["seeds"], search["rungs"], Objective(**search["objective"])
    scores = np.full((len(settings), len(seeds), len(rungs)), np.nan)
    runs: dict[str, dict[int, RunRecord]] = {}
    diverged: dict[str, dict[int, str]] = {}
    alive = list(range(len(settings)))
    missing = ""
    for rung, until in enumerate(rungs):
        wanted = [(k, seed) for k in alive for seed in seeds]
        found = find(wanted, until)
        for (k, seed), run in found.items():
            ended = isinstance(run, DivergenceError)
            scores[k, seeds.index(seed), rung] = objective.worst if ended else objective.score(run.history, until)
            if ended:
                diverged.setdefault(labels[k], {})[seed] = str(run)
            else:
                runs.setdefault(labels[k], {})[seed] = run
        if len(found) < len(wanted):
            missing = f"not done: {len(wanted) - len(found)} of {len(wanted)} runs to round {until}"
            break
        means = np.full(len(settings), np.nan)
        means[alive] = scores[alive, :, rung].mean(axis=1)
        alive = objective.keep(means, -(-len(alive) // search["halving"]) if search["halving"] else len(alive))
        if not alive:
            break
    return Tuning(settings, labels, seeds, objective, rungs, scores, runs, diverged, missing, algorithms)
