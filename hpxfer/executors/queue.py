"""Queue: the stacks that wait for a worker. Stacks of lost workers come first, then those that `more` returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hpxfer.executors.executor import TRIES, More, Reached
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
