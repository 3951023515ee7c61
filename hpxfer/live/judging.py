"""Judging: when the report of a live page is made anew, and the process that makes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.live.snapshot import Snapshot, Stamps
from hpxfer.storage.uri import spelled

# While a driver runs, the process rests so many times as long as its last report took, and at least these seconds. It
# has a low priority as well, but memory and caches know no priority.
REST = 4
LEAST_S = 5.0
_END_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the process said last. `contents` are those of the last report that could be made, empty without one."""

    number: int = 0  # of the reports so far
    contents: str = ""
    made_at: float = 0.0
    why_not: str = ""  # why the newest results have no report


class Judging:
    """The report on what a folder holds. Call `look` regularly and `close` at the end; read `judged` at any time."""

    def __init__(self, folder: Path, where: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._where, self._clock = where, clock
        self._scratch = tempfile.TemporaryDirectory(prefix="hpxfer-watch-")
        self._snapshot = Snapshot(folder, Path(self._scratch.name))
        self._process: subprocess.Popen[str] | None = None
        self._receiver: threading.Thread | None = None
        self._asked: tuple[Stamps, bool] | None = None
        self._asked_at = 0.0
        self._rest_until = 0.0
        self.is_busy = False
        self.judged = Judged()

    def look(self, *, is_running: bool, is_watched: bool) -> None:
        """Have the report made anew if it is due: there are new results, and the process has rested.

        A report that nobody sees is made only once. After the run nothing is slowed, so that the rest is short.
        """
        if self.is_busy or (self.judged.number and not is_watched):
            return
        now = self._clock()
        if now < (self._rest_until if is_running else min(self._rest_until, self._asked_at + LEAST_S)):
            return
        wanted = (self._snapshot.stamps(), is_running)
        if wanted == self._asked:
            return
        self._asked, self._asked_at = wanted, now
        try:
            self._snapshot.take()
            self._ask(is_running)
        except HpxferError as error:
            self._end_of_answer(why_not=spelled(str(error)))

    def close(self) -> None:
        """End the process and remove the copy."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)
        if self._receiver is not None:
            self._receiver.join()
        self._scratch.cleanup()

    def _ask(self, is_running: bool) -> None:
        if self._process is not None and self._process.poll() is not None:
            _end(self._process)
            self._process = None
        self._process = process = self._process or _start()
        self.is_busy = True
        self._receiver = threading.Thread(target=self._receive, args=(process,), name="hpxfer-judging", daemon=True)
        self._receiver.start()
        problems = [spelled(problem) for problem in self._snapshot.problems]
        request = {"folder": str(self._snapshot.folder), "where": self._where, "is_running": is_running}
        assert process.stdin is not None
        with suppress(OSError):  # it has ended, which `_receive` notices
            process.stdin.write(json.dumps({**request, "problems": problems}) + "\n")
            process.stdin.flush()

    def _receive(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            self._end_of_answer(**json.loads(line))
        elif self._process is process:  # else it was ended by `close`
            code = process.wait()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self._end_of_answer(why_not=f"the process that makes it has ended: {how}")

    def _end_of_answer(self, contents: str = "", why_not: str = "") -> None:
        now, last = self._clock(), self.judged
        if contents:
            self.judged = Judged(number=last.number + 1, contents=contents, made_at=now)
        else:
            self.judged = replace(last, why_not=why_not)
        self._rest_until = now + max(LEAST_S, REST * (now - self._asked_at))
        self.is_busy = False


def _end(process: subprocess.Popen[str]) -> None:
    """End a process, which exits when its stdin is closed, and close its pipes."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _start() -> subprocess.Popen[str]:
    """Start the process, in a session of its own, so that a Ctrl-C here does not reach it."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return subprocess.Popen(
        [sys.executable, "-m", "hpxfer.live.judge"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
        env={**os.environ, **threads},
    )
