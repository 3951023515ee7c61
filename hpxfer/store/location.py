"""ResultsLocation: where the results of one sweep lie. A folder is used in location; a URI through a mirror.

location = open_location("s3://bucket/prefix", "quickstart")
location.folder                    where the store works
with leased(location.lease_storage, ...):
    location.begin()               what others wrote since is here, what an earlier run could not push is there
    location.push(lease.check)     after every write of the store
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hpxfer.errors import HpxferError
from hpxfer.storage.lease_file import LeaseFile, LeaseStorage
from hpxfer.storage.lease_object import LeaseObject
from hpxfer.storage.remote import Remote
from hpxfer.storage.uri import Uri, know_mirror, parse_root
from hpxfer.store import SWEEP_FILE
from hpxfer.store.mirror import Mirror, new_mirror, remove, waiting


class ResultsLocation(Protocol):
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
    def lease_storage(self) -> LeaseStorage:
        """Where the lease lies."""

    def begin(self) -> None:
        """Bring in what was written since the location was opened. Under the lease."""

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """Bring home what was written; `check` raises if this process may not write any more."""

    def refresh(self) -> None:
        """Bring in what was written since; for readers."""

    def shown(self, path: Path) -> str:
        """Return how to name a file of the folder."""

    def close(self) -> None:
        """Give up the folder if it is a mirror; it is no more, unless it holds what is nowhere else."""


class LocalLocation:
    """A folder, used in location."""

    is_remote = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def where(self) -> str:
        return str(self.folder)

    @property
    def lease_storage(self) -> LeaseStorage:
        return LeaseFile(self.folder)

    def begin(self) -> None:
        """See `ResultsLocation.begin`."""

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """See `ResultsLocation.push`."""

    def refresh(self) -> None:
        """See `ResultsLocation.refresh`."""

    def shown(self, path: Path) -> str:
        """See `ResultsLocation.shown`."""
        return str(path)

    def close(self) -> None:
        """See `ResultsLocation.close`."""


class RemoteLocation:
    """A location in object storage. Its mirror is removed by `close`, or when the process ends."""

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
    def lease_storage(self) -> LeaseStorage:
        return LeaseObject(self._remote)

    def begin(self) -> None:
        """See `ResultsLocation.begin`. What an earlier run of this machine could not push is pushed first."""
        self.refresh()
        rescued = self._mirror.rescue()
        self._push(self._mirror.sweep)
        self.push()
        for run in rescued:
            remove(run)

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """See `ResultsLocation.push`. A network that is down is waited for, then HpxferError says where the results are."""
        self._push(self._remote.probe)  # `check` asks the storage once
        check()
        self._push(self._mirror.push)

    def refresh(self) -> None:
        """See `ResultsLocation.refresh`."""
        waiting(self._remote, self._mirror.pull, "cannot be read")

    def shown(self, path: Path) -> str:
        """See `ResultsLocation.shown`."""
        return str(self._remote.uri / path.name) if path.parent == self.folder else str(path)

    def close(self) -> None:
        """See `ResultsLocation.close`."""
        atexit.unregister(self._mirror.close)
        self._mirror.close()

    def _push(self, action: Callable[[], None]) -> None:
        fix = f"what is not there yet is in {self._mirror.run}; the same command on this machine pushes it and goes on"
        self._remote.waiting(action, "results cannot be written", fix)


def open_location(root: str | Path, name: str) -> ResultsLocation:
    """Return where the results of sweep `name` lie below a folder or URI; raise HpxferError if it cannot be reached."""
    found = _parsed(root)
    return LocalLocation(found / name) if isinstance(found, Path) else RemoteLocation(found / name)


def location_at(results: str | Path) -> ResultsLocation:
    """Return the location of a results folder or of its URI; raise HpxferError if it cannot be reached."""
    found = _parsed(results)
    return LocalLocation(found) if isinstance(found, Path) else RemoteLocation(found)


def local_results(results: str | Path) -> Path:
    """Return a results folder as a folder on this disk, the mirror of a URI; raise HpxferError if a URI holds none."""
    location = location_at(results)
    if location.is_remote and not (location.folder / SWEEP_FILE).exists():
        raise HpxferError(
            f"{location.where}: must be the results of a sweep, with {SWEEP_FILE}, got none; name the sweep after the "
            f"root, e.g. s3://bucket/prefix/quickstart"
        )
    return location.folder


def _parsed(root: str | Path) -> Uri | Path:
    try:
        return parse_root(root)
    except HpxferError as error:
        raise HpxferError(f"results: {error}") from None
