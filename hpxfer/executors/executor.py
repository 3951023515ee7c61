"""Executor: the protocol between driver and workers, where and how wide a run trains, and the queue of its stacks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpxfer.plan.packing import Measured
from hpxfer.registry import PluginFile
from hpxfer.scaling.shape import Shape
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.trial import Trial
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import ErrorKind, TrialResult
from hpxfer.trial.stack import Stack


class Queue:
    """The stacks of a run that have not ended: each waits, or is at a worker.

    A lost worker costs its stack a try, unless the stack has `reached` more than ever before. That number has a limit,
    so no stack is tried forever. Without `reached`, each loss costs a try.
    """

    def __init__(self, more: More, reached: Reached | None = None) -> None:
        self._more = more
        self._reached = reached
        self._waiting: deque[Stack] = deque()
        self._tries: dict[str, int] = {}  # stack id -> tries so far that count, with the one under way
        self._best: dict[str, int] = {}  # stack id -> the most that it had reached when a try began or was lost
        self._is_empty = False  # `more` returned nothing, and no stack has ended since then
        self.num_running = 0

    def ask(self, idle: int) -> int:
        """Ask for stacks if workers are idle and no stack waits. Return how many stacks wait."""
        if idle > 0 and not self._waiting and not self._is_empty:
            self._waiting.extend(self._more())
            self._is_empty = not self._waiting
        return len(self._waiting)

    def waiting(self) -> Iterator[Stack]:
        """Yield the waiting stacks, the next one first."""
        return iter(self._waiting)

    def take(self) -> Stack:
        """Return the next stack. It counts as running from now on."""
        return self._start(self._waiting[0])

    def take_if(self, fits: Callable[[Stack], bool]) -> Stack | None:
        """Return the first stack that fits, or None. The stack counts as running from now on."""
        stack = next((waiting for waiting in self._waiting if fits(waiting)), None)
        return None if stack is None else self._start(stack)

    def _start(self, stack: Stack) -> Stack:
        self._waiting.remove(stack)
        self._tries[stack.id] = self._tries.get(stack.id, 0) + 1
        if self._reached is not None and stack.id not in self._best:
            self._best[stack.id] = self._reached(stack)
        self.num_running += 1
        return stack

    def is_last_try(self, stack: Stack) -> bool:
        """Return whether a running stack will not be tried again."""
        return self._tries[stack.id] >= TRIES

    def done(self, stack: Stack) -> None:
        """Note that a stack has ended."""
        del self._tries[stack.id]
        self._best.pop(stack.id, None)
        self.num_running -= 1
        self._is_empty = False

    def lost(self, stack: Stack) -> bool:
        """Note that a stack's worker was lost. Return whether the stack is tried again; if not, it has ended."""
        if self._has_advanced(stack):
            self._tries[stack.id] -= 1
        again = not self.is_last_try(stack)
        if again:
            self._waiting.appendleft(stack)
            self.num_running -= 1
        else:
            self.done(stack)
        return again

    def _has_advanced(self, stack: Stack) -> bool:
        """Return whether a running stack has reached more than ever before, and note how far it is."""
        if self._reached is None:
            return False
        before, now = self._best[stack.id], self._reached(stack)
        self._best[stack.id] = max(before, now)
        return now > before


Train = Callable[[Stack], Iterator[Event]]
More = Callable[[], Sequence[Stack]]
OnEvent = Callable[[Stack, Event], None]
# How far a stack has come by what it left on the disk: a whole number that only grows, and has a limit.
Reached = Callable[[Stack], int]

# How often a stack is tried whose worker is lost: killed, out of host memory, or gone with its node. A user's own
# trainer may need longer than its workers live: a loss after which a trial has reached more costs no try.
TRIES = 3


class Executor(Protocol):
    """Runs stacks, on this machine or elsewhere. Every executor passes `hpxfer.testing.executor.ExecutorSuite`."""

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """Train every stack that `more` returns, and call `on_event` with each event of its training.

        The executor calls `more` and `on_event` in this process and thread. It calls `more` whenever a worker is idle
        and no stack waits. `more` may return any number of stacks, which begin in their order. The run ends when `more`
        returns nothing and no stack is running.

        Each stack has the events Started, any number of Progress, and Ended, exactly once and last. If `train` raises,
        the stack's results are failed trials with the traceback. If a worker is lost, its stack is tried on any worker,
        TRIES times in all; the last try trains the stack in halves. Workers import `train` by name.
        """


def once(stacks: Sequence[Stack]) -> More:
    """Return a `more` that returns all stacks at its first call, and nothing afterwards."""
    left = [tuple(stacks)]
    return lambda: left.pop() if left else ()


def lost(stack: Stack, why: str) -> Ended:
    """Return the end of a stack whose worker was lost on every try that counts."""
    return failed(stack, f"the worker was lost {TRIES} times: {why}", "lost")


def failed(stack: Stack, message: str, kind: ErrorKind) -> Ended:
    """Return the end of a stack that could not be trained: all its trials have failed for the same reason."""
    return Ended(
        results=tuple(
            TrialResult(trial_id=trial.id, status="failed", error=message, error_kind=kind) for trial in stack.trials
        )
    )


@dataclass(frozen=True)
class Stopping:
    """Successive halving: of the trials at a rung, the best 1 / reduction_factor continue."""

    grace_steps: int  # training steps before the first rung
    reduction_factor: float  # between one rung and the next, in steps and in trials
    varied: tuple[str, ...] = ()  # the HPs that the sweep's search varies

    def arm(self, trial: Trial) -> Hashable:
        """Return what trials must share to be compared: shape, table, and every HP that the search does not vary.

        So arms with HPs of their own are halved apart.
        """
        held = trial.hps
        for name in self.varied:
            held = held.with_value(name, 1.0 if "." in name else 0.0)
        return trial.shape, trial.parameterization, held

    def rungs(self, steps: int) -> tuple[int, ...]:
        """Return the rungs of a run of this many steps, ascending, in steps done. The end of the run is no rung."""
        out = []
        at = float(self.grace_steps)
        while math.ceil(at) < steps:
            out.append(math.ceil(at))
            at *= self.reduction_factor
        return tuple(out)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how wide a run trains."""

    resources: ResourcesSpec = field(default_factory=ResourcesSpec)  # of the sweep
    own_trainer: bool = False  # whether a user's own trainer trains, which gets whole nodes or GPUs
    reached: Reached | None = None  # how far a stack has come; a loss after which it has come further costs no try
    stop_s: float | None = None  # how long an interrupted run waits for its workers; None: as long as a training step
    workers: int | None = None  # stacks that run at once, for an executor that stays on this machine; None: per core
    address: str | None = None  # of a Ray cluster to join: auto | HOST:PORT | ray://HOST:PORT; None starts Ray here
    stopping: Stopping | None = None  # when trials that fall behind are stopped; None stops none
    plugins: tuple[PluginFile, ...] = ()  # every node must be able to import them
    measured: Mapping[Shape, Measured] = field(default_factory=dict)  # what stored trials say that stacks need
