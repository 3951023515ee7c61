"""RunStatus: how far a run is at one moment, as data. The display draws it, in this shell or in another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host.output import json_ready

# Throughput: how fast a run goes, measured over its later half. It is steady enough for an ETA, and forgets a slow
# start.

# Above this number of marks, every second one is dropped: the memory does not grow with the run.
MOST_MARKS = 256
# A rate over less time than this would change much with every report.
LEAST_S = 2.0


@dataclass(kw_only=True)
class Throughput:
    """An amount that grows over time. Call `add` as it grows, and `rate` at any moment."""

    total: float = 0.0
    _marks: list[tuple[float, float]] = field(default_factory=list)  # (seconds, total at that time)
    _spacing_s: float = 0.25

    def add(self, now: float, amount: float) -> None:
        """Add an amount that was done by `now`. The first call only starts the clock."""
        self.total += amount
        if not self._marks or now - self._marks[-1][0] >= self._spacing_s:
            self._marks.append((now, self.total))
            if len(self._marks) > MOST_MARKS:
                self._marks = self._marks[::2]
                self._spacing_s *= 2

    def rate(self, now: float) -> float | None:
        """Return the amount per second since the middle of the time so far, or None before LEAST_S have passed."""
        if not self._marks or now - self._marks[0][0] < LEAST_S:
            return None
        first = self._marks[0]
        middle = (first[0] + now) / 2
        since = next((mark for mark in reversed(self._marks) if mark[0] <= middle), first)
        if self.total <= since[1]:
            since = first  # nothing was added since the middle: use the whole time
        return (self.total - since[1]) / (now - since[0]) if self.total > since[1] else None


# Raise it with every change of a field. A reader refuses another version and does not guess.
STATUS_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class RunningStack:
    """A stack on a worker. Seconds count from the moment when the worker took it."""

    id: str
    label: str  # of its shape
    num_trials: int
    host: str
    pid: int
    step: int
    steps: int
    running_s: float
    alive: int  # trials that have not diverged
    loss_nats: float | None  # the lowest of its trials' last training losses; a squared error if they train with it


@dataclass(frozen=True, kw_only=True)
class ShapeProgress:
    """The trials of one shape. `best` is the best of stored trials and of this run's."""

    label: str
    num_trials: int = 0  # of the sweep; for an adaptive search, the most it may have
    num_stored: int = 0  # done before this run
    finished: int = 0
    diverged: int = 0
    stopped: int = 0  # early, by the sweep's early stopping
    failed: int = 0
    running: int = 0
    best_loss: float | None = None  # by which the sweep is judged, in its unit
    best_text: str = ""  # as pages show it, e.g. `3.1415 nats`, or the accuracy `62.30%`
    best: str = ""  # which trial reached it, e.g. `lr 2^-6 completep-moe`

    @property
    def ended(self) -> int:
        """Trials that have ended in this run."""
        return self.finished + self.diverged + self.stopped + self.failed

    @property
    def num_done(self) -> int:
        """Trials that need not be run again."""
        return self.num_stored + self.finished + self.diverged + self.stopped

    @property
    def num_left(self) -> int:
        return max(0, self.num_trials - self.num_done)


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A run at one moment. `elapsed_s` is by the driver's monotonic clock. No field is a time of day."""

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
    reads: str = "tokens"  # what `tokens` counts
    num_notes: int = 0  # decisions of the search so far
    notes: tuple[str, ...] = ()  # the last few of them
    errors: tuple[str, ...] = ()

    @property
    def ended(self) -> int:
        return self.finished + self.diverged + self.stopped + self.failed

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON-ready data. Units end the names."""
        return {"version": STATUS_VERSION, **json_ready(asdict(self))}


def run_status_from_dict(data: Any, where: str) -> RunStatus:
    """Return the RunStatus that `to_dict` gave. Raise HpxferError, which names `where`, if it is not of this
    version.
    """
    if not isinstance(data, Mapping) or "version" not in data:
        raise HpxferError(f"{where}: must hold the progress of a run, got something else; start the run again")
    if data["version"] != STATUS_VERSION:
        raise HpxferError(
            f"{where}: must have version {STATUS_VERSION}, got {shown(data['version'])}; watch with the "
            "hpxfer that runs it"
        )
    try:
        rest = {name: value for name, value in data.items() if name != "version"}
        rest["running"] = tuple(RunningStack(**stack) for stack in rest["running"])
        rest["shapes"] = tuple(ShapeProgress(**shape) for shape in rest["shapes"])
        rest["notes"], rest["errors"] = tuple(rest["notes"]), tuple(rest["errors"])
        found = RunStatus(**rest)
        parts: list[RunStatus | RunningStack | ShapeProgress] = [found, *found.running, *found.shapes]
        for part in parts:
            _check_types(part)
        return found
    except (TypeError, KeyError) as error:
        raise HpxferError(f"{where}: must hold the progress of a run, got {error}; start the run again") from None


def _check_types(part: RunStatus | RunningStack | ShapeProgress) -> None:
    """Raise TypeError unless every field holds what its type says. The file may have been damaged or edited."""
    for each in fields(part):
        value = getattr(part, each.name)
        if not _IS_OF[str(each.type)](value):
            raise TypeError(f"{each.name} is {shown(value)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


# By the spelling of a field's type.
_IS_OF: dict[str, Callable[[object], bool]] = {
    "int": _is_count,
    "float": _is_number,
    "float | None": lambda value: value is None or _is_number(value),
    "bool": lambda value: isinstance(value, bool),
    "str": _is_text,
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(map(_is_text, value)),
    "tuple[RunningStack, ...]": lambda value: isinstance(value, tuple),
    "tuple[ShapeProgress, ...]": lambda value: isinstance(value, tuple),
}
