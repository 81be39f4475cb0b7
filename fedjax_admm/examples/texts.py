"""Next characters of texts, whose speakers are the clients: natural parts of very unequal size."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from .. import models, problems
from ..algorithms.local_solver import LocalSolver
from ..core import checks
from ..data.federated import FederatedData
from ..data.natural import Parts
from ..data.text import EMBEDDED_TEXT, characters_of, encode, load_text, split_speakers, windows
from ..exchange.cohorts import Cohorts
from ..models.model import Model
from ..problems.problem import Problem
from .base import Example, recipe

_RATES = {"gru": 1.0, "transformer": 0.2}  # the transformer diverges at 1


@recipe
def text(
    source: str | os.PathLike[str] = "tiny_shakespeare",
    *,
    data_dir: str | os.PathLike[str] | None = None,
    model: str | Model = "gru",
    length: int = 80,
    fraction: float = 0.2,
    num_clients: int | None = None,
    learning_rate: Any = None,
    batch_size: int | None = 10,
    max_epochs: Any = 3,
    rounds: int = 100,
    participation: Any = 0.1,
) -> Example:
    """Predicts the next characters in Shakespeare's plays, with one client per speaker.

    There are about 300 clients, with 5 to 37,000 characters each. Not one of the paper's examples. A row is
    `length` characters ("y") and those before them ("x"). Each client's last characters are held out for the accuracy,
    so every client has rows of both kinds.

    Args:
        source: A text file, in which a speech is a line "NAME:", its lines and an empty line; or TFDS's name of one.
        data_dir: The folder with TFDS's data sets; by default `$TFDS_DATA_DIR`, or else TFDS's own folder.
        model: "gru" or "transformer", both small and packed (`fa.models.packed`); or another one, of as many tokens as
            the text has characters, and one.
        length: Characters per row.
        fraction: The fraction of each client's characters that are held out, at the end.
        num_clients: Only this many speakers, those who say most; by default all who say at least two characters.
        learning_rate: The step size of the local solver; by default 1 for the GRU, 0.2 for the transformer.
        batch_size: Rows per step; None is the full gradient.
        max_epochs: The most passes over its rows that a client does in a round.
        rounds: How many rounds a run has.
        participation: The fraction of the clients that take part in a round, or their number.

    >>> example = fa.examples.text("tinyshakespeare.txt", model="transformer")  # doctest: +SKIP
    """
    return _text_example(
        "text",
        source,
        data_dir,
        model,
        length=length,
        fraction=fraction,
        num_clients=num_clients,
        local=_local(model, learning_rate, batch_size, max_epochs),
        rounds=rounds,
        participation=participation,
    )


@recipe
def text_mini(
    *,
    model: str | Model = "gru",
    length: int = 80,
    fraction: float = 0.2,
    num_clients: int | None = None,
    learning_rate: Any = None,
    batch_size: int | None = 10,
    max_epochs: Any = 3,
    rounds: int = 30,
    participation: Any = 0.25,
) -> Example:
    """Predicts the next characters in addresses of 28 presidents, with one client per speaker.

    The text, 290 kB, comes with the package. A small version of `text` that runs offline, in a minute or two.

    Args:
        model: "gru" or "transformer", both small and packed (`fa.models.packed`); or another one, of 76 tokens.
        length: Characters per row.
        fraction: The fraction of each client's characters that are held out, at the end.
        num_clients: Only this many speakers, those who say most; by default all.
        learning_rate: The step size of the local solver; by default 1 for the GRU, 0.2 for the transformer.
        batch_size: Rows per step; None is the full gradient.
        max_epochs: The most passes over its rows that a client does in a round.
        rounds: How many rounds a run has.
        participation: The fraction of the clients that take part in a round, or their number.

    >>> text_mini(num_clients=3, length=40).problem.data.names
    ['Andrew Jackson', 'Grover Cleveland', 'Theodore Roosevelt']
    """
    return _text_example(
        "text_mini",
        EMBEDDED_TEXT,
        None,
        model,
        length=length,
        fraction=fraction,
        num_clients=num_clients,
        local=_local(model, learning_rate, batch_size, max_epochs),
        rounds=rounds,
        participation=participation,
    )


def _text_example(
    name: str,
    source: Any,
    data_dir: Any,
    model: str | Model,
    *,
    length: int,
    fraction: float,
    num_clients: int | None,
    **settings: Any,
) -> Example:
    length = checks.integer("length", length, at_least=1)
    fraction = checks.number("fraction", fraction, above=0, below=1)
    if num_clients is not None:
        num_clients = checks.integer("num_clients", num_clients, at_least=1)
    rounds = checks.integer("rounds", settings["rounds"], at_least=1)
    said = _choose(split_speakers(load_text(source, data_dir), str(source)), num_clients)
    Cohorts(settings["participation"], len(said), seed=0).check_rounds(rounds)
    characters = characters_of(said.values())
    train, test = _cut({who: encode(what, characters) for who, what in said.items()}, length, fraction)
    sizes = [len(rows["y"]) for rows in train]
    parts = Parts(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]), list(said))
    data = FederatedData.from_arrays(_joined(train), parts)
    problem = Problem(
        **problems.next_token(_network(model, len(characters) + 1, length)),
        data=data,
        eval_data=_joined(test),
        client_eval_data=FederatedData.from_clients(test),  # each speaker's own held-out rows
    )
    return Example(name=name, problem=problem, c=0.01, **settings)


def _local(model: str | Model, learning_rate: Any, batch_size: int | None, max_epochs: Any) -> LocalSolver:
    if not isinstance(model, Model):
        checks.choice("model", model, tuple(_RATES))
    if learning_rate is None:
        if isinstance(model, Model):
            raise ValueError("learning_rate is None, and a model of your own has no usual one: give a number")
        learning_rate = _RATES[model]
    return LocalSolver(learning_rate=learning_rate, batch_size=batch_size, max_epochs=max_epochs)


def _network(model: str | Model, tokens: int, length: int) -> Model:
    if isinstance(model, Model):
        return model
    small = models.gru(tokens) if model == "gru" else models.transformer(tokens, length=length)
    return models.packed(small)  # which compiles in half the time and less


def _choose(said: dict[str, str], number: int | None) -> dict[str, str]:
    """Speakers of two characters or more, in the order of the text; of a number of them those who say most."""
    said = {who: what for who, what in said.items() if len(what) > 1}
    if number is None:
        return said
    if number > len(said):
        raise ValueError(f"num_clients={number} is more than the {len(said)} speakers: leave it out for all of them")
    most = set(sorted(said, key=lambda who: -len(said[who]))[:number])
    return {who: what for who, what in said.items() if who in most}


def _cut(texts: dict[str, np.ndarray], length: int, fraction: float) -> tuple[list[Any], list[Any]]:
    """Each speaker's rows to train on, and those held out: the last characters, which the others do not reach."""
    train, test = [], []
    for numbers in texts.values():
        kept = len(numbers) - min(max(round(fraction * len(numbers)), 1), len(numbers) - 1)
        train.append(windows(numbers[:kept], length))
        test.append(windows(numbers[kept:], length, before=numbers[kept - 1]))
    return train, test


def _joined(rows: list[Any]) -> Any:
    return jax.tree.map(lambda *fields: np.concatenate(fields), *rows)
