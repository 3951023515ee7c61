"""The schedule of a run at each shape: its phases in steps, and the rules for them.

The sweep's schedule holds at every shape, unless the point of an axis carries a schedule of its own. A shape has one
schedule in a sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from hpxfer.registry import rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.spec.axes import axes_of, own_at
from hpxfer.spec.fields import Problem
from hpxfer.spec.sweep import SweepSpec
from hpxfer.spec.training_section import Length, ScheduleSpec


@dataclass(frozen=True, kw_only=True)
class PhaseSteps:
    """The steps of the warm-up, of the final decay (0 unless wsd) and of the window of the final loss."""

    warmup_steps: int
    decay_steps: int
    final_window_steps: int


class Run(Protocol):
    """What the lengths of a schedule depend on. A shape has it."""

    @property
    def steps(self) -> int: ...
    @property
    def batch_tokens(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A schedule, and the steps of the run that its lengths in steps are meant for."""

    schedule: ScheduleSpec
    steps: int

    def exact(self, name: str, run: Run) -> Fraction:
        """Return the length of `warmup` or `decay_length` in this run, before it is rounded."""
        length: Length | None = getattr(self.schedule, name)
        if length is None:
            return Fraction(0)
        if length.tokens is not None:
            return Fraction(length.tokens, run.batch_tokens)
        if length.fraction is not None:
            return Fraction(repr(length.fraction)) * run.steps
        return Fraction((length.steps or 0) * run.steps, self.steps)

    def shortest(self) -> int:
        """Return the fewest steps of a run that leave one step each for the phases that the schedule has."""
        lengths = (self.schedule.warmup, self.schedule.decay_length)
        return max(1, sum(length is not None and length.is_some for length in lengths))


def planned_at(spec: SweepSpec, shape: Shape, own: Mapping[Shape, ScheduleSpec] | None = None) -> Planned:
    """Return the schedule of the trials at a shape. `own` are the schedules that points carry: `own_at(spec, ...)`."""
    found = (own_at(spec, "schedule") if own is None else own).get(shape)
    if found is None:
        return Planned(schedule=spec.training.schedule, steps=spec.steps)
    return Planned(schedule=found, steps=shape.steps)


def schedule_at(spec: SweepSpec, shape: Shape, planned: Planned | None = None) -> PhaseSteps:
    """Return the phases of a run of a legal shape in whole steps. A phase is rounded, half up, to at least 1 step.

    If rounding leaves too little room for warm-up and decay, the decay is cut. The run must have the steps that
    `Planned.shortest` asks for.
    """
    planned = planned or planned_at(spec, shape)
    decay_steps = whole_steps(planned.exact("decay_length", shape))
    warmup_steps = min(whole_steps(planned.exact("warmup", shape)), shape.steps - min(decay_steps, 1))
    return PhaseSteps(
        warmup_steps=warmup_steps,
        decay_steps=min(decay_steps, shape.steps - warmup_steps),
        final_window_steps=whole_steps(Fraction(spec.final_window_steps * shape.steps, spec.steps)),
    )


def whole_steps(steps: Fraction) -> int:
    """Return whole steps, half up, and at least 1 of what is not 0."""
    return max(int(steps > 0), int(steps + Fraction(1, 2)))


def schedule_problems(planned: Planned, run: Run) -> Iterator[Problem]:
    """Yield the rules of a schedule that this run breaks. The key paths start below the schedule."""
    schedule, whole = planned.schedule, f"the run of {run.steps} steps"
    warmup, decay = (planned.exact(name, run) for name in ("warmup", "decay_length"))
    if warmup > run.steps:
        yield ("warmup",), f"the warm-up must not be longer than {whole}, got {_got(schedule.warmup, warmup)}"
    schedules = rows_of("schedule")
    if schedule.decay_length is not None and not schedule.decay_length.is_some:
        yield ("decay_length",), "must be at least 1 step, got 0"
    elif schedules.get(schedule.decay).last_steps_only != (schedule.decay_length is not None):
        given = "none" if schedule.decay_length is None else _got(schedule.decay_length, decay)
        names = " or ".join(row.name for row in schedules.rows() if row.last_steps_only)
        yield ("decay_length",), f"must be given with decay {names} and only there, got {given} with {schedule.decay}"
    elif schedule.decay_length is not None and warmup <= run.steps < warmup + decay:
        got = f"{_got(schedule.warmup, warmup)} + {_got(schedule.decay_length, decay)}"
        yield ("decay_length",), f"warm-up and decay must fit in {whole}, got {got}"


def _got(length: Length, steps: Fraction) -> str:
    """Spell a length as the file has it, with its steps in a run."""
    return str(length) if length.steps is not None and steps == length.steps else f"{length} ({float(steps):g} steps)"


def schedule_lines(spec: SweepSpec) -> tuple[str, ...]:
    """Return the phases of each run in steps, as rounded, if the file does not give them all in steps of one schedule.

    E.g. `b512 t400: constant after 40 steps of warm-up (0.1 of the run)`.
    """
    own, schedule = own_at(spec, "schedule"), spec.training.schedule
    if not own and all(
        length is None or length.steps is not None for length in (schedule.warmup, schedule.decay_length)
    ):
        return ()

    def spell(steps: int, length: Length | None) -> str:
        form = "" if length is None or length.steps is not None else f" ({length.spell()})"
        return f"{steps} step{'' if steps == 1 else 's'}{form}"

    lines = []
    for shape in dict.fromkeys(point.shape for axis in axes_of(spec) for point in axis.points):
        planned = planned_at(spec, shape, own)
        schedule, phases = planned.schedule, schedule_at(spec, shape, planned)
        end = f", over the last {spell(phases.decay_steps, schedule.decay_length)}" if phases.decay_steps else ""
        warmup = f"{schedule.decay} after {spell(phases.warmup_steps, schedule.warmup)} of warm-up"
        lines.append(f"b{shape.batch_tokens} t{shape.steps}: {warmup}{end}")
    return tuple(dict.fromkeys(lines))
