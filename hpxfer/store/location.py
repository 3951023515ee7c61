"""Place: where the results of one sweep lie. A folder is used in place; a URI through a mirror.

place = open_place("s3://bucket/prefix", "quickstart")
place.folder                    where the store works
with leased(place.slot, ...):
    place.begin()               what others wrote since is here, what an earlier run could not push is there
    place.push(lease.check)     after every write of the store
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hpxfer.errors import HpxferError
from hpxfer.storage.lease_file import FileSlot, Slot
from hpxfer.storage.lease_object import RemoteSlot
from hpxfer.storage.remote import Remote
from hpxfer.storage.uri import Uri, know_mirror, parse_root
from hpxfer.store import SWEEP_FILE
from hpxfer.store.mirror import Mirror, new_mirror, remove, waiting


class Place(Protocol):
    """A sweep's results folder, wherever it lies."""

    @property
    def folder(self) -> Path:
        """The folder on this disk that the store works on."""

    @property
    def where(self) -> str:
        """Where the results lie, for people and for commands."""

    @property
    def is_remote(self) -> bool:
        """Whether the folder is a mirror, and results are stored only once they have been pushed."""

    @property
    def slot(self) -> Slot:
        """Where the lease lies."""

    def begin(self) -> None:
        """Bring in what was written since the place was opened. Under the lease."""

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """Bring home what was written; `check` raises if this process may not write any more."""

    def refresh(self) -> None:
        """Bring in what was written since; for readers."""

    def shown(self, path: Path) -> str:
        """Return how to name a file of the folder."""

    def close(self) -> None:
        """Give up the folder if it is a mirror; it is no more, unless it holds what is nowhere else."""


class FolderPlace:
    """A folder, used in place."""

    is_remote = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def where(self) -> str:
        return str(self.folder)

    @property
    def slot(self) -> Slot:
        return FileSlot(self.folder)

    def begin(self) -> None:
        """See `Place.begin`."""

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """See `Place.push`."""

    def refresh(self) -> None:
        """See `Place.refresh`."""

    def shown(self, path: Path) -> str:
        """See `Place.shown`."""
        return str(path)

    def close(self) -> None:
        """See `Place.close`."""


class StoragePlace:
    """A place in object storage. Its mirror is removed by `close`, or when the process ends."""

    is_remote = True

    def __init__(self, uri: Uri) -> None:
        self._remote = Remote(uri)
        self._mirror: Mirror = new_mirror(self._remote)
        know_mirror(self._mirror.folder, uri)
        atexit.register(self._mirror.close)
        waiting(self._remote, self._mirror.pull, "cannot be read", retry_s=0)

    @property
    def folder(self) -> Path:
        return self._mirror.folder

    @property
    def where(self) -> str:
        return str(self._remote.uri)

    @property
    def slot(self) -> Slot:
        return RemoteSlot(self._remote)

    def begin(self) -> None:
        """See `Place.begin`. What an earlier run of this machine could not push is pushed first."""
        self.refresh()
        rescued = self._mirror.rescue()
        self._push(self._mirror.sweep)
        self.push()
        for run in rescued:
            remove(run)

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """See `Place.push`. A network that is down is waited for, then HpxferError says where the results are."""
        self._push(self._remote.probe)  # `check` asks the storage once
        check()
        self._push(self._mirror.push)

    def refresh(self) -> None:
        """See `Place.refresh`."""
        waiting(self._remote, self._mirror.pull, "cannot be read")

    def shown(self, path: Path) -> str:
        """See `Place.shown`."""
        return str(self._remote.uri / path.name) if path.parent == self.folder else str(path)

    def close(self) -> None:
        """See `Place.close`."""
        atexit.unregister(self._mirror.close)
        self._mirror.close()

    def _push(self, action: Callable[[], None]) -> None:
        fix = f"what is not there yet is in {self._mirror.run}; the same command on this machine pushes it and goes on"
        self._remote.waiting(action, "results cannot be written", fix)


def open_place(root: str | Path, name: str) -> Place:
    """Return where the results of sweep `name` lie below a folder or URI; raise HpxferError if it cannot be reached."""
    found = _parsed(root)
    return FolderPlace(found / name) if isinstance(found, Path) else StoragePlace(found / name)


def place_at(results: str | Path) -> Place:
    """Return the place of a results folder or of its URI; raise HpxferError if it cannot be reached."""
    found = _parsed(results)
    return FolderPlace(found) if isinstance(found, Path) else StoragePlace(found)


def results_here(results: str | Path) -> Path:
    """Return a results folder as a folder on this disk, the mirror of a URI; raise HpxferError if a URI holds none."""
    place = place_at(results)
    if place.is_remote and not (place.folder / SWEEP_FILE).exists():
        raise HpxferError(
            f"{place.where}: must be the results of a sweep, with {SWEEP_FILE}, got none; name the sweep after the "
            f"root, e.g. s3://bucket/prefix/quickstart"
        )
    return place.folder


def _parsed(root: str | Path) -> Uri | Path:
    try:
        return parse_root(root)
    except HpxferError as error:
        raise HpxferError(f"results: {error}") from None
