"""Parts: the names of a store's files. A part is a pair `trials-000001.parquet`, `curves-000001.parquet`.

`compact` leaves one part without a number. The trials file commits its part, because it is renamed last.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["trials", "curves"]

# There is one spelling per number, so that two files never share a number.
_NAME = re.compile(r"(trials|curves)(?:-([0-9]{6}|[1-9][0-9]{6,}))?\.parquet")


@dataclass(frozen=True, kw_only=True)
class Part:
    """The files of one part that exist. `number` is None for the compacted part."""

    number: int | None
    trials: Path | None = None
    curves: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The parts of a folder, the numbered ones first and in order, and the Parquet files with other names."""

    parts: tuple[Part, ...]
    unknown_files: tuple[Path, ...]

    @property
    def compacted(self) -> Part:
        return next((part for part in self.parts if part.number is None), Part(number=None))

    @property
    def next_number(self) -> int:
        """A number above all numbers in use, by readable and by unreadable files."""
        return 1 + max((part.number or 0 for part in self.parts), default=0)


def part_path(folder: Path, kind: Kind, number: int | None) -> Path:
    """Return the path of a part's file."""
    return folder / (f"{kind}.parquet" if number is None else f"{kind}-{number:06d}.parquet")


def list_parts(folder: Path) -> Listing:
    """Return the files of the folder, by name alone. The listing is empty if the folder is absent."""
    found: dict[int | None, dict[str, Path]] = {}
    unknown_files = []
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        names = []
    for name in names:
        if match := _NAME.fullmatch(name):
            kind, number = match.groups()
            found.setdefault(None if number is None else int(number), {})[kind] = folder / name
        elif name.endswith(".parquet"):
            unknown_files.append(folder / name)
    order = sorted(found, key=lambda number: (number is None, number or 0))
    parts = tuple(Part(number=number, **found[number]) for number in order)
    return Listing(parts=parts, unknown_files=tuple(unknown_files))
