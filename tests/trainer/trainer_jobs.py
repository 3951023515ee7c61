"""Commands as trials: small programs, how they ended, and which of their processes still live."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpxfer.spec.own import TimeoutsSpec
from hpxfer.trainer import Ending, Job, Point, follow

# What every small program starts with: `say(type=..., ...)` writes a line.
PROLOGUE = """
import json, os, signal, sys, time
lines = open(os.environ["HPXFER_REPORT_FILE"], "a")
def say(**line):
    lines.write(json.dumps(line) + "\\n")
    lines.flush()
def report(step, loss):
    say(type="report", step=step, loss=loss)
"""
TAG = "HPXFER_TEST_TAG"
QUICK = TimeoutsSpec(start_s=5.0, silence_s=5.0)  # of programs that exceed it, but for what they do first
PATIENT = TimeoutsSpec(start_s=300.0, silence_s=300.0)  # of all others, which a busy machine starts slowly


@dataclass
class Run:
    """One trial that was run to its end."""

    ending: Ending
    seen: list[tuple[Point, ...]]
    took_s: float

    @property
    def points(self) -> list[Point]:
        return [point for each in self.seen for point in each]


@dataclass
class Runner:
    """Runs small programs as attempts at one trial in one folder."""

    folder: Path
    steps: int = 3
    tags: list[str] = field(default_factory=list)

    def job(self, program: str | Sequence[str], **given: Any) -> Job:
        """Return the job of a Python program, or of a command."""
        argv = (sys.executable, "-S", "-c", PROLOGUE + program) if isinstance(program, str) else tuple(program)
        self.tags.append(uuid.uuid4().hex)
        env = {TAG: self.tags[-1], **given.pop("env", {})}
        defaults = {"timeouts": PATIENT, "grace_s": 1.0, "steps": self.steps, "config": {}, "cwd": self.folder.parent}
        return Job(argv=argv, folder=self.folder, trial_id="t1", env=env, **{**defaults, **given})

    def run(self, program: str | Sequence[str], stop: Callable[[], bool] = lambda: False, **given: Any) -> Run:
        """Run a program to its end."""
        started = time.monotonic()
        seen, ending = to_the_end(follow(self.job(program, **given), stop=stop))
        return Run(ending, seen, time.monotonic() - started)

    @property
    def alive(self) -> list[int]:
        """The processes of all jobs that still live."""
        return [pid for tag in self.tags for pid in tagged(tag)]


def to_the_end(
    following: Generator[tuple[Point, ...], None, Ending],
) -> tuple[list[tuple[Point, ...]], Ending]:
    """Return what is yielded from now on, and how the attempt ended."""
    seen = []
    while True:
        try:
            seen.append(next(following))
        except StopIteration as end:
            return seen, end.value


def tagged(tag: str) -> list[int]:
    """Return the processes that have a tag in their environment. A process that has ended has none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{TAG}={tag}".encode() in variables:
            found.append(int(folder.name))
    return found


def wait_until(is_so: Callable[[], object], timeout_s: float = 300.0) -> None:
    """Wait until something is so. Raise AssertionError if it is not so in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)
