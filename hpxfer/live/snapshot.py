"""Snapshot: a copy of the files that a report reads, made while a driver writes them and without its lock.

A reader of the store holds a lock that keeps the driver from writing. The report of a live page is made slowly and at a
low priority, so it must not hold that lock. Files of the store are whole as soon as they have their name, and only a
merge removes some. So a copy during which nothing was removed or replaced is one that the store could have been.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.files import open_regular, reason
from hpxfer.storage.folder import LocalFolder
from hpxfer.store import SWEEP_FILE
from hpxfer.store.parts import Kind, Listing, list_parts, part_path

# A driver merges its files when it begins and when it ends: more tries would meet the same merge.
TRIES = 5

Stamps = Mapping[str, Any]  # name of a file -> what changes with it


class Snapshot:
    """A copy of a results folder below another folder. A file is copied again only if it has changed."""

    def __init__(self, source: Path, below: Path) -> None:
        self.source = source
        # A report names the folder: the copy has the same name.
        self.folder = below / (Path(os.path.abspath(source)).name or "results")
        self.problems: tuple[str, ...] = ()  # the files that could not be copied, and why
        self._copied: Stamps = {}

    def stamps(self) -> Stamps:
        """Return the files that a report would read now, with their stamps. It is empty if there is no folder."""
        return self._stamps(_names(list_parts(self.source)))

    def take(self) -> None:
        """Make the copy equal to the folder. Raise HpxferError if its files keep changing, or the disk is full."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for _ in range(TRIES):
                if self._taken():
                    return
        except OSError as error:
            raise HpxferError(
                f"{self.folder}: the results cannot be copied here: {reason(error)}; name a folder with room in TMPDIR"
            ) from None
        raise HpxferError(f"{self.source}: its files keep changing, because a driver is merging them")

    def _taken(self) -> bool:
        """Copy what has changed. Return whether the folder held all that at once."""
        names = _names(list_parts(self.source))
        before = self._stamps(names)
        problems = []
        for name in set(os.listdir(self.folder)) - set(before):
            (self.folder / name).unlink()
        copied = {name: stamp for name, stamp in self._copied.items() if name in before}
        for name, stamp in before.items():
            if copied.get(name) == stamp:
                continue
            copied.pop(name, None)
            (self.folder / name).unlink(missing_ok=True)
            try:
                source = open_regular(self.source / name)
            except FileNotFoundError:
                self._copied = copied
                return False
            except OSError as error:
                problems.append(f"{self.source / name}: cannot be read: {reason(error)}; passed over")
                continue
            with source, open(self.folder / name, "wb") as file:
                shutil.copyfileobj(source, file)
            copied[name] = stamp
        self._copied, self.problems = copied, tuple(problems)
        return before == self._stamps(names)

    def _stamps(self, names: Collection[str]) -> Stamps:
        """Return the stamps of those of the files that there are."""
        return {name: stamp for name, stamp in LocalFolder(self.source).stamps().items() if name in names}


def _names(listing: Listing) -> set[str]:
    """Return the names of all files that a report reads, or names as unknown.

    The curves of a part are written before its trials. So trials without curves have none, or their file was listed too
    early, and a part without trials does not count yet.
    """
    kinds: tuple[Kind, ...] = ("trials", "curves")
    numbers = [part.number for part in listing.parts if part.trials]
    of_parts = {part_path(Path(), kind, number).name for number in numbers for kind in kinds}
    return {SWEEP_FILE, *of_parts, *(path.name for path in listing.unknown_files)}
