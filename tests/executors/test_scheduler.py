"""The scheduler's loop on a backend that pretends: room, kinds of workers, and starts that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from hpxfer.errors import HpxferError
from hpxfer.executors.executor import once
from hpxfer.executors.scheduler import Lost, Message, Need, Worker, schedule
from hpxfer.executors.worker import TrainStack
from hpxfer.testing.executor import tiny_stack
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Event, Started
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


@dataclass
class Pretend:
    """A backend whose workers finish a stack at once. A stack's seed is the room that it needs, in quarters."""

    rooms: list[float]  # at each poll; the last one stays
    starts: Callable[[int], Message] = lambda number: Started(host="here", pid=number)
    alive: list[Worker] = field(default_factory=list)
    most: float = 0.0
    killed: list[float] = field(default_factory=list)  # the rooms of workers that were killed

    def room(self) -> float:
        return self.rooms[0]

    def need(self, stack: Stack) -> Need:
        return Need(stack.trials[0].seed / 4, stack.trials[0].seed / 4)

    def start(self, number: int, need: Need) -> Worker:
        self.alive.append(Worker(number, need, [None]))
        self.most = max(self.most, sum(worker.need.room for worker in self.alive))
        return self.alive[-1]

    def send(self, worker: Worker, stack: Stack | None, last_try: bool = False) -> bool:
        assert stack is not None
        assert self.need(stack) == worker.need
        return True

    def poll(self, workers: Sequence[Worker], timeout_s: float) -> Iterator[tuple[Worker, int, Message]]:
        self.rooms = self.rooms[1:] or self.rooms
        for worker in workers:
            if worker.who is None:
                yield worker, 0, self.starts(worker.number)
            elif worker.stack is not None:
                results = tuple(TrialResult(trial_id=each.id, status="finished") for each in worker.stack.trials)
                yield worker, 0, Ended(results=results)

    def kill(self, workers: Sequence[Worker]) -> None:
        self.killed += [worker.need.room for worker in workers]
        self.alive = [worker for worker in self.alive if worker not in workers]


def ended(backend: Pretend, stacks: Sequence[Stack]) -> list[str]:
    """Return the ids of the stacks that ended, in order."""
    found: list[str] = []

    def take(stack: Stack, event: Event) -> None:
        found.extend([stack.id] * isinstance(event, Ended))

    schedule(backend, TrainStack(), None, once(stacks), take)
    return found


def test_workers_fill_the_room_as_it_grows_and_make_way_for_others(setting: Setting) -> None:
    """Four quarters, then a half, then a whole: workers that no stack waits for are ended."""
    needs = [1, 1, 1, 1, 2, 4]
    stacks = [tiny_stack(setting, need, size=1, name=str(index)) for index, need in enumerate(needs)]
    backend = Pretend(rooms=[1.0, 1.0, 1.0, 1.0, 2.0])
    assert sorted(ended(backend, stacks)) == sorted(stack.id for stack in stacks)
    assert 1.0 <= backend.most <= 2.0
    assert not backend.alive
    assert sorted(backend.killed) == [0.25] * 4 + [0.5, 1.0]


def test_a_run_whose_workers_cannot_start_ends_after_a_few(setting: Setting) -> None:
    backend = Pretend(rooms=[1.0], starts=lambda number: Lost("signal SIGKILL"))
    with pytest.raises(HpxferError, match=r"cannot start a worker: signal SIGKILL; every node needs this hpxfer"):
        ended(backend, [tiny_stack(setting, 4, size=1)])
    assert len(backend.killed) == 5
    backend = Pretend(rooms=[1.0], starts=lambda number: Lost("No module", for_good=True))
    with pytest.raises(HpxferError, match="No module"):
        ended(backend, [tiny_stack(setting, 4, size=1)])
    assert len(backend.killed) == 1


def test_a_worker_that_was_lost_at_its_start_is_replaced(setting: Setting) -> None:
    left = [Lost("signal SIGKILL")] * 3
    backend = Pretend(rooms=[1.0], starts=lambda number: left.pop() if left else Started(host="here", pid=1))
    stack = tiny_stack(setting, 4, size=1)
    assert ended(backend, [stack]) == [stack.id]
