"""The commands `run` and `compare`, with a subcommand for each example."""

from __future__ import annotations

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
from ..runs.compare import check_seeds, compare
from ..runs.estimate import estimate
from ..runs.progress import making
from ..runs.simulate import check_run, simulate
from ..storage.comparison_directory import CELLS
from ..storage.run_directory import check_place
from ..storage.settings import title
from . import output
from .application import compare_app, run_app
from .failures import carry_past_typer
from .flags import Flags, command, read_value
from .methods import check_algorithm, check_name, check_penalties, criterion_option, make_cells, split_words

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


_criteria = f"{', '.join((FIXED, *RELATIVE))}, or with its numbers, as in sampling_noise(1), {', '.join(MAKERS)}"
_names = ", ".join(name.replace("_", "-") for name in algorithms.__all__)
_ONE = (
    _option("algorithm", str, "fedadmm-insa", f"One of {_names}."),
    _option("penalty", str, "1", "beta, the initial penalty; or one per client, between commas.", read_value),
    _option("criterion", str | None, None, f"When a solve ends, if not as usual for the algorithm: {_criteria}."),
)
_MANY = (
    _option(
        "algorithms", str, "fedavg,fedadmm,fedadmm-in,fedadmm-insa", f"Some of {_names}; the first is the baseline."
    ),
    _option("penalties", str, "1", "Penalties, between commas.", _read_list),
    _option("seeds", str, "0", "Seeds, between commas.", _read_list),
    _option("criteria", str | None, None, f"Each algorithm with each of these, between commas: {_criteria}."),
    _option(
        "target",
        list[str] | None,
        None,
        f"COLUMN=VALUE: also the work until {', '.join(LOSSES)} or a metric is there; may be given again.",
    ),
)
_SIMULATE = {"problem": None, "algorithm": None, "rounds": None, "participation": None, "initial_params": None,
             "on_round": None, "execution": None, "faults": None, "client_time": None, "exchange": None,
             "label": None, "run_dir": "out"}  # fmt: skip
_RUN = Flags([simulate], "Run", renamed=_SIMULATE)
_RUNS = Flags([simulate], "Run", renamed=_SIMULATE | {"seed": None})
_EXECUTION = Flags([Execution], "Run", renamed={"mesh": None})
_FAULTS = Flags([Faults], "Faults", own_defaults=False)
_TIME = Flags([ClientTime], "Client time", own_defaults=False)
_METHOD = Flags(
    [getattr(algorithms, name) for name in reversed(algorithms.__all__)],
    "Algorithm (default: the paper's)",
    renamed=dict.fromkeys(("local", "penalty", "criterion", "penalty_rule", "server", "server_prox")),
    own_defaults=False,
)


def _add(name: str, make: Callable[..., Example]) -> None:
    in_words = str in get_args(get_type_hints(make).get("model"))
    problem = Flags([make], "Example", renamed={"num_clients": "clients"} | ({} if in_words else {"model": None}))
    text = (inspect.getdoc(make) or "").partition("\n")[0]

    def run(**values: Any) -> None:
        name, options = check_name(values["algorithm"]), _METHOD.values(values)
        chosen = {"penalty": values["penalty"]} | options | criterion_option(values["criterion"])
        settings = _RUN.values(values) | _read_circumstances(values)
        check_run(**settings)
        check_algorithm(name, chosen, values["clients"])
        before = None if values["rebuild"] else output.rounds_if_complete(values["out"])
        example = _make_example(make, problem.values(values), values["progress"])
        chosen = example.algorithm(name, **chosen)
        result = simulate(example.problem, chosen, **example.run_settings | settings | {"label": values["algorithm"]})
        note = _write_note(result, settings["client_time"], chosen, example.problem)
        output.show_run(result, values["out"], title({}, example.problem.recipe, values["algorithm"]), note, before)

    def compare_(**values: Any) -> None:
        names = [check_name(word) for word in split_words(values["algorithms"])]
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
        output.show_comparison(compare(example.problem, chosen, targets=targets, **settings), values["out"])

    for where, function, own, flags in ((run_app, run, _ONE, _RUN), (compare_app, compare_, _MANY, _RUNS)):
        groups = (flags, _EXECUTION, problem, _METHOD, _FAULTS, _TIME)
        where.command(name, help=text)(command(carry_past_typer(function), *groups, own=own))


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


for _name, _make in EXAMPLES.items():
    _add(_name, _make)
