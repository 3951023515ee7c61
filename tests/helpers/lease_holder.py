"""Who holds the lease of a results folder."""

from __future__ import annotations

from pathlib import Path

from hpxfer.storage.lease import Holder, LeaseFile, decoded


def holder_of(folder: Path) -> Holder | None:
    """Return the driver that a results folder's lease names, or None if there is no lease or it cannot be read."""
    try:
        found = LeaseFile(folder).read()
    except OSError:
        return None
    return None if found is None else decoded(found)
