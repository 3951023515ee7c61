"""Follow: start one attempt at a trial under its supervisor, yield what it reports, and return how it ended."""

from __future__ import annotations

import json
import math
import os
import select
import subprocess
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import IO

import psutil

from hpxfer.host import open_regular
from hpxfer.spec import TimeoutsSpec
from hpxfer.trainer import supervisor
from hpxfer.trainer.ending import Ending, Exit, ending_of, slurm_state
from hpxfer.trainer.job import (
    CHECKPOINTS,
    CONFIG,
    CONTRACT,
    ENDED,
    ERROR,
    Job,
    attempt_folder,
    attempt_numbers,
    environment,
    next_attempt,
    write_config,
)
from hpxfer.trainer.lines import Point, Reports, merged, newest_checkpoint, read_attempts

REPORT_FILE = "HPXFER_REPORT_FILE"  # the variable by which the processes of an attempt are found, too
# The variable by which the processes of a command are found if their supervisor itself was killed.
MARK = "HPXFER_MARK"
# Beyond the time that the supervisor needs at most. A supervisor that takes longer is killed.
SLACK_S = 10.0
# Isolated: neither the user's variables nor what site-packages do at a start decide what the supervisor imports. Only
# psutil is added, wherever this process has it from.
_START = "import runpy, sys; sys.path.append(sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
# How often the report file is looked at. While lines come, the next look comes sooner.
_SOON_S, _LATE_S = 0.01, 0.2


def follow(job: Job, *, stop: Callable[[], bool]) -> Generator[tuple[Point, ...], None, Ending]:
    """Run the next attempt at a trial. Yield new points as they come, and return how it ended.

    `stop` is asked all 0.2 s or sooner. Once it is true, the command gets SIGTERM and `job.grace_s` to end. Closing the
    generator kills the command and all that it started. A trial whose last attempt wrote its result, but whose result
    nobody took (there is no ended.json), is not run again. Raises OSError if the folder cannot be written.
    """
    started, began = time.monotonic(), datetime.now()
    number = next_attempt(job.run_dir) if job.attempt is None else job.attempt
    # What still runs of earlier attempts would remove the checkpoint that is chosen here for a later one. It is left if
    # a worker and the supervisor were killed together: the command then goes on, and its ranks hang once it has ended.
    if before := [each for each in attempt_numbers(job.run_dir) if each < number]:
        end_marked(REPORT_FILE, {str(job.reports(each)) for each in before})
    earlier = read_attempts(job.run_dir, trial_id=job.trial_id, steps=job.steps, before=number)

    def judged(attempt: int, earlier: list[Reports]) -> Reports:
        return Reports(job.run_dir, attempt, trial_id=job.trial_id, steps=job.steps, before=merged(earlier))

    if job.speaks and earlier and not (attempt_folder(job.run_dir, before[-1]) / ENDED).exists():
        # An ending that was taken is not given again: the user may have mended the code, and wants to see that.
        last = judged(before[-1], earlier[:-1])
        while last.has_more:
            deque(last.read(), maxlen=0)
        found = ending_of(job, earlier[:-1], last, Exit(code=0))
        if found.status != "failed" and (last.result or last.divergence):
            return found
    logs = _open(job, number, newest_checkpoint(job.run_dir, earlier))
    reports = judged(number, earlier)
    env = {
        "PYTHONFAULTHANDLER": "1",  # a Python that a signal ends writes where it was
        **environment(job.env),
        "TORCHELASTIC_ERROR_FILE": str(logs / ERROR),
        "HPXFER_CONFIG": str(job.run_dir / CONFIG),
        REPORT_FILE: str(reports.path),
    }
    out, err = logs / "stdout", logs / "stderr"
    with Supervised(job.argv, cwd=job.cwd, env=env, stdout=out, stderr=err, grace_s=job.grace_s) as command:
        stopped, timeout = yield from _watch(job, command, reports, stop)
        end = command.wait(0)
        assert end is not None
    return ending_of(
        job,
        earlier,
        reports,
        end,
        stopped=stopped,
        timeout=timeout,
        slurm=slurm_state(began) if end.code != 0 and reports.result is None else "",
        stdout=_text(out),
        stderr=_text(err),
        error_file=_text(logs / ERROR),
        wall_s=time.monotonic() - started,
    )


def _watch(
    job: Job, command: Supervised, reports: Reports, stop: Callable[[], bool]
) -> Generator[tuple[Point, ...], None, tuple[bool, str | None]]:
    """Yield new points until the command has ended. Return whether it was stopped, and why it counts as hanging."""
    patience = Patience(job.timeouts, time.monotonic(), speaks=job.speaks)
    stopped, timeout, linger_until, pause_s = False, None, math.inf, _SOON_S
    quick_s = min(job.grace_s, supervisor.QUICK_S)

    def new_points() -> tuple[Point, ...]:
        known = len(reports.points)
        for _ in reports.read() if job.speaks else ():
            patience.heard(time.monotonic())
        return tuple(reports.points[known:])

    while command.wait(pause_s) is None:
        if points := new_points():
            yield points
        pause_s = _SOON_S if points or reports.has_more else min(2 * pause_s, _LATE_S)
        if command.is_ending:
            continue
        if reports.divergence or reports.fault or (reports.result and reports.result.status == "diverged"):
            command.kill(quick_s)
        elif reports.result:  # the command has said all, and gets its time to end
            linger_until = min(linger_until, time.monotonic() + job.grace_s)
            if stop() or time.monotonic() >= linger_until:
                command.kill(quick_s)
        elif stopped := stop():
            command.kill(job.grace_s)
        elif timeout := patience.why_over(time.monotonic()):
            command.kill(quick_s, stacks=True)
    while job.speaks and reports.has_more:
        if points := new_points():
            yield points
    return stopped, timeout


def _text(path: Path) -> str:
    """Return the text of a file that the supervisor keeps short. Nothing if there is none."""
    with suppress(OSError), open_regular(path) as file:
        return file.read(3 * supervisor.HALF_BYTES).decode(errors="replace")
    return ""


def _open(job: Job, number: int, resume: str | None) -> Path:
    """Make the folders and config.json of an attempt. Return the folder of the logs of this node."""
    folder = attempt_folder(job.run_dir, number)
    folder.mkdir(parents=True, exist_ok=not job.speaks or job.attempt is not None)
    (job.run_dir / CHECKPOINTS).mkdir(exist_ok=True)
    of_attempt = {
        "contract": CONTRACT,
        "trial": job.trial_id,
        "attempt": number,
        "steps": job.steps,
        "run_dir": str(job.run_dir),
        "report_file": str(job.reports(number)),
        "checkpoint_dir": str(job.run_dir / CHECKPOINTS),
        "resume": resume,
    }
    write_config(job.run_dir, {**job.config, **of_attempt})
    logs = folder if job.speaks else folder / f"node-{job.node_rank}"
    logs.mkdir(exist_ok=True)
    return logs


# Without `silence_s`: a trainer hangs after so many of its own gaps between lines, and never before so many seconds.
_GAPS, _LEAST_S = 20.0, 900.0
_REMEMBERED = 101


class Patience:
    """Says when a trainer counts as hanging. All times are in seconds of one monotonic clock."""

    def __init__(self, timeouts: TimeoutsSpec, now: float, *, speaks: bool = True) -> None:
        self._limits, self._speaks, self._started = timeouts, speaks, now
        self._last: float | None = None
        self._gaps: deque[float] = deque(maxlen=_REMEMBERED)

    def heard(self, now: float) -> None:
        """Note that a line came."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now

    def why_over(self, now: float) -> str | None:
        """Return why the trainer counts as hanging, or None."""
        limits, last = self._limits, self._last
        if limits.wall_s is not None and now - self._started > limits.wall_s:
            return f"it ran longer than wall_s, {limits.wall_s:g} s"
        if self._speaks and last is None and now - self._started > limits.start_s:
            return f"it wrote no line within start_s, {limits.start_s:g} s"
        if self._speaks and last is not None and now - last > self.silence_s:
            return f"it wrote no line for silence_s, {self.silence_s:g} s"
        return None

    @property
    def silence_s(self) -> float:
        """The longest silence that is no hang."""
        if self._limits.silence_s is not None:
            return self._limits.silence_s
        return max(_LEAST_S, _GAPS * median(self._gaps)) if self._gaps else _LEAST_S


class Supervised:
    """A running command. As a context manager it kills the command, and all that it started, at the end."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: Path, stderr: Path, grace_s: float
    ) -> None:
        self.is_ending = False  # the command has ended, or is being killed; some processes may be left
        self._exit: Exit | None = None
        self._mark, self._deadline = uuid.uuid4().hex, math.inf
        psutil_at = os.path.dirname(os.path.dirname(os.path.abspath(psutil.__file__)))
        with stderr.with_name("supervisor").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, psutil_at, os.path.abspath(supervisor.__file__)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")},
                start_new_session=True,
            )
        self._requests: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        self._events: IO[bytes] = self._process.stdout  # type: ignore[assignment]
        paths = {"cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr)}
        self._send({"argv": list(argv), **paths, "env": {**env, MARK: self._mark}, "grace_s": grace_s})

    def __enter__(self) -> Supervised:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()  # the supervisor takes it as a request to kill
        self._ends_in(supervisor.QUICK_S)
        while self.wait(0.2) is None:
            pass
        self._process.wait()
        self._events.close()

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the command ended, or None if it still runs after the time."""
        if self._exit is None and time.monotonic() > self._deadline:
            self._abandon("it did not answer")
        if self._exit is not None or not select.select([self._events], [], [], timeout_s)[0]:
            return self._exit
        if not (line := self._events.readline()):
            self._abandon("it was killed")
        elif "exited" not in (event := json.loads(line)):
            self._exit = Exit(**event)
        elif not self.is_ending:
            self._ends_in(supervisor.QUICK_S)
        return self._exit

    def kill(self, grace_s: float, *, stacks: bool = False) -> None:
        """Ask for SIGTERM, and for SIGKILL after `grace_s`. `stacks`: processes that can write their stacks before."""
        self._ends_in(grace_s)
        self._send({"grace_s": grace_s, "stacks": stacks})

    def _ends_in(self, grace_s: float) -> None:
        self.is_ending = True
        self._deadline = time.monotonic() + grace_s + supervisor.GIVE_UP_S + SLACK_S

    def _abandon(self, why: str) -> None:
        """Kill the supervisor, and the processes with its mark."""
        self._process.kill()
        self._process.wait()
        end_marked(MARK, {self._mark})
        self._exit = Exit(lost=f"the supervisor of the command is gone: {why}")

    def _send(self, message: Mapping[str, object]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        with suppress(BrokenPipeError, ValueError):  # it has ended, or is closed: `wait` says how
            while data:
                data = data[self._requests.write(data) :]


def end_marked(variable: str, values: Set[str]) -> None:
    """End all processes of this user whose environment gives a variable one of the values, until there is none."""
    deadline, found = time.monotonic() + supervisor.GIVE_UP_S, True
    while found and time.monotonic() < deadline:
        found = False
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(variable) in values:
                    process.kill()
                    found = True
        time.sleep(0.02 if found else 0.0)
