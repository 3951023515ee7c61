"""The scheduler: the one loop that hands stacks to workers and passes on what these report.

A backend starts, feeds, hears and ends workers: processes of this machine, or actors of Ray. All else is here and in
`lost_workers`: who gets which stack, how many workers there are, what a lost worker or a failed rank means, when a
trial that falls behind is stopped, and what an interrupted run waits for. It keeps no state that a later run needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, Protocol

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Stopping, Trains
from hpxfer.executors.lost_workers import Queue
from hpxfer.trial import Ended, Progress, Stack, Started

_POLL_S = 1.0
# After so many lost workers in a row, all lost while they started, the run ends: something is wrong with every worker.
_STARTS = 5
_log = logging.getLogger(__name__)


class Need(NamedTuple):
    """What a stack needs: a part of the backend's room, and GPUs for its worker."""

    room: float = 1.0
    gpus: float = 0.0


@dataclass(eq=False)
class Worker:
    """A worker, of one process or of several ranks. It trains one stack at a time, and its first rank speaks for it."""

    number: int
    need: Need
    ranks: list[Any]  # its processes, as the backend knows them
    who: Started | None = None  # set once it is ready
    stack: Stack | None = None
    is_leaving: bool = False  # its stack has been stopped, and it still has to end the training
    place: Any = field(default=None, kw_only=True)  # what the backend has to give back for it


@dataclass(frozen=True)
class Lost:
    """A rank of a worker is gone or has given up, and with it the worker."""

    why: str
    for_good: bool = False  # no other worker can start either


Message = Started | Progress | Ended | Lost


class Backend(Protocol):
    """Where workers run."""

    def room(self) -> float:
        """Return how much room there is for workers, in the unit of `Need.room`. It may grow and shrink."""

    def need(self, stack: Stack) -> Need:
        """Return what a stack needs."""

    def start(self, number: int, need: Need) -> Worker | None:
        """Start a worker with all its ranks. Return None if there is no place for it at the moment."""

    def send(self, worker: Worker, stack: Stack | None, last_try: bool = False) -> bool:
        """Give a stack to a ready worker. None asks it to write a checkpoint and leave the stack that it trains.

        Return False if that cannot reach the worker any more.
        """

    def poll(self, workers: Sequence[Worker], timeout_s: float) -> Iterator[tuple[Worker, int, Message]]:
        """Wait for messages of workers, and yield them with the rank that sent them.

        Started comes once, when a worker is ready. Ended follows each stack, without results if the stack was left.
        """

    def kill(self, workers: Sequence[Worker]) -> None:
        """End workers: those that train at once, others softly. A worker that cannot be reached must not train on."""


def schedule(backend: Backend, train: Trains, stopping: Stopping | None, more: More, on_event: OnEvent) -> None:
    """Train every stack that `more` returns, see `Executor.run`."""
    _Run(backend, train, stopping, more, on_event).to_the_end()


class _Run:
    def __init__(
        self, backend: Backend, train: Trains, stopping: Stopping | None, more: More, on_event: OnEvent
    ) -> None:
        self._backend, self._on_event, self._stop_s = backend, on_event, train.stop_s
        self._queue, self._halving = Queue(more, train.reached), None
        if stopping is not None:
            from hpxfer.executors.asha import Halving  # loads Ray Tune

            self._halving = Halving(stopping)
        self._workers: list[Worker] = []
        self._failed_starts = 0

    def to_the_end(self) -> None:
        try:
            while True:
                self._hand_out()
                if not self._queue.num_running and not self._queue.ask(self._num_idle()):
                    return
                self._start()
                for worker, rank, message in self._backend.poll(self._workers, _POLL_S):
                    self._take(worker, rank, message)
        except HpxferError:
            raise  # the driver lost its lease, its disk is full, or the cluster is gone: nothing more is to be written
        except BaseException:
            self._keep()
            raise
        finally:
            self._backend.kill(self._workers)

    def _keep(self) -> None:
        """Ask the workers to write checkpoints, and wait for them a short time. Pass on the results that come."""
        deadline = time.monotonic() + self._stop_s
        busy = [each for each in self._workers if each.stack is not None and self._backend.send(each, None)]
        ended: list[tuple[Stack, Ended]] = []
        try:
            while busy and (left_s := deadline - time.monotonic()) > 0:
                for worker, rank, message in self._backend.poll(busy, left_s):
                    if rank == 0 and isinstance(message, Ended | Lost) and worker in busy:
                        busy.remove(worker)
                        stack, worker.stack = worker.stack, None
                        if stack is not None and isinstance(message, Ended) and message.results:
                            ended.append((stack, message))
        except Exception as error:  # a cluster that is gone must not hide why the run ends
            _log.warning("the workers cannot be waited for: %s", error)
        finally:
            for stack, message in ended:
                self._on_event(stack, message)

    # Stacks to workers.

    def _num_idle(self) -> int:
        """Return how many stacks could start now, if they need as much as the running ones."""
        busy = [worker.need.room for worker in self._workers if worker.stack is not None]
        return int((max(1.0, self._backend.room()) - sum(busy)) / min(busy, default=1.0))

    def _idle(self) -> list[Worker]:
        return [each for each in self._workers if each.who and each.stack is None and not each.is_leaving]

    def _hand_out(self) -> None:
        """Give idle workers the stacks that wait for a worker of their kind."""
        while self._queue.ask(self._num_idle()):
            if not sum(self._give(worker) for worker in self._idle()):
                return

    def _give(self, worker: Worker) -> bool:
        """Give an idle worker the first stack that needs such a worker. Return whether there was one."""
        stack = self._queue.take_if(lambda waiting: self._backend.need(waiting) == worker.need)
        if stack is not None:
            assert worker.who is not None
            worker.stack = stack
            self._backend.send(worker, stack, self._queue.is_last_try(stack))
            self._on_event(stack, worker.who)
        return stack is not None

    def _start(self) -> None:
        """Start the workers that waiting stacks need, as far as there is room for them."""
        starting = [worker.need for worker in self._workers if worker.who is None]
        for stack in self._queue.waiting():
            need = self._backend.need(stack)
            if need in starting:
                starting.remove(need)
                continue
            if not self._has_room(need):
                self._drop(self._idle())  # no stack waits for them, and they hold room that others need
                if not self._has_room(need):
                    return
            taken = {worker.number for worker in self._workers}
            worker = self._backend.start(next(number for number in count() if number not in taken), need)
            if worker is None:
                return
            self._workers.append(worker)

    def _has_room(self, need: Need) -> bool:
        return sum(worker.need.room for worker in self._workers) + need.room <= max(1.0, self._backend.room())

    def _drop(self, workers: Sequence[Worker]) -> None:
        self._workers = [worker for worker in self._workers if worker not in workers]
        self._backend.kill(workers)

    # Messages from workers.

    def _take(self, worker: Worker, rank: int, message: Message) -> None:
        """Pass on a message: of the first rank, or of another one that is lost or has failed."""
        stack = worker.stack
        if worker not in self._workers:
            return
        if isinstance(message, Lost):
            self._lose(worker, message)
        elif isinstance(message, Started):
            if rank == 0:
                worker.who, self._failed_starts = message, 0
        elif worker.is_leaving:
            worker.is_leaving = not isinstance(message, Ended)
        elif stack is not None and isinstance(message, Progress) and rank == 0:
            self._on_event(stack, message)
            if self._halving is not None and (end := self._halving.end_of(stack, message)) is not None:
                worker.is_leaving = True
                self._backend.send(worker, None)
                self._end(worker, stack, end)
        elif stack is not None and isinstance(message, Ended):
            has_failed = any(result.status == "failed" for result in message.results)
            if rank and not has_failed:
                return
            if has_failed and len(worker.ranks) > 1:
                self._drop([worker])  # the other ranks may wait for this one
            self._end(worker, stack, message)

    def _end(self, worker: Worker, stack: Stack, end: Ended) -> None:
        worker.stack = None
        self._queue.done(stack)
        self._on_event(stack, end)

    def _lose(self, worker: Worker, lost: Lost) -> None:
        self._drop([worker])
        self._failed_starts += worker.who is None
        if lost.for_good or self._failed_starts >= _STARTS:
            raise HpxferError(
                f"cannot start a worker: {lost.why}; every node needs this hpxfer and this Python's packages. The "
                "finished trials are stored; run again to train the rest"
            )
        if worker.stack is not None and (end := self._queue.lost(worker.stack, lost.why)) is not None:
            self._on_event(worker.stack, end)
