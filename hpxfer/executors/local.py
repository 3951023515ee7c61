"""The local executor: persistent one-thread processes on this machine. Each trains one stack at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Train, lost
from hpxfer.executors.queue import Queue
from hpxfer.executors.worker import STOP, STOP_S, guarded, keep_memory
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
        except HpxferError:
            raise  # the driver lost its lease, or its disk is full: nothing more is to be written
        except BaseException:
            _keep(workers, on_event)
            raise
        finally:
            for worker in workers:
                if worker.stack is not None:
                    worker.process.kill()  # it trains a stack that nobody waits for
                worker.pipe.close()
            for worker in workers:
                _end(worker)


def _keep(workers: list[_Worker], on_event: OnEvent) -> None:
    """Ask the workers to write checkpoints and end, and wait for them a short time. Pass on the results that come."""
    deadline = time.monotonic() + STOP_S
    busy = [worker for worker in workers if worker.stack is not None]
    for worker in busy:
        _send(worker, None)
    while busy and (left := deadline - time.monotonic()) > 0:
        for pipe in wait([worker.pipe for worker in busy], left):
            worker = next(other for other in busy if other.pipe is pipe)
            message, stack = _receive(worker), worker.stack
            if message is None or isinstance(message, Ended):
                worker.stack = None
                busy.remove(worker)
            if stack is not None and isinstance(message, Ended):
                on_event(stack, message)


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
    """Train stacks until the driver closes the pipe, or asks this process to stop."""
    keep_memory()
    # Slurm sends a signal to every process of a job: the driver's workers write their checkpoints as well.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: setattr(STOP, "is_set", True))
    try:
        train: Train = pipe.recv()
        while (task := pipe.recv()) is not None:
            stack, cut = task
            STOP.look = pipe.poll  # a driver that waits for results sends nothing but the request to stop
            for event in guarded(train, stack, cut=cut):
                pipe.send(event)
            if STOP.is_set:
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])))
