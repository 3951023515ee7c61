"""PhaseSteps: the step counts of a run, and the rules for them. Where an axis changes the steps, warm-up and decay keep
their share of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hpxfer.registry import registry
from hpxfer.spec.problem import Problem
from hpxfer.spec.sweep import ScheduleSpec, SweepSpec


@dataclass(frozen=True, kw_only=True)
class PhaseSteps:
    """The steps of the warm-up, of the final decay (0 unless wsd) and of the window of the final loss."""

    warmup_steps: int
    decay_steps: int
    final_window_steps: int


def schedule_at(spec: SweepSpec, steps: int) -> PhaseSteps:
    """Return the schedule of a run of `steps`: the base's share of the run, at least 1 step if the base has any.

    If rounding leaves too little room for warm-up and decay, the decay is cut. `steps` must be at least `shortest_run`.
    """
    base = spec.training.schedule

    def share(of_base: int) -> int:
        return max(min(of_base, 1), (2 * of_base * steps + spec.steps) // (2 * spec.steps))  # rounded, half up

    decay_steps = share(base.decay_steps or 0)
    warmup_steps = min(share(base.warmup_steps), steps - min(decay_steps, 1))
    return PhaseSteps(
        warmup_steps=warmup_steps,
        decay_steps=min(decay_steps, steps - warmup_steps),
        final_window_steps=share(spec.final_window_steps),
    )


def shortest_run(spec: SweepSpec) -> int:
    """Return the fewest steps of a run that leave one step each for warm-up and decay, if the base has these."""
    schedule = spec.training.schedule
    return max(1, min(schedule.warmup_steps, 1) + min(schedule.decay_steps or 0, 1))


def schedule_problems(schedule: ScheduleSpec, steps: int) -> Iterator[Problem]:
    """Yield the rules of a schedule that a run of `steps` breaks. The key paths start below the schedule."""
    if schedule.warmup_steps > steps:
        yield (
            ("warmup_steps",),
            f"the warm-up must not be longer than the run of {steps} steps, got {schedule.warmup_steps}",
        )
    schedules = registry("schedule")
    if schedules.get(schedule.decay).last_steps_only != (schedule.decay_steps is not None):
        given = "none" if schedule.decay_steps is None else str(schedule.decay_steps)
        names = " or ".join(row.name for row in schedules.rows() if row.last_steps_only)
        yield ("decay_steps",), f"must be given with decay {names} and only there, got {given} with {schedule.decay}"
    elif schedule.decay_steps is not None and schedule.warmup_steps + schedule.decay_steps > steps:
        yield (
            ("decay_steps",),
            f"warm-up and decay must fit in the run of {steps} steps, got "
            f"{schedule.warmup_steps} + {schedule.decay_steps}",
        )
