"""Schedules: the learning rate over the run, as a pure factor on every peak LR. Ratios between groups do not change.

To add a schedule, add a `Schedule` and its line here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hpxfer.registry import Rows
from hpxfer.trial import Setting


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One form of decay. Before it comes a linear warm-up, which is the same for all."""

    name: str
    decay: Callable[[float], float] | None
    """(part of the decay that is done, in (0, 1]) -> the LR between its peak, 1, and its final value, 0.

    None: the LR stays at its peak."""
    last_steps_only: bool = False
    """The decay takes the last `decay_steps` steps, and the sweep must give them. Otherwise it starts after warm-up."""


SCHEDULES: Rows[Schedule] = Rows(
    "schedule",
    {name: f"{__name__}:{name.upper()}" for name in ("constant", "cosine", "linear", "wsd")},
)


def _linear(done: float) -> float:
    return 1.0 - done


def _cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


CONSTANT = Schedule(name="constant", decay=None)
COSINE = Schedule(name="cosine", decay=_cosine)
LINEAR = Schedule(name="linear", decay=_linear)
WSD = Schedule(name="wsd", decay=_linear, last_steps_only=True)  # warm-up, stable, decay


def lr_factor(setting: Setting, step: int) -> float:
    """Return the factor on the peak LR at `step`, counted from 0. A decay ends at `final_fraction` of the peak."""
    if step < setting.warmup_steps:
        return (step + 1) / setting.warmup_steps
    schedule = SCHEDULES.get(setting.decay)
    start = setting.steps - setting.decay_steps if schedule.last_steps_only else setting.warmup_steps
    if schedule.decay is None or step < start:
        return 1.0
    done = (step - start + 1) / (setting.steps - start)
    return setting.final_fraction + (1.0 - setting.final_fraction) * schedule.decay(done)
