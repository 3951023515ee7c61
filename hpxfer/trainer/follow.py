"""Follow: run one attempt at a trial, yield what it reports, and return how it ended."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from hpxfer.host.files import open_regular
from hpxfer.trainer.divergence import blow_up_limit, is_bad
from hpxfer.trainer.ending import Ending, Facts, cause, slurm_state
from hpxfer.trainer.history import Reported, merged, newest_checkpoint, read_earlier
from hpxfer.trainer.job import (
    CHECKPOINTS,
    CONFIG,
    CONTRACT,
    ENDED,
    ERROR,
    REPORTS,
    Job,
    Timeouts,
    attempt_folder,
    attempt_numbers,
    environment,
    next_attempt,
    write_config,
)
from hpxfer.trainer.lines import Point, Reader
from hpxfer.trainer.supervised import Exit, Supervised, end_marked
from hpxfer.trainer.supervisor import HALF_BYTES, QUICK_S

REPORT_FILE = "HPXFER_REPORT_FILE"  # the variable by which the processes of an attempt are found, too
# How often the report file is looked at. While lines come, the next look comes sooner.
_SOON_S, _LATE_S = 0.01, 0.2


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a trial has reported since the last look."""

    step: int  # the last one that was reported
    points: tuple[Point, ...]


class _Attempt:
    """What is known of the attempt while it runs."""

    def __init__(self, job: Job, attempt: int, earlier: list[Reported]) -> None:
        self.earlier, self.own = earlier, Reported(attempt)
        path = attempt_folder(job.run_dir, attempt) / REPORTS
        self.reader = Reader(path, trial_id=job.trial_id, attempt=attempt, steps=job.steps)
        self.divergence: tuple[int, str] | None = None
        self.timeout: str | None = None
        self.stopped = False
        self._job = job
        self._limit: float | None = None  # known from the first loss on
        self._patience = Patience(job.timeouts, time.monotonic(), speaks=job.speaks)
        if before := merged(earlier):
            self._limit = blow_up_limit(before[0].loss, job.guess_loss)

    @property
    def is_over(self) -> bool:
        """Whether no line changes the outcome any more."""
        return self.own.result is not None or self.divergence is not None or self.reader.fault is not None

    def read(self) -> Seen | None:
        """Take the lines that have come. Return the new points, if there are any."""
        new: list[Point] = []
        if not self.is_over:
            for line in self.reader.read():
                self._patience.heard(time.monotonic())
                if isinstance(line, Point) and self._has_diverged(line):
                    break
                self.own.add(line)
                if isinstance(line, Point):
                    new.append(line)
                if self.own.result is not None:
                    break
        return Seen(step=new[-1].step, points=tuple(new)) if new else None

    def grace_s(self, stop: Callable[[], bool]) -> float | None:
        """Return how long the command may take to end, or None if it goes on. A wish to stop is noted."""
        quick_s = min(self._job.grace_s, QUICK_S)
        if self.divergence is not None or self.reader.fault is not None:
            return quick_s
        if self.own.result is not None:
            return quick_s if self.own.result.status == "diverged" or stop() else None
        if stop():
            self.stopped = True
            return self._job.grace_s
        self.timeout = self._patience.why_over(time.monotonic())
        return None if self.timeout is None else quick_s

    def _has_diverged(self, point: Point) -> bool:
        if self._limit is None:
            self._limit = blow_up_limit(point.loss, self._job.guess_loss)
        if is_bad(point.loss, self._limit):
            limit = f", above {self._limit:g}, 4 times the first loss" if math.isfinite(point.loss) else ""
            self.divergence = point.step, f"loss {point.loss:g} at step {point.step}{limit}"
        return self.divergence is not None


def follow(job: Job, *, stop: Callable[[], bool]) -> Generator[Seen, None, Ending]:
    """Run the next attempt at a trial. Yield new points as they come, and return how it ended.

    `stop` is asked all 0.2 s or sooner. Once it is true, the command gets SIGTERM and `job.grace_s` to end. Closing the
    generator kills the command and all that it started. A trial whose last attempt wrote its result, but whose result
    nobody took (there is no ended.json), is not run again. Raises OSError if the folder cannot be written.
    """
    started, began = time.monotonic(), datetime.now()
    number = next_attempt(job.run_dir) if job.attempt is None else job.attempt
    # Before their reports are read: what still runs would remove the checkpoint that is chosen here for a later one.
    _end_earlier(job, number)
    earlier = read_earlier(job.run_dir, number, trial_id=job.trial_id, steps=job.steps)
    if job.speaks and (found := _already_ended(job, earlier)) is not None:
        return found
    resume = newest_checkpoint(job.run_dir, earlier)
    logs = _open(job, number, resume)
    attempt = _Attempt(job, number, earlier)
    env = _environment(job, logs, attempt.reader.path)
    out, err = logs / "stdout", logs / "stderr"
    with Supervised(job.argv, cwd=job.cwd, env=env, stdout=out, stderr=err, grace_s=job.grace_s) as command:
        yield from _watch(job, command, attempt, stop)
        exit_ = command.wait(0)
        assert exit_ is not None
    slurm = slurm_state(began) if exit_.code != 0 and attempt.own.result is None else ""
    return _ending(job, attempt, exit_, logs, time.monotonic() - started, slurm)


def _watch(job: Job, command: Supervised, attempt: _Attempt, stop: Callable[[], bool]) -> Generator[Seen, None, None]:
    """Yield new points until the command has ended."""
    pause_s, linger_until = _SOON_S, math.inf
    while command.wait(pause_s) is None:
        seen = attempt.read() if job.speaks else None
        if seen is not None:
            yield seen
        pause_s = _SOON_S if seen is not None or attempt.reader.has_more else min(2 * pause_s, _LATE_S)
        if command.is_ending:
            continue
        if (grace_s := attempt.grace_s(stop)) is not None:
            command.kill(grace_s, stacks=attempt.timeout is not None)
        elif attempt.own.result is not None:  # the command has said all, and gets its time to end
            linger_until = min(linger_until, time.monotonic() + job.grace_s)
            if time.monotonic() >= linger_until:
                command.kill(min(job.grace_s, QUICK_S))
    while job.speaks and not attempt.is_over and attempt.reader.has_more:
        if (seen := attempt.read()) is not None:
            yield seen


def _already_ended(job: Job, earlier: list[Reported]) -> Ending | None:
    """Return the ending of the last attempt, if its lines decide it and nobody took it: its worker was lost before.

    An ending that was taken is not given again: the user may have mended the code, and wants to see that.
    """
    if not earlier or (attempt_folder(job.run_dir, earlier[-1].attempt) / ENDED).exists():
        return None
    attempt = _Attempt(job, earlier[-1].attempt, earlier[:-1])
    while not attempt.is_over and attempt.reader.has_more:
        attempt.read()
    if attempt.own.result is None and attempt.divergence is None:
        return None
    found = _ending(job, attempt, Exit(code=0), attempt_folder(job.run_dir, attempt.own.attempt), 0.0)
    return None if found.status == "failed" else found


def _ending(job: Job, attempt: _Attempt, exit_: Exit, logs: Path, wall_s: float, slurm: str = "") -> Ending:
    before, own = merged(attempt.earlier), attempt.own
    points = merged([*attempt.earlier, own])
    best_before = max((each.step for one in attempt.earlier for each in one.checkpoints), default=-1)
    said = cause(
        Facts(
            exit=exit_,
            steps=job.steps,
            last_step=points[-1].step if points else None,
            has_loss=bool(points),
            result=own.result,
            divergence=attempt.divergence[1] if attempt.divergence else None,
            fault=attempt.reader.fault,
            stopped=attempt.stopped,
            timeout=attempt.timeout,
            stdout=_text(logs / "stdout"),
            stderr=_text(logs / "stderr"),
            error_file=_text(logs / ERROR),
            slurm_state=slurm,
            nan_exit=job.nan_exit,
            nodes=job.nodes,
            speaks=job.speaks,
        )
    )
    ending = Ending(
        status=said.status,
        kind=said.kind,
        message=said.why,
        points=points,
        groups=tuple(each for one in (*attempt.earlier, own) for each in one.groups),
        resumed=bool(before) and bool(own.points) and own.points[0].step > before[0].step,
        advanced=max((each.step for each in own.checkpoints), default=-1) > best_before,
        attempt=own.attempt,
        wall_s=wall_s,
    )
    if said.status == "diverged":
        return replace(ending, diverged_step=_diverged_step(attempt, points))
    if own.result is None:
        return ending
    return replace(ending, validation_loss=own.result.validation_loss, metrics=dict(own.result.metrics))


def _diverged_step(attempt: _Attempt, points: tuple[Point, ...]) -> int | None:
    if attempt.divergence is not None:
        return attempt.divergence[0]
    if attempt.own.result is not None and attempt.own.result.step is not None:
        return attempt.own.result.step
    return points[-1].step + 1 if points else None


def _open(job: Job, number: int, resume: tuple[int, str] | None) -> Path:
    """Make the folders and config.json of an attempt. Return the folder of the logs of this node."""
    folder = attempt_folder(job.run_dir, number)
    folder.mkdir(parents=True, exist_ok=not job.speaks or job.attempt is not None)
    (job.run_dir / CHECKPOINTS).mkdir(exist_ok=True)
    config: Mapping[str, Any] = {
        **job.config,
        "contract": CONTRACT,
        "trial": job.trial_id,
        "attempt": number,
        "steps": job.steps,
        "run_dir": str(job.run_dir),
        "report_file": str(folder / REPORTS),
        "checkpoint_dir": str(job.run_dir / CHECKPOINTS),
        "resume": None if resume is None else resume[1],
    }
    write_config(job.run_dir, config)
    logs = folder if job.speaks else folder / f"node-{job.node_rank}"
    logs.mkdir(exist_ok=True)
    return logs


def _end_earlier(job: Job, number: int) -> None:
    """End what earlier attempts have left on this machine. It would write into the same folder.

    Something is left if a worker and the supervisor were killed together: the command then goes on, and its ranks hang
    once it has ended.
    """
    if before := [each for each in attempt_numbers(job.run_dir) if each < number]:
        end_marked({os.fsencode(f"{REPORT_FILE}={attempt_folder(job.run_dir, each) / REPORTS}") for each in before})


def _environment(job: Job, logs: Path, reports: Path) -> dict[str, str]:
    return {
        "PYTHONFAULTHANDLER": "1",  # a Python that a signal ends writes where it was
        **environment(job.env),
        "TORCHELASTIC_ERROR_FILE": str(logs / ERROR),
        "HPXFER_CONFIG": str(job.run_dir / CONFIG),
        REPORT_FILE: str(reports),
    }


def _text(path: Path) -> str:
    """Return the text of a file that the supervisor keeps short. Nothing if there is none."""
    with suppress(OSError), open_regular(path) as file:
        return file.read(3 * HALF_BYTES).decode(errors="replace")
    return ""


# Without `silence_s`: a trainer hangs after so many of its own gaps between lines, and never before so many seconds.
_GAPS, _LEAST_S = 20.0, 900.0
_REMEMBERED = 101


class Patience:
    """Says when a trainer counts as hanging. All times are in seconds of one monotonic clock."""

    def __init__(self, timeouts: Timeouts, now: float, *, speaks: bool = True) -> None:
        self._timeouts, self._speaks = timeouts, speaks
        self._started, self._last = now, None if speaks else now
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)

    def heard(self, now: float) -> None:
        """Note that a line came."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now

    def why_over(self, now: float) -> str | None:
        """Return why the trainer counts as hanging, or None."""
        limits = self._timeouts
        if limits.wall_s is not None and now - self._started > limits.wall_s:
            return f"it ran longer than wall_s, {limits.wall_s:g} s"
        if not self._speaks:
            return None
        if self._last is None:
            late = limits.start_s is not None and now - self._started > limits.start_s
            return f"it wrote no line within start_s, {limits.start_s:g} s" if late else None
        if now - self._last > self.silence_s:
            return f"it wrote no line for silence_s, {self.silence_s:g} s"
        return None

    @property
    def silence_s(self) -> float:
        """The longest silence that is no hang."""
        if self._timeouts.silence_s is not None:
            return self._timeouts.silence_s
        return max(_LEAST_S, _GAPS * median(self._gaps)) if self._gaps else _LEAST_S
