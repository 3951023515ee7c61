"""A training that is asked to stop leaves a checkpoint, from which it goes on with the bits of an undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest
from interrupted import run
from tiny_trials import BASE, numbers, trial

from hpxfer.executors import worker
from hpxfer.executors.worker import TrainStack, guarded
from hpxfer.train.checkpoints import Checkpoints
from hpxfer.train.trainer import train
from hpxfer.trial import Setting
from hpxfer.trial.events import Ended, Started
from hpxfer.trial.stack import Stack


@pytest.fixture
def stack(setting: Setting) -> Stack:
    return Stack(trials=tuple(trial(setting, BASE, seed=seed) for seed in range(2)))


@pytest.mark.parametrize("after", [1, 3])
def test_it_stops_after_the_step_and_goes_on_with_the_same_bits(after: int, stack: Stack, tmp_path: Path) -> None:
    spec = Checkpoints(tmp_path).start(3600.0)  # no checkpoint is due before the training ends
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) == after

    events = list(train(stack, "cpu", checkpoints=spec, stop=stop))
    assert not any(isinstance(event, Ended) for event in events)
    (found,) = Checkpoints(tmp_path).usable()
    assert (found.step, found.trials) == (after, tuple(member.id for member in stack.trials))
    taken, _, results = run(stack.trials, spec)
    _, _, straight = run(stack.trials, None)
    assert taken == list(range(after, stack.setting.steps))
    assert [numbers(result) for result in results] == [numbers(result) for result in straight]
    assert [result.resumes for result in results] == [1, 1]


def test_a_training_that_has_taken_its_last_step_ends_with_its_results(stack: Stack, tmp_path: Path) -> None:
    spec = Checkpoints(tmp_path).start(3600.0)
    asked: list[bool] = []

    def stop() -> bool:
        asked.append(True)
        return False

    *_, end = train(stack, "cpu", checkpoints=spec, stop=stop)
    assert isinstance(end, Ended)
    assert len(asked) == stack.setting.steps - 1


def test_without_checkpoints_it_ends_and_keeps_nothing(stack: Stack) -> None:
    assert list(train(stack, "cpu", stop=lambda: True)) == []


def test_a_worker_that_is_asked_to_stop_sends_no_results(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a stack that was halved: its second half is not begun."""
    monkeypatch.setattr(worker, "STOP", stop := worker.StopRequest())
    stop.is_set = True
    how = TrainStack("cpu", checkpoints=Checkpoints(tmp_path).start(3600.0))
    for cut in (False, True):
        (begun,) = guarded(how, stack, cut=cut)
        assert isinstance(begun, Started)
