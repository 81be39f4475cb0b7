"""What pages get from the package: a line `{{ name }}` becomes what the function of that name returns.

The reference is complete by itself this way: a new criterion, method, flag or column is on its page without an edit.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import click
import numpy as np
import typer

import fedjax_admm as fa
from fedjax_admm.cli.commands import app
from fedjax_admm.core import vocabulary
from fedjax_admm.core.columns import COLUMNS
from fedjax_admm.core.vocabulary import StopReason
from fedjax_admm.storage.growing_files import solve_dtype

PLACE = re.compile(r"^\{\{ (\w+)(?: (\S+))? \}\}$", re.MULTILINE)
MENTION = re.compile(r"(?<![\[`])`fa\.([a-zA-Z_.]+)([^`]*)`(?![\]`])")
FENCE = re.compile(r"(^```.*?^```$|^#+ [^\n]*$)", re.DOTALL | re.MULTILINE)
HELPERS = {  # what only the package itself calls
    "prox": {"Own", "checked"},
}


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """The page's text, with what it asks for; the package's names in it lead to the reference."""
    parts = FENCE.split(text)
    parts[::2] = [MENTION.sub(_refer, part) for part in parts[::2]]
    return PLACE.sub(lambda place: globals()[f"make_{place[1]}"](*filter(None, [place[2]])), "".join(parts))


def _refer(mention: re.Match[str]) -> str:
    try:
        value = operator.attrgetter(mention[1])(fa)
    except AttributeError:
        return mention[0]
    place = getattr(value, "__module__", None) if isinstance(value, type) or inspect.isfunction(value) else None
    return f"[{mention[0]}][{place}.{mention[1].rpartition('.')[2]}]" if place in _documented_modules() else mention[0]


@functools.cache
def _documented_modules() -> set[str]:
    """Those of the values that the reference has."""
    modules = [value for value in (getattr(fa, name) for name in fa.__all__) if isinstance(value, ModuleType)]
    values = [getattr(fa, name) for name in fa.__all__]
    values += [getattr(module, name) for module in modules for name in public_names(module)]
    return {value.__module__ for value in values if isinstance(value, type) or inspect.isfunction(value)}


def public_names(module: ModuleType) -> list[str]:
    """What a module offers, in the order of its source; where it says so itself, in that order."""
    own = [name for name, part in vars(module).items() if getattr(part, "__module__", "") == module.__name__]
    helpers = HELPERS.get(module.__name__.rpartition(".")[2], set())
    if not helpers <= set(own):
        raise ValueError(f"{module.__name__} has no {', '.join(helpers - set(own))}: take it out of HELPERS")
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_") and name not in helpers]))


def make_members(name: str) -> str:
    """The reference of all that the module `fa.name` offers, after what it says of itself."""
    module = getattr(fa, name)
    entries = {each: getattr(module, each) for each in public_names(module)}
    makers_first = sorted(entries.items(), key=lambda item: isinstance(item[1], type))
    shown = [entry(value, each, shortest(value, each, f"fa.{name}.{each}")) for each, value in makers_first]
    return "\n\n".join(shown)


def make_about(name: str) -> str:
    """What the module `fa.name` says of itself."""
    options = "show_root_heading: false\n      show_root_toc_entry: false\n      members: false"
    return f"::: {getattr(fa, name).__name__}\n    options:\n      {options}"


def make_entries(names: str) -> str:
    """The reference of some names of `fa`, between commas."""
    return "\n\n".join(entry(getattr(fa, each), each, f"fa.{each}") for each in names.split(","))


def make_records(names: str) -> str:
    """The reference of some records that parts of one's own see, between commas."""
    return "\n\n".join(entry(getattr(vocabulary, each), each, each) for each in names.split(","))


def shortest(value: Any, name: str, path: str) -> str:
    """`fa.name` where that is the same value, else the path."""
    return f"fa.{name}" if getattr(fa, name, None) is value else path


def entry(value: Any, name: str, heading: str) -> str:
    """The directive that the reference is made by, for one name."""
    if not (isinstance(value, type) or inspect.isfunction(value)):  # a constant: Python keeps no docstring of it
        return f"## {heading}\n\n`{value!r}`"
    return f"::: {value.__module__}.{name}\n    options:\n      heading: {heading}\n      toc_label: {heading}"


def make_overview() -> str:
    """A table of all names of `fa`, with the first sentence of each."""
    rows = []
    for name in fa.__all__:
        value = getattr(fa, name)
        if isinstance(value, ModuleType):
            rows += [
                (f"`fa.{name}.{each}`", _first_line(getattr(value, each)))
                for each in public_names(value)
                if not hasattr(fa, each)
            ]
        else:
            rows.append((f"`fa.{name}`", _first_line(value)))
    rows = sorted(rows, key=lambda row: row[0].lower())
    return MENTION.sub(_refer, table(("name", "what it is"), rows))


def _first_line(value: Any) -> str:
    """Of its docstring; without brackets that a browser takes for tags."""
    documented = isinstance(value, type) or inspect.isfunction(value)
    return (inspect.getdoc(value) or "").partition("\n")[0].replace("<", "&lt;") if documented else ""


def make_history_columns() -> str:
    """A table of the history's columns."""
    rows = [
        (
            f"`{column.name}`",
            column.description,
            column.kind.value,
            f"with {column.needs}" if column.needs else "always",
        )
        for column in COLUMNS.values()
    ]
    return table(("column", "what it is", "its numbers are", "when it is there"), rows)


def make_stop_reasons() -> str:
    """A table of the reasons for which a solve ends."""
    rows = [(f"`{reason}`", str(reason.code), reason.fate.meaning, _when(reason.fate.needs)) for reason in StopReason]
    return table(("reason", "code in `solves.npy`", "what it means", "can happen"), rows)


def _when(condition: vocabulary.Condition | None) -> str:
    return f"with {condition}" if condition else "always"


def make_solve_fields() -> str:
    """A table of what `solves.npy` has of each local solve, from the comments behind the fields."""
    source = inspect.getsource(vocabulary.Solves)
    comments = dict(re.findall(r"^    (\w+): Array  # (.*)$", source, re.MULTILINE)) | {"client": "the client's number"}
    kinds = solve_dtype(np.float32)
    rows = []
    for name in kinds.names or ():
        kind = str(kinds[name]).replace("float32", "real")
        rows.append((f"`{name}`", kind, re.sub(r"^int\d+, ", "", comments[name])))
    return table(("field", "type", "what it is"), rows)


def make_commands() -> str:
    """Every command with its flags, from the help that the command line prints."""
    root = typer.main.get_command(app)
    return "\n\n".join(_describe(("fedjax-admm",), root))


def _describe(path: tuple[str, ...], command: click.Command) -> Iterator[str]:
    yield f"## `{' '.join(path)}`\n\n{_text(command.help)}"
    own = [each for each in command.params if each.name != "help"]
    children = dict(getattr(command, "commands", {}))
    yield from _flag_tables(own, path)
    shared = _shared(children.values())
    if shared:
        yield f"### Flags of every `{' '.join(path)} EXAMPLE`"
        yield from _flag_tables(shared, path, level=4)
    known = {each.name for each in shared}
    for name, child in children.items():
        if shared:
            yield f"### `{' '.join((*path, name))}`\n\n{_text(child.help)}"
            yield from _flag_tables([each for each in child.params if each.name not in known | {"help"}], path, level=4)
        else:
            yield from _describe((*path, name), child)


def _shared(commands: Iterable[click.Command]) -> list[click.Parameter]:
    """The flags that several commands have all alike."""
    commands = list(commands)
    lists = [{each.name: each for each in command.params} for command in commands]
    if len(lists) < 2 or not all(len(names) > 5 for names in lists):
        return []
    return [each for each in lists[0].values() if all(_same(each, other.get(each.name)) for other in lists)]


def _same(one: click.Parameter, other: click.Parameter | None) -> bool:
    return other is not None and (one.opts, one.default, _help(one)) == (other.opts, other.default, _help(other))


def _flag_tables(flags: list[click.Parameter], path: tuple[str, ...], level: int = 0) -> Iterator[str]:
    panels: dict[str, list[click.Parameter]] = {}
    for each in flags:
        panels.setdefault(getattr(each, "rich_help_panel", None) or "", []).append(each)
    for panel, members in panels.items():
        heading = f"{'#' * level} {panel}\n\n" if panel and level else ""
        yield heading + table(("flag", "default", "what it does"), [_flag(each) for each in members])


def _flag(flag: click.Parameter) -> tuple[str, str, str]:
    names = ", ".join(
        f"`{name}`" for name in (flag.opts if flag.param_type_name == "option" else [flag.metavar or flag.name])
    )
    other = f", `{flag.secondary_opts[0]}`" if flag.secondary_opts else ""
    default = "" if flag.default is None or flag.required else f"`{flag.default}`"
    return names + other, default, _help(flag)


def _help(flag: click.Parameter) -> str:
    return (getattr(flag, "help", None) or "").replace("\\[", "[")


def _text(help: str | None) -> str:
    """Its paragraphs; command lines among them as code."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(help or ""))
    return "\n\n".join(f"    {each}" if each.startswith("fedjax-admm ") else each for each in paragraphs)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; bars in cells are escaped."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )
