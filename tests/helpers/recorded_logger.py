"""A logger that remembers what it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpxfer.loggers.kinds import Final, LoggedTrial, LoggerKind, OpenTrial, Place, StepValues


@dataclass
class Recorder:
    """`before` is called first, with `open`, `log` or `close`. `seen` holds (what, trial, its argument)."""

    before: Callable[[str], None] = lambda what: None
    seen: list[tuple[str, LoggedTrial, Any]] = field(default_factory=list)
    num_open: int = 0
    most_open: int = 0

    def open(self, trial: LoggedTrial) -> OpenTrial:
        self.before("open")
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        self.seen.append(("open", trial, None))
        return _Recorded(self, trial)

    def asked(self) -> list[str]:
        """Return what it was asked for."""
        return [what for what, *_ in self.seen]

    def curve(self, trial_id: str, metric: str) -> list[tuple[int, float]]:
        """Return the points of a trial as they came."""
        calls = [points for what, trial, points in self.seen if what == "log" and trial.id == trial_id]
        return [(step, values[metric]) for points in calls for step, values in points.items() if metric in values]

    def ends(self) -> dict[str, Final]:
        """Return trial id -> how it ended. No trial ends twice."""
        ends = [(trial.id, final) for what, trial, final in self.seen if what == "close"]
        assert len(dict(ends)) == len(ends)
        return dict(ends)

    def kind(self, name: str = "mine") -> LoggerKind:
        """Return a row that makes this logger."""
        return LoggerKind(name=name, require=lambda: None, make=lambda place: self)


@dataclass
class _Recorded:
    to: Recorder
    trial: LoggedTrial

    def log(self, points: StepValues) -> None:
        self.to.before("log")
        self.to.seen.append(("log", self.trial, points))

    def close(self, final: Final) -> None:
        self.to.before("close")
        self.to.num_open -= 1
        self.to.seen.append(("close", self.trial, final))


def place_in(folder: Path) -> Place:
    return Place(sweep="made", results=str(folder), folder=folder, writing=nullcontext)
