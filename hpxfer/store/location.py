"""Where the results of one sweep are. A folder is used directly, a bucket through a mirror on this disk.

    location = location_at("s3://bucket/prefix", "quickstart")
    location.folder                    # the store works here
    with leased(location.lease_storage, ...):
        location.begin(lease.check)    # fetch what others wrote, push what an earlier run could not
        location.push(lease.check)     # after every write of the store

The mirror of a process is <cache>/hpxfer/storage/<hash of the URI>/run-<random>/NAME, and run-<random> is locked while
the process lives. Every process makes its own mirror and removes it, so that no old one can hide what is stored. A
mirror remains only if its process ended before everything was pushed. The next driver with the lease pushes what it
holds. Files are pushed in the order in which the store writes them, so an interrupted push leaves in the bucket what a
crash would leave in a folder. A Parquet file that is in the bucket is read-only in the mirror.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from hpxfer.errors import HpxferError, know_mirror
from hpxfer.host import Uri, cache_folder, parse_root, reason
from hpxfer.storage import FIX, LEASE_FILE, Bucket, Folder, LeaseFile, LeaseObject, Stamp, storage_errors
from hpxfer.store.parquet import Kind, list_parts, next_number, part_path
from hpxfer.store.store import Store

_DOWNLOADS = 16
_LOCK = ".lock"  # in the folder of a run: a file, since NFS keeps locks of folders to one host
# How often a listing may be out of date because a driver merges files meanwhile.
_PULLS = 5
# The order in which the store writes. Curves come before the trials that commit them, and last what is made of them.
_ORDER = ("sweep-", "sweep", "curves", "trials")


class ResultsLocation:
    """Where the results of one sweep are: here a folder on this disk, in which nothing has to be fetched or pushed."""

    is_remote = False  # whether results are stored only once they have been pushed
    lease_storage: LeaseFile | LeaseObject

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # that the store works in
        self.where = str(folder)  # the path or URI of the results, for people and for commands
        self.lease_storage = LeaseFile(folder)

    def begin(self, check: Callable[[], None] = lambda: None) -> None:
        """Fetch what was written since the location was opened. Call it with the lease, and its check."""

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """Push what was written. `check` is called before every write, and raises if this process may write no more."""

    def refresh(self) -> None:
        """Fetch what was written since. For readers."""


class Mirror(ResultsLocation):
    """The mirror of a bucket's results. It is removed by `close`, or when the process ends."""

    is_remote = True

    def __init__(self, uri: Uri) -> None:
        self._bucket, at_once = Bucket(uri, patient=True), Bucket(uri)
        self._fetched: dict[str, Stamp] = {}  # name -> stamp of the files as they were fetched
        self._home: dict[str, Hashable] = {}  # name -> state of the local files that are in the bucket
        self._pid = os.getpid()
        self._run, self._lock = _new_run(uri)
        self.folder, self.where, self.lease_storage = self._run / uri.name, str(uri), LeaseObject(at_once)
        know_mirror(self.folder, uri)
        atexit.register(self.close)
        self._pull(at_once)

    def begin(self, check: Callable[[], None] = lambda: None) -> None:
        """Fetch what was written. What earlier runs on this machine could not push is added to the store and pushed."""
        self.refresh()
        dead = dict(self._dead_runs())
        try:
            for run in dead:
                self._adopt(run / self.folder.name)
            self.push(check)
            for run in dead:
                shutil.rmtree(run, ignore_errors=True)
        finally:
            for lock in dead.values():
                os.close(lock)

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """Push new files, then remove from the bucket the files that the store has merged.

        A network that is down is waited for. Then HpxferError says where the results are.
        """
        local = self._files()
        changed = [name for name, state in local.items() if self._home.get(name) != state]
        gone = [name for name in self._home if name not in local and name.endswith(".parquet")]
        if not changed and not gone:
            return
        fix = f"what is not pushed yet is in {self._run}; the same command on this machine pushes it"
        with storage_errors(self.where, "results cannot be written", fix):
            there = self._bucket.stamps()  # waits for the network, so that `check` need not
            check()
            for name in sorted(changed, key=_order):
                if name.startswith(("trials-", "curves-")) and name in there and name not in self._home:
                    # With the lease, nobody else writes here. If it happens all the same, neither file is lost.
                    raise HpxferError(
                        f"{self.where}: {name} was written by another run; the results of this one are in "
                        f"{self._run}; run again to add them"
                    )
                check()
                self._bucket.write(name, self.folder / name)
                self._is_home(name, local[name])
            for name in sorted(gone, key=_order):
                check()
                self._bucket.remove(name)
                del self._home[name]

    def refresh(self) -> None:
        self._pull(self._bucket)

    def close(self) -> None:
        """Remove the mirror, unless it holds results that are nowhere else."""
        if self._lock < 0 or os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        if all(self._home.get(name) == state for name, state in self._files().items() if name.endswith(".parquet")):
            shutil.rmtree(self._run, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    def _pull(self, bucket: Bucket) -> None:
        """Make the folder equal to the bucket. Do not call it on a mirror that has something to push."""
        with storage_errors(self.where, "cannot be read", FIX):
            for _ in range(_PULLS):
                listed = {name: stamp for name, stamp in bucket.stamps().items() if _is_read(name)}
                for name in self._files().keys() - listed:
                    (self.folder / name).unlink()
                stale = [name for name, stamp in listed.items() if self._fetched.get(name) != stamp]
                with suppress(FileNotFoundError), ThreadPoolExecutor(_DOWNLOADS) as pool:
                    list(pool.map(lambda name: bucket.fetch(name, self.folder / name), stale))
                    self._fetched = listed
                    for name, state in self._files().items():
                        self._is_home(name, state)
                    return
            raise OSError("its files keep changing, because another run is merging them")

    def _is_home(self, name: str, state: Hashable) -> None:
        """Note that a file is in the bucket, also for whoever finds the mirror of this process when it is dead."""
        self._home[name] = state
        if name.endswith(".parquet"):
            with suppress(OSError):
                (self.folder / name).chmod(0o444)

    def _dead_runs(self) -> Iterator[tuple[Path, int]]:
        """Yield the mirrors of processes that are gone, and the lock of each."""
        for run in sorted(self._run.parent.glob("run-*")):
            with suppress(FileNotFoundError, NotADirectoryError):  # closed meanwhile, or no mirror
                lock = os.open(run / _LOCK, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(lock)
                else:
                    yield run, lock

    def _adopt(self, folder: Path) -> None:
        """Add the parts of a dead process's mirror that are not in the bucket, as new parts."""
        parts = [part for part in list_parts(folder) if part.trials and part.trials.stat().st_mode & stat.S_IWUSR]
        for part in parts:
            number = next_number(self.folder)
            kinds: tuple[tuple[Kind, Path | None], ...] = (("curves", part.curves), ("trials", part.trials))
            for kind, path in kinds:
                if path is not None:
                    Folder(self.folder).put(part_path(self.folder, kind, number).name, partial(shutil.copyfile, path))
        if parts:  # curves that were pushed without the trials that commit them go
            Store.open(self.folder, write=True).compact()

    def _files(self) -> dict[str, Hashable]:
        """Return name and stamp of the files to push. Folders are not pushed: checkpoints go to the bucket directly."""
        return {name: stamp for name, stamp in Folder(self.folder).stamps().items() if _is_ours(name)}


def location_at(root: str | Path, *below: str) -> ResultsLocation:
    """Return the location of a results folder, or of the sweep `below` a folder or URI.

    Raise HpxferError if it cannot be reached.
    """
    try:
        where = parse_root(root)
    except HpxferError as error:
        raise HpxferError(f"results: {error}") from None
    for name in below:
        where = where / name
    return ResultsLocation(where) if isinstance(where, Path) else Mirror(where)


def _new_run(uri: Uri) -> tuple[Path, int]:
    """Return the folder of a new mirror and its lock. Raise HpxferError if there is no room for one."""
    server = dict(uri.options).get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    name = hashlib.blake2b(f"{server} {uri.scheme}://{uri.key}".encode(), digest_size=12).hexdigest()
    base = cache_folder("storage") / name
    try:
        base.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".", dir=base))
        (made / uri.name).mkdir()
        lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        run = made.rename(base / f"run-{made.name[1:]}")
    except OSError as error:
        raise HpxferError(
            f"{base}: must be writable, because results in storage are mirrored there, got: {reason(error)}; set "
            f"XDG_CACHE_HOME to a folder with room"
        ) from None
    return run, lock


def _is_ours(name: str) -> bool:
    return not name.endswith((".tmp", "-journal")) and not name.startswith(".") and name != LEASE_FILE


def _is_read(name: str) -> bool:
    """Return whether anything reads the file: the store, a search, or `hpxfer watch`. The page is only written."""
    return _is_ours(name) and name.endswith((".parquet", ".yaml", ".json", ".db"))


def _order(name: str) -> tuple[int, str]:
    return next((rank for rank, start in enumerate(_ORDER) if name.startswith(start)), len(_ORDER)), name
