"""The command line called in this process or in one of its own, and an executor that makes results up."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from hpxfer.cli import main
from hpxfer.executors.executor import More, OnEvent, Trains
from hpxfer.trial.events import Ended
from hpxfer.trial.result import ErrorKind, TrialResult


def hpxfer(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hpxfer", *map(str, arguments)])
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
    out = capsys.readouterr()
    assert isinstance(code, int)
    return code, out.out, out.err


def started(command: Sequence[str], **given: Any) -> subprocess.Popen[str]:
    """Start a command that Ctrl-C ends, as in a terminal, also where these tests themselves ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored, a child ignores too
    try:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **given}
        return subprocess.Popen(command, **pipes)
    finally:
        signal.signal(signal.SIGINT, before)


class Fails:
    """An executor that makes results up: the first `number` trials fail."""

    def __init__(self, number: int, kind: ErrorKind | None = None) -> None:
        self.number, self.kind = number, kind
        self.num_given = 0

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        stacks = more()
        self.num_given += sum(len(stack.trials) for stack in stacks)
        by_lr = sorted((trial for stack in stacks for trial in stack.trials), key=lambda trial: trial.hps.lr)
        failed = {trial.id for trial in by_lr[: self.number]}
        bug = {"status": "failed", "error": "Traceback: a bug", "error_kind": self.kind}
        for stack in stacks:
            ends = [
                bug if trial.id in failed else {"status": "finished", "validation_loss_nats": 2.0}
                for trial in stack.trials
            ]
            results = (TrialResult(trial_id=trial.id, **end) for trial, end in zip(stack.trials, ends, strict=True))
            on_event(stack, Ended(results=tuple(results)))
