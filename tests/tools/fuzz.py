"""`python tests/tools/fuzz.py`: run damaged and absurd input through the real command line, and say what breaks it.

    python tests/tools/fuzz.py --cases 2000 --seed 0 --keep fuzz-failures
    python tests/tools/fuzz.py --seed 0 --only 42 --keep fuzz-failures
    python tests/tools/fuzz.py --cases 500 --kinds sweep,options --json

No command may show a traceback, end with another exit code than 0, 1 or 2, take more than 10 s of CPU time or 2 GB, or
hang. The same seed gives the same cases. The exit code is 1 if a case is at fault: its folder is kept, with its files
and what it printed, and a command repeats it. Linux only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import runpy
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

from fuzz_cases import KINDS, Case, Materials, case, make_materials

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

    cpu_s: float
    peak_bytes: int

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
    """Import what the commands import, so that a forked process has it and a case takes no seconds to start."""
    libraries = ("matplotlib.figure", "pandas", "pyarrow.parquet", "scipy.stats", "torch")
    for name in (*libraries, "hpxfer.driver", "hpxfer.report.write", "hpxfer.cli.app", "hpxfer.recipe"):
        import_module(name)


def run_all(cases: Iterator[Case], root: Path, limits: Limits, workers: int = 2) -> Iterator[tuple[Case, Path, Ended]]:
    """Yield each case with its folder below `root` and how it ended, `workers` at a time."""
    running: dict[int, tuple[Case, Path, float]] = {}
    try:
        while True:
            for case in islice(cases, workers - len(running)):
                folder = root / f"{case.number:06d}"
                for name, content in case.files.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(content)
                sys.stdout.flush()
                sys.stderr.flush()
                pid = os.fork()
                if not pid:
                    _be(case.arguments, folder, limits)
                running[pid] = (case, folder, time.monotonic())
            if not running:
                return
            for pid, (case, folder, began) in list(running.items()):
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
        reserved = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = reserved + _RESERVED * limits.peak_bytes
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


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _ended(folder: Path, status: int, usage: resource.struct_rusage, wall_s: float) -> Ended:
    paths = [folder / name for name in (OUT, ERR)]
    out, err = (path.read_bytes().decode(errors="replace") if path.exists() else "" for path in paths)
    return Ended(
        code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=wall_s,
        peak_bytes=usage.ru_maxrss * 1024,
        out=out,
        err=err,
    )


@dataclass(kw_only=True)
class Findings:
    """What a fuzz found."""

    codes: Counter[str] = field(default_factory=Counter)  # by kind and exit code
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")

    def add(self, case: Case, ended: Ended, faults: Sequence[str], repeat: Sequence[str]) -> None:
        command = shlex.join(["hpxfer", *(text[:200] for text in case.arguments)])
        self.codes[f"{case.kind} {ended.code}"] += 1
        self.slowest = max(self.slowest, (round(ended.cpu_s, 2), f"case {case.number}: {command}"))
        self.largest = max(self.largest, (ended.peak_bytes, f"case {case.number}: {command}"))
        if faults:
            row = {"case": case.number, "kind": case.kind, "faults": [*faults], "command": command}
            self.failures.append({**row, "repeat": list(repeat)})

    def text(self) -> str:
        lines = [f"{sum(self.codes.values())} cases, {len(self.failures)} at fault"]
        lines += [f"  {name}: {count}" for name, count in sorted(self.codes.items())]
        lines += [f"slowest: {self.slowest[0]} s of CPU time, {self.slowest[1]}"]
        lines += [f"largest: {self.largest[0] / 2**30:.2f} GB, {self.largest[1]}"]
        return "\n".join(lines)


def main() -> int:
    """Run the fuzz that the command line asks for, and return the exit code."""
    asked = _parsed()
    kinds = asked.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        print(f"fuzz: --kinds must be of {', '.join(KINDS)}, got {', '.join(unknown)}", file=sys.stderr)  # noqa: T201
        return 2
    numbers = [asked.only] if asked.only is not None else range(asked.cases)
    materials = _in_a_child()
    warm_up()
    limits, found = Limits(cpu_s=asked.seconds, peak_bytes=int(asked.gigabytes * 2**30)), Findings()
    keep = asked.keep.absolute()
    with tempfile.TemporaryDirectory(prefix="hpxfer-fuzz-") as root:
        cases = (case(materials, asked.seed, number, kinds) for number in numbers)
        for one, folder, ended in run_all(cases, Path(root), limits, asked.workers):
            faults = ended.faults(limits)
            kept = keep / folder.name
            again = f"python tests/tools/fuzz.py --seed {asked.seed} --kinds {asked.kinds} --only {one.number}"
            call = f"cd {shlex.quote(str(kept))} && {shlex.join(['hpxfer', *one.arguments])}"
            repeat = [again, *([call] if len(call) < 2000 else [])]
            found.add(one, ended, faults, repeat)
            if faults:
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept, symlinks=True)
                if not asked.json:
                    said = f"case {one.number} ({one.kind}): {'; '.join(faults)}"
                    print(said, *map("  {}".format, repeat), sep="\n", flush=True)  # noqa: T201
            shutil.rmtree(folder, ignore_errors=True)
    found.failures.sort(key=lambda row: int(row["case"]))  # cases end in any order
    print(json.dumps(vars(found)) if asked.json else found.text())  # noqa: T201
    return int(bool(found.failures))


def _in_a_child() -> Materials:
    """Return the materials, made in a process of their own: this one forks, and should have no threads."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(make_materials).result()


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/tools/fuzz.py", description="Fuzz the command line.")
    parser.add_argument("--cases", type=int, default=2000, help="how many; default: 2000")
    parser.add_argument("--seed", type=int, default=0, help="what decides the cases; default: 0")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}; default: all")
    parser.add_argument("--only", type=int, help="run this case alone")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for the cases at fault")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time; default: 2")
    parser.add_argument("--seconds", type=float, default=10.0, help="CPU time of a case at most; default: 10")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="memory of a case at most; default: 2")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
