"""The local executor: persistent one-thread processes on this machine. Each trains one stack at a time.

Where a stack has several ranks, a worker is as many processes. The first speaks for all. If one of them is gone, fails
or gives up on another, the worker is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from hpxfer.errors import HpxferError, RankLost
from hpxfer.executors.executor import More, OnEvent, Queue, Reached, Train, lost
from hpxfer.executors.worker import MEMBER, STOP, STOP_S, guarded, keep_memory
from hpxfer.host.machine import num_cpus
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.stack import Stack, Team

_SOFT_STOP_S = 5.0
_TEAM = "team"  # the argument of a process that is one of several ranks


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection
    number: int = 0
    stack: Stack | None = None
    ranks: tuple[_Worker, ...] = ()  # the processes of the other ranks

    @property
    def all(self) -> tuple[_Worker, ...]:
        return (self, *self.ranks)


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Trains on this machine. `workers` is the number of workers; the default is one per core.

    A worker has `ranks` processes, which wait for each other for at most `rank_timeout_s`.
    """

    workers: int | None = None
    ranks: int = 1
    rank_timeout_s: float = 900.0
    gpus: float = 0.0  # that a process of a user's own trainer has; 0 leaves them as they are
    reached: Reached | None = None  # see `Queue`
    stop_s: float | None = None  # how long an interrupted run waits for checkpoints; None: STOP_S

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """See `Executor.run`."""
        queue = Queue(more, self.reached)
        limit = self.workers or max(1, num_cpus() // self.ranks)
        workers: list[_Worker] = []
        try:
            while True:
                self._hand_out(queue, workers, limit, train)
                if not queue.num_running:
                    return
                busy = [worker for worker in workers if worker.stack]
                for pipe in wait([rank.pipe for worker in busy for rank in worker.all]):
                    worker = next(other for other in busy if any(rank.pipe is pipe for rank in other.all))
                    rank = next(other for other in worker.all if other.pipe is pipe)
                    if (stack := worker.stack) is None:
                        continue  # what another rank has said has ended it
                    message = _receive(rank)
                    if message is None or isinstance(message, str):
                        workers.remove(worker)
                        why = message or _end(rank)
                        worker.stack = None
                        _end_all(worker)
                        if not queue.lost(stack):
                            on_event(stack, lost(stack, why))
                        continue
                    failed = isinstance(message, Ended) and any(each.status == "failed" for each in message.results)
                    if rank is not worker and not failed:
                        continue
                    if isinstance(message, Ended):
                        worker.stack = None
                        queue.done(stack)
                    if failed and worker.ranks:  # the other ranks may wait for this one
                        workers.remove(worker)
                        _end_all(worker)
                    on_event(stack, message)
        except HpxferError:
            raise  # the driver lost its lease, or its disk is full: nothing more is to be written
        except BaseException:
            _keep(workers, on_event, STOP_S if self.stop_s is None else self.stop_s)
            raise
        finally:
            for worker in workers:
                for rank in worker.all:
                    if worker.stack is not None:
                        rank.process.kill()  # it trains a stack that nobody waits for
                    rank.pipe.close()
            for worker in workers:
                _end_all(worker)

    def _hand_out(self, queue: Queue, workers: list[_Worker], limit: int, train: Train) -> None:
        """Give every idle worker a stack, as long as there are any. Start workers for stacks that find no idle one."""
        for worker in [other for other in workers if other.stack is None and _is_gone(other)]:
            workers.remove(worker)  # lost while it was idle: no stack is affected
            _end_all(worker)
        while idle := limit - sum(worker.stack is not None for worker in workers):
            if not queue.ask(idle):
                return
            if all(worker.stack for worker in workers):
                taken = {worker.number for worker in workers}
                workers.append(self._start(train, number=next(n for n in count() if n not in taken)))
            worker = next(other for other in workers if other.stack is None)
            worker.stack = queue.take()
            for rank in worker.all:
                _send(rank, (worker.stack, queue.is_last_try(worker.stack)))

    def _gpus(self, place: int, *, of_rank: bool = False) -> str | None:
        """Return the numbers of the GPUs of a process by its place among all. Shares fill one GPU after another."""
        if not self.gpus:
            return os.environ.get("CUDA_VISIBLE_DEVICES", str(place)) if of_rank else None
        first = int(place * self.gpus + 1e-9)
        wanted = range(first, first + max(1, int(self.gpus)))
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        return ",".join(visible[number % len(visible)] if visible else str(number) for number in wanted)

    def _start(self, train: Train, number: int) -> _Worker:
        """Start a worker: one process, or as many as there are ranks, of which the first opens a store for all."""
        if self.ranks == 1:
            return replace(_start(train, self._gpus(number)), number=number)
        places = (self._gpus(number * self.ranks + rank, of_rank=True) for rank in range(self.ranks))
        first, *others = (replace(_start(train, gpus, is_rank=True), number=number) for gpus in places)
        worker = replace(first, ranks=tuple(others))
        _send(worker, (self.ranks, self.rank_timeout_s))
        address = _receive(worker)
        for rank, process in enumerate(worker.all):
            _send(process, Team(rank=rank, world=self.ranks, address=str(address), timeout_s=self.rank_timeout_s))
        return worker


def _is_gone(worker: _Worker) -> bool:
    return any(rank.process.poll() is not None for rank in worker.all)


def _keep(workers: list[_Worker], on_event: OnEvent, stop_s: float) -> None:
    """Ask the workers to write checkpoints and end, and wait for them a short time. Pass on the results that come."""
    deadline = time.monotonic() + stop_s
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


def _start(train: Train, gpus: str | None, *, is_rank: bool = False) -> _Worker:
    """Start a process in its own session, so that a Ctrl-C here does not reach it in the middle of a report.

    `gpus` are the numbers of its GPUs, and None leaves them as they are.
    """
    driver_end, worker_end = Pipe()
    command = [sys.executable, "-m", "hpxfer.executors.local", str(worker_end.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    if is_rank:
        command.append(_TEAM)
    process = subprocess.Popen(command, pass_fds=[worker_end.fileno()], start_new_session=True, env=environment)
    worker_end.close()
    worker = _Worker(process, driver_end)
    _send(worker, train)
    return worker


def _send(worker: _Worker, message: object) -> None:
    # If the worker is gone, `_receive` notices it.
    with suppress(BrokenPipeError, ConnectionResetError):
        worker.pipe.send(message)


def _receive(worker: _Worker) -> Event | str | None:
    """Return the worker's next message, or None if the worker is gone. A text says why the worker is of no more use."""
    try:
        message: Event | str = worker.pipe.recv()
    except (EOFError, OSError):
        return None
    return message


def _end_all(worker: _Worker) -> None:
    """End all processes of a worker. Ranks that wait for a lost one are killed."""
    for rank in worker.all:
        if worker.ranks:
            rank.process.kill()
        _end(rank)


def _end(worker: _Worker) -> str:
    """End a worker and return how it ended. An idle worker exits when its pipe closes."""
    worker.pipe.close()
    try:
        worker.process.wait(_SOFT_STOP_S)
    except subprocess.TimeoutExpired:
        worker.process.kill()
    code = worker.process.wait()
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _work(pipe: Connection, *, is_rank: bool) -> None:
    """Train stacks until the driver closes the pipe, or asks this process to stop."""
    keep_memory()
    # Slurm sends a signal to every process of a job: the driver's workers write their checkpoints as well.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: setattr(STOP, "is_set", True))
    try:
        train: Train = pipe.recv()
        if is_rank:
            _join(pipe)
        while (task := pipe.recv()) is not None:
            stack, cut = task
            STOP.look = pipe.poll  # a driver that waits for results sends nothing but the request to stop
            for event in guarded(train, stack, cut=cut):
                if MEMBER.is_first or isinstance(event, Ended):
                    pipe.send(event)
            if STOP.is_set:
                return
    except RankLost as error:
        with suppress(BrokenPipeError, ConnectionResetError):
            pipe.send(str(error))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _join(pipe: Connection) -> None:
    """Become a rank of a team. The first opens the store, and tells the driver its address."""
    message = pipe.recv()
    if not isinstance(message, Team):
        from hpxfer.train.ranks import open_store

        world, timeout_s = message
        MEMBER.store, address = open_store(world, timeout_s=timeout_s)
        pipe.send(address)
        message = pipe.recv()
    MEMBER.team = message


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])), is_rank=sys.argv[2:] == [_TEAM])
