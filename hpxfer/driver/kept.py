"""What an interrupted run keeps of the trials that were running, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hpxfer.train.checkpoints import FoundCheckpoint
from hpxfer.trial import Trial


def steps_kept(checkpoints: Iterable[FoundCheckpoint]) -> dict[str, int]:
    """Return trial id -> the steps that usable checkpoints hold. The furthest checkpoint comes first."""
    steps: dict[str, int] = {}
    for found in checkpoints:
        for trial_id in found.trials:
            steps.setdefault(trial_id, found.step)
    return steps


def kept_text(running: Collection[Trial], steps: Mapping[str, int]) -> str | None:
    """Return e.g. `4 trials stopped at step 12 to 40 of 300`. Return None if no trial was running.

    `steps` is trial id -> the steps that a checkpoint holds.
    """
    kept: dict[int, list[int]] = {}  # steps of the whole training -> steps done, of each trial
    for trial in running:
        if trial.id in steps:
            kept.setdefault(trial.setting.steps, []).append(steps[trial.id])
    parts = [f"{_trials(len(done))} stopped at step {_span(done)} of {of}" for of, done in sorted(kept.items())]
    if lost := len(running) - sum(map(len, kept.values())):
        parts.append(f"{_trials(lost)} without a checkpoint start{'s' if lost == 1 else ''} over")
    return ", ".join(parts) or None


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number} trials"


def _span(steps: Collection[int]) -> str:
    return str(min(steps)) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"
