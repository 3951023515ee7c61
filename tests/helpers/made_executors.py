"""Executors that train in this process, or make results up."""

from __future__ import annotations

from hpxfer.executors.executor import More, OnEvent, Trains
from hpxfer.trial.events import Ended, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


class InProcess:
    """An executor that trains in this process and remembers the stacks it was given."""

    def __init__(self) -> None:
        self.given: list[Stack] = []

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        while stacks := more():
            self.given += stacks
            for stack in stacks:
                for event in train(stack):
                    on_event(stack, event)


class Made(InProcess):
    """An executor that makes results up; `fail` trials fail."""

    def __init__(self, fail: int = 0, stop_after: int | None = None) -> None:
        super().__init__()
        self.fail, self.stop_after = fail, stop_after

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        while stacks := more():
            for stack in stacks:
                if len(self.given) == self.stop_after:
                    raise KeyboardInterrupt
                self.given.append(stack)
                on_event(stack, Progress(tokens=1))
                on_event(stack, Ended(results=tuple(self._result(trial.id) for trial in stack.trials)))

    def _result(self, trial_id: str) -> TrialResult:
        if self.fail > 0:
            self.fail -= 1
            return TrialResult(trial_id=trial_id, status="failed", error="Traceback: a bug")
        return TrialResult(trial_id=trial_id, status="finished", validation_loss_nats=2.0, final_window_loss_nats=2.0)


def trained(executor: InProcess) -> int:
    return sum(len(stack.trials) for stack in executor.given)
