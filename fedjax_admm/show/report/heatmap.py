"""Epochs by client and round as an image, written without an imaging library."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape

import numpy as np

from ...results.curves import NamedRuns
from ...results.history import RunRecord

MOST_CLIENTS, MOST_ROUNDS = 500, 1000  # more than a screen shows; beyond, neighbours are averaged
MOST_PIXELS = 1_000_000  # of all images of a page, which bounds its size
SMALL = (230, 500)  # clients and rounds that an image shows with sharp edges; more are shrunk, hence smoothed
LEVELS = 254  # colours; the palette's entry 0 stands for "not selected", the last one for "selected, but away"
AWAY = -1.0  # such a client's epochs

# Viridis without its two ends, which are too near to a black and to a white background.
ANCHORS = np.array(
    [(71, 45, 123), (59, 82, 139), (44, 114, 142), (33, 145, 140), (40, 174, 128), (94, 201, 98), (173, 220, 48)]
)
PALETTE = np.stack(
    [np.interp(np.linspace(0, 1, LEVELS), np.linspace(0, 1, len(ANCHORS)), channel) for channel in ANCHORS.T], axis=1
).astype(np.uint8)
COLOURS = ["#" + bytes(colour).hex() for colour in PALETTE]
AWAY_COLOUR = "#9a9a9a"  # no colour of the palette is grey, and it stands out from black and from white


def largest(runs: NamedRuns) -> int:
    """The most epochs that a solve might have done: one colour scale for all images of a page."""
    limits = [np.asarray(record.solves.max_epochs) for records in runs.values() for record in records]
    return max([1, *(int(limit.max()) for limit in limits if limit.size)])


def any_away(runs: NamedRuns) -> bool:
    """Whether an image of the page has a client that was selected and did nothing."""
    solves = [records[0].solves for records in runs.values()]
    return not all(np.all(each.took_place | each.vacant) for each in solves)


def figures(runs: NamedRuns, scale: int) -> str:
    """A figure for each label, of its first seed; `scale` is the last colour's number of epochs."""
    return "".join(_figure(label, records, scale, MOST_PIXELS // len(runs)) for label, records in runs.items())


def _figure(label: str, records: Sequence[RunRecord], scale: int, pixels: int) -> str:
    table = _with_away(records[0])
    rounds, clients = table.shape
    if not rounds:
        return f'<figure class="heat"><figcaption>{escape(label)}</figcaption><p>No round is done.</p></figure>'
    binned, per_row, per_column = bins(table, pixels)
    remarks = [f"first of {len(records)} seeds"] if len(records) > 1 else []
    if per_row * per_column > 1:
        remarks.append(f"a point is the mean of {per_row} clients and {per_column} rounds")
    text = f"{label}: local epochs of {clients} clients in {rounds} rounds"
    data = base64.b64encode(png(levels(binned, scale))).decode()
    height, width = binned.shape
    smooth = "smooth" if height > SMALL[0] or width > SMALL[1] else ""
    return (
        f'<figure class="heat {smooth}" data-clients="{clients}" data-rounds="{rounds}"'
        f' data-bins="{per_row} {per_column}">'
        f'<figcaption>{escape(label)} <small>{"; ".join(remarks)}</small></figcaption><div class="plot">'
        f'<span class="name y">client</span><div class="ticks y">{_ticks(0, clients - 1, height * per_row)}</div>'
        f'<div class="frame"><img alt="{escape(text)}" src="data:image/png;base64,{data}"></div>'
        f'<div class="ticks x">{_ticks(1, rounds, width * per_column)}</div><span class="name x">round</span>'
        "</div></figure>"
    )


def _with_away(record: RunRecord) -> np.ndarray:
    """Epochs [rounds, clients], NaN where a client was not selected, AWAY where it was and did nothing."""
    table = record.client_epochs()
    return np.where(record.selected() & np.isnan(table), AWAY, table)


def _ticks(first: int, last: int, span: int) -> str:
    """Round numbers from first to last, each in the middle of its place on a side of `span` places, in per cent."""
    step = next(s for k in range(20) for s in (10**k, 2 * 10**k, 5 * 10**k) if span / s <= 6)
    numbers = [first, *range(step, last + 1, step)] if step > 1 else range(first, last + 1)
    return "".join(f'<i style="--at:{100 * (n - first + 0.5) / span:.4g}%">{n:,}</i>' for n in numbers)


def bins(table: np.ndarray, pixels: int) -> tuple[np.ndarray, int, int]:
    """[rounds, clients] as [rows, columns], clients downwards, with the clients and the rounds in a bin.

    A bin is the mean over those that worked; if none did, AWAY if one of them was selected, else NaN.

    >>> bins(np.array([[1.0, np.nan], [AWAY, 4.0]]), 4)[0].tolist()
    [[1.0, -1.0], [nan, 4.0]]
    """
    image = table.T
    height, width = min(image.shape[0], MOST_CLIENTS), min(image.shape[1], MOST_ROUNDS)
    shrink = min(1.0, math.sqrt(pixels / (height * width)))
    sizes = [math.ceil(n / max(1, int(m * shrink))) for n, m in zip(image.shape, (height, width), strict=True)]
    worked, away = image >= 0, (image == AWAY).astype(float)
    sums, counts = np.where(worked, image, 0.0), worked.astype(float)
    for axis, size in enumerate(sizes):
        starts = np.arange(0, image.shape[axis], size)
        sums, counts, away = (np.add.reduceat(part, starts, axis=axis) for part in (sums, counts, away))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.where(away > 0, AWAY, np.nan)), *sizes


def levels(image: np.ndarray, scale: float) -> np.ndarray:
    """Palette entries: 0 for NaN, 1 to LEVELS for 0 to `scale`, the last for AWAY.

    >>> levels(np.array([[np.nan, 0.0, 20.0, AWAY]]), 20).tolist()
    [[0, 1, 254, 255]]
    """
    steps = np.round(np.nan_to_num(image) / scale * (LEVELS - 1)) + 1
    return np.where(np.isnan(image), 0, np.where(image == AWAY, LEVELS + 1, steps)).astype(np.uint8)


def png(indices: np.ndarray) -> bytes:
    """An image of palette entries; entry 0 is transparent."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = indices.shape
    rows = np.pad(indices, ((0, 0), (1, 0)))  # each row is preceded by its filter, 0: none
    return b"".join([
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        chunk(b"PLTE", bytes(3) + PALETTE.tobytes() + bytes.fromhex(AWAY_COLOUR[1:])),
        chunk(b"tRNS", b"\x00"),
        chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
        chunk(b"IEND", b""),
    ])  # fmt: skip
