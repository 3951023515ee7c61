"""PhaseSteps: the step counts of a run. If an axis changes the steps, warm-up and decay keep their share of the run."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.spec.sweep import SweepSpec


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
