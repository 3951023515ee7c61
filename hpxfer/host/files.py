"""Writing: files that are whole or not there, and the lock that keeps two processes apart."""

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

# Merging the files of a very large sweep may take minutes, anything else takes less than a second.
LOCK_WAIT_S = 300.0
_LOCK_POLL_S = 0.005
# Enough that a full disk is noticed.
_PROBE = bytes(2**12)


def write_files(writers: Mapping[Path, Callable[[IO[bytes]], object]]) -> None:
    """Write every file under a temporary name, then rename them in the order given.

    Raises what a writer or the disk raises; then no temporary file is left.
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


def remove_half_written(folder: Path) -> None:
    """Remove what was left under a temporary name by processes that are no more, as far as can be seen from here."""
    for path in folder.glob("*.tmp"):
        numbers = [int(part) for part in path.name.split(".") if part.isdecimal()]
        if numbers and process_is_gone(numbers[0], None):
            with suppress(OSError):
                path.unlink()


def prove_writable(folder: Path) -> None:
    """Raise OSError unless a file can be written in the folder and reaches the disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_PROBE)
        _to_disk(file)


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Keep other processes from writing to the folder and, if exclusive, from reading it. Not reentrant.

    Where the file system has no locks, the rule that only the driver writes has to do. Raises HpxferError if another
    process keeps it for LOCK_WAIT_S: it was stopped in the middle of a write.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            _lock(folder, handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            # Closing would not do if a process forked meanwhile: it holds the handle too.
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
                    f"{folder}: another process has been writing to it for {LOCK_WAIT_S:g} s, or was stopped while it "
                    f"wrote; let it go on, or end it, and try again"
                ) from None
        time.sleep(_LOCK_POLL_S)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the file system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
