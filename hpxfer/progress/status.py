"""RunStatus: how far a run is at one moment, as data. What is drawn while it runs, here or from another shell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hpxfer.errors import HpxferError

# Raised by whoever changes a field: a reader says so instead of guessing.
SNAPSHOT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RunningStack:
    """A stack on a worker. Seconds are counted from when that worker took it up."""

    id: str
    label: str  # its shape
    num_trials: int
    host: str
    pid: int
    step: int
    steps: int
    running_s: float
    alive: int  # trials that have not diverged
    loss_nats: float | None  # the best last training loss of its trials


@dataclass(frozen=True, kw_only=True)
class ShapeProgress:
    """The trials of one shape. `best` is over stored trials and this run's."""

    label: str
    num_trials: int  # of the sweep; of an adaptive search, at most
    num_stored: int  # done before this run
    finished: int
    diverged: int
    stopped: int  # early, by a rule of the sweep
    failed: int
    running: int
    best_loss_nats: float | None
    best: str  # what reached it, e.g. `lr 2^-6 completep-moe`

    @property
    def num_done(self) -> int:
        """Trials that need not be run again."""
        return self.num_stored + self.finished + self.diverged + self.stopped

    @property
    def num_left(self) -> int:
        return max(0, self.num_trials - self.num_done)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment. `elapsed_s` is by the driver's monotonic clock; nothing here is a time of day."""

    sweep: str
    at_most: bool  # the search may end with fewer trials
    elapsed_s: float
    num_left: int  # trials that this run set out to train
    finished: int
    diverged: int
    stopped: int
    failed: int
    tokens: int
    tokens_per_s: float | None
    eta_s: float | None
    running: tuple[RunningStack, ...]
    shapes: tuple[ShapeProgress, ...]
    num_notes: int = 0  # decisions of the search so far
    notes: tuple[str, ...] = ()  # the last of them
    errors: tuple[str, ...] = ()

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + self.stopped + self.failed

    def to_dict(self) -> dict[str, Any]:
        """Return the run_status as JSON-ready data; units end the names."""
        return {"version": SNAPSHOT_VERSION, **_finite(asdict(self))}


def run_status_from_dict(data: Any, where: str) -> RunStatus:
    """Return the RunStatus that `to_dict` gave; raise HpxferError naming `where` if it is none of this version."""
    if not isinstance(data, Mapping) or "version" not in data:
        raise HpxferError(f"{where}: must hold the progress of a run, got something else; start the run again")
    if data["version"] != SNAPSHOT_VERSION:
        raise HpxferError(
            f"{where}: must be of version {SNAPSHOT_VERSION}, got {data['version']!r}; watch with the hpxfer that runs"
        )
    try:
        rest = {name: value for name, value in data.items() if name != "version"}
        rest["running"] = tuple(RunningStack(**one) for one in rest["running"])
        rest["shapes"] = tuple(ShapeProgress(**one) for one in rest["shapes"])
        rest["notes"], rest["errors"] = tuple(rest["notes"]), tuple(rest["errors"])
        return RunStatus(**rest)
    except (TypeError, KeyError) as error:
        raise HpxferError(f"{where}: must hold the progress of a run, got {error}; start the run again") from None


def _finite(value: Any) -> Any:
    """Return `value` with null where a float is none that JSON knows."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value
