"""Queue: which stack an idle worker gets: first what another worker was lost with, then what `more` gave."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from hpxfer.executors.executor import TRIES, More
from hpxfer.trial.stack import Stack


class Queue:
    """The stacks of a run that are not done: waiting, or out at a worker."""

    def __init__(self, more: More) -> None:
        self._more = more
        self._waiting: deque[Stack] = deque()
        self._tries: dict[str, int] = {}  # of stacks that are out or were lost
        self._dry = False  # nothing was given, and nothing has been done since that could change the answer
        self.num_out = 0

    def ask(self, idle: int) -> int:
        """Ask for stacks if workers are idle and none waits; return how many wait."""
        if idle > 0 and not self._waiting and not self._dry:
            self._waiting.extend(self._more(idle))
            self._dry = not self._waiting
        return len(self._waiting)

    def waiting(self) -> Iterator[Stack]:
        """Yield the stacks that wait, the next first."""
        return iter(self._waiting)

    def take(self) -> Stack:
        """Return the next stack; it is out from now on."""
        return self._out(self._waiting[0])

    def take_if(self, fits: Callable[[Stack], bool]) -> Stack | None:
        """Return the first stack that fits, which is out from now on; None if none does."""
        stack = next((one for one in self._waiting if fits(one)), None)
        return None if stack is None else self._out(stack)

    def _out(self, stack: Stack) -> Stack:
        self._waiting.remove(stack)
        self._tries[stack.id] = self._tries.get(stack.id, 0) + 1
        self.num_out += 1
        return stack

    def is_last_try(self, stack: Stack) -> bool:
        """Return whether a stack that is out will not be tried again."""
        return self._tries[stack.id] >= TRIES

    def done(self, stack: Stack) -> None:
        """Take note that a stack has its results."""
        del self._tries[stack.id]
        self.num_out -= 1
        self._dry = False

    def lost(self, stack: Stack) -> bool:
        """Take note that a stack's worker was lost; return whether it is tried again. If not, it is done."""
        again = not self.is_last_try(stack)
        if again:
            self._waiting.appendleft(stack)
            self.num_out -= 1
        else:
            self.done(stack)
        return again
