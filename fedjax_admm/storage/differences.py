"""Where two runs' settings differ, and whether one may go on with the other's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..core.environment import versions
from ..engine.execution import Execution
from . import parts
from .description import describe, shorten
from .settings import CONDITIONS, EVALUATION


def differences(stored: Any, current: Any, place: str = "") -> Iterator[str]:
    """Where two descriptions differ, a line each: what, the stored value and the current one."""
    if isinstance(stored, Mapping) and isinstance(current, Mapping) and stored.keys() == current.keys():
        for key in stored:
            yield from differences(stored[key], current[key], f"{place}.{key}" if place else key)
    # 1 client is not all of them, 1.0.
    elif stored != current or isinstance(stored, float) != isinstance(current, float):
        yield f"{place}: {shorten(stored)} there, {shorten(current)} now"


def refuse_differences(
    run_dir: Any, kind: str, stored: Mapping[str, Any], current: Mapping[str, Any], made_with: Mapping[str, str]
) -> None:
    """Refuses to go on with other settings than those of the run or comparison in a directory.

    Args:
        run_dir: The directory.
        kind: "run" or "comparison".
        stored: Its settings, described.
        current: Those that were given now, described.
        made_with: The versions that wrote `stored`.

    Raises:
        ValueError: If they differ in more than may change.
    """
    lines = _list_differences(stored, current, made_with)
    if not lines:
        return
    shown = "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")
    begun, ours = (known.get("fedjax-admm") for known in (made_with, versions()))
    by = "" if begun == ours else f", begun by fedjax_admm {begun} (this is {ours}),"
    raise ValueError(f"run_dir {str(run_dir)!r} has a {kind}{by} with other settings ({shown}): give another directory")


def is_longer(stored: Mapping[str, Any], current: Mapping[str, Any], made_with: Mapping[str, str]) -> bool:
    """Whether a run's current settings are the stored ones with more rounds, and nothing else.

    Args:
        stored: Its settings, described.
        current: Those that were given now, described.
        made_with: The versions that wrote `stored`.
    """
    if stored["rounds"] >= current["rounds"]:
        return False
    return not _list_differences(stored, {**current, "rounds": stored["rounds"]}, made_with)


def _list_differences(stored: Mapping[str, Any], current: Mapping[str, Any], made_with: Mapping[str, str]) -> list[str]:
    """Where two descriptions differ in more than may change, a line each."""
    same_versions = made_with == versions()
    stored, current = _comparable(stored, same_versions), _comparable(current, same_versions)
    problems = [settings["problem"] for settings in (stored, current) if "problem" in settings]
    if any(problem.get("recipe") is None for problem in problems):
        for problem in problems:
            problem.pop("recipe", None)
    return list(differences(stored, current))


def _comparable(settings: Mapping[str, Any], same_versions: bool) -> dict[str, Any]:
    """Settings with present names and defaults, without what may differ: where the data is kept does not change it."""
    comparable = dict.fromkeys(CONDITIONS) | EVALUATION | _renew(settings)
    if isinstance(comparable.get("execution"), dict):
        comparable["execution"] = Execution().settings() | comparable["execution"]
    comparable.pop("label", None)
    if "problem" in comparable and comparable["problem"].get("recipe"):
        problem = comparable["problem"]
        # An argument that another version does not have is None where nobody asked for anything else. The rounds are
        # those of the run, which has them too.
        given = problem["recipe"]["arguments"].items()
        arguments = {k: v for k, v in given if k not in ("data_dir", "rounds") and v is not None}
        problem["recipe"] = problem["recipe"] | {"arguments": arguments}
        problem.pop("optimal_loss", None)  # follows from the recipe; solved for again, it may differ in rounding
    if not same_versions:  # another version of JAX or optax may write the same computation in another way
        for part in comparable.values():
            for name in ("computes", "optimizer_step"):
                if isinstance(part, dict):
                    part.pop(name, None)
    return comparable


def _renew(described: Any) -> Any:
    """A description as this version would write it: its names, and the defaults of fields that were not there yet."""
    if isinstance(described, list):
        return [_renew(item) for item in described]
    if not isinstance(described, Mapping):
        return described
    moved = parts.move_fields(parts.renew_names(described))
    return parts.fill_defaults({key: _renew(item) for key, item in moved.items()}, describe)
