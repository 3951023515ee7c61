"""A run as a tracker holds it, and what its client says of a store that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from hpxfer.errors import HpxferError, first_line


class Point(NamedTuple):
    """A value of a metric. `time` orders points of a step; equal units within a run."""

    step: float
    value: float
    time: float


@dataclass(frozen=True, kw_only=True, eq=False)
class LoggedRun:
    """One run. `state` is what the tracker says of how it ended, which may be wrong."""

    id: str
    name: str
    config: Mapping[str, Any]
    state: str
    metrics: tuple[str, ...]
    points: Callable[[str], Sequence[Point]]  # every raw point of a metric


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever a tracker's client, its database or the network say into an HpxferError that begins with `what`."""
    try:
        yield
    except HpxferError:
        raise
    except Exception as error:
        raise HpxferError(f"{what}: {first_line(error)}") from None
