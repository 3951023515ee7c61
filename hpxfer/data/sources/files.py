"""Files: which files a path or a glob names. A glob is followed only so far, because `/**` names a whole disk."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass

from hpxfer.data.sources.remote import is_uri, matching_uris
from hpxfer.errors import HpxferError, cut, shown
from hpxfer.host.files import require_reachable

# A plan looks at each file, and so many take about a second. So many names are read from the disk in about one.
MAX_FILES = 20_000
MAX_NAMES = 100_000
MAX_PATTERN = 4096  # characters, as for the paths of the system


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
    matches = [pattern] if os.path.lexists(pattern) else sorted(set((found := _Glob(pattern, key)).paths()))
    if not matches:
        require_reachable(pattern, found.closed)
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


@dataclass
class _Glob:
    """The paths that a pattern matches, as `glob.glob` finds them with `recursive=True`. It stops at MAX_NAMES names.

    `glob` itself cannot be stopped: with `/**/*.txt` it walks a disk before it returns the first match.
    """

    pattern: str
    key: str
    num_names: int = 0
    closed: OSError | None = None  # why a folder on the way could not be read

    def paths(self) -> Iterator[str]:
        parts: list[str] = []
        for part in filter(None, self.pattern.split("/")):
            if part == "**" and parts[-1:] == ["**"]:
                continue  # says nothing more
            if parts and not glob.has_magic(part) and not glob.has_magic(parts[-1]):
                parts[-1] += f"/{part}"
            else:
                parts.append(part)
        yield from self._below("/" if self.pattern.startswith("/") else "", parts)

    def _below(self, path: str, parts: list[str]) -> Iterator[str]:
        """Yield what the parts of a pattern match below a path."""
        if not parts:
            yield path
            return
        head, *rest = parts
        if head == "**":
            if rest or path:
                yield from self._below(path, rest)
            for name, is_folder in self._entries(path):
                if name.startswith("."):
                    continue
                if is_folder:
                    yield from self._below(os.path.join(path, name), parts)
                elif not rest:
                    yield os.path.join(path, name)
        elif glob.has_magic(head):
            hidden = head.startswith(".")
            for name, is_folder in self._entries(path):
                if (is_folder or not rest) and (hidden or not name.startswith(".")) and fnmatch.fnmatch(name, head):
                    yield from self._below(os.path.join(path, name), rest)
        elif (
            os.path.isdir(found := os.path.join(path, head))
            if rest
            else os.path.lexists(found := os.path.join(path, head))
        ):
            yield from self._below(found, rest)

    def _entries(self, path: str) -> Iterator[tuple[str, bool]]:
        """Yield (name, whether it is a folder) of what a folder holds: nothing, with a note, if it cannot be read."""
        try:
            with os.scandir(path or ".") as entries:
                for entry in entries:
                    self.num_names += 1
                    if self.num_names > MAX_NAMES:
                        raise _too_many(self.key, self.pattern, f"be found among at most {MAX_NAMES} names, got more")
                    yield entry.name, entry.is_dir()
        except OSError as error:
            self.closed = error
