"""The parts that settings may name: the package's records, optax's optimizers, and what a user trusts.

A run directory is data, so a name in it is looked up here before anything is imported. Names do not mention where a
class is kept ("fedjax_admm:FedADMM", "optax:sgd"), so that runs survive its move.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import optax

from .. import algorithms, exchange
from ..algorithms import server_optimizers
from ..core.discovery import find_modules

# By which a part is known: an algorithm, a criterion, a local solver, a server's step, a penalty rule, a stage, what
# a server finds out, who is available.
_MEMBERS = ("reply", "tolerance", "step", "apply", "__call__", "absent", "learn", "available")


def _find_records() -> dict[str, type]:
    """name -> class, of every part in the package's own folders: a new one is found by being there."""
    records: dict[str, type] = {}
    for package in (algorithms, exchange):
        for module in find_modules(package.__name__, package.__path__, nested=True):
            own = [kind for kind in vars(module).values() if isinstance(kind, type)]
            for kind in own:
                members = {name for base in kind.__mro__ for name in vars(base)}
                is_part = dataclasses.is_dataclass(kind) and not members.isdisjoint(_MEMBERS)
                if is_part and kind.__module__ == module.__name__:
                    records[f"fedjax_admm:{kind.__name__}"] = kind
    return records


RECORDS = _find_records()
# The package's own optimizers, as "fedjax_admm:server_optimizers.adam".
FUNCTIONS = {
    f"fedjax_admm:server_optimizers.{name}": function
    for name, function in vars(server_optimizers).items()
    if inspect.isfunction(function) and function.__module__ == server_optimizers.__name__ and name[0] != "_"
}
OPTIMIZERS = (
    "adabelief", "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad",
    "fromage", "lamb", "lars", "lbfgs", "lion", "noisy_sgd", "novograd", "optimistic_adam",
    "optimistic_adam_v2", "optimistic_gradient_descent", "polyak_sgd", "radam", "rmsprop", "rprop", "sgd",
    "sign_sgd", "signum", "sm3", "yogi",
)  # fmt: skip
# What version 0.1.0 wrote: the modules of its time.
FORMER_NAMES = {
    "fedjax_admm.algorithms.admm:FedADMM": "fedjax_admm:FedADMM",
    "fedjax_admm.algorithms.averaging:Averaging": "fedjax_admm:Averaging",
    "fedjax_admm.algorithms.feddyn:FedDyn": "fedjax_admm:FedDyn",
    "fedjax_admm.algorithms.scaffold:Scaffold": "fedjax_admm:Scaffold",
    "fedjax_admm.client_time:ClientTime": "fedjax_admm:ClientTime",
    "fedjax_admm.criteria:DecayingTolerance": "fedjax_admm:DecayingTolerance",
    "fedjax_admm.criteria:RelativeResidual": "fedjax_admm:RelativeResidual",
    "fedjax_admm.criteria:RunToMaximum": "fedjax_admm:RunToMaximum",
    "fedjax_admm.criteria:SamplingNoise": "fedjax_admm:SamplingNoise",
    "fedjax_admm.criteria:SummableTolerance": "fedjax_admm:SummableTolerance",
    "fedjax_admm.faults:Faults": "fedjax_admm:Faults",
    "fedjax_admm.local_solver:LocalSolver": "fedjax_admm:LocalSolver",
    "fedjax_admm.penalties:Constant": "fedjax_admm:Constant",
    "fedjax_admm.penalties:ResidualBalancing": "fedjax_admm:ResidualBalancing",
} | {f"optax._src.alias:{name}": f"optax:{name}" for name in OPTIMIZERS}
# Fields of 0.1.0 that are another record's now: (record, field) -> (field, record, its field).
FORMER_FIELDS = {
    ("fedjax_admm:Scaffold", "server_learning_rate"): ("server", "fedjax_admm:ServerStep", "learning_rate"),
}
_NAMES = {part: name for name, part in (RECORDS | FUNCTIONS).items()}


class CannotRecreate(ValueError):
    """The settings describe something that they cannot make again.

    Args:
        what: The sentence's subject.
        run_dir: Where the run is.
        module: The module that would have to be trusted, if that would help.

    >>> print(CannotRecreate("initial_params", "runs/one"))
    initial_params cannot be made again from the settings: call simulate or compare as before, with run_dir=runs/one
    """

    def __init__(self, what: str, run_dir: Any = "the same directory", module: str | None = None) -> None:
        self.what, self.module = what, module
        flags = f'--trust {module} (in Python trust=["{module}"])'
        trust = f"if {module} is yours, resume with {flags}, which imports it; or " if module else ""
        super().__init__(
            f"{what} cannot be made again from the settings: {trust}call simulate or compare as before, with "
            f"run_dir={run_dir}"
        )


def current_name(name: str) -> str:
    """The name that this version gives to what a former one called `name`.

    Args:
        name: What settings say.

    Returns:
        The present name, also where a record is named with its module or a package above that; `name` itself where it
        is no former one.

    >>> current_name("fedjax_admm.local_solver:LocalSolver")
    'fedjax_admm:LocalSolver'
    >>> current_name("fedjax_admm.algorithms.penalties:Spectral")
    'fedjax_admm:Spectral'
    """
    module, _, kind = name.partition(":")
    placeless = f"fedjax_admm:{kind}"
    if placeless in RECORDS and f"{RECORDS[placeless].__module__}.".startswith(f"{module}."):
        return placeless
    return FORMER_NAMES.get(name, name)


def name_part(part: Any) -> str | None:
    """Names a class or function, so that `find_part` finds it again.

    Nothing is imported: what another process could import is what this one has imported.

    Args:
        part: A class or a function.

    Returns:
        The name, or None where nothing of this name could be found again (a lambda, a local function).
    """
    if (isinstance(part, type) or inspect.isfunction(part)) and part in _NAMES:
        return _NAMES[part]
    name = getattr(part, "__qualname__", None)
    if name in OPTIMIZERS and getattr(optax, name, None) is part:
        return f"optax:{name}"
    module = getattr(part, "__module__", None)
    if not name or module not in sys.modules or module == "__main__":
        return None
    return f"{module}:{name}" if _follow(sys.modules[module], name) is part else None


def find_part(name: Any, trust: Sequence[str] = ()) -> Any:
    """Finds a class or function by its name, in the tables of this module or in a trusted module.

    Args:
        name: What settings say.
        trust: Modules, each with its submodules, that may be imported.

    Returns:
        The class or function.

    Raises:
        CannotRecreate: If it is in no table and no trusted module; nothing was imported then.
    """
    name = current_name(name) if isinstance(name, str) else repr(name)
    if name in RECORDS or name in FUNCTIONS:
        return RECORDS.get(name) or FUNCTIONS[name]
    module, _, path = name.partition(":")
    if module == "optax" and path in OPTIMIZERS and hasattr(optax, path):
        return getattr(optax, path)
    if module == "__main__":
        raise CannotRecreate(f"{path}, which was defined in a script or a notebook,")
    ours = module == "optax" or module.partition(".")[0] == "fedjax_admm"
    if ours or not path or not all(word.isidentifier() for word in module.split(".")):
        raise CannotRecreate(f"{name}, which this version does not have,")
    if not any(module == trusted or module.startswith(f"{trusted}.") for trusted in trust):
        raise CannotRecreate(f"{name}, which is not a part of fedjax_admm,", module=module)
    try:
        part = _follow(importlib.import_module(module), path)
    except ImportError:
        raise CannotRecreate(f"{name}, which cannot be imported,") from None
    if getattr(part, "__module__", None) != module:  # else a trusted module would vouch for all that it imports
        raise CannotRecreate(f"{name}, which {module} does not define,")
    return part


def renew_names(described: Mapping[str, Any]) -> dict[str, Any]:
    """A description with the names that this version gives."""
    names = {key: described.get(key) for key in ("record", "function")}
    return dict(described) | {key: current_name(name) for key, name in names.items() if isinstance(name, str)}


def move_fields(described: Mapping[str, Any]) -> dict[str, Any]:
    """A described record with a present name, its fields where this version has them.

    >>> move_fields({"record": "fedjax_admm:Scaffold", "server_learning_rate": 0.5})["server"]
    {'record': 'fedjax_admm:ServerStep', 'learning_rate': 0.5}
    """
    moved = dict(described)
    for (record, field), (place, part, name) in FORMER_FIELDS.items():
        if moved.get("record") == record and field in moved:
            moved[place] = {"record": part, name: moved.pop(field)}
    return moved


def fill_defaults(described: dict[str, Any], describe: Any) -> dict[str, Any]:
    """Adds to a described record the fields that it got after it was described, with their defaults.

    Args:
        described: A record's description, with a present name.
        describe: Describes a value.

    Returns:
        The description with all fields that have a default.
    """
    name = described.get("record")
    fields = dataclasses.fields(RECORDS[name]) if isinstance(name, str) and name in RECORDS else ()
    return {f.name: describe(f.default) for f in fields if f.init and f.default is not dataclasses.MISSING} | described


def _follow(part: Any, path: str) -> Any:
    for word in path.split("."):
        part = getattr(part, word, None)
    return part
