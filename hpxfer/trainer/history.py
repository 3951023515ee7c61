"""History: what the attempts at a trial have reported together. Nothing but their folders is needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hpxfer.trainer.job import REPORTS, attempt_folder, attempt_numbers
from hpxfer.trainer.lines import Checkpoint, Forward, Groups, Line, Point, Reader, Result

# Receipts are for a few steps, and the newest checkpoints count. Who writes them at each step fills no memory.
_MOST = 64


@dataclass
class Reported:
    """What one attempt has reported so far."""

    attempt: int
    points: list[Point] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    groups: list[Groups] = field(default_factory=list)
    outputs: list[Forward] = field(default_factory=list)
    result: Result | None = None

    def add(self, line: Line) -> None:
        """Take a line."""
        match line:
            case Point():
                self.points.append(line)
            case Checkpoint():
                self.checkpoints.append(line)
                del self.checkpoints[:-_MOST]
            case Groups() if len(self.groups) < _MOST:
                self.groups.append(line)
            case Forward() if len(self.outputs) < _MOST:
                self.outputs.append(line)
            case Result():
                self.result = line


def read_earlier(folder: Path, before: int, *, trial_id: str, steps: int) -> list[Reported]:
    """Return what the attempts before `before` have reported, in their order, each up to its first bad line."""
    return [
        _read(folder, number, trial_id=trial_id, steps=steps) for number in attempt_numbers(folder) if number < before
    ]


def _read(folder: Path, attempt: int, *, trial_id: str, steps: int) -> Reported:
    reader = Reader(attempt_folder(folder, attempt) / REPORTS, trial_id=trial_id, attempt=attempt, steps=steps)
    found = Reported(attempt)
    while reader.has_more:
        for line in reader.read():
            found.add(line)
            if found.result is not None:
                return found
    return found


def reached(folder: Path, *, trial_id: str, steps: int) -> int:
    """Return the latest step of which any attempt at a trial has reported a checkpoint; -1 without any."""
    found = read_earlier(folder, sys.maxsize, trial_id=trial_id, steps=steps)
    return max((each.step for one in found for each in one.checkpoints), default=-1)


def merged(attempts: Iterable[Reported]) -> tuple[Point, ...]:
    """Return the points of all attempts by step. A later attempt wins from its first step on."""
    points: list[Point] = []
    for each in attempts:
        if each.points:
            first = each.points[0].step
            points = [point for point in points if point.step < first] + each.points
    return tuple(points)


def newest_checkpoint(folder: Path, attempts: Iterable[Reported]) -> tuple[int, str] | None:
    """Return (step, absolute path) of the newest checkpoint that still exists, or None."""
    found = [each for one in attempts for each in one.checkpoints]
    order = sorted(range(len(found)), key=lambda index: (found[index].step, index), reverse=True)
    for checkpoint in (found[index] for index in order):  # of one step, the one that was written last
        path = os.path.join(folder, checkpoint.path)
        if os.path.exists(path):
            return checkpoint.step, path
    return None
