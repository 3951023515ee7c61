"""ResultsLocation: where the results of one sweep are. A folder is used directly, a URI through a mirror on this disk.

Example:

    location = open_location("s3://bucket/prefix", "quickstart")
    location.folder                    # the store works here
    with leased(location.lease_storage, ...):
        location.begin()               # fetch what others wrote, push what an earlier run could not
        location.push(lease.check)     # after every write of the store
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
    """The results folder of a sweep, on this disk or in object storage."""

    @property
    def folder(self) -> Path:
        """The folder on this disk that the store works in."""

    @property
    def where(self) -> str:
        """The path or URI of the results, for people and for commands."""

    @property
    def is_remote(self) -> bool:
        """Whether the folder is a mirror. Results in a mirror are stored only once they have been pushed."""

    @property
    def lease_storage(self) -> LeaseStorage:
        """The object that holds the lease."""

    def begin(self) -> None:
        """Fetch what was written since the location was opened. Call it with the lease."""

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """Push what was written. `check` raises if this process may no longer write."""

    def refresh(self) -> None:
        """Fetch what was written since. For readers."""

    def shown(self, path: Path) -> str:
        """Return the name of a file of the folder, for messages."""

    def close(self) -> None:
        """Remove the folder if it is a mirror, unless it holds results that are nowhere else."""


class LocalLocation:
    """A folder on this disk, used directly."""

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
        """See `ResultsLocation.begin`. What an earlier run on this machine could not push is pushed first."""
        self.refresh()
        rescued = self._mirror.rescue()
        self._push(self._mirror.sweep)
        self.push()
        for run in rescued:
            remove(run)

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """See `ResultsLocation.push`. It waits for a network that is down; then HpxferError says where the results
        are.
        """
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
    """Return the location of sweep `name` below a folder or URI. Raise HpxferError if it cannot be reached."""
    found = _parsed(root)
    return LocalLocation(found / name) if isinstance(found, Path) else RemoteLocation(found / name)


def location_at(results: str | Path) -> ResultsLocation:
    """Return the location of a results folder or of its URI. Raise HpxferError if it cannot be reached."""
    found = _parsed(results)
    return LocalLocation(found) if isinstance(found, Path) else RemoteLocation(found)


def local_results(results: str | Path) -> Path:
    """Return a results folder on this disk: the folder itself, or the mirror of a URI. Raise HpxferError if a URI
    has none.
    """
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
