"""What happens when a worker dies: its stack is tried again on any worker, three times in all, and then has failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hpxfer.executors.executor import More, Reached, failed
from hpxfer.trial import Ended, Stack

# How often a stack is tried whose worker is lost: killed, out of host memory, or gone with its node. The last try
# trains it in halves.
TRIES = 3


class Queue:
    """The stacks of a run that have not ended: each waits, or is at a worker.

    A lost worker costs its stack a try, unless the stack has `reached` more than ever before: a user's own trainer may
    need longer than its workers live. That number has a limit, so no stack is tried forever.
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

    def take_if(self, fits: Callable[[Stack], bool]) -> Stack | None:
        """Return the first stack that fits, or None. The stack counts as running from now on."""
        stack = next((waiting for waiting in self._waiting if fits(waiting)), None)
        if stack is not None:
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

    def lost(self, stack: Stack, why: str) -> Ended | None:
        """Note that a stack's worker was lost. Return None if the stack is tried again, else its end."""
        if self._reached is not None:
            before, now = self._best[stack.id], self._reached(stack)
            self._best[stack.id] = max(before, now)
            self._tries[stack.id] -= now > before
        if self.is_last_try(stack):
            self.done(stack)
            return failed(stack, f"the worker was lost {TRIES} times: {why}", "lost")
        self._waiting.appendleft(stack)
        self.num_running -= 1
        return None
