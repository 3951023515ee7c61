"""Executor: the protocol between the driver, which has stacks, and the workers, which train them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hpxfer.trial.events import Ended, Event
from hpxfer.trial.result import ErrorKind, TrialResult
from hpxfer.trial.stack import Stack

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
