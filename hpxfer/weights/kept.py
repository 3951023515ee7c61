"""Kept: the folder of weights beside the results, as the driver uses it. It needs no torch.

    <results>/weights/<trial's id>.safetensors   after the last step; the trial has finished
    <results>/weights/driver                     the driver's marker, while it runs

A worker writes the file of a trial before its result is stored. If the run is killed in between, the trial is trained
again and its file replaced. The weights of a stored result stay as they are. A file holds the losses of its trial, so
that a reader knows whether it belongs to the stored result.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.host import Uri
from hpxfer.storage import MARKER, marked, objects_at, sees

FOLDER = "weights"  # below the results


@dataclass(frozen=True)
class KeepSpec:
    """Where a worker stores weights."""

    folder: str  # or URI
    marker: str  # the random token that the driver wrote

    def is_here(self) -> bool:
        """Return whether this machine sees the driver's folder."""
        return sees(self.folder, self.marker)


def name_of(trial_id: str) -> str:
    """Return the name of the file of a trial."""
    return f"{trial_id}.safetensors"


def start(folder: Path | Uri) -> KeepSpec:
    """Return what workers need in this run. Raises HpxferError if nothing can be written.

    From now on the workers of earlier runs write no more.
    """
    try:
        files = objects_at(folder)
        spec = KeepSpec(files.where, marked(files))
        _sweep(folder)
    except OSError as error:
        raise HpxferError(
            f"{folder}: weights must be stored here, got {error}; make it writable, or set resources.keep: none"
        ) from None
    return spec


def end(folder: Path | Uri) -> None:
    """Remove what no run needs: the marker, half-written files, and an empty folder."""
    with suppress(OSError, HpxferError):
        _sweep(folder)
        files = objects_at(folder)
        files.remove(MARKER)


def _sweep(folder: Path | Uri) -> None:
    files = objects_at(folder)
    for name in files.stamps():
        if name.endswith(".tmp"):  # of a worker that was killed
            files.remove(name)
