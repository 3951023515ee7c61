"""Supervisor: a small process that runs one command, keeps its output short, and leaves no process of it behind.

It is started as a script and imports psutil and the standard library alone, so that it is there in 0.1 s. On its
standard input it gets JSON lines: first the task, then requests to kill. On its standard output it says that the
command has exited, and at last how it ended. When its standard input closes, or its parent is gone, it kills everything
and ends.

A trainer starts processes of its own: torchrun gives each rank its own session, and a SIGKILL to torchrun's process
group leaves them alive. On Linux the supervisor therefore is the subreaper of all its descendants: whoever loses its
parent becomes a child of the supervisor, so all of them are found. Elsewhere only those are found whose ancestors still
live, and those in the command's process group.
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HALF_BYTES = 2**19  # of a log: so much from its start and so much from its end is kept
CHUNK_BYTES = 2**18
FLUSH_S = 1.0  # how often the end of a long log is written
LOOK_S = 1.0  # how often the supervisor looks whether its parent is still there
ENDING_LOOK_S = 0.05  # how often it looks what is left, once it kills
QUICK_S = 5.0  # between SIGTERM and SIGKILL for what is left of a command that ended, or that nobody waits for
GIVE_UP_S = 30.0  # a process that SIGKILL does not end within this time hangs in the kernel
STACKS_S = 1.0  # that a process gets to write its stacks


class Log:
    """A file that keeps the start and the end of what is written, whatever its length."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._head, self._tail, self._total = 0, bytearray(), 0  # bytes at the start, the end, bytes in all
        self._flushed = time.monotonic()

    def write(self, data: bytes) -> None:
        """Take the next bytes. A disk that is full loses them, and the command goes on."""
        self._total += len(data)
        start, rest = data[: HALF_BYTES - self._head], data[HALF_BYTES - self._head :]
        with suppress(OSError):
            os.pwrite(self._handle, start, self._head)
        self._head += len(start)
        self._tail += rest
        del self._tail[:-HALF_BYTES]
        if rest and time.monotonic() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the end of the log below its start."""
        left_out = self._total - self._head - len(self._tail)
        mark = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        with suppress(OSError):
            os.pwrite(self._handle, mark + self._tail, self._head)
            os.ftruncate(self._handle, self._head + len(mark) + len(self._tail))
        self._flushed = time.monotonic()


def descendants() -> list[psutil.Process]:
    """Return all processes below this one, parents before children."""
    with suppress(psutil.AccessDenied, PermissionError):
        found: list[psutil.Process] = psutil.Process().children(recursive=True)
        return found
    below: dict[int, list[psutil.Process]] = {}  # /proc shows nothing of other users (hidepid=1): they are passed over
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            below.setdefault(process.ppid(), []).append(process)
    found = below.pop(os.getpid(), [])
    for above in found:  # it grows
        found += below.pop(above.pid, [])
    return found


def signal_all(processes: list[psutil.Process], number: int) -> None:
    """Send a signal to processes. Those that have ended meanwhile are left out."""
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)


def handles_usr1(pid: int) -> bool:
    """Return whether a process has a handler for SIGUSR1, such as that of faulthandler. Others would be killed."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = int(next(line.split()[1] for line in lines if line.startswith("SigCgt:")), 16)
        return bool(caught >> (signal.SIGUSR1 - 1) & 1)
    return False


def oom_kills() -> int:
    """Return how many processes of this control group were killed for lack of memory so far; 0 where unknown."""
    with suppress(OSError, ValueError, StopIteration):
        group = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        for folder in (Path(f"/sys/fs/cgroup{group}"), Path("/sys/fs/cgroup")):
            if (folder / "memory.events").exists():
                lines = (folder / "memory.events").read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def say(**event: Any) -> None:
    """Tell the parent. If it is gone, nobody listens."""
    with suppress(BrokenPipeError):
        os.write(1, json.dumps(event).encode() + b"\n")


class Supervisor:
    """One command from its start to the end of its last process."""

    def __init__(self, task: Mapping[str, Any], requests: io.FileIO) -> None:
        self._requests: io.FileIO | None = requests  # None after the pipe has closed
        self._parent = os.getppid()
        self._quick_s = min(QUICK_S, float(task["grace_s"]))
        self._oom_before = oom_kills()
        self._code: int | None = None  # of the command: an exit code, or the negative number of a signal
        self._term_at = math.inf  # when SIGTERM is sent: after the stacks were written
        self._kill_at = math.inf  # when SIGTERM is over and SIGKILL begins
        self._was_asked = False
        self._wake, wake = os.pipe()
        for pipe in (self._wake, wake):
            os.set_blocking(pipe, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers, and not SIG_IGN, which the command would inherit. Slurm sends signals to every process of a job.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._process = subprocess.Popen(  # kept, as it holds the pipes
            task["argv"],
            cwd=task["cwd"],
            env=task["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # The last resort if the supervisor itself is killed. This process has one thread.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        pipes = {name: getattr(self._process, name).fileno() for name in ("stdout", "stderr")}
        self._logs = {pipe: Log(task[name]) for name, pipe in pipes.items()}

    def _on_signal(self, number: int, _: object) -> None:
        """Note that somebody asks all processes to end. The command got the same signal, and its end is waited for."""
        self._was_asked = self._was_asked or number == signal.SIGTERM

    def run(self) -> dict[str, Any]:
        """Wait until the command and everything that it started have ended. Return how the command ended."""
        left = list[psutil.Process]()
        while self._reap() or self._code is None:
            is_ending = self._code is not None or self._kill_at < math.inf
            left = descendants() if is_ending else []
            if self._act(left):
                break
            self._wait(ENDING_LOOK_S if is_ending else LOOK_S)
        else:
            left = []
            if sys.platform != "linux":  # orphans are not adopted there
                self._signal_group(signal.SIGKILL)
        while self._logs and (ready := select.select(list(self._logs), [], [], 0)[0]):
            for pipe in ready:
                self._drain(pipe)
        for log in self._logs.values():
            log.flush()
        kills = oom_kills() - self._oom_before
        pids = [each.pid for each in left]
        return {"code": self._code, "oom_kills": kills, "asked": self._was_asked, "left": pids}

    def _reap(self) -> bool:
        """Ask for the exit codes of all children that have ended, adopted ones too. Return whether any child is left.

        This is exact, while a look at all processes may miss one whose parent ends during the look.
        """
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                if ended[0] == self._process.pid:
                    self._process.returncode = self._code = os.waitstatus_to_exitcode(ended[1])
                    say(exited=True)
                    signal_all(descendants(), signal.SIGTERM)  # what the command left
                    if self._kill_at == math.inf:
                        self._kill_at = time.monotonic() + self._quick_s
            return True
        return False

    def _act(self, left: list[psutil.Process]) -> bool:
        """Send the signals that are due to what is left. Return whether it must be given up."""
        now = time.monotonic()
        if self._parent != os.getppid():
            self.kill(self._quick_s)
        if now >= self._term_at:
            self._term_at = math.inf
            self._signal_group(signal.SIGTERM)
        if now < self._kill_at:
            return False
        signal_all(left, signal.SIGKILL)
        return now >= self._kill_at + GIVE_UP_S

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def kill(self, grace_s: float, *, stacks: bool = False) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`. A second call can only shorten that."""
        now = time.monotonic()
        if self._kill_at < math.inf:
            self._kill_at = min(self._kill_at, now + grace_s)
            return
        asked = [each for each in descendants() if handles_usr1(each.pid)] if stacks else []
        signal_all(asked, signal.SIGUSR1)
        self._term_at = now + (STACKS_S if asked else 0.0)
        self._kill_at = self._term_at + grace_s

    def _wait(self, timeout_s: float) -> None:
        """Wait for output, a request, or a child's end."""
        pipes = [*self._logs, self._wake, *([] if self._requests is None else [0])]
        for pipe in select.select(pipes, [], [], timeout_s)[0]:
            if pipe == self._wake:
                os.read(self._wake, 4096)
            elif pipe in self._logs:
                self._drain(pipe)
            elif self._requests and (line := self._requests.readline()):
                self.kill(**json.loads(line))
            else:
                self._requests = None
                self.kill(self._quick_s)

    def _drain(self, pipe: int) -> None:
        if data := os.read(pipe, CHUNK_BYTES):
            self._logs[pipe].write(data)
        else:
            self._logs.pop(pipe).flush()


def main() -> None:
    """Run the task that stands on the first line of the standard input."""
    requests = io.FileIO(0)  # of which a line is read, and nothing of the next one
    if not (line := requests.readline()):
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a worker's thread may have blocked signals
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        supervisor = Supervisor(json.loads(line), requests)
    except OSError as error:
        why = ": ".join(filter(None, (error.filename, error.strerror or str(error))))
        say(not_started=why, no_memory=error.errno in (errno.ENOMEM, errno.EAGAIN))
    except ValueError as error:  # a zero byte
        say(not_started=str(error))
    else:
        say(**supervisor.run())


if __name__ == "__main__":
    main()
