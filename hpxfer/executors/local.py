"""The local executor: persistent one-thread processes on this machine, each fed one stack at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from hpxfer.executors.executor import TRIES, Train, lost
from hpxfer.executors.worker import guarded
from hpxfer.machine import num_cpus
from hpxfer.stack import Stack
from hpxfer.train.event import Event

_SOFT_STOP_S = 5.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    stack: Stack | None = None


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Trains on this machine. `workers` processes (default: one a core) share the stacks."""

    workers: int | None = None

    def run(self, stacks: Sequence[Stack], train: Train, on_event: Callable[[Event], None]) -> None:
        """See `Executor.run`."""
        waiting = deque(stacks)
        tries: dict[Stack, int] = {}
        workers: list[_Worker] = []
        try:
            for _ in range(min(self.workers or num_cpus(), len(waiting))):
                workers.append(_start(train))
            while waiting or any(worker.stack for worker in workers):
                for worker in workers:
                    if worker.stack is None and waiting:
                        worker.stack = waiting.popleft()
                        tries[worker.stack] = tries.get(worker.stack, 0) + 1
                        _send(worker, worker.stack)
                for pipe in wait([worker.pipe for worker in workers if worker.stack]):
                    worker = next(one for one in workers if one.pipe is pipe)
                    stack = worker.stack
                    assert stack is not None
                    message = _receive(worker)
                    if message is not None:
                        if isinstance(message, tuple):  # the last word on a stack
                            worker.stack = None
                        on_event(message)
                    else:
                        why = _end(worker)
                        workers.remove(worker)
                        workers.append(_start(train))
                        if tries[stack] < TRIES:
                            waiting.appendleft(stack)
                        else:
                            on_event(lost(stack, why))
        finally:
            for worker in workers:
                if worker.stack is not None:
                    worker.process.kill()  # in the middle of a stack that nobody waits for
                worker.pipe.close()
            for worker in workers:
                _end(worker)


def _start(train: Train) -> _Worker:
    """Start a worker in a session of its own: a Ctrl-C here must not reach it halfway through a report."""
    here, there = Pipe()
    command = [sys.executable, "-m", "hpxfer.executors.local", str(there.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(command, pass_fds=[there.fileno()], start_new_session=True, env=environment)
    there.close()
    worker = _Worker(process, here)
    _send(worker, train)
    return worker


def _send(worker: _Worker, message: object) -> None:
    # If the worker is gone, `_receive` will say so.
    with suppress(BrokenPipeError, ConnectionResetError):
        worker.pipe.send(message)


def _receive(worker: _Worker) -> Event | None:
    """Return the worker's next message, or None if it is gone."""
    try:
        message: Event = worker.pipe.recv()
    except (EOFError, OSError):
        return None
    return message


def _end(worker: _Worker) -> str:
    """End a worker and return how it ended: an idle one leaves when its pipe closes, a lost one has left already."""
    worker.pipe.close()
    try:
        worker.process.wait(_SOFT_STOP_S)
    except subprocess.TimeoutExpired:
        worker.process.kill()
    code = worker.process.wait()
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _work(pipe: Connection) -> None:
    """Serve stacks until the driver closes the pipe."""
    try:
        train: Train = pipe.recv()
        while True:
            for event in guarded(train, pipe.recv()):
                pipe.send(event)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])))
