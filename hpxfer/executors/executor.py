"""Executor: the one method by which stacks get trained. Both executors pass the suite in `hpxfer.testing.executor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from hpxfer.result import TrialResult
from hpxfer.stack import Stack
from hpxfer.train.event import Event

Train = Callable[[Stack], Iterator[Event]]

# A lost worker (killed, out of host memory, its node gone) is no result: its stack is tried this many times in all.
TRIES = 3


class Executor(Protocol):
    """Runs stacks somewhere."""

    def run(self, stacks: Sequence[Stack], train: Train, on_event: Callable[[Event], None]) -> None:
        """Run `train` on every stack and call `on_event`, in this process and thread, with what it yields.

        Returns when each stack has given its results exactly once. An exception inside `train` gives failed results
        with the traceback; a lost worker's stack is tried TRIES times. `train` must be importable by name.
        """


def lost(stack: Stack, why: str) -> tuple[TrialResult, ...]:
    """Return the failed results of a stack whose worker was lost on every try."""
    message = f"the worker was lost {TRIES} times: {why}"
    return tuple(TrialResult(trial_id=trial.id, status="failed", error=message) for trial in stack.trials)
