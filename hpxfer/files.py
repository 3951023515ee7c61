"""Writing: files that are whole or not there, and the lock that keeps two processes apart."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

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


def prove_writable(folder: Path) -> None:
    """Raise OSError unless a file can be written in the folder and reaches the disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_PROBE)
        _to_disk(file)


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[None]:
    """Keep other processes from writing to the folder and, if exclusive, from reading it. Not reentrant.

    Where the file system has no locks, the rule that only the driver writes has to do.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            # Closing would not do if a process forked meanwhile: it holds the handle too.
            stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)
        yield


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
