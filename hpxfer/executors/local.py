"""The local executor: persistent one-thread processes on this machine. Each trains one stack at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from hpxfer.executors.executor import More, OnEvent, Train, lost
from hpxfer.executors.queue import Queue
from hpxfer.executors.worker import guarded, keep_memory
from hpxfer.host.machine import num_cpus
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.stack import Stack

_SOFT_STOP_S = 5.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    stack: Stack | None = None


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Trains on this machine. `workers` is the number of processes; the default is one per core."""

    workers: int | None = None

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """See `Executor.run`."""
        queue = Queue(more)
        limit = self.workers or num_cpus()
        workers: list[_Worker] = []
        try:
            while True:
                _hand_out(queue, workers, limit, train)
                if not queue.num_running:
                    return
                for pipe in wait([worker.pipe for worker in workers if worker.stack]):
                    worker = next(other for other in workers if other.pipe is pipe)
                    stack = worker.stack
                    assert stack is not None
                    message = _receive(worker)
                    if message is None:
                        workers.remove(worker)
                        why = _end(worker)
                        if not queue.lost(stack):
                            on_event(stack, lost(stack, why))
                        continue
                    if isinstance(message, Ended):
                        worker.stack = None
                        queue.done(stack)
                    on_event(stack, message)
        finally:
            for worker in workers:
                if worker.stack is not None:
                    worker.process.kill()  # it trains a stack that nobody waits for
                worker.pipe.close()
            for worker in workers:
                _end(worker)


def _hand_out(queue: Queue, workers: list[_Worker], limit: int, train: Train) -> None:
    """Give every idle worker a stack, as long as there are any. Start workers for the stacks that find no idle one."""
    for worker in [other for other in workers if other.stack is None and other.process.poll() is not None]:
        workers.remove(worker)  # lost while it was idle: no stack is affected
        _end(worker)
    while idle := limit - sum(worker.stack is not None for worker in workers):
        if not queue.ask(idle):
            return
        if all(worker.stack for worker in workers):
            workers.append(_start(train))
        worker = next(other for other in workers if other.stack is None)
        worker.stack = queue.take()
        _send(worker, (worker.stack, queue.is_last_try(worker.stack)))


def _start(train: Train) -> _Worker:
    """Start a worker in its own session, so that a Ctrl-C here does not reach it in the middle of a report."""
    driver_end, worker_end = Pipe()
    command = [sys.executable, "-m", "hpxfer.executors.local", str(worker_end.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(command, pass_fds=[worker_end.fileno()], start_new_session=True, env=environment)
    worker_end.close()
    worker = _Worker(process, driver_end)
    _send(worker, train)
    return worker


def _send(worker: _Worker, message: object) -> None:
    # If the worker is gone, `_receive` notices it.
    with suppress(BrokenPipeError, ConnectionResetError):
        worker.pipe.send(message)


def _receive(worker: _Worker) -> Event | None:
    """Return the worker's next message, or None if the worker is gone."""
    try:
        message: Event = worker.pipe.recv()
    except (EOFError, OSError):
        return None
    return message


def _end(worker: _Worker) -> str:
    """End a worker and return how it ended. An idle worker exits when its pipe closes."""
    worker.pipe.close()
    try:
        worker.process.wait(_SOFT_STOP_S)
    except subprocess.TimeoutExpired:
        worker.process.kill()
    code = worker.process.wait()
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _work(pipe: Connection) -> None:
    """Train stacks until the driver closes the pipe."""
    keep_memory()
    try:
        train: Train = pipe.recv()
        while True:
            stack, cut = pipe.recv()
            for event in guarded(train, stack, cut=cut):
                pipe.send(event)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])))
