"""ResultsLocation: where the results of one sweep are. A folder is used directly, a URI through a mirror on this disk.

Example:

    location = open_location("s3://bucket/prefix", "quickstart")
    location.folder                    # the store works here
    with leased(location.lease_storage, ...):
        location.begin(lease.check)    # fetch what others wrote, push what an earlier run could not
        location.push(lease.check)     # after every write of the store
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.storage.lease_file import LeaseFile, LeaseObject
from hpxfer.storage.remote import FIX, Remote
from hpxfer.storage.uri import Uri, know_mirror, parse_root
from hpxfer.store import SWEEP_FILE
from hpxfer.store.mirror import new_mirror, remove


class LocalLocation:
    """A folder on this disk, used directly: most methods have nothing to do."""

    is_remote = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # that the store works in
        self.where = str(folder)  # the path or URI of the results, for people and for commands
        self.lease_storage = LeaseFile(folder)

    def begin(self, check: Callable[[], None] = lambda: None) -> None:
        """Fetch what was written since the location was opened. Call it with the lease, and its check."""

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """Push what was written. `check` raises if this process may no longer write."""

    def refresh(self) -> None:
        """Fetch what was written since. For readers."""

    def name_of(self, path: Path) -> str:
        """Return the name of a file of the folder, for messages."""
        return str(path)

    def close(self) -> None:
        """Remove the folder if it is a mirror, unless it holds results that are nowhere else."""


class RemoteLocation:
    """A location in object storage. Its mirror is removed by `close`, or when the process ends."""

    is_remote = True  # results are stored only once they have been pushed

    def __init__(self, uri: Uri) -> None:
        self._remote = Remote(uri)
        self._mirror = new_mirror(self._remote)
        self.folder, self.where = self._mirror.folder, str(uri)
        self.lease_storage = LeaseObject(self._remote)
        know_mirror(self.folder, uri)
        atexit.register(self._mirror.close)
        self._remote.waiting(self._mirror.pull, "cannot be read", FIX, retry_s=0)

    def begin(self, check: Callable[[], None] = lambda: None) -> None:
        """See `LocalLocation.begin`. What an earlier run on this machine could not push is pushed first."""
        self.refresh()
        taken_over = self._mirror.take_over_dead()
        self._push(lambda: self._mirror.remove_half_written(check))
        self.push(check)
        for run in taken_over:
            remove(run)

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """See `LocalLocation.push`. It waits for a network that is down; then HpxferError says where the results
        are. `check` is called before every write.
        """
        self._push(self._remote.probe)  # `check` asks the storage once
        check()
        self._push(lambda: self._mirror.push(check))

    def refresh(self) -> None:
        """See `LocalLocation.refresh`."""
        self._remote.waiting(self._mirror.pull, "cannot be read", FIX)

    def name_of(self, path: Path) -> str:
        """See `LocalLocation.shown`."""
        return str(self._remote.uri / path.name) if path.parent == self.folder else str(path)

    def close(self) -> None:
        """See `LocalLocation.close`."""
        atexit.unregister(self._mirror.close)
        self._mirror.close()

    def _push(self, action: Callable[[], None]) -> None:
        fix = f"what is not pushed yet is in {self._mirror.run}; the same command on this machine pushes it"
        self._remote.waiting(action, "results cannot be written", fix)


ResultsLocation = LocalLocation | RemoteLocation


def open_location(root: str | Path, name: str) -> ResultsLocation:
    """Return the location of sweep `name` below a folder or URI. Raise HpxferError if it cannot be reached."""
    parsed = _parsed(root)
    if isinstance(parsed, Path) and (
        file := next((path for path in (parsed, *parsed.parents) if os.path.isfile(path)), None)
    ):
        raise HpxferError(
            f"{file}: must be the folder that holds results folders, got a file; name a folder with --results"
        )
    return _location(parsed / name)


def location_at(results: str | Path) -> ResultsLocation:
    """Return the location of a results folder or of its URI. Raise HpxferError if it cannot be reached."""
    return _location(_parsed(results))


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


def _location(where: Uri | Path) -> ResultsLocation:
    return LocalLocation(where) if isinstance(where, Path) else RemoteLocation(where)


def _parsed(root: str | Path) -> Uri | Path:
    try:
        return parse_root(root)
    except HpxferError as error:
        raise HpxferError(f"results: {error}") from None
