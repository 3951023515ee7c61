"""Executor: the one method by which stacks get trained. All executors pass the suite in `hpxfer.testing.executor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hpxfer.trial.events import Event
from hpxfer.trial.result import ErrorKind, TrialResult
from hpxfer.trial.stack import Stack

Train = Callable[[Stack], Iterator[Event]]
More = Callable[[int], Sequence[Stack]]
OnEvent = Callable[[Stack, Event], None]

# A lost worker (killed, out of host memory, its node gone) is no result: its stack is tried this many times in all.
TRIES = 3


class Executor(Protocol):
    """Runs stacks somewhere."""

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """Run `train` on every stack that `more` gives and call `on_event` with what it yields.

        Both are called in this process and thread. `more` gets the number of idle workers, whenever some are idle and
        no stack waits for one; it may give more stacks than that, or none for now. Nothing given and no stack out: the
        run ends. Of each stack come Started, Progress and, exactly once and last, its results. An exception inside
        `train` gives failed results that say why; a lost worker's stack is tried TRIES times, on any worker, at last
        in halves. `train` must be importable by name.
        """


def once(stacks: Sequence[Stack]) -> More:
    """Return a `more` that gives all stacks when it is first asked."""
    left = [tuple(stacks)]
    return lambda idle: left.pop() if left else ()


def lost(stack: Stack, why: str) -> tuple[TrialResult, ...]:
    """Return the failed results of a stack whose worker was lost on every try."""
    return failed(stack, f"the worker was lost {TRIES} times: {why}", "lost")


def failed(stack: Stack, message: str, kind: ErrorKind) -> tuple[TrialResult, ...]:
    """Return a stack's results where it has none: failed, and why."""
    return tuple(
        TrialResult(trial_id=trial.id, status="failed", error=message, error_kind=kind) for trial in stack.trials
    )
