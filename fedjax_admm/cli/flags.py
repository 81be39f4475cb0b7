"""Typed arguments of functions as flags of the command line: one mechanism for all of them.

A function's signature gives the names, types and defaults, the section "Args:" of its docstring the help; of a record,
"Attributes:".
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.markup import escape


class Flags:
    """The arguments of some functions as flags.

    Where several functions have an argument, the first that documents it gives its help.

    Args:
        functions: The functions, or records.
        panel: The heading under which help shows them.
        renamed: argument -> its flag, where that is another word; None leaves the argument out.
        own_defaults: Whether the functions' defaults are the flags'; without, a flag that is not given is left out of
            `values`, so that each function's own default holds.

    Raises:
        ValueError: An argument has no help.

    >>> flags = Flags([fa.partition.iid], "Data", renamed={"num_clients": "clients", "num_examples": None})
    >>> [parameter.name for parameter in flags.parameters()]
    ['clients', 'seed']
    >>> flags.values({"clients": 5, "seed": 1, "other": 2})
    {'num_clients': 5, 'seed': 1}
    """

    def __init__(
        self,
        functions: Iterable[Callable],
        panel: str,
        *,
        renamed: Mapping[str, str | None] | None = None,
        own_defaults: bool = True,
    ) -> None:
        self._panel, self._own_defaults = panel, own_defaults
        self._flags: dict[str, tuple[str, inspect.Parameter, str]] = {}  # argument -> flag, parameter, help
        renamed, without_help = renamed or {}, {}
        for function in functions:
            texts, hints = read_args(inspect.getdoc(function) or ""), typing.get_type_hints(function)
            for name, parameter in inspect.signature(function).parameters.items():
                flag = renamed.get(name, name)
                if flag is None or parameter.kind is parameter.VAR_KEYWORD or name in self._flags:
                    continue
                if name in texts:
                    typed = parameter.replace(annotation=hints.get(name, Any))
                    self._flags[name] = (flag, typed, texts[name])
                else:
                    without_help.setdefault(name, function.__name__)
        for name, function in without_help.items():
            if name not in self._flags:
                raise ValueError(f'{function} has no help for {name}: add it to "Args:" in the docstring')

    def names(self) -> dict[str, str]:
        """argument -> its flag."""
        return {name: flag for name, (flag, _, _) in self._flags.items()}

    def parameters(self) -> list[inspect.Parameter]:
        """For typer: keyword-only parameters with annotated types."""
        return [self._parameter(flag, parameter, text) for flag, parameter, text in self._flags.values()]

    def values(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Of the command's values those that belong to these functions, by argument."""
        named = {name: command[flag] for name, (flag, _, _) in self._flags.items() if flag in command}
        return {name: value for name, value in named.items() if self._own_defaults or value is not None}

    def _parameter(self, flag: str, parameter: inspect.Parameter, text: str) -> inspect.Parameter:
        default = parameter.default if self._own_defaults else None
        kind, parser = _kind(parameter.annotation)
        option = typer.Option(
            help=escape(text.replace("`", "")),  # rich would take [clients] for markup
            rich_help_panel=self._panel,
            parser=parser,
            metavar=_METAVARS.get(parser),
            show_default=default is not None,
        )
        if kind is not bool or not self._own_defaults:
            kind = kind | None
        annotation = Annotated[kind, option]
        return inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def command(
    function: Callable,
    *groups: Flags,
    own: Iterable[inspect.Parameter] = (),
    several: Mapping[str, str] | None = None,
) -> Callable:
    """`function`, which takes **values, with the groups' flags as its signature.

    Args:
        function: What the command does. A ValueError that it raises is told which flags its arguments are.
        groups: Flags of the functions that it calls.
        own: Parameters of the command itself.
        several: argument -> the flag that has several values of it.

    Returns:
        The command, for typer.
    """
    own = list(own)
    parameters = {p.name: p for p in [*own, *(p for group in groups for p in group.parameters())]}
    ordered = sorted(parameters.values(), key=lambda p: p.kind)

    names = {name: flag for group in groups for name, flag in group.names().items()}
    names |= {parameter.name: parameter.name for parameter in own} | dict(several or {})

    def run(**values: Any) -> Any:
        try:
            return function(**values)
        except ValueError as error:
            error.flags = {name: f"--{flag.replace('_', '-')}" for name, flag in names.items()}  # pyright: ignore[reportAttributeAccessIssue]
            raise

    run.__doc__, run.__name__ = function.__doc__, getattr(function, "__name__", "run")
    run.__signature__ = inspect.Signature(ordered)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {p.name: p.annotation for p in ordered}
    return run


def with_flags(text: str, flags: Mapping[str, str]) -> str:
    """A message that speaks of flags where it spoke of Python's arguments.

    An argument is known by standing at the beginning, or by an underscore, which no word has.

    Args:
        text: The message.
        flags: argument -> flag.

    Returns:
        The message.

    >>> with_flags("rounds must be at least 1, got 0", {"rounds": "--rounds"})
    '--rounds must be at least 1, got 0'
    >>> with_flags("penalty has 2 entries for num_clients=3", {"num_clients": "--clients"})
    'penalty has 2 entries for --clients 3'
    """

    def flag(match: re.Match[str]) -> str:
        name, sign = match[1], match[2]
        known = name in flags and (match.start() == 0 or "_" in name)
        return flags[name] + (" " if sign else "") if known else match[0]

    return re.sub(r"(?<![\w.'/-])(\w+)\b(?![.'/])(=?)", flag, text)


def read_args(doc: str) -> dict[str, str]:
    """Reads the section "Args:" or "Attributes:" of a docstring, without its indentation: argument -> its text.

    >>> read_args("Fits.\\n\\nArgs:\\n    seed: Where it\\n        begins.\\n\\nReturns:\\n    fit: The fit.")
    {'seed': 'Where it begins.'}
    """
    section = re.search(r"^(?:Args|Attributes):\n((?: +.+(?:\n|$))+)", doc, flags=re.MULTILINE)
    items = re.findall(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", section[1] if section else "", flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in items}


def read_value(text: str) -> Any:
    """A number, several of them between commas, `none`, or a word.

    >>> read_value("10"), read_value("0.5"), read_value("0.1,0.2"), read_value("none"), read_value("auto")
    (10, 0.5, [0.1, 0.2], None, 'auto')
    """
    if not isinstance(text, str):
        return text
    if "," in text:
        return [read_value(item.strip()) for item in text.split(",") if item.strip()]
    if text.lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _kind(annotation: Any) -> tuple[Any, Callable | None]:
    """The type that typer is told, and a parser where it has none for the annotation."""
    if annotation in (bool, str):
        return annotation, None
    if annotation in _NUMBERS:
        return str, _NUMBERS[annotation]
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else ()
    if str in options and int not in options:  # a path, or a word
        return str, None
    return str, read_value


def _whole_number(text: Any) -> int:
    return _parse(int, text, "a whole number")


def _number(text: Any) -> float:
    return _parse(float, text, "a number")


def _parse(kind: Callable, text: Any, name: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {name}") from None


_NUMBERS = {int: _whole_number, float: _number}
_METAVARS = {_whole_number: "INTEGER", _number: "NUMBER", read_value: "VALUE"}
