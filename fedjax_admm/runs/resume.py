"""`resume`: going on with the run, the comparison or the tuning in a directory, from what it says about itself."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import examples
from .._version import __version__
from ..core import checks
from ..core.files import DamagedFileError
from ..engine.execution import Execution
from ..problems.problem import Problem
from ..results.comparison import Comparison
from ..results.history import Result
from ..results.tuning import Tuning
from ..storage.comparison_directory import CELLS, read_plan
from ..storage.description import is_plain, recreate
from ..storage.parts import CannotRecreate
from ..storage.run_files import SETTINGS, as_folder, begun_with, read_run_settings
from ..storage.settings import CONDITIONS, EVALUATION, recreate_algorithm
from ..storage.tuning_directory import TUNING, read_tuning_plan, recreate_settings
from .compare import compare
from .progress import making
from .simulate import simulate
from .tune import run_search

SHARED = ("rounds", "participation", "evaluate_every", *EVALUATION, *CONDITIONS)  # what all cells of a comparison have


def resume(run_dir: Any, trust: str | Sequence[str] = (), **settings: Any) -> Result:
    """Resumes the run in `run_dir` from the settings stored there.

    This works for runs made of the package's examples, algorithms and criteria and of optax's optimizers. The
    directory is only data: nothing else that it names is imported. A run with an optimizer, a criterion or an
    algorithm of your own needs `trust`. A run whose problem was made in Python is resumed by the call of `simulate`
    that started it.

    Args:
        run_dir: The run's directory.
        trust: Modules of your own, each with its submodules, that may be imported: this runs their code.
        settings: Arguments of `simulate` that may differ: progress, on_round, checkpoint_seconds, rebuild, and more
            `rounds`.

    Returns:
        The result, bit for bit as if the run had never stopped.

    Raises:
        CannotRecreate: If the run needs anything that is not in its settings or not trusted.

    >>> result = fa.resume("runs/one")  # doctest: +SKIP
    """
    folder = as_folder(run_dir)
    stored = read_run_settings(folder)
    names = ("rounds", "participation", "seed", "evaluate_every", "label")
    with recreating(run_dir, begun_with(folder)):
        if stored.get("initial_params") is not None:
            raise CannotRecreate("initial_params")
        trusted = check_trust(trust)
        algorithm = recreate_algorithm(stored["algorithm"], trusted)
        arguments = {
            name: recreate(stored[name], trusted) for name in (*names, *EVALUATION, *CONDITIONS) if name in stored
        }
        arguments["execution"] = remake_execution(stored["execution"], folder / SETTINGS)
        problem = remake_problem(stored["problem"].get("recipe"), settings.get("progress", True))
    return simulate(problem, algorithm, run_dir=run_dir, **arguments | settings)


def resume_comparison(path: Any, trust: str | Sequence[str] = (), **settings: Any) -> Comparison:
    """Goes on with the comparison in a directory, from what it says about itself.

    Args:
        path: The comparison's directory.
        trust: Modules of your own that may be imported; see `resume`.
        settings: What may change; see `resume`.

    Returns:
        The comparison.

    Raises:
        CannotRecreate: If it needs anything that is not in its settings or not trusted.
    """
    plan = read_plan(as_folder(path))
    with recreating(path, plan.versions):
        if plan.settings.get("initial_params") is not None:
            raise CannotRecreate("initial_params")
        trusted = check_trust(trust)
        algorithms = {label: recreate_algorithm(cell["algorithm"], trusted) for label, cell in plan.cells.items()}
        kept = {name: recreate(plan.settings[name], trusted) for name in SHARED if name in plan.settings}
        execution = remake_execution(plan.settings.get("execution"), as_folder(path) / CELLS)
        problem = remake_problem(plan.problem.get("recipe"), settings.get("progress", True))
    settings = kept | {"execution": execution, "seeds": plan.seeds} | settings
    return compare(problem, algorithms, run_dir=path, baseline=plan.baseline, **settings)


def resume_tuning(
    path: Any,
    trust: str | Sequence[str] = (),
    at_once: int | str = "auto",
    progress: bool = True,
    rounds: int | None = None,
    **settings: Any,
) -> Tuning:
    """Goes on with the tuning in a directory, from what it says about itself.

    Args:
        path: The tuning's directory.
        trust: Modules of your own that may be imported; see `resume`.
        at_once: How many runs are one program; see `tune`.
        progress: Whether to show any.
        rounds: More rounds than the tuning was to have; None: as many as it was.
        settings: What else may change: checkpoint_seconds.

    Returns:
        The tuning.

    Raises:
        CannotRecreate: If it needs anything that is not in its settings or not trusted.
    """
    plan = read_tuning_plan(as_folder(path))
    with recreating(path, plan.versions):
        if plan.shared.get("initial_params") is not None:
            raise CannotRecreate("initial_params")
        trusted = check_trust(trust)
        algorithms = [recreate_algorithm(cell["algorithm"], trusted) for cell in plan.cells.values()]
        kept = {name: recreate(plan.shared[name], trusted) for name in SHARED if name in plan.shared}
        execution = remake_execution(plan.shared.get("execution"), as_folder(path) / TUNING)
        problem = remake_problem(plan.problem.get("recipe"), progress)
    del kept["rounds"]  # the last rung
    search = dict(plan.search)
    if rounds is not None:
        search["rungs"] = [*plan.search["rungs"][:-1], checks.integer("rounds", rounds, at_least=1)]
    shared = kept | {"execution": execution} | settings
    labels = dict(zip(plan.cells, recreate_settings(plan), strict=True))
    return run_search(problem, labels, algorithms, search, path, at_once, progress, shared)


@contextlib.contextmanager
def recreating(run_dir: Any, made_with: Mapping[str, str]) -> Iterator[None]:
    """Names the directory, and both versions if they differ, where something of it cannot be made again."""
    try:
        yield
    except CannotRecreate as error:
        begun, ours = made_with.get("fedjax-admm", __version__), __version__
        by = "" if begun == ours else f" (begun by fedjax_admm {begun}, this is {ours})"
        raise CannotRecreate(error.what, f"{run_dir}{by}", error.module) from None


def check_trust(trust: Any) -> tuple[str, ...]:
    """Checks the names of modules to trust.

    Args:
        trust: A name, or several.

    Returns:
        The names.

    Raises:
        ValueError: If one is no module's name.
    """
    names = (trust,) if isinstance(trust, str) else tuple(trust)
    for name in names:
        if not isinstance(name, str) or not all(word.isidentifier() for word in name.split(".")):
            raise ValueError(f"trust must be names of modules, such as 'my_module', got {name!r}")
    return names


def remake_execution(described: Any, file: Path) -> Execution:
    """Makes what `Execution.settings` described.

    Args:
        described: What the file says.
        file: The file, for messages.

    Returns:
        The execution.

    Raises:
        DamagedFileError: If it is something else.
    """
    if not isinstance(described, Mapping) or not described.keys() <= {field.name for field in fields(Execution)}:
        raise DamagedFileError(f"{file} is damaged: its execution is {described!r}")
    return Execution(**described)


def remake_problem(recipe: Mapping[str, Any] | None, progress: bool = True) -> Problem:
    """Makes the problem of a recipe (`Problem.recipe`): one of the package's examples with plain values.

    Args:
        recipe: The example's name and arguments; None where the problem was made in Python.
        progress: Whether to say that it is being made, if it takes long.

    Returns:
        The problem.

    Raises:
        CannotRecreate: If the recipe is of anything else.
    """
    if recipe is None:
        raise CannotRecreate("the problem, which was made in Python,")
    call = recipe if isinstance(recipe, Mapping) else {}
    name, arguments = str(call.get("example")), call.get("arguments")
    makers = {make: getattr(examples, make) for make in examples.__all__ if make != "Example"}
    known = set(inspect.signature(makers[name]).parameters) if name in makers else set()
    if name not in makers or not isinstance(arguments, Mapping) or not set(arguments) <= known:
        raise CannotRecreate(f"the problem {name!r}, which is not one of {', '.join(makers)} with its arguments,")
    for argument, described in arguments.items():
        if not is_plain(described):
            raise CannotRecreate(f"the problem's {argument}, which was made in Python,")
    arguments = recreate(arguments)
    try:
        with making(name, arguments, progress):
            return makers[name](**arguments).problem
    except TypeError as error:  # a value of the wrong kind
        raise CannotRecreate(f"the problem {name} ({error})") from None
