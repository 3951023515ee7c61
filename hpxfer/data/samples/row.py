"""SampleSource: the row of one kind of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpxfer.data.samples.facts import Samples
from hpxfer.storage.uri import is_uri


def on_disk(rest: str) -> str | None:
    """Return what is wrong with the path of samples, or None."""
    return f"must name samples on a disk, got the URI {rest}; copy them to this machine" if is_uri(rest) else None


@dataclass(frozen=True, kw_only=True)
class SampleSource:
    """One kind of samples, named `NAME:REST` in a sweep."""

    name: str
    """The prefix, without its colon."""
    usage: str
    """How a sweep names such samples, e.g. `npz:FILE`."""
    is_path: bool = True
    """Whether the rest is a path, which starts at the folder of the sweep file if it is relative. It is no glob."""
    problem: Callable[[str], str | None] = on_disk
    """(rest) -> what is wrong with it, or None. It must not touch the data: it runs where a sweep is only planned."""
    open: Callable[[str], Samples | None]
    """(rest) -> the samples on this machine, or None if there are none. Its facts must be quick: a sweep that is loaded
    asks for them. Everything else may read all samples."""
    mismatch_fix: str = "copy the sweep's data to it"
    """What to do if another machine has other samples under the same name."""
