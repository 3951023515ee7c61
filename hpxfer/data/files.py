"""Files: which files a path or a glob names, and their bytes. A glob is followed only so far: `/**` is a whole disk."""

from __future__ import annotations

import fnmatch
import glob
import gzip
import os
import stat
import zlib
from collections.abc import Callable, Iterator

from hpxfer.data.remote import is_uri, matching_uris, remote_bytes, remote_size
from hpxfer.errors import HpxferError, cut, shown
from hpxfer.host.files import open_regular, reason, require_reachable

# A plan looks at each file, and so many take about a second. So many names are read from the disk in about one.
MAX_FILES = 20_000
MAX_NAMES = 100_000
MAX_PATTERN = 4096  # characters, as for the paths of the system
MAX_BYTES = 16 * 2**30  # of one file that is held in memory


def matching_files(pattern: str, key: str = "data.source") -> list[str]:
    """Return the file at the literal path `pattern`, or the files that it matches as a glob, sorted. `**` recurses.

    Folders among the matches are left out. Raise HpxferError if nothing else matches, or too much, or if nothing is
    found where a folder is closed to this user.
    """
    if "\0" in pattern or len(pattern) > MAX_PATTERN:
        rule = f"must be a path of at most {MAX_PATTERN} characters, none of them zero"
        raise HpxferError(f"{key}: {rule}, got {shown(pattern)} of {len(pattern)}")
    if is_uri(pattern):
        return matching_uris(pattern)
    closed: list[OSError] = []
    num_names = 0

    def entries(path: str) -> Iterator[tuple[str, bool]]:
        """Yield (name, whether it is a folder) of what a folder holds: nothing, with a note, if it cannot be read."""
        nonlocal num_names
        try:
            with os.scandir(path or ".") as found:
                for entry in found:
                    num_names += 1
                    if num_names > MAX_NAMES:
                        raise _too_many(key, pattern, f"be found among at most {MAX_NAMES} names, got more")
                    yield entry.name, entry.is_dir()
        except OSError as error:
            closed.append(error)

    parts: list[str] = []
    for part in filter(None, pattern.split("/")):
        if parts and not glob.has_magic(part) and not glob.has_magic(parts[-1]):
            parts[-1] += f"/{part}"
        elif parts[-1:] != ["**"] or part != "**":  # a second one says nothing more
            parts.append(part)
    start = "/" if pattern.startswith("/") else ""
    matches = [pattern] if os.path.lexists(pattern) else sorted(set(_below(start, parts, entries)))
    if not matches:
        require_reachable(pattern, closed[-1] if closed else None)
    files = [path for path in matches if not os.path.isdir(path)]
    if matches and not files:
        inside = os.path.join(matches[0], "**", "*")
        raise HpxferError(
            f"{key}: must name files, got the folder {cut(matches[0], 300)}; for all below it: {cut(inside, 300)}"
        )
    if len(files) > MAX_FILES:
        raise _too_many(key, pattern, f"match at most {MAX_FILES} files, got {len(files)}")
    return files


def _too_many(key: str, pattern: str, rule: str) -> HpxferError:
    return HpxferError(f"{key}: must {rule}, with {cut(pattern, 300)}; name a folder below it, or join the files")


def _below(path: str, parts: list[str], entries: Callable[[str], Iterator[tuple[str, bool]]]) -> Iterator[str]:
    """Yield what the parts of a pattern match below a path, as `glob.glob` with `recursive=True` does.

    `glob` itself cannot be stopped: with `/**/*.txt` it walks a disk before it returns the first match.
    """
    if not parts:
        yield path
        return
    head, *rest = parts
    if head == "**" and (rest or path):
        yield from _below(path, rest, entries)
    if not glob.has_magic(head):
        found = os.path.join(path, head)
        if os.path.isdir(found) if rest else os.path.lexists(found):
            yield from _below(found, rest, entries)
        return
    for name, is_folder in entries(path):
        if name.startswith(".") and (head == "**" or not head.startswith(".")):
            continue
        if head == "**" and is_folder:
            yield from _below(os.path.join(path, name), ["**", *rest], entries)
        elif (not rest) if head == "**" else ((is_folder or not rest) and fnmatch.fnmatch(name, head)):
            yield from _below(os.path.join(path, name), rest, entries)


def file_size(path: str) -> int:
    """Return the bytes of a regular file, or of one in storage. Raise HpxferError for anything else."""
    if is_uri(path):
        return remote_size(path)
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise HpxferError(f"{path}: must be a regular file, which can be read twice; store the data in one")
    return found.st_size


def read_bytes(path: str, offset: int, num_bytes: int) -> bytes:
    """Return up to `num_bytes` bytes of a file from `offset` on. Raise HpxferError if it cannot be read."""
    if is_uri(path):
        return remote_bytes(path, offset, num_bytes)
    try:
        with open_regular(path) as file:
            file.seek(offset)
            return file.read(num_bytes)
    except OSError as error:
        raise _unreadable(path, error) from None


def unpacked(path: str, num_bytes: int) -> bytes:
    """Return up to `num_bytes` bytes of a file, unpacked if its name ends in .gz."""
    if num_bytes > MAX_BYTES:
        raise HpxferError(f"{path}: must hold at most {MAX_BYTES} bytes, got {num_bytes}; name fewer samples")
    if not path.endswith(".gz"):
        return read_bytes(path, 0, num_bytes)
    try:
        with open_regular(path) as file, gzip.GzipFile(fileobj=file) as content:
            return content.read(num_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HpxferError(f"{path}: must be whole and packed by gzip, got {error}; fetch it again") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> HpxferError:
    return HpxferError(f"{path}: cannot be read: {reason(error)}; correct the path")
