"""The command `fedjax-admm`."""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from .. import algorithms, examples
from .._version import __version__
from ..algorithms.local_solver import LocalSolver
from ..algorithms.named_criteria import FIXED, MAKERS, RELATIVE, split
from ..core import checks, environment
from ..core.columns import LOSSES
from ..core.files import DamagedFileError
from ..data import cache, sources
from ..engine import processes
from ..engine.devices import use_cpu_devices
from ..engine.execution import Execution
from ..examples import Example
from ..exchange.client_time import ClientTime
from ..exchange.faults import Faults
from ..results import remarks
from ..results.history import DivergenceError, Result
from ..runs.compare import check_seeds, compare
from ..runs.estimate import estimate
from ..runs.interrupts import Interrupted
from ..runs.progress import making
from ..runs.resume import resume, resume_comparison
from ..runs.simulate import check_run, simulate
from ..show.report import write_report
from ..storage.comparison_directory import CELLS, read_comparison
from ..storage.run_directory import check_place, read_run
from ..storage.settings import title
from . import output
from .flags import Flags, command, read_value

EXAMPLES = {
    "linear": examples.linear_regression,
    "mnist": examples.mnist_cnn,
    "cifar10": examples.cifar10_resnet20,
    "mnist-mini": examples.mnist_mini,
}
RUN_HELP = """One run of one algorithm on one of the examples.

Examples:

fedjax-admm run linear --clients 20 --rows-per-client 50 --dimension 100 --batch-size 10 --rounds 30 --out runs/first

fedjax-admm run mnist-mini --algorithm fedadmm --rounds 5 --max-epochs 2

The same command again, or `fedjax-admm resume runs/first`, goes on with a run that was interrupted."""
COMPARE_HELP = """Algorithms, penalties and seeds on one example, with the same clients and rows for the same seed.

Example:

fedjax-admm compare linear --clients 20 --rows-per-client 50 --dimension 100 --batch-size 10 --rounds 10 \
--algorithms fedadmm,fedadmm-insa --penalties 0.1,1 --seeds 0,1 --out runs/comparison

The same command again, or `fedjax-admm resume runs/comparison`, goes on; more seeds or algorithms are added."""

app = typer.Typer(no_args_is_help=True, add_completion=True, rich_markup_mode="rich", pretty_exceptions_enable=False)
run_app, compare_app = typer.Typer(no_args_is_help=True), typer.Typer(no_args_is_help=True)
data_app = typer.Typer(no_args_is_help=True, help="Data sets on disk.")
app.add_typer(run_app, name="run", help=RUN_HELP)
app.add_typer(compare_app, name="compare", help=COMPARE_HELP)
app.add_typer(data_app, name="data")


def _split_words(text: str) -> list[str]:
    return [word.strip().replace("-", "_") for word in str(text).split(",") if word.strip()]


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
    problem = Flags([make], "Example", renamed={"num_clients": "clients", "model": None})
    text = (inspect.getdoc(make) or "").partition("\n")[0]

    def run(**values: Any) -> None:
        name, options = _check_name(values["algorithm"]), _METHOD.values(values)
        chosen = {"penalty": values["penalty"]} | options | _criterion(values["criterion"])
        settings = _RUN.values(values) | _read_circumstances(values)
        check_run(**settings)
        _check_algorithm(name, chosen, values["clients"])
        before = None if values["rebuild"] else output.rounds_if_complete(values["out"])
        example = _make_example(make, problem.values(values), values["progress"])
        chosen = example.algorithm(name, **chosen)
        result = simulate(example.problem, chosen, **example.run_settings | settings | {"label": values["algorithm"]})
        note = _write_note(result, settings["client_time"], chosen, example.problem)
        output.show_run(result, values["out"], title({}, example.problem.recipe, values["algorithm"]), note, before)

    def compare_(**values: Any) -> None:
        names = [_check_name(word) for word in _split_words(values["algorithms"])]
        check_seeds(values["seeds"])
        if values["out"] is not None:
            check_place(Path(values["out"]), CELLS)
        settings = _RUNS.values(values) | _read_circumstances(values)
        checked: dict[str, Any] = settings | {"run_dir": None}
        check_run(**checked)
        _check_penalties(values["penalties"])
        cells = _make_cells(names, values["penalties"], values["criteria"], _METHOD.values(values))
        for name, options in cells.values():
            _check_algorithm(name, options, values["clients"])
        targets = [read_target(text) for text in values["target"] or ()]
        example = _make_example(make, problem.values(values), values["progress"])
        chosen = {label: example.algorithm(name, **options) for label, (name, options) in cells.items()}
        settings |= example.run_settings | {"seeds": values["seeds"]}
        output.show_comparison(compare(example.problem, chosen, targets=targets, **settings), values["out"])

    for where, function, own, flags in ((run_app, run, _ONE, _RUN), (compare_app, compare_, _MANY, _RUNS)):
        groups = (flags, _EXECUTION, problem, _METHOD, _FAULTS, _TIME)
        where.command(name, help=text)(command(_carry_past_typer(function), *groups, own=own))


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


def _check_name(word: str) -> str:
    names = tuple(name.replace("_", "-") for name in algorithms.__all__)
    return checks.choice("algorithm", word.replace("_", "-"), names).replace("-", "_")


def _check_penalties(penalties: list[Any]) -> None:
    numbers = [checks.number("penalty", penalty, above=0) for penalty in penalties]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"--penalties must be different numbers, got {', '.join(map(str, penalties))}")


def _check_algorithm(name: str, options: dict[str, Any], clients: int) -> None:
    """Makes it on trial, before the data is."""
    for option, item in options.items():
        checks.client_axis(option, item, clients)
    dummy = Example("", None, LocalSolver(learning_rate=1.0), 1, 1.0, c=1.0)  # pyright: ignore[reportArgumentType]
    dummy.algorithm(name, **options)


def _criterion(words: str | None) -> dict[str, str]:
    return {} if words is None else {"criterion": words}


def _make_cells(
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
                cells[label] = (name, chosen | ({} if penalty is None else {"penalty": penalty}) | _criterion(words))
    if not cells or not penalties:
        raise ValueError("--algorithms, --penalties and --criteria must name at least one each")
    return cells


def read_target(text: str) -> tuple[str, float]:
    column, _, number = text.partition("=")
    if not isinstance(target := read_value(number), int | float):
        raise ValueError(f"--target must be COLUMN=VALUE, such as loss=1.5 or accuracy=0.9, got {text!r}")
    return column.replace("-", "_"), float(target)


_UNFIT_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EROFS)


class _Stopped(Exception):
    """A KeyboardInterrupt, past typer, which would end the process by itself."""


class _Diverged(Exception):
    """A DivergenceError; its argument is where the run is, if it is anywhere."""


def _carry_past_typer(function: Callable) -> Callable:
    @functools.wraps(function)
    def run(*arguments: Any, **values: Any) -> None:
        try:
            function(*arguments, **values)
        except KeyboardInterrupt as error:
            raise _Stopped from error
        except DivergenceError as error:
            raise _Diverged(values.get("out") or values.get("directory")) from error

    return run


for _name, _make in EXAMPLES.items():
    _add(_name, _make)

Directory = Annotated[str, typer.Argument(metavar="DIR", help="What --out was.")]


@app.command("resume")
@_carry_past_typer
def _resume(
    directory: Directory,
    progress: Annotated[bool, typer.Option(help="Show a bar, or a line every few seconds.")] = True,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="A module of your own that the run has parts of and that may be imported, which runs its code, with "
            "its submodules; may be given again.",
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Where records are damaged, go back to before the damage.")
    ] = False,
) -> None:
    """Goes on with the run or the comparison in DIR. Nothing that DIR names is imported unless --trust names it too.

    Example:

    fedjax-admm resume runs/first
    """
    choices = {"trust": trust or (), "progress": progress, "rebuild": rebuild}
    if (Path(directory) / CELLS).exists():
        complete = not rebuild and not any(read_comparison(directory).missing.values())
        output.show_comparison(resume_comparison(directory, **choices), directory, complete)
        return
    before = None if rebuild else output.rounds_if_complete(directory)
    result, stored = resume(directory, **choices), read_run(directory)
    output.show_run(result, directory, stored.title, stored.note, before)


@app.command("report")
@_carry_past_typer
def _report(
    directory: Directory,
    output: Annotated[str | None, typer.Option(help="The file; by default report.html in DIR.")] = None,
) -> None:
    """Writes one HTML page about the run or the comparison in DIR: table, curves, settings, machine.

    Example:

    fedjax-admm report runs/first
    """
    print(write_report(directory, output))


DataDir = Annotated[str | None, typer.Option(help="By default TFDS_DATA_DIR, else TFDS's own folder.")]


@data_app.command("list")
def _list_data(data_dir: DataDir = None) -> None:
    """Data sets that can be loaded.

    Example:

    fedjax-admm data list
    """
    print("\n".join(sources.available(data_dir)))


@data_app.command("prepare")
def _prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As TFDS calls it: mnist, cifar10, emnist/balanced, ...")],
    data_dir: DataDir = None,
) -> None:
    """Downloads a data set with TFDS; needs fedjax_admm[tfds-download]."""
    print(sources.prepare(name, data_dir))


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


def _join(how: str) -> None:
    """Joins the other processes: "auto", or "HOST:PORT,PROCESSES,THIS"."""
    address, number, this = how.split(",") if how.count(",") == 2 else (how, "", "")
    if how == "auto":
        try:
            processes.initialize_distributed()
        except ValueError as error:  # which names Python's arguments
            reason = str(error).partition("(")[2].rpartition(")")[0]
            text = f"--distributed auto found no cluster around it ({reason}): give HOST:PORT,PROCESSES,THIS (from 0)"
            raise ValueError(text) from None
    elif ":" in address and number.isdigit() and this.isdigit() and int(this) < int(number):
        processes.initialize_distributed(address, int(number), int(this))
    else:
        raise ValueError(f"--distributed must be auto or HOST:PORT,PROCESSES,THIS (from 0), got {how!r}")


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
    distributed: Annotated[
        str | None,
        typer.Option(
            help="Run with other processes that have the same command: auto (SLURM, Open MPI, Kubernetes, TPU pods), "
            "or HOST:PORT of process 0, the number of processes, and which this is, from 0, between commas."
        ),
    ] = None,
) -> None:
    """A simulator of federated optimisation: FedADMM-InSa and others, on the paper's examples.

    Begin with: fedjax-admm run linear --clients 20 --rows-per-client 50 --dimension 100 --rounds 30
    """
    if distributed is not None:
        _join(distributed)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; see `fedjax_admm.cli.main`."""
    with contextlib.suppress(RuntimeError):  # called from Python after JAX has started
        use_cpu_devices()
        environment.keep_programs(cache.folder() / "xla")
    try:
        code = typer.main.get_command(app).main(arguments, prog_name="fedjax-admm", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except TyperException as error:
        word = getattr(error, "option_name", None)
        if word and getattr(error, "possibilities", None):
            error.possibilities = _find_near(word, error.possibilities)  # pyright: ignore[reportAttributeAccessIssue]
        text = getattr(error, "format_message", error.__str__)()
        return _say(text, 2) if text else 2  # without arguments there is help, and no more to say
    except _Diverged as error:
        # It can be resumed, as any run on disk; with the same settings it will end in the same round.
        kept = (
            f"; {error.args[0]} has what was done and can be resumed, but will end there again" if error.args[0] else ""
        )
        return _say(f"{error.__cause__}{kept}", 1)
    except _Stopped as stopped:
        return _report_stop(stopped.__cause__)
    except (ValueError, DamagedFileError, FileNotFoundError, ImportError) as error:
        return _say(str(error), 2)
    except output.EveryRunDivergedError as error:
        return _say(str(error), 1)
    except (OSError, MemoryError, processes.LostProcessError, environment.DEVICE_ERROR) as error:
        if isinstance(error.__cause__, DamagedFileError):
            return _say(str(error), 2)
        if isinstance(error, OSError) and error.errno in _UNFIT_PATH:
            return _say(f"{str(error.filename)!r} cannot be used ({error.strerror}): give another directory", 2)
        return _say(f"the run failed: {str(error) or type(error).__name__}", 1)


def _find_near(word: str, known: list[str]) -> list[str]:
    """Of the flags that typer would suggest those that a slip of the finger explains.

    >>> _find_near("--round", ["--dropout", "--out", "--rounds"])
    ['--rounds']
    """
    words = {name.lstrip("-"): name for name in known}
    return [words[near] for near in difflib.get_close_matches(word.lstrip("-"), words, n=3, cutoff=0.75)]


def _report_stop(cause: BaseException | None) -> int:
    if isinstance(cause, Interrupted) and cause.run_dir is not None:
        return _say(f"stopped after round {cause.round}; to go on: fedjax-admm resume {shlex.quote(cause.run_dir)}", 1)
    text = "" if isinstance(cause, Interrupted) else str(cause)  # which speaks of Python
    _say(text or "stopped; of a run with --out everything is kept that was saved", 1)
    sys.stdout.flush()
    os._exit(1)  # at once: an orderly exit would wait for the round that is being computed


def _say(text: str, code: int) -> int:
    print(f"fedjax-admm: {' '.join(text.split())}", file=sys.stderr, flush=True)
    return code
