"""Files: read without waiting for ever, written complete or not at all, locked between processes, and grown by line."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host.machine import machine_id, process_is_gone

# Merging the files of a very large sweep may take minutes. Anything else takes less than a second.
LOCK_WAIT_S = 300.0
_LOCK_POLL_S = 0.005
# So many bytes that a full disk refuses them.
_PROBE = bytes(2**12)
# What `half_written` makes of a name: the machine and the process stand in it.
_HALF_WRITTEN = re.compile(r".+\.(?P<machine>on-[0-9a-f]{8})\.(?P<pid>\d+)\.tmp", re.DOTALL)
# No text that people write or that hpxfer stores is as long, and no file of JSON lines.
MAX_TEXT_BYTES = 32 * 2**20
MAX_LINES_BYTES = 2**28
# What the system says of a path or of its disk, and what either must be.
_REFUSALS = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "open to this user"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "on a disk with room"),
    **dict.fromkeys((errno.EIO, errno.ESTALE), "on a disk that answers"),
    errno.EROFS: "on a disk that can be written",
    **dict.fromkeys(
        (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST), "a path that can be used"
    ),
}
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def open_regular(path: str | Path) -> IO[bytes]:
    """Return a file opened for reading. Raise OSError at once unless it is a regular file.

    A plain `open` waits for ever where the path is a named pipe, and a read of /dev/zero never ends.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(handle).st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, f"must be a regular file, got {_KINDS.get(kind, 'something else')}", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: str | Path, most: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a regular file. Raise OSError if it cannot be read or has more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"must have at most {most / 2**20:g} MiB, got more", str(path))
    return content


def read_text(path: str | Path, most: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a regular file as `read_bytes` does, its lines ended by `\\n`.

    Raise UnicodeDecodeError unless it is UTF-8.
    """
    return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def write_files(writers: Mapping[Path, Callable[[IO[bytes]], object]]) -> None:
    """Write every file under a temporary name, then rename the files in the order given.

    If a writer or the disk raises, no temporary file is left, and the exception goes on. What a process that was killed
    has left half written beside the files goes first.
    """
    for folder in {path.parent for path in writers}:
        remove_half_written(folder)
    temporary = {path: half_written(path) for path in writers}
    try:
        for path, write in writers.items():
            with _named(path), open(temporary[path], "w+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        for path, written in temporary.items():
            with _named(path):
                os.replace(written, path)
            sync_folder(path.parent)
    except BaseException:
        for written in temporary.values():
            with suppress(OSError):
                os.unlink(written)
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Make an OSError name the path itself. The system names a temporary one, or none if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename, error.filename2 = str(path), None
        raise


def cache_folder(name: str) -> Path:
    """Return the user's cache folder for one purpose, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpxfer" / name


def reason(error: OSError) -> str:
    """Return why the system refused, in its own words, e.g. `No space left on device`."""
    if isinstance(error, FileExistsError):
        return "a file is in its place"  # `File exists` would be said of a folder that is to be made
    return error.strerror or str(error)


def path_problem(error: OSError) -> str | None:
    """Return in a sentence why the system refuses a path, or None if it says nothing of a path."""
    if error.filename is None or error.errno not in _REFUSALS:
        return None
    path = Path(os.fsdecode(error.filename))
    closed = next(filter(_is_closed, reversed(path.parents)), path)
    return f"{closed}: must be {_REFUSALS[error.errno]}, got {shown(reason(error))}"


def _is_closed(folder: Path) -> bool:
    try:
        os.stat(f"{folder}/.")
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def require_reachable(path: str, closed: OSError | None = None) -> None:
    """Raise HpxferError if a folder on the way to a path or glob is closed, so that nobody knows what is there.

    `closed` is what the system has said of a folder already.
    """
    try:
        os.lstat(path)
    except PermissionError as error:
        closed = error
    except OSError:
        pass
    if isinstance(closed, PermissionError) and (problem := path_problem(closed)) is not None:
        raise HpxferError(problem)


def folder_at(path: str) -> str | None:
    """Return the folder at a path whose special characters may be escaped as in a glob, or None."""
    return next((each for each in (path, re.sub(r"\[([*?[])\]", r"\1", path)) if os.path.isdir(each)), None)


def half_written(path: Path) -> Path:
    """Return the name under which this process writes a file before the file gets its own name."""
    return path.with_name(f"{path.name}.{_machine_tag()}.{os.getpid()}.tmp")


def remove_half_written(folder: Path, owned: tuple[str, ...] = ()) -> None:
    """Remove temporary files of processes that have ended, and all of files whose names start as in `owned`.

    Nobody but the caller may write `owned` files. Of the others, only those that were made on this machine are removed,
    because the number of a process means nothing on another one. Files without the machine in their names are a user's.
    """
    with suppress(OSError):
        for path in folder.glob("*.tmp"):
            if (found := _HALF_WRITTEN.fullmatch(path.name)) is None:
                continue
            is_here = found["machine"] == _machine_tag()
            if path.name.startswith(owned) or (is_here and process_is_gone(int(found["pid"]), None)):
                with suppress(OSError):
                    path.unlink()


@cache
def _machine_tag() -> str:
    """Return a short name of this machine, or of this process if the machine has no identity."""
    return f"on-{hashlib.blake2b((machine_id() or os.urandom(8).hex()).encode(), digest_size=4).hexdigest()}"


def prove_writable(folder: Path) -> None:
    """Raise OSError unless a file can be written to the folder and reaches the disk."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_PROBE)
        file.flush()
        os.fsync(file.fileno())


class NoLocks(OSError):
    """The file system has no locks, or has them no more."""


def wait_for_lock(handle: int, kind: int, wait_s: float) -> None:
    """Lock an open file, as `fcntl.LOCK_EX` or `LOCK_SH`.

    Raise BlockingIOError if another process holds the lock all the time, and NoLocks if there are none.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        except OSError as error:
            raise NoLocks(error.errno, error.strerror or str(error)) from None
        time.sleep(_LOCK_POLL_S)


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Iterator[OSError | None]:
    """Keep other processes from writing to the folder and, if exclusive, from reading it. Not reentrant.

    A file system without locks is used without one, because only the driver writes anyway; its error is yielded.
    Raises HpxferError if another process holds the lock for LOCK_WAIT_S: it was stopped during a write.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        yield error
        return
    refused = None
    try:
        wait_for_lock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, LOCK_WAIT_S)
    except BlockingIOError:
        os.close(handle)
        raise HpxferError(
            f"{folder}: must be free to write, got a lock that another process has held for {LOCK_WAIT_S:g} s; resume "
            "that process if it was suspended, or end it, then try again"
        ) from None
    except NoLocks as error:
        refused = error
    try:
        yield refused
    finally:
        if refused is None:  # closing is not enough: a process that was forked meanwhile holds a copy of the handle
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, on file systems that can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(folder: Path, what: str, option: str = "--output") -> None:
    """Make the folder of a thing, such as "check". Raise HpxferError as `write_folder` does if it cannot be made."""
    with _writing(folder, what, option):
        folder.mkdir(parents=True, exist_ok=True)


def write_folder(
    writers: Mapping[Path, Callable[[IO[bytes]], object]], folder: Path, what: str, option: str = "--output"
) -> list[Path]:
    """Write the files of a thing below its folder, and return their paths. Raise HpxferError if one cannot be written.

    The message names the thing and the option by which the user chooses the folder.
    """
    with _writing(folder, what, option):
        for parent in {path.parent for path in writers}:
            parent.mkdir(parents=True, exist_ok=True)
        write_files(writers)
    return list(writers)


@contextmanager
def _writing(folder: Path, what: str, option: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or folder
        raise HpxferError(
            f"{where}: the {what} cannot be written: {reason(error)}; choose another folder with {option}"
        ) from None


def text_writer(text: str) -> Callable[[IO[bytes]], object]:
    """Return what writes a text and a line end."""
    return lambda file: file.write(f"{text}\n".encode())


def append_line(path: Path, data: Mapping[str, Any] | None) -> None:
    """Append `data` as one JSON line, and wait until it is on the disk. Without data, only try whether it could be.

    If the file ends in the middle of a line, because the writer before was killed, the new line starts below it. Raises
    HpxferError if the file cannot be written, and ValueError for a number that is not finite.
    """
    text = "" if data is None else json.dumps(data, allow_nan=False) + "\n"
    with _writing(path.parent, "line", "--output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if text and file.tell():
                file.seek(-1, os.SEEK_END)
                text = text if file.read(1) == b"\n" else "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def json_lines(path: Path, what: str = "a JSON line") -> Iterator[tuple[int, Any]]:
    """Yield (number, data) of every line of a file. Raise HpxferError for a line that is no JSON.

    A last line without an end is left out if it is no JSON: its writer was killed.
    """
    try:
        lines = read_text(path, MAX_LINES_BYTES).split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = reason(error) if isinstance(error, OSError) else error.reason
        raise HpxferError(f"{path}: must be a file of JSON lines, got {why}") from None
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                return
            raise HpxferError(f"{path}:{number}: must be {what}, got {error}") from None
