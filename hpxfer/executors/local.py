"""The local backend: persistent one-thread processes on this machine. Several ranks are as many processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from hpxfer.errors import RankLost
from hpxfer.executors.executor import More, OnEvent, Placement, Trains
from hpxfer.executors.scheduler import Lost, Message, Need, Worker, schedule
from hpxfer.executors.worker import guarded, keep_memory
from hpxfer.host import num_cpus
from hpxfer.trial import MEMBER, STOP, Ended, Stack, Started, Team

_SOFT_STOP_S = 5.0
_TEAM = "team"  # the argument of a process that is one of several ranks


@dataclass(frozen=True)
class LocalExecutor:
    """Trains on this machine, by default with one worker per core."""

    placement: Placement

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        """See `Executor.run`."""
        schedule(LocalBackend(self.placement, train), train, self.placement.stopping, more, on_event)


@dataclass(frozen=True)
class _Rank:
    process: subprocess.Popen[bytes]
    pipe: Connection

    def send(self, message: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `poll` notices that it is gone
            self.pipe.send(message)

    def receive(self) -> Message:
        """Return the next message, or how the process ended."""
        try:
            message: Message = self.pipe.recv()
        except (EOFError, OSError):
            return Lost(self.end())
        return message

    def end(self) -> str:
        """End the process and return how it ended. It exits by itself when its pipe closes, unless it trains."""
        self.pipe.close()
        try:
            self.process.wait(_SOFT_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        code = self.process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class LocalBackend:
    """See `Backend`."""

    def __init__(self, placement: Placement, train: Trains) -> None:
        self._placement, self._train = placement, train
        self._num_ranks = placement.resources.ranks

    def room(self) -> float:
        return self._placement.workers or max(1, num_cpus() // self._num_ranks)

    def need(self, stack: Stack) -> Need:
        return Need()

    def start(self, number: int, need: Need) -> Worker:
        if self._num_ranks == 1:
            return Worker(number, need, [self._process(self.gpus_of(number))])
        first = number * self._num_ranks
        ranks = [self._process(self.gpus_of(first + rank), _TEAM) for rank in range(self._num_ranks)]
        timeout_s = self._placement.resources.rank_timeout_s
        ranks[0].send((self._num_ranks, timeout_s))  # it opens a store for all
        address = ""
        with suppress(EOFError, OSError):  # `poll` notices that it is gone
            address = ranks[0].pipe.recv()
        for rank, process in enumerate(ranks):
            process.send(Team(rank=rank, world=self._num_ranks, address=address, timeout_s=timeout_s))
        return Worker(number, need, ranks)

    def gpus_of(self, place: int) -> str | None:
        """Return the numbers of the GPUs of a process by its place among all. Shares fill one GPU after another.

        None leaves the GPUs as they are.
        """
        each = self._train.node_gpus
        if not each:
            return os.environ.get("CUDA_VISIBLE_DEVICES", str(place)) if self._num_ranks > 1 else None
        first = int(place * each + 1e-9)
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        wanted = range(first, first + max(1, int(each)))
        return ",".join(visible[number % len(visible)] if visible else str(number) for number in wanted)

    def _process(self, gpus: str | None, *arguments: str) -> _Rank:
        """Start a process in its own session, so that a Ctrl-C here does not reach it in the middle of a report."""
        driver_end, worker_end = Pipe()
        command = [sys.executable, "-m", "hpxfer.executors.local", str(worker_end.fileno()), *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        process = subprocess.Popen(command, pass_fds=[worker_end.fileno()], start_new_session=True, env=environment)
        worker_end.close()
        rank = _Rank(process, driver_end)
        rank.send(self._train)
        return rank

    def send(self, worker: Worker, stack: Stack | None, last_try: bool = False) -> bool:
        if stack is None:  # the other ranks follow the first one
            worker.ranks[0].send(None)
            return True
        for rank in worker.ranks:
            rank.send((stack, last_try))
        return True

    def poll(self, workers: Sequence[Worker], timeout_s: float) -> Iterator[tuple[Worker, int, Message]]:
        pipes = {
            rank.pipe: (worker, index)
            for worker in workers
            for index, rank in enumerate(worker.ranks)
            if not rank.pipe.closed
        }
        if not pipes:
            time.sleep(timeout_s)
        ready = set(wait(list(pipes), timeout_s))
        for pipe, (worker, index) in pipes.items():
            if pipe in ready and not pipe.closed:  # a message before may have ended the worker
                yield worker, index, worker.ranks[index].receive()

    def kill(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            for rank in worker.ranks:
                if worker.stack is not None or worker.is_leaving or len(worker.ranks) > 1:
                    rank.process.kill()  # it trains what nobody waits for, or waits for a lost rank
                rank.pipe.close()
        for worker in workers:
            for rank in worker.ranks:
                rank.end()


def _work(pipe: Connection, *, is_rank: bool) -> None:
    """Train stacks until the driver closes the pipe, or a signal ends this process."""
    keep_memory()
    # Slurm sends a signal to every process of a job: the driver's workers write their checkpoints as well.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: STOP.end())
    try:
        train: Trains = pipe.recv()
        if is_rank:
            _join(pipe)
        pipe.send(Started(host=socket.gethostname(), pid=os.getpid()))
        STOP.look = pipe.poll  # a driver that waits for results sends nothing but the request to leave the stack
        while not STOP.for_good:
            if (task := pipe.recv()) is None:
                continue  # the stack has ended meanwhile
            STOP.begin()
            stack, cut = task
            for event in guarded(train, stack, cut=cut):
                if not isinstance(event, Ended):
                    if MEMBER.is_first:
                        pipe.send(event)
                elif event.results or not STOP.for_good:
                    pipe.send(event)
    except RankLost as error:
        with suppress(BrokenPipeError, ConnectionResetError):
            pipe.send(Lost(str(error)))
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
