"""`checksums.csv`: what every round wrote into the files that grow, so that a bit that flips later is found.

One line per round: where the round's bytes end in each file, and their CRC-32. Round 0's bytes are those from the
beginning: the heading and the first line of the history, the header of the solves. A line is written after the bytes
that it is about, so a round that is being written has none yet. Runs that evaluate clients have two files more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..core.files import DamagedFileError, append_whole, directory_in_place_of, truncate, write_whole

CHECKSUMS = "checksums.csv"
FILES = ("history.csv", "solves.npy")
CLIENTS = "clients.npy"
MORE_FILES = ("client_metrics.npy", CLIENTS)
REBUILD = (
    "to compute the run again from the last checkpoint before the damage, or from round 0, give resume --rebuild, or "
    "the call that started the run rebuild=True"
)

REWRITE = "to write it again, without computing a round again, use fedjax-admm resume, or the call that started the run"


def _heading(files: Sequence[str]) -> bytes:
    names = (name.partition(".")[0] for name in files)
    return (",".join(["round", *(f"{name}_end,{name}_crc32" for name in names)]) + "\n").encode()


_HEADINGS = {_heading(files): files for files in (FILES, (*FILES, *MORE_FILES))}


class Block(NamedTuple):
    """What one round wrote into one file."""

    end: int  # the place in the file after it
    crc32: int


class Checksums:
    """The checksums in a run's folder.

    A run of a version without them has none, and gets none: they would be of bytes that nobody checked.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     checksums = Checksums(Path(place))
    ...     checksums.begin()
    ...     checksums.append(0, [block_after(0, b"round,loss"), block_after(10, b"0,2.5")], [block_after(0, b"")] * 2)
    ...     _ = (Path(place) / "history.csv").write_bytes(b"round,loss0,2.4"), (Path(place) / "solves.npy").touch()
    ...     checksums.damaged(1)
    {'history.csv': [1]}
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / CHECKSUMS

    def begin(self, more: bool = False) -> None:
        """Starts with none; `more` is whether the run has the files of clients' evaluations."""
        write_whole(self.path, lambda file: file.write(_heading((*FILES, *MORE_FILES) if more else FILES)))

    def append(self, first: int, *files: Iterable[Block]) -> None:
        """Adds the checksums of rounds from `first` on, where the run has any.

        Args:
            first: The first round.
            files: What each round wrote into each of the files, in their order.
        """
        if not self.path.exists():
            return
        lines = (_line(round, blocks) for round, blocks in enumerate(zip(*files, strict=True), start=first))
        append_whole(self.path, "".join(lines).encode())

    def restart(self, starts: Mapping[str, Block]) -> None:
        """Replaces what round 0 has in some files, by file: they are about to get another header."""
        if not self.path.exists() or not starts:
            return
        files, blocks = self._read()
        if blocks:
            blocks[0] = [starts.get(name, block) for name, block in zip(files, blocks[0], strict=True)]
        lines = (_line(round, line) for round, line in enumerate(blocks))
        write_whole(self.path, lambda file: file.write(_heading(files) + "".join(lines).encode()))

    def keep(self, number: int) -> None:
        """Cuts off all but the first `number` rounds."""
        if not self.path.exists():
            return
        rounds = len(self._lines())
        if rounds < number:
            raise DamagedFileError(
                f"{self.path} is damaged: it has {rounds} of {number} rounds", "remove it to go on without checks"
            )
        lines = self.path.read_bytes().splitlines(keepends=True)
        truncate(self.path, sum(map(len, lines[: number + 1])))

    def rounds(self) -> int | None:
        """Rounds, with round 0, that have checksums and are in the history by its length; None without checksums."""
        if not self.path.exists():
            return None
        history = self._folder / FILES[0]
        size = history.stat().st_size if history.exists() else 0
        return sum(line[0].end <= size for line in self._lines())

    def damaged(self, last: int) -> dict[str, list[int]]:
        """The rounds up to `last` whose bytes are not what was written, by file; {} if all are, or nobody knows."""
        if not self.path.exists():
            return {}
        files, blocks = self._read()
        blocks = blocks[: last + 1]
        rounds_of = {
            name: _find_differing(self._folder / name, [line[k] for line in blocks]) for k, name in enumerate(files)
        }
        return {name: rounds for name, rounds in rounds_of.items() if rounds}

    def _lines(self) -> list[list[Block]]:
        return self._read()[1]

    def _read(self) -> tuple[tuple[str, ...], list[list[Block]]]:
        """The files, and by round the blocks in each; half a line at the end is one that was being written."""
        try:
            heading, *lines = self.path.read_bytes().splitlines(keepends=True) or [b""]
            if lines and not lines[-1].endswith(b"\n"):
                lines.pop()
            files, blocks = _HEADINGS[heading], []
            for number, line in enumerate(lines):
                round, *numbers = line.split(b",")
                if int(round) != number or len(numbers) != 2 * len(files):
                    raise ValueError
                blocks.append([Block(int(end), int(crc, 16)) for end, crc in zip(*[iter(numbers)] * 2, strict=True)])
            return files, blocks
        except (ValueError, KeyError, OSError):
            raise DamagedFileError(f"{self.path} is damaged", "remove it to go on without checks") from None


def _line(round: int, blocks: Iterable[Block]) -> str:
    return ",".join([str(round), *(f"{block.end},{block.crc32:08x}" for block in blocks)]) + "\n"


def check_records(folder: Path) -> None:
    """Checks the records of a run, as far as it has checksums.

    Args:
        folder: The run's.

    Raises:
        DamagedFileError: Some rounds are not what was written; the message says which.
    """
    checksums = Checksums(folder)
    refuse_damage(folder, checksums.damaged((checksums.rounds() or 0) - 1))


def refuse_damage(folder: Path, damaged: dict[str, list[int]]) -> None:
    """Raises an error that says which rounds of which file are damaged, if any are."""
    if damaged.keys() == {CLIENTS}:
        raise DamagedFileError(f"{folder / CLIENTS} is damaged in round 0", REWRITE)
    if damaged:
        files = ", ".join(f"{folder / name} is damaged in {name_rounds(rounds)}" for name, rounds in damaged.items())
        raise DamagedFileError(files, REBUILD)


def name_rounds(rounds: list[int]) -> str:
    """Rounds in words.

    >>> name_rounds([3]), name_rounds([1, 4, 5, 6])
    ('round 3', 'rounds 1, 4 to 6')
    """
    runs: list[list[int]] = []
    for round in rounds:
        if runs and runs[-1][-1] == round - 1:
            runs[-1].append(round)
        else:
            runs.append([round])
    words = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    shown = ", ".join(words[:8]) + (", ..." if len(words) > 8 else "")
    return f"round{'s' * (len(rounds) > 1)} {shown}"


def block_after(start: int, data: bytes) -> Block:
    """The block that `data` is, written from `start` on."""
    return Block(start + len(data), zlib.crc32(data))


def _find_differing(path: Path, blocks: list[Block]) -> list[int]:
    """The numbers of the blocks that are not in a file as they were written."""
    try:
        with open(path, "rb") as file:
            start, size, numbers = 0, path.stat().st_size, []
            for number, block in enumerate(blocks):
                sound = start <= block.end <= size  # else reading it could ask for any amount of memory
                file.seek(start)
                if not sound or zlib.crc32(file.read(block.end - start)) != block.crc32:
                    numbers.append(number)
                start = max(0, block.end)
            return numbers
    except FileNotFoundError:
        return list(range(len(blocks)))
    except IsADirectoryError:
        raise directory_in_place_of(path) from None
