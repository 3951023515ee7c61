"""Run: one case in a forked process, under limits, and what is wrong with how it ended.

The process that forks has imported what the commands need, so a case takes no seconds to start. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fuzz_cases import Case

EXIT_CODES = (0, 1, 2)
# How the folder of a case is laid out: its files, and what it printed.
OUT, ERR = ".stdout", ".stderr"
# A run that waits, or whose machine is busy, may take so many times the CPU time that is allowed.
_WALL = 6.0
# A case may reserve so many times the memory that it may use, so that it cannot exhaust the machine.
_RESERVED = 2
_MOST_FILE_BYTES = 2**28
_MOST_SAID_BYTES = 2**16
_POLL_S = 0.005
_UNCAUGHT = 70


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a command may take, with the libraries that it imports."""

    cpu_s: float = 10.0
    peak_bytes: int = 2 * 2**30

    @property
    def wall_s(self) -> float:
        return _WALL * self.cpu_s


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a case ended. `signal` is what killed it, if anything did."""

    code: int | None
    signal: int | None
    cpu_s: float
    wall_s: float
    peak_bytes: int
    out: str
    err: str

    def faults(self, limits: Limits) -> list[str]:
        """Return what is wrong: nothing of this may happen, whatever the input is."""
        out = []
        for name, text in (("stdout", self.out), ("stderr", self.err)):
            if "Traceback (most recent call last)" in text:
                lines = text.rstrip().splitlines() or [""]
                out.append(f"traceback on {name}: {lines[-1][:200]}")
        if self.signal is not None:
            hung = self.wall_s >= limits.wall_s and self.cpu_s < limits.cpu_s
            out.append("hangs" if hung else f"ended by {signal.Signals(self.signal).name}")
        elif self.code not in EXIT_CODES and not out:
            out.append(f"exit code {self.code}")
        if self.cpu_s > limits.cpu_s:
            out.append(f"took {self.cpu_s:.1f} s")
        if self.peak_bytes > limits.peak_bytes:
            out.append(f"took {self.peak_bytes / 2**30:.2f} GB")
        if len(self.err) > _MOST_SAID_BYTES:
            out.append(f"says {len(self.err)} characters on stderr")
        return out


def warm_up() -> None:
    """Import what the commands import, so that a forked process has it."""
    import matplotlib.figure  # noqa: F401
    import pandas as pd  # noqa: F401
    import pyarrow.parquet as pq  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401

    import hpxfer.driver
    import hpxfer.report.write  # noqa: F401
    from hpxfer.cli.app import app  # noqa: F401
    from hpxfer.recipe import Recipe  # noqa: F401


def run_all(cases: Iterator[Case], root: Path, limits: Limits, workers: int = 2) -> Iterator[tuple[Case, Path, Ended]]:
    """Yield each case with its folder below `root` and how it ended, `workers` at a time."""
    running: dict[int, tuple[Case, Path, float]] = {}
    try:
        left = True
        while left or running:
            while left and len(running) < workers:
                case = next(cases, None)
                if case is None:
                    left = False
                    break
                folder = root / f"{case.number:06d}"
                _write(case, folder)
                running[_fork(case, folder, limits)] = (case, folder, time.monotonic())
            for pid in list(running):
                case, folder, began = running[pid]
                done, status, usage = os.wait4(pid, os.WNOHANG)
                if not done and time.monotonic() - began > limits.wall_s:
                    _kill(pid)
                    done, status, usage = os.wait4(pid, 0)
                if done:
                    del running[pid]
                    _kill(pid)  # what it may have left behind in its group
                    yield case, folder, _ended(folder, status, usage, time.monotonic() - began)
            time.sleep(_POLL_S)
    finally:
        for pid in running:
            _kill(pid)
            os.waitpid(pid, 0)


def _write(case: Case, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _fork(case: Case, folder: Path, limits: Limits) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        _be(case.arguments, folder, limits)
    return pid


def _be(arguments: Sequence[str], folder: Path, limits: Limits) -> NoReturn:
    """Become the command: run it in its folder, with its output in files there."""
    code = _UNCAUGHT
    try:
        os.setsid()
        os.chdir(folder)
        for number, name in ((1, OUT), (2, ERR)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ |= {"COLUMNS": "120", "NO_COLOR": "1", "HOME": str(folder)}
        seconds = int(limits.cpu_s) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
        most = _reserved_bytes() + _RESERVED * limits.peak_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        code = _call(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _call(arguments: Sequence[str]) -> int:
    """Return the exit code of `hpxfer ARGUMENTS`, or of a script that the arguments begin with."""
    from hpxfer.cli import main

    sys.argv = ["hpxfer", *arguments]
    try:
        if arguments[0].endswith(".py"):
            sys.argv = [*arguments]
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _reserved_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _ended(folder: Path, status: int, usage: resource.struct_rusage, wall_s: float) -> Ended:
    out, err = (_read(folder / name) for name in (OUT, ERR))
    return Ended(
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=wall_s,
        peak_bytes=usage.ru_maxrss * 1024,
        out=out,
        err=err,
    )


def _read(path: Path) -> str:
    return path.read_bytes().decode(errors="replace") if path.exists() else ""
