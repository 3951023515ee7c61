"""Mirror: a copy on this disk of a results folder in object storage. The store works in it, and its files are pushed.

    <cache>/hpxfer/storage/<hash of the URI>/run-<random>/NAME/      the mirror of sweep NAME, of one process
    <cache>/hpxfer/storage/<hash of the URI>/run-<random>.lock       locked while that process lives
    <cache>/hpxfer/storage/<hash of the URI>/run-<random>.home.json  which of its files have been pushed

Every process makes its own mirror and removes it, so that no old mirror can hide what is stored. A mirror remains only
if its process ended before everything was pushed. The next driver with the lease pushes what it holds.
Files are pushed in the order in which the store writes them. So an interrupted push leaves in the storage what a crash
would leave in a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host.files import cache_folder, read_bytes, write_files
from hpxfer.storage.lease_file import LEASE_FILE
from hpxfer.storage.remote import Remote, Stamp
from hpxfer.storage.uri import Uri
from hpxfer.store.parquet import Kind, Part, list_parts, part_path

# Two changes of a file within this time may have the same stamp, because clouds count time in seconds.
_FRESH_NS = 5 * 10**9
_DOWNLOADS = 16
# How often a listing may be out of date because a driver merges files meanwhile.
_PULLS = 5
_LOCAL_ONLY = (LEASE_FILE,)

_State = tuple[int, int, int]  # inode, size and time of change of a local file


class Mirror:
    """The mirror of one results folder. Made by `new_mirror`."""

    def __init__(self, remote: Remote, run: Path, lock: int) -> None:
        self.run = run
        self.folder = run / remote.uri.name
        self._remote, self._lock, self._pid = remote, lock, os.getpid()
        self._fetched: dict[str, Stamp] = {}  # name -> stamp of the files as they were fetched
        self._fetched_ns = 0
        self._pushed: dict[str, _State] = {}  # name -> state of the local files that have been pushed

    def pull(self) -> None:
        """Make the folder equal to the storage. Do not call it on a mirror that has something to push."""
        for _ in range(_PULLS):
            listed = self._remote.list()
            with suppress(FileNotFoundError):
                self._pull(listed)
                return
        raise OSError("its files keep changing, because another run is merging them")

    def push(self, check: Callable[[], None] = lambda: None) -> None:
        """Push new files, then remove from the storage the files that the store has merged. Raises OSError if that
        fails. `check` is called before every write, and raises if this process may write no more.
        """
        local = _states(self.folder)
        changed = [name for name, state in local.items() if self._pushed.get(name) != state]
        gone = [name for name in self._pushed if name not in local and name.endswith(".parquet")]
        if not changed and not gone:
            return
        remote_stamps = self._remote.stamps(changed)
        for name in sorted(changed, key=_order):
            if name in remote_stamps and name not in self._pushed and not _replaceable(name):
                # With the lease, nobody else writes here. If it happens all the same, neither file is lost.
                raise HpxferError(
                    f"{self._remote.uri}: {name} was written by another run; the results of this one are in "
                    f"{self.run}; run again to add them"
                )
            check()
            self._remote.put(self.folder / name, name, replace=name in remote_stamps)
            self._pushed[name] = local[name]
            self._save_pushed()
        for name in sorted(gone, key=_order):
            check()
            self._remote.delete(name)
            del self._pushed[name]
            self._save_pushed()

    @property
    def is_pushed(self) -> bool:
        """Whether all results in the mirror are in the storage."""
        local = _states(self.folder)
        return all(self._pushed.get(name) == state for name, state in local.items() if name.endswith(".parquet"))

    def take_over_dead(self) -> list[Path]:
        """Take over what the mirrors of dead processes still hold, and return these mirrors."""
        found = []
        for run in sorted(self.run.parent.glob("run-*")):
            if run.is_dir() and run != self.run and (lock := _locked(run)) is not None:
                try:
                    self._take_over(run)
                    found.append(run)
                finally:
                    os.close(lock)
        return found

    def remove_half_written(self, check: Callable[[], None] = lambda: None) -> None:
        """Remove from the storage the half-written files of a process that died. See `push` for `check`."""
        for name in self._remote.list():
            if name.endswith(".tmp"):
                check()
                self._remote.delete(name)

    def close(self) -> None:
        """Remove the mirror, unless it holds results that are nowhere else."""
        if self._lock < 0 or os.getpid() != self._pid:
            return
        if self.is_pushed:
            remove(self.run)
        os.close(self._lock)
        self._lock = -1

    def _pull(self, listed: dict[str, Stamp]) -> None:
        now = time.time_ns()
        wanted = {name: stamp for name, stamp in listed.items() if _is_read(name)}
        for name in _states(self.folder).keys() - wanted.keys():
            (self.folder / name).unlink()
        stale = [name for name, stamp in wanted.items() if not self._is_current(name, stamp)]
        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            list(pool.map(lambda name: self._remote.fetch(name, self.folder / name), stale))
        self._fetched, self._fetched_ns = wanted, now
        self._pushed = {name: state for name, state in _states(self.folder).items() if name in wanted}
        self._save_pushed()

    def _is_current(self, name: str, stamp: Stamp) -> bool:
        return (
            self._fetched.get(name) == stamp
            and (self.folder / name).exists()
            and stamp.mtime_ns is not None
            and self._fetched_ns - stamp.mtime_ns > _FRESH_NS
        )

    def _take_over(self, run: Path) -> None:
        """Add the parts of a dead process's mirror that were never pushed, as new parts."""
        folder = run / self.folder.name
        if not folder.is_dir():
            return
        pushed, states = _read_pushed(run), _states(folder)
        for part in list_parts(folder).parts:
            if part.trials is not None and pushed.get(part.trials.name) != states.get(part.trials.name):
                number = list_parts(self.folder).next_number
                kinds: tuple[tuple[Kind, Path | None], ...] = (("curves", part.curves), ("trials", part.trials))
                for kind, path in kinds:
                    if path is not None:
                        shutil.copy2(path, part_path(self.folder, kind, number))
                self._forget_half(part, pushed)

    def _forget_half(self, part: Part, pushed: Mapping[str, _State]) -> None:
        """Remove curves that were pushed without the trials that commit them; they have just been added with their
        trials.
        """
        trials = part_path(self.folder, "trials", part.number)
        if part.curves is not None and part.curves.name in pushed and not trials.exists():
            (self.folder / part.curves.name).unlink(missing_ok=True)

    def _save_pushed(self) -> None:
        content = json.dumps(self._pushed).encode()
        write_files({_pushed_file(self.run): lambda file: file.write(content)})


def new_mirror(remote: Remote) -> Mirror:
    """Return an empty mirror of this process. Raise HpxferError if there is no room for one."""
    base = cache_folder("storage") / _hash(remote.uri)
    run = base / f"run-{os.urandom(8).hex()}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        lock = os.open(_lock_file(run), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (run / remote.uri.name).mkdir(parents=True)
    except OSError as error:
        raise HpxferError(
            f"{base}: must be writable, because results in storage are mirrored there, got: {error.strerror}; set "
            f"XDG_CACHE_HOME to a folder with room"
        ) from None
    return Mirror(remote, run, lock)


def _hash(uri: Uri) -> str:
    """Return a name for the mirrors of a URI: that of a bucket on one server, however the rest is spelled."""
    server = dict(uri.options).get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    return hashlib.blake2b(f"{server} {uri.scheme}://{uri.key}".encode(), digest_size=12).hexdigest()


def remove(run: Path) -> None:
    """Remove the mirror of a process and the files beside it."""
    shutil.rmtree(run, ignore_errors=True)
    for path in (_pushed_file(run), _lock_file(run)):
        path.unlink(missing_ok=True)


def _locked(run: Path) -> int | None:
    """Return the lock of a mirror whose process is gone, or None if the process lives."""
    try:
        lock = os.open(_lock_file(run), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _lock_file(run: Path) -> Path:
    return run.with_name(f"{run.name}.lock")


def _pushed_file(run: Path) -> Path:
    return run.with_name(f"{run.name}.home.json")


def _read_pushed(run: Path) -> dict[str, _State]:
    """Return what has been pushed, or nothing if that cannot be read: then too much is pushed, never too little."""
    try:
        data = json.loads(read_bytes(_pushed_file(run)))
        return {name: (state[0], state[1], state[2]) for name, state in data.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _states(folder: Path) -> dict[str, _State]:
    """Return name -> state of the files to push. Folders are not pushed: checkpoints are written to the storage
    directly.
    """
    return dict(_scan(folder))


def _scan(folder: Path) -> Iterator[tuple[str, _State]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and _is_ours(entry.name):
                with suppress(FileNotFoundError):
                    stat = entry.stat(follow_symlinks=False)
                    yield entry.name, (stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _is_read(name: str) -> bool:
    """Return whether anything reads the file: the store, a search, or `hpxfer watch`. Figures and reports are only
    written.
    """
    return _is_ours(name) and name.endswith((".parquet", ".yaml", ".json", ".db"))


def _is_ours(name: str) -> bool:
    return not name.endswith((".tmp", "-journal")) and not name.startswith(".") and name not in _LOCAL_ONLY


def _replaceable(name: str) -> bool:
    """Return whether a file is written repeatedly. The numbered parts of the store are not."""
    return not name.startswith(("trials-", "curves-"))


def _order(name: str) -> tuple[int, str]:
    """Return the store's order: the sweep, then curves, then the trials that commit them, then what is made of them."""
    starts = ("sweep-", "sweep", "curves", "trials")
    return next((rank for rank, start in enumerate(starts) if name.startswith(start)), len(starts)), name
