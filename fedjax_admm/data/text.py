"""Texts whose speakers are natural clients: a speech is a line `NAME:`, then its lines, then an empty line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from .tfds import DatasetNotFoundError, find, naming, open_builder

EMBEDDED_TEXT = "text_mini"
NOTHING = 0  # the number of no character: what is before a text's first, and behind its last

_HEADER = re.compile(r"(\S[^\n:]*):[ \t]*(?:\n|$)")
_SPLITS = ("train", "validation", "test")  # in which TFDS has cut a text


def load_text(source: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> str:
    """Reads a text.

    Args:
        source: A file's path; or TFDS's name of a data set of texts that was prepared as array_record, such as
            "tiny_shakespeare", of whose splits the texts are put together; or "text_mini", the embedded one.
        data_dir: The folder that holds TFDS's data sets. Default: `TFDS_DATA_DIR`, else `~/tensorflow_datasets`.

    Raises:
        DatasetNotFoundError: There is no such file, and no such data set.
        DamagedFileError: A file of the data set is damaged.
        ValueError: It is no text.

    >>> load_text("text_mini")[:39]
    'George Washington:\\nIn meeting you again'
    """
    path = Path(__file__).with_name(f"{EMBEDDED_TEXT}.txt") if source == EMBEDDED_TEXT else Path(source)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text in UTF-8, at byte {error.start}: save it in that encoding") from None
    try:
        folder = find(str(source), data_dir)
    except (DatasetNotFoundError, ValueError):
        if path.suffix or len(path.parts) > 1:  # as only files are called
            raise DatasetNotFoundError(f"there is no file {path}: give a text's path, or TFDS's name of one") from None
        raise
    return _read_tfds(str(source), folder)


def split_speakers(text: str, name: str = "text") -> dict[str, str]:
    """What each speaker says: the speeches one after the other, in the order in which speakers first say something.

    >>> split_speakers("ANN:\\nGood day.\\n\\nBOB:\\nWhy?\\n\\nANN:\\nTo see.\\n")
    {'ANN': 'Good day.\\nTo see.\\n', 'BOB': 'Why?\\n'}
    """
    speeches: dict[str, list[str]] = {}
    speaker = None
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        header = _HEADER.match(paragraph)
        if header is not None:
            speaker, paragraph = header[1], paragraph[header.end() :]
        if speaker is None:
            raise ValueError(f"{name} begins with no speaker: a speech is a line NAME:, its lines and an empty line")
        if paragraph:
            speeches.setdefault(speaker, []).append(paragraph + "\n")
    return {speaker: "".join(said) for speaker, said in speeches.items()}


def characters_of(texts: Any) -> str:
    """The characters of some texts, each once, sorted: character k has the number k + 1.

    >>> characters_of(["baa", "cab"])
    'abc'
    """
    return "".join(sorted(set().union(*texts)))


def encode(text: str, characters: str) -> np.ndarray:
    """The characters' numbers, in the narrowest unsigned type; 0 is no character.

    >>> encode("cab", "abc")
    array([3, 1, 2], dtype=uint8)
    """
    table = np.frombuffer(characters.encode("utf-32-le"), np.uint32)
    numbers = np.searchsorted(table, np.frombuffer(text.encode("utf-32-le"), np.uint32)) + 1
    return numbers.astype(np.min_scalar_type(len(characters)))


def windows(numbers: np.ndarray, length: int, before: int = NOTHING) -> dict[str, np.ndarray]:
    """Cuts a text into rows: for each character the one before it, and itself, which is to be predicted.

    Args:
        numbers: The characters' numbers.
        length: Characters of a row; the last row is filled up with 0.
        before: The number of the character before the text.

    Returns:
        "x", the characters before, and "y", those to be predicted, [rows, length] each.

    >>> windows(np.array([3, 1, 2], np.uint8), length=2)["x"].tolist()
    [[0, 3], [1, 0]]
    >>> windows(np.array([3, 1, 2], np.uint8), length=2)["y"].tolist()
    [[3, 1], [2, 0]]
    """
    rows = -(-len(numbers) // length)
    y = np.zeros(rows * length, numbers.dtype)
    y[: len(numbers)] = numbers
    x = np.zeros_like(y)
    x[: len(numbers)] = np.concatenate([[before], numbers[:-1]])
    return {"x": x.reshape(rows, length), "y": y.reshape(rows, length)}


def _read_tfds(name: str, source: Path) -> str:
    builder = open_builder(name, source)
    splits = [split for split in _SPLITS if split in builder.info.splits]
    kinds = {key: type(feature).__name__ for key, feature in builder.info.features.items()}
    keys = [key for key, kind in kinds.items() if kind == "Text"]
    if len(keys) != 1 or not splits:
        known = sorted(builder.info.splits)
        raise ValueError(f"data set {name!r} is no text: its features are {kinds}, its splits {known}")
    parts = []
    for split in splits:
        with naming(source):
            parts += [example[keys[0]].decode("utf-8") for example in builder.as_data_source(split)]
    return "".join(parts)
