"""Which algorithms a command asks for, with which options."""

from __future__ import annotations

import inspect
from typing import Any

from .. import algorithms
from ..algorithms.local_solver import LocalSolver
from ..algorithms.named_criteria import split
from ..core import checks
from ..examples import Example


def split_words(text: str) -> list[str]:
    return [word.strip().replace("-", "_") for word in str(text).split(",") if word.strip()]


def check_name(word: str, flag: str = "--algorithm") -> str:
    names = tuple(name.replace("_", "-") for name in algorithms.__all__)
    return checks.choice(flag, word.replace("_", "-"), names).replace("-", "_")


def check_grid(name: str, grid: dict[str, Any], of_local: tuple[str, ...]) -> None:
    """Refuses names that are neither of the algorithm nor of its local solver."""
    own = [word for word in inspect.signature(getattr(algorithms, name)).parameters if word != "local"]
    known = tuple(word.replace("_", "-") for word in (*of_local, *own))
    for word in grid:
        checks.choice("--grid: a name", word.replace("_", "-"), known)


def check_penalties(penalties: list[Any]) -> None:
    numbers = [checks.number("--penalties: penalty", penalty, above=0) for penalty in penalties]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"--penalties must be different numbers, got {', '.join(map(str, penalties))}")


def check_algorithm(name: str, options: dict[str, Any], clients: int | None) -> None:
    """Makes it on trial, before the data is; which may have to tell how many clients there are."""
    if clients is not None:
        for option, item in options.items():
            checks.client_axis(option, item, clients)
    dummy = Example("", None, LocalSolver(learning_rate=1.0), 1, 1.0, c=1.0)  # pyright: ignore[reportArgumentType]
    dummy.algorithm(name, **options)


def penalty_option(name: str, penalty: Any) -> dict[str, Any]:
    """The penalty for an algorithm that has one; one that was given to any other is refused."""
    if "penalty" in inspect.signature(getattr(algorithms, name)).parameters:
        return {"penalty": 1 if penalty is None else penalty}
    if penalty is not None:
        raise ValueError(f"--penalty has no effect on {name.replace('_', '-')}, which has none: leave it out")
    return {}


def criterion_option(words: str | None) -> dict[str, str]:
    return {} if words is None else {"criterion": words}


def make_cells(
    names: list[str], penalties: list[float], criteria: str | None, options: dict[str, Any]
) -> dict[str, tuple[str, dict]]:
    """label -> algorithm and its options; options go to those that have them, and some must."""
    takes = {name: inspect.signature(getattr(algorithms, name)).parameters for name in names}
    for option in options:
        if not any(option in known for known in takes.values()):
            raise ValueError(f"--{option.replace('_', '-')} is not an option of any of {', '.join(names)}")
    cells = {}
    for name, known in takes.items():
        chosen = {option: item for option, item in options.items() if option in known}
        for penalty in penalties if "penalty" in known else [None]:
            for words in [None] if criteria is None else split(criteria):
                label = name.replace("_", "-") + ("" if penalty is None else f" {penalty}")
                label += "" if words is None else f", {words}"
                cells[label] = (
                    name,
                    chosen | ({} if penalty is None else {"penalty": penalty}) | criterion_option(words),
                )
    if not cells or not penalties:
        raise ValueError("--algorithms, --penalties and --criteria must name at least one each")
    return cells
