"""The commands `run`, `compare` and `tune`, with a subcommand for each example."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from .. import algorithms, examples
from ..algorithms.named_criteria import FIXED, MAKERS, RELATIVE
from ..core.columns import LOSSES
from ..engine.execution import Execution
from ..examples import Example
from ..exchange.client_time import ClientTime
from ..exchange.faults import Faults
from ..results import remarks
from ..results.history import Result
from ..runs import ranges
from ..runs.compare import check_seeds, compare
from ..runs.estimate import estimate
from ..runs.progress import making
from ..runs.simulate import check_run, simulate
from ..runs.tune import tune
from ..storage.comparison_directory import CELLS
from ..storage.run_files import check_place
from ..storage.settings import title
from ..storage.tuning_directory import TUNING
from . import output
from .application import compare_app, run_app, tune_app
from .failures import carry_past_typer
from .flags import Flags, command, read_value
from .methods import (
    check_algorithm,
    check_grid,
    check_name,
    check_penalties,
    criterion_option,
    make_cells,
    penalty_option,
    split_words,
)

LOCAL = ("learning_rate", "max_epochs", "batch_size")  # of the local solver, that a grid may name
EXAMPLES = {
    "linear": examples.linear_regression,
    "mnist": examples.mnist_cnn,
    "cifar10": examples.cifar10_resnet20,
    "mnist-mini": examples.mnist_mini,
    "text": examples.text,
    "text-mini": examples.text_mini,
}


def _option(name: str, kind: Any, default: Any, text: str, parser: Callable | None = None) -> inspect.Parameter:
    option = typer.Option(help=text, rich_help_panel="What", parser=parser, metavar="VALUES" if parser else None)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _read_list(text: Any) -> Any:
    values = read_value(text)
    if values is None:
        raise typer.BadParameter(f"{text!r} is not a list of numbers")
    return values if isinstance(values, list) else [values]


_EXPLAIN = inspect.Parameter(
    "explain",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option("--explain", help="Say what each column or quantity is.", rich_help_panel="What")
    ],
)
_criteria = f"{', '.join((FIXED, *RELATIVE))}, or with its numbers, as in sampling_noise(1), {', '.join(MAKERS)}"
_names = ", ".join(name.replace("_", "-") for name in algorithms.__all__)
_ONE = (
    _option("algorithm", str, "fedadmm-insa", f"One of {_names}."),
    _option(
        "penalty",
        str | None,
        None,
        "beta, the initial penalty, by default 1; or one per client, separated by commas.",
        read_value,
    ),
    _option("criterion", str | None, None, f"When a client stops training, instead of as usual: {_criteria}."),
    _EXPLAIN,
)
_MANY = (
    _option(
        "algorithms", str, "fedavg,fedadmm,fedadmm-in,fedadmm-insa", f"Some of {_names}; the first is the baseline."
    ),
    _option("penalties", str, "1", "Penalties, separated by commas.", _read_list),
    _option("seeds", str, "0", "Seeds, separated by commas.", _read_list),
    _option("criteria", str | None, None, f"Run each algorithm with each of these, separated by commas: {_criteria}."),
    _option(
        "target",
        list[str] | None,
        None,
        f"COLUMN=VALUE: also show the work until {', '.join(LOSSES)} or a metric reached this value; may be repeated.",
    ),
    _EXPLAIN,
)
_TRIED = (
    _option("algorithm", str, "fedadmm-insa", f"One of {_names}."),
    _option(
        "grid",
        list[str] | None,
        None,
        "NAME=VALUES: a number of the algorithm or of its local solver (learning-rate, max-epochs, batch-size) and its "
        "values separated by commas; with --draws also a range: log(0.01,10), linear(0,1), whole(1,20). May be "
        "repeated: every combination is tried.",
    ),
    _option("seeds", str, "0", "Seeds, separated by commas; a setting's score is the mean over them.", _read_list),
    _EXPLAIN,
)
_SIMULATE = {"problem": None, "algorithm": None, "rounds": None, "participation": None, "initial_params": None,
             "on_round": None, "execution": None, "faults": None, "client_time": None, "exchange": None,
             "label": None, "run_dir": "out"}  # fmt: skip
_RUN = Flags([simulate], "Run", renamed=_SIMULATE)
_RUNS = Flags([simulate], "Run", renamed=_SIMULATE | {"seed": None})
_TUNE = Flags(
    [tune],
    "Search",
    renamed=dict.fromkeys(("problem", "make_algorithm", "grid", "rounds", "seeds", "run_dir", "progress")),
)
_EXECUTION = Flags([Execution], "Run", renamed={"mesh": None})
_FAULTS = Flags([Faults], "Faults", own_defaults=False)
_TIME = Flags([ClientTime], "Client time", own_defaults=False)
_METHOD = Flags(
    [getattr(algorithms, name) for name in reversed(algorithms.__all__)],
    "Algorithm (default: the paper's)",
    renamed=dict.fromkeys(("local", "penalty", "criterion", "penalty_rule", "server", "server_prox")),
    own_defaults=False,
)

_SEVERAL = {"run_dir": "out", "num_clients": "clients"}  # arguments of functions that no group of flags is made of


def _add(name: str, make: Callable[..., Example]) -> None:
    in_words = str in get_args(get_type_hints(make).get("model"))
    problem = Flags([make], "Example", renamed={"num_clients": "clients"} | ({} if in_words else {"model": None}))
    text = (inspect.getdoc(make) or "").partition("\n")[0]

    def run(**values: Any) -> None:
        name, options = check_name(values["algorithm"]), _METHOD.values(values)
        chosen = penalty_option(name, values["penalty"]) | options | criterion_option(values["criterion"])
        settings = _RUN.values(values) | _read_circumstances(values)
        check_run(**settings)
        check_algorithm(name, chosen, values["clients"])
        before = None if values["rebuild"] else output.rounds_if_complete(values["out"])
        example = _make_example(make, problem.values(values), values["progress"])
        chosen = example.algorithm(name, **chosen)
        result = simulate(example.problem, chosen, **example.run_settings | settings | {"label": values["algorithm"]})
        note = _write_note(result, settings["client_time"], chosen, example.problem)
        name = title({}, example.problem.recipe, values["algorithm"])
        output.show_run(result, values["out"], name, note, before, values["explain"])

    def compare_(**values: Any) -> None:
        names = [check_name(word, "--algorithms") for word in split_words(values["algorithms"])]
        check_seeds(values["seeds"])
        if values["out"] is not None:
            check_place(Path(values["out"]), CELLS)
        settings = _RUNS.values(values) | _read_circumstances(values)
        checked: dict[str, Any] = settings | {"run_dir": None}
        check_run(**checked)
        check_penalties(values["penalties"])
        cells = make_cells(names, values["penalties"], values["criteria"], _METHOD.values(values))
        for name, options in cells.values():
            check_algorithm(name, options, values["clients"])
        targets = [read_target(text) for text in values["target"] or ()]
        example = _make_example(make, problem.values(values), values["progress"])
        chosen = {label: example.algorithm(name, **options) for label, (name, options) in cells.items()}
        settings |= example.run_settings | {"seeds": values["seeds"]}
        comparison = compare(example.problem, chosen, targets=targets, **settings)
        output.show_comparison(comparison, values["out"], explain=values["explain"])

    def tune_(**values: Any) -> None:
        name, options = check_name(values["algorithm"]), _METHOD.values(values)
        settings = _RUNS.values(values) | _read_circumstances(values)
        settings.pop("rebuild")
        if values["out"] is not None:
            check_place(Path(values["out"]), TUNING)
        checked: dict[str, Any] = settings | {"run_dir": None}
        check_run(**checked)
        if not values["grid"]:
            raise ValueError("--grid is missing: give what to try, NAME=VALUES, such as --grid penalty=0.1,1,10")
        grid = dict(read_grid(text) for text in values["grid"])
        check_grid(name, grid, LOCAL)
        example = _make_example(make, problem.values(values), values["progress"])

        def make_algorithm(**setting: Any) -> Any:
            own = {word: value for word, value in setting.items() if word in LOCAL}
            local = dataclasses.replace(example.local, **own)
            others = {word: value for word, value in setting.items() if word not in LOCAL}
            return dataclasses.replace(example, local=local).algorithm(name, **options | others)

        chosen = example.run_settings | settings | _TUNE.values(values) | {"seeds": values["seeds"]}
        output.show_tuning(tune(example.problem, make_algorithm, grid, **chosen), values["out"], values["explain"])

    for where, function, own, flags in (
        (run_app, run, _ONE, (_RUN,)),
        (compare_app, compare_, _MANY, (_RUNS,)),
        (tune_app, tune_, _TRIED, (_TUNE, _RUNS)),
    ):
        groups = (*flags, _EXECUTION, problem, _METHOD, _FAULTS, _TIME)
        where.command(name, help=text)(command(carry_past_typer(function), *groups, own=own, several=_SEVERAL))


def _write_note(result: Result, client_time: ClientTime | None, algorithm: Any, problem: Any) -> str | None:
    """What to say of a run of which the server used nothing; None for any other."""
    if client_time is None:
        return remarks.note(result)
    estimated = estimate(problem, algorithm)
    floats = estimated.floats_down + estimated.floats_up
    return remarks.note(result, client_time.shortest_solve(result.cohorts, result.solves, floats))


def _make_example(make: Callable[..., Example], arguments: dict[str, Any], progress: bool) -> Example:
    with making(make.__name__, arguments, progress):
        return make(**arguments)


def _read_circumstances(values: dict[str, Any]) -> dict[str, Any]:
    """Execution, faults and clients' time, as far as flags of them were given."""
    faults, time = _FAULTS.values(values), _TIME.values(values)
    if time and "gradients_per_second" not in time:
        raise ValueError(
            f"--{next(iter(time)).replace('_', '-')} needs --gradients-per-second: give the clients' speed"
        )
    return {
        "execution": Execution(**_EXECUTION.values(values)),
        "faults": Faults(**faults) if faults else None,
        "client_time": ClientTime(**time) if time else None,
    }


def read_target(text: str) -> tuple[str, float]:
    column, _, number = text.partition("=")
    if not isinstance(target := read_value(number), int | float):
        raise ValueError(f"--target must be COLUMN=VALUE, such as loss=1.5 or accuracy=0.9, got {text!r}")
    return column.replace("-", "_"), float(target)


def read_grid(text: str) -> tuple[str, Any]:
    """A name and its values or its range, from NAME=VALUES."""
    name, _, values = text.partition("=")
    kind, bracket, ends = values.partition("(")
    if bracket and kind in ranges.__all__ and ends.endswith(")"):
        low_and_high = read_value(ends[:-1])
        if not isinstance(low_and_high, list) or len(low_and_high) != 2:
            raise ValueError(f"--grid {name}: a range must be {kind}(LOW,HIGH), got {values!r}")
        return name.replace("-", "_"), getattr(ranges, kind)(*low_and_high)
    if not name or not values:
        raise ValueError(f"--grid must be NAME=VALUES, such as penalty=0.1,1,10, got {text!r}")
    read = read_value(values)
    return name.replace("-", "_"), read if isinstance(read, list) else [read]


for _name, _make in EXAMPLES.items():
    _add(_name, _make)
