"""Checkpoints in S3: workers that share no disk with the driver go on from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

from s3_server import Server
from tiny_trials import numbers, text_setting, trial

from hpxfer.train import checkpoint
from hpxfer.train.checkpoints import Checkpoints, CheckpointSpec
from hpxfer.train.trainer import train
from hpxfer.trial.events import Ended, Progress
from hpxfer.trial.result import TrialResult
from hpxfer.trial.stack import Stack


def trained(stack: Stack, spec: CheckpointSpec | None, steps: int | None = None) -> tuple[TrialResult, ...]:
    """Return the results; none if the worker ends at its report of so many steps."""
    with mock.patch.object(checkpoint, "WRITE_SHARE", float("inf")), mock.patch("hpxfer.train.trainer.PROGRESS_S", 0.0):
        for event in train(stack, "cpu", checkpoints=spec):
            if isinstance(event, Progress) and event.step == steps:
                break
            if isinstance(event, Ended):
                return event.results
    return ()


def test_a_training_goes_on_from_s3(s3: str, s3_names: Callable[[str], list[str]], tmp_path: Path) -> None:
    setting = text_setting(tmp_path)
    stack = Stack(trials=tuple(replace(trial(setting, seed=seed), id=f"s3 {seed}") for seed in range(2)))
    folder = Checkpoints(f"{s3}/tiny/checkpoints")
    spec = folder.start(0.0)
    assert spec is not None
    assert trained(stack, spec, steps=5) == ()
    (found,) = folder.usable()
    assert found.step == 4
    assert s3_names("tiny/checkpoints") == sorted(["driver", found.name])
    results = trained(stack, spec)
    assert [numbers(result) for result in results] == [numbers(result) for result in trained(stack, None)]
    assert {result.resumes for result in results} == {1}
    folder.end([result.trial_id for result in results])
    assert s3_names("tiny/checkpoints") == []


def test_storage_that_refuses_ends_no_training(s3: str, s3_server: Server, tmp_path: Path) -> None:
    setting = text_setting(tmp_path)
    stack = Stack(trials=(replace(trial(setting), id="s3 refused"),))
    spec = Checkpoints(f"{s3}/tiny/checkpoints").start(0.0)
    with s3_server.forbidding():
        (result,) = trained(stack, spec)
        assert Checkpoints(f"{s3}/tiny/checkpoints").start(0.0) is None
    assert result.status == "finished"
    assert result.resumes == 0
