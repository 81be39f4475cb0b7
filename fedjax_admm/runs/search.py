"""Which settings a search tries, and after how many rounds it judges them."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core import checks
from ..results.tuning import short
from .ranges import Range

Setting = dict[str, Any]


def make_settings(grid: Any, draws: int | None = None, draws_seed: int = 0) -> list[Setting]:
    """The settings of a grid.

    Args:
        grid: name -> values, of which every combination is one, or a list of settings, each name -> value. With `draws`
            also name -> `Range`.
        draws: How many settings to draw instead of all combinations. Each name's values are drawn evenly: of its
            `draws` equal shares one each, in random order (a Latin hypercube).
        draws_seed: Fixes what is drawn.

    Returns:
        The settings, all different.

    Raises:
        ValueError: There are none, or a value cannot be one.

    >>> make_settings({"penalty": [0.1, 1.0], "c": [0.5]})
    [{'penalty': 0.1, 'c': 0.5}, {'penalty': 1.0, 'c': 0.5}]
    """
    if isinstance(grid, Mapping):
        values = {_check_name(name): _check_values(name, of_name, draws) for name, of_name in grid.items()}
        if not values:
            raise ValueError("grid must have one name at least, got {}: name the arguments of make_algorithm to tune")
        if draws is None:
            settings = [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]
        else:
            settings = _draw(values, checks.integer("draws", draws, at_least=1), draws_seed)
    else:
        settings = _check_list(grid, draws)
    described = [repr(sorted(setting.items(), key=lambda item: item[0])) for setting in settings]
    if draws is None and (double := next((k for k, text in enumerate(described) if text in described[:k]), None)):
        raise ValueError(f"grid must have different settings, got {_say(settings[double])} twice")
    return [setting for k, setting in enumerate(settings) if described[k] not in described[:k]]


def _check_list(grid: Any, draws: int | None) -> list[Setting]:
    settings = list(grid) if isinstance(grid, Sequence) and not isinstance(grid, str) else []
    if not settings or not all(isinstance(setting, Mapping) and setting for setting in settings):
        raise ValueError(
            'grid must be name -> values, such as {"penalty": [0.1, 1.0]}, or a list of settings, such as '
            f'[{{"penalty": 0.1}}], at least one, got {grid!r}'
        )
    if draws is not None:
        raise ValueError(f"draws must be None where grid is a list of settings, got {draws}: give name -> values")
    return [{_check_name(name): _plain(value) for name, value in setting.items()} for setting in settings]


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"grid's names must be words, arguments of make_algorithm, got {name!r}")
    return name


def _check_values(name: str, values: Any, draws: int | None) -> Any:
    if isinstance(values, Range):
        if draws is None:
            raise ValueError(
                f"grid's {name} is a range: say how many settings to draw, draws=24, or give values, such as "
                f"ranges.{values.kind}({values.low:g}, {values.high:g}, 5)"
            )
        return values
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence | np.ndarray | range):
        raise ValueError(f"grid's {name} must be a list of values, or a range of fa.ranges, got {values!r}")
    if not len(values):
        raise ValueError(f"grid's {name} has no values: give one at least, or leave the name out")
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, which print as they are read."""
    return value.item() if isinstance(value, np.generic) else value


def _draw(values: Mapping[str, Any], draws: int, seed: Any) -> list[Setting]:
    random = np.random.default_rng(checks.integer("draws_seed", seed, at_least=0))
    columns = {}
    for name, of_name in values.items():
        shares = (random.permutation(draws) + random.random(draws)) / draws
        pick = of_name.at if isinstance(of_name, Range) else lambda share, all=of_name: all[int(share * len(all))]
        columns[name] = [pick(float(share)) for share in shares]
    return [{name: column[k] for name, column in columns.items()} for k in range(draws)]


def make_algorithms(make_algorithm: Any, settings: Sequence[Setting]) -> list[Any]:
    """What `make_algorithm` makes of each setting; an error names the setting.

    Args:
        make_algorithm: Called with a setting's names as keyword arguments.
        settings: The settings.

    Returns:
        The algorithms.

    Raises:
        ValueError: It does not take a setting's names, or raises.
    """
    checks.function("make_algorithm", make_algorithm, "(**setting) -> algorithm")
    _check_takes(make_algorithm, dict.fromkeys(name for setting in settings for name in setting))
    return [calling(lambda setting=setting: make_algorithm(**setting), setting) for setting in settings]


def calling(function: Callable[[], Any], setting: Mapping[str, Any]) -> Any:
    """What a function of a setting returns; an error of its names the setting."""
    try:
        return function()
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else "no message"
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"make_algorithm with {_say(setting)}: {kind}{text}") from error


def _check_takes(make_algorithm: Callable, names: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(make_algorithm).parameters.values()
    except (TypeError, ValueError):  # a built-in that does not say
        return
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)]
    for name in names:
        if name not in known:
            raise ValueError(f"grid has {name!r}, which make_algorithm does not take: it takes {', '.join(known)}")
    missing = [each.name for each in parameters if each.default is each.empty and each.name in known]
    missing = [name for name in missing if name not in names]
    if missing:
        raise ValueError(f"make_algorithm needs {', '.join(missing)}, which grid does not have: give values for it")


def _say(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short(value)}" for name, value in setting.items())


def make_rungs(rounds: int, settings: int, halving: int | None, min_rounds: int, every: int) -> list[int]:
    """Rounds after which settings are judged.

    Each rung has `halving` times the rounds of the one before, and the last one all; they end with evaluations.

    Args:
        rounds: Of a whole run.
        settings: How many settings there are at first.
        halving: One of so many settings is kept at a rung; None: all run to the end.
        min_rounds: No setting is dropped earlier.
        every: Rounds between two evaluations.

    Returns:
        The rungs, ascending.

    >>> make_rungs(100, 24, 3, 1, 1), make_rungs(100, 24, 3, 20, 10), make_rungs(100, 24, None, 1, 1)
    ([12, 34, 100], [20, 40, 100], [100])
    """
    if halving is None:
        return [rounds]
    rungs, left = [rounds], settings
    while left >= halving:  # the settings that the next cut leaves
        left //= halving
        rung = every * math.ceil(rounds / halving ** len(rungs) / every)
        if rung < min_rounds or rung >= rungs[0]:
            break
        rungs.insert(0, rung)
    return rungs
