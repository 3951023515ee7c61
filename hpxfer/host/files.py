"""Writing files so that each is complete or absent, and the lock that keeps two processes apart."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from hpxfer.errors import HpxferError
from hpxfer.host.process import process_is_gone

# Merging the files of a very large sweep may take minutes. Anything else takes less than a second.
LOCK_WAIT_S = 300.0
_LOCK_POLL_S = 0.005
# So many bytes that a full disk refuses them.
_PROBE = bytes(2**12)


def write_files(writers: Mapping[Path, Callable[[IO[bytes]], object]]) -> None:
    """Write every file under a temporary name, then rename the files in the order given.

    If a writer or the disk raises, no temporary file is left, and the exception goes on.
    """
    temporary = {path: path.with_name(f"{path.name}.{os.getpid()}.tmp") for path in writers}
    try:
        for path, write in writers.items():
            with open(temporary[path], "wb") as file:
                write(file)
                _to_disk(file)
        for path, written in temporary.items():
            os.replace(written, path)
            _sync_folder(path.parent)
    except BaseException:
        for written in temporary.values():
            with suppress(OSError):
                os.unlink(written)
        raise


def cache_folder(name: str) -> Path:
    """Return the user's cache folder for one purpose, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpxfer" / name


def reason(error: OSError) -> str:
    """Return why the system refused, in its own words, e.g. `No space left on device`."""
    return error.strerror or str(error)


def remove_half_written(folder: Path) -> None:
    """Remove temporary files whose process has ended, as far as that can be seen from this machine."""
    for path in folder.glob("*.tmp"):
        numbers = [int(part) for part in path.name.split(".") if part.isdecimal()]
        if numbers and process_is_gone(numbers[0], None):
            with suppress(OSError):
                path.unlink()


def prove_writable(folder: Path) -> None:
    """Raise OSError unless a file can be written to the folder and reaches the disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_PROBE)
        _to_disk(file)


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Keep other processes from writing to the folder and, if exclusive, from reading it. Not reentrant.

    A file system without locks is used without one: only the driver writes anyway. Raises HpxferError if another
    process holds the lock for LOCK_WAIT_S, which means that it was stopped during a write.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            _lock(folder, handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            # Closing the handle is not enough: a process that was forked meanwhile holds a copy of it.
            stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)
        yield


def _lock(folder: Path, handle: int, kind: int) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise HpxferError(
                    f"{folder}: must be free to write, got a lock that another process has held for {LOCK_WAIT_S:g} s; "
                    f"resume that process if it was suspended, or end it, then try again"
                ) from None
        time.sleep(_LOCK_POLL_S)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, on file systems that can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
