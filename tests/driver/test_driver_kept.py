"""A run that is interrupted before its first checkpoint is due keeps what its workers have done."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from driver_cases import InProcess
from tiny import write_tiny
from tiny_trials import SETTING, trial

from hpxfer.driver import TrainingFailed, run
from hpxfer.driver.kept import kept_text, steps_kept
from hpxfer.host.interrupts import Interrupted
from hpxfer.train.checkpoints import Checkpoints, FoundCheckpoint
from hpxfer.trial.events import Progress, Started

pytestmark = pytest.mark.slow

NUMBERS = ["trial_id", "status", "validation_loss_nats", "final_window_loss_nats"]
# One stack of two trials, which takes a few seconds. Workers report progress every second.
SHORT = (
    ("steps: 6", "steps: 2000"),
    ("width: [16, 32]", "width: [16]"),
    ("log2: [-8, -4]", "values: [0.01]"),
    ("completep-moe, sp", "sp"),
)


@pytest.mark.parametrize("end", [Interrupted(2), TrainingFailed("a bug in another stack", 1)])
def test_a_stack_that_was_running_leaves_a_checkpoint(end: BaseException, tmp_path: Path) -> None:
    def stop(stack: object, event: object, counts: object) -> None:
        if isinstance(event, Progress):
            raise end

    sweep = write_tiny(tmp_path, *SHORT)
    with pytest.raises(type(end)) as error:
        run(sweep, results=tmp_path, on_event=stop)
    (found,) = Checkpoints(tmp_path / "tiny" / "checkpoints").usable()
    assert 0 < found.step < 2000
    assert error.value.__notes__ == [f"2 trials stopped at step {found.step} of 2000"]
    if isinstance(end, TrainingFailed):
        return
    after = run(sweep, results=tmp_path)  # goes on there
    assert set(after.trials["resumes"]) == {1}
    straight = run(sweep, results=tmp_path / "straight", executor=InProcess())
    pd.testing.assert_frame_equal(after.trials[NUMBERS], straight.trials[NUMBERS])
    assert not (tmp_path / "tiny" / "checkpoints").exists()


def test_without_checkpoints_the_run_says_what_starts_over(tmp_path: Path) -> None:
    def stop(stack: object, event: object, counts: object) -> None:
        if isinstance(event, Started):
            raise KeyboardInterrupt

    sweep = write_tiny(tmp_path, *SHORT, ("workers: 2", "workers: 2, checkpoint_s: 0"))
    with pytest.raises(KeyboardInterrupt) as error:
        run(sweep, results=tmp_path, on_event=stop)
    assert error.value.__notes__ == ["2 trials without a checkpoint start over"]
    assert not (tmp_path / "tiny" / "checkpoints").exists()


def test_what_is_kept_in_words() -> None:
    trials = [trial(SETTING, seed=seed) for seed in range(4)]

    def found(step: int, *members: int) -> FoundCheckpoint:
        return FoundCheckpoint(name="", trials=tuple(trials[member].id for member in members), step=step, facts={})

    assert kept_text([], steps_kept([found(3, 0)])) is None
    assert kept_text(trials[:1], steps_kept([found(3, 0)])) == "1 trial stopped at step 3 of 6"
    assert kept_text(trials[:2], steps_kept([found(3, 0, 1)])) == "2 trials stopped at step 3 of 6"
    older = [found(5, 0), found(4, 0, 1), found(2, 2)]
    assert (
        kept_text(trials, steps_kept(older))
        == "3 trials stopped at step 2 to 5 of 6, 1 trial without a checkpoint starts over"
    )
