"""Files: which files a path or a glob names."""

from __future__ import annotations

import glob
import os

from hpxfer.errors import HpxferError


def matching_files(pattern: str) -> list[str]:
    """Return the file at the literal path `pattern`, or the files that it matches as a glob, sorted. `**` recurses.

    Folders among the matches are left out. Raise HpxferError if nothing else matches.
    """
    matches = [pattern] if os.path.lexists(pattern) else sorted(set(glob.glob(pattern, recursive=True)))
    files = [path for path in matches if not os.path.isdir(path)]
    if matches and not files:
        inside = os.path.join(matches[0], "**", "*")
        raise HpxferError(f"data.source: must name files, got the folder {matches[0]}; for all below it: {inside}")
    return files
