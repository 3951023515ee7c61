"""Supervisor: a small process that runs one command, keeps its output short, and leaves no process of it behind.

It is started as a script and imports the standard library only, so that it is there in 20 ms. On its standard input it
gets JSON lines: first the task, then requests to kill. On its standard output it says when the command started and how
it ended. When its standard input closes, or its parent is gone, it kills everything and ends.

A trainer starts processes of its own: torchrun gives each rank its own session, and a SIGKILL to torchrun's process
group leaves them alive. On Linux the supervisor therefore is the subreaper of all its descendants: whoever loses its
parent becomes a child of the supervisor, so all of them are found by the parents in /proc. Elsewhere only those are
found whose ancestors still live, and those in the command's process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
HALF_BYTES = 2**19  # of a log: so much from its start and so much from its end is kept
CHUNK_BYTES = 2**18
FLUSH_S = 1.0  # how often the end of a long log is written
LOOK_S = 1.0  # how often the supervisor looks whether its parent is still there
ENDING_LOOK_S = 0.05  # how often it looks what is left, once it kills
QUICK_S = 5.0  # between SIGTERM and SIGKILL for what is left of a command that ended, or that nobody waits for
GIVE_UP_S = 30.0  # a process that SIGKILL does not end within this time hangs in the kernel
STACKS_S = 1.0  # that a process gets to write its stacks
# Of a command that could not be started: the system has no memory or no process left.
NO_MEMORY = (errno.ENOMEM, errno.EAGAIN)
PROC = Path("/proc")


class Log:
    """A file that keeps the start and the end of what is written, whatever its length."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._head = 0  # bytes written from the start
        self._tail = bytearray()
        self._total = 0
        self._flushed = time.monotonic()
        self._is_dirty = False

    def write(self, data: bytes) -> None:
        """Take the next bytes. A disk that is full loses them, and the command goes on."""
        self._total += len(data)
        if (room := HALF_BYTES - self._head) > 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._handle, data[:room], self._head)
            self._head += len(data[:room])
            data = data[room:]
        if data:
            self._tail += data
            del self._tail[:-HALF_BYTES]
            self._is_dirty = True
            if time.monotonic() - self._flushed >= FLUSH_S:
                self.flush()

    def flush(self) -> None:
        """Write the end of the log below its start."""
        if not self._is_dirty:
            return
        left_out = self._total - self._head - len(self._tail)
        mark = f"\n... {left_out} bytes left out ...\n".encode() if left_out else b""
        with contextlib.suppress(OSError):
            os.pwrite(self._handle, mark + self._tail, self._head)
            os.ftruncate(self._handle, self._head + len(mark) + len(self._tail))
        self._flushed, self._is_dirty = time.monotonic(), False


def parents() -> dict[int, int]:
    """Return pid -> pid of the parent, for every process that can be seen."""
    if not (PROC / "self").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False).stdout
        return {int(pid): int(parent) for pid, parent in (line.split() for line in listed.splitlines())}
    found = {}
    for name in os.listdir(PROC):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name of the program, in parentheses, may hold anything: fields are counted from behind it.
                stat = (PROC / name / "stat").read_bytes().rpartition(b")")[2].split()
                if stat[0] not in (b"Z", b"X", b"x"):
                    found[int(name)] = int(stat[1])
    return found


def descendants(root: int) -> list[int]:
    """Return the pids of all processes below `root` that have not ended, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = children.pop(queue.pop(0), [])
        found += below
        queue += below
    return found


def handles_usr1(pid: int) -> bool:
    """Return whether a process has a handler for SIGUSR1, such as that of faulthandler. Others would be killed."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)


def oom_kills() -> int:
    """Return how many processes of this control group were killed for lack of memory so far; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError, StopIteration, IndexError):
        group = next(line[3:] for line in (PROC / "self/cgroup").read_text().splitlines() if line.startswith("0::"))
        for folder in (Path("/sys/fs/cgroup" + group), Path("/sys/fs/cgroup")):
            if (folder / "memory.events").exists():
                lines = (folder / "memory.events").read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


def signal_all(pids: Iterator[int] | list[int], number: int) -> None:
    """Send a signal to processes. Those that have ended meanwhile are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def die_with_parent() -> None:
    """Let the system kill this process when its parent ends: the last resort if the supervisor itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Supervisor:
    """One command from its start to the end of its last process."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._parent = os.getppid()
        self._quick_s = min(QUICK_S, float(task["grace_s"]))
        self._oom_before = oom_kills()
        self._code: int | None = None  # of the command: an exit code, or the negative number of a signal
        self._kill_at: float | None = None  # when SIGTERM is over and SIGKILL begins
        self._term_at: float | None = None  # when SIGTERM is sent: after the stacks were written
        self._is_swept = False  # whether what the command left got its SIGTERM
        self._requests: bytes | None = b""  # the start of a request; None after the pipe has closed
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Handlers, and not SIG_IGN, which the command would inherit. Slurm sends signals to every process of a job.
        self._was_asked = False
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        process = subprocess.Popen(
            task["argv"],
            cwd=task["cwd"],
            env=task["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # this process has one thread
        )
        self.pid = process.pid
        assert process.stdout is not None
        assert process.stderr is not None
        self._logs = {
            process.stdout.fileno(): Log(task["stdout"]),
            process.stderr.fileno(): Log(task["stderr"]),
        }
        self._process = process  # keeps the pipes open

    def _on_signal(self, number: int, _: object) -> None:
        """Note that somebody asks all processes to end. The command got the same signal, and its end is waited for."""
        self._was_asked = self._was_asked or number == signal.SIGTERM

    def run(self) -> dict[str, Any]:
        """Wait until the command and everything that it started have ended. Return how the command ended."""
        while self._reap() or self._code is None:
            left = descendants(os.getpid()) if self._is_ending else [self.pid]
            if self._act(left):
                return self._end(left)
            self._wait(ENDING_LOOK_S if self._is_ending else LOOK_S)
        if sys.platform != "linux":  # orphans are not adopted there
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._end([])

    @property
    def _is_ending(self) -> bool:
        return self._code is not None or self._kill_at is not None

    def _act(self, left: list[int]) -> bool:
        """Send the signals that are due to what is left. Return whether it must be given up."""
        now = time.monotonic()
        if self._parent != os.getppid():
            self.kill(self._quick_s)
        if self._term_at is not None and now >= self._term_at:
            self._term_at = None
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGTERM)
        if self._code is not None and not self._is_swept:
            self._is_swept = True
            self._kill_at = self._kill_at or now + self._quick_s
            signal_all(left, signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at:
            signal_all(left, signal.SIGKILL)
            return now >= self._kill_at + GIVE_UP_S
        return False

    def kill(self, grace_s: float, *, stacks: bool = False) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`. A second call can only shorten that."""
        now = time.monotonic()
        if self._kill_at is not None:
            self._kill_at = min(self._kill_at, now + grace_s)
            return
        self._term_at = now
        if stacks:
            asked = [pid for pid in descendants(os.getpid()) if handles_usr1(pid)]
            signal_all(asked, signal.SIGUSR1)
            self._term_at += STACKS_S if asked else 0.0
        self._kill_at = self._term_at + grace_s

    def _wait(self, timeout_s: float) -> None:
        """Wait for output, a request, or a child's end."""
        pipes = [*self._logs, self._wake, *([0] if self._requests is not None else [])]
        for pipe in select.select(pipes, [], [], timeout_s)[0]:
            if pipe == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            elif pipe == 0:
                self._read_request()
            else:
                self._drain(pipe)

    def _drain(self, pipe: int) -> None:
        data = os.read(pipe, CHUNK_BYTES)
        if data:
            self._logs[pipe].write(data)
        else:
            self._logs.pop(pipe).flush()

    def _read_request(self) -> None:
        data = os.read(0, 4096)
        if not data or self._requests is None:
            self._requests = None
            self.kill(self._quick_s)
            return
        *lines, self._requests = (self._requests + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            self.kill(request["grace_s"], stacks=request["stacks"])

    def _reap(self) -> bool:
        """Ask for the exit codes of all children that have ended, adopted ones too. Return whether any child is left.

        This is exact, while a look at /proc may miss a process whose parent ends during the look.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self.pid:
                self._code = os.waitstatus_to_exitcode(status)
                self._process.returncode = self._code
                say(event="exited")

    def _end(self, left: list[int]) -> dict[str, Any]:
        """Read what the pipes still hold, and return how the command ended."""
        while self._logs and (ready := select.select(list(self._logs), [], [], 0)[0]):
            for pipe in ready:
                self._drain(pipe)
        for log in self._logs.values():
            log.flush()
        return {
            "event": "ended",
            "code": self._code,
            "oom_kills": oom_kills() - self._oom_before,
            "asked": self._was_asked,
            "left": left,
        }


def say(**event: Any) -> None:
    """Tell the parent. If it is gone, nobody listens."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(event).encode() + b"\n")


def first_line() -> bytes:
    """Return the first line of the standard input, and nothing of the next one."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


def main() -> None:
    """Run the task that stands on the first line of the standard input."""
    line = first_line()
    if not line:
        return
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # a worker's thread may have blocked signals
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        supervisor = Supervisor(json.loads(line))
    except OSError as error:
        say(event="not_started", what=error.filename or "", why=error.strerror or str(error), errno=error.errno or 0)
        return
    say(event="started", pid=supervisor.pid)
    say(**supervisor.run())


if __name__ == "__main__":
    main()
