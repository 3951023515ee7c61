"""Kept: the folder of weights beside the results, as the driver uses it. It needs no torch.

    <results>/weights/<trial's id>.safetensors           after the last step; the trial has finished
    <results>/weights/<trial's id>-step<N>.safetensors   after an earlier step, with `keep: all`
    <results>/weights/driver                             the driver's marker, while it runs

A worker writes the file of a trial before its result is stored. If the run is killed in between, the trial is trained
again and its file replaced. The weights of a stored result stay as they are. A file holds the losses of its trial, so
that a reader knows whether it belongs to the stored result.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.spec.keep import Keep, kept_steps
from hpxfer.storage.folder import MARKER, folder_at, marked, sees
from hpxfer.storage.uri import Uri

FOLDER = "weights"  # below the results


@dataclass(frozen=True)
class KeepSpec:
    """Where a worker stores weights, and which."""

    folder: str  # or URI
    keep: Keep
    marker: str  # the random token that the driver wrote

    def is_here(self) -> bool:
        """Return whether this machine sees the driver's folder."""
        return sees(self.folder, self.marker)

    def early_steps(self, steps: int) -> tuple[int, ...]:
        """Return the steps before the last one after which weights are stored."""
        return kept_steps(self.keep, steps)[:-1]


def name_of(trial_id: str, step: int | None = None) -> str:
    """Return the name of the file of a trial after an earlier step, or after its last."""
    return f"{trial_id}.safetensors" if step is None else f"{trial_id}-step{step}.safetensors"


def start(folder: Path | Uri, keep: Keep) -> KeepSpec | None:
    """Return what workers need in this run, or None if nothing is kept. Raises HpxferError if nothing can be written.

    From now on the workers of earlier runs write no more.
    """
    if keep == "none":
        return None
    try:
        files = folder_at(folder)
        spec = KeepSpec(files.where, keep, marked(files))
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
        files = folder_at(folder)
        files.remove(MARKER)
        files.unmake()


def _sweep(folder: Path | Uri) -> None:
    files = folder_at(folder)
    for name in files.stamps():
        if name.endswith(".tmp"):  # of a worker that was killed
            files.remove(name)
