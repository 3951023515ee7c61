"""What a plan says about the precision: which one the trials have and why, and what bfloat16 would save on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpxfer.host.output import spell_time
from hpxfer.plan.footprint import stack_bytes
from hpxfer.plan.memory import spell_bytes
from hpxfer.scaling.shape import Shape
from hpxfer.spec.precision import precision_on
from hpxfer.trial import Expansion

if TYPE_CHECKING:
    from hpxfer.plan.plan import Plan

FASTER = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The precision of the trials of a sweep, and where it comes from."""

    asked: str  # what the sweep says: float32, bfloat16 or auto
    value: str  # float32 or bfloat16: what the trials have, and a part of their ids
    on_device: str  # what auto stands for on the device that will train
    device: str  # that device, in words
    began: str | None = None  # what the results folder began with
    folder: str = ""  # the results folder, as the user knows it
    hardware: str | None = None  # other hardware that the plan is for
    priced: str | None = None  # the precision that the trials would have there

    @property
    def is_auto(self) -> bool:
        """Whether the sweep leaves the precision to the device."""
        return self.asked != self.value

    def on(self, hardware: str, *, cuda: bool) -> Precision:
        """Return this for a plan that is made for other hardware. A folder that has begun keeps its precision there."""
        begins = self.is_auto and self.began is None
        return replace(self, hardware=hardware, priced=precision_on(cuda=cuda) if begins else self.value)

    def caution(self) -> str | None:
        """Return what the user should know if the device would choose another precision than the folder has."""
        if not self.is_auto or self.value == self.on_device:
            return None
        return (
            f"precision: {self.folder} began with {self.value} and goes on with it; this device ({self.device}) would "
            f"choose {self.on_device}; give another folder with --results for that, or write `precision: "
            f"{self.on_device}` to train all trials of this one again"
        )

    def line(self) -> str | None:
        """Return where the precision comes from, or None if the sweep names it."""
        if not self.is_auto:
            return None
        source = f"with which {self.folder} began" if self.began else f"chosen by this device ({self.device})"
        text = f"precision: auto is {self.value}, {source}; it is part of the trials' ids"
        if self.hardware is None:
            return text
        if self.priced == self.value:
            return f"{text}; on {self.hardware} it is {self.priced}, too"
        return (
            f"{text}. On {self.hardware} it is {self.priced}: the hours and the memory are for that, and a run there "
            "gives the trials other ids than a run here, whose trials are counted and listed"
        )


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What the trials that are left would take in bfloat16 instead of float32 on a GPU. Everything is predicted."""

    precision: str = FASTER
    gpu_hours: float
    wall_s: float
    trial_bytes: int  # of one trial of `shape`, which needs the most memory
    shape: str
    instead_of_gpu_hours: float
    instead_of_wall_s: float
    instead_of_trial_bytes: int
    rate_from: str
    is_measured: bool = False

    def line(self) -> str:
        """Return the saving as a line of the plan."""
        part = 1 - self.gpu_hours / self.instead_of_gpu_hours
        saved = f"would save {part:.0%} of the time" if part >= 0.005 else "would save no time"
        return (
            f"{self.precision} {saved}: about {spell_time(3600 * self.gpu_hours)} of GPU time instead of "
            f"{spell_time(3600 * self.instead_of_gpu_hours)}, and "
            f"{spell_bytes(self.trial_bytes)} of memory for one trial of {self.shape} instead of "
            f"{spell_bytes(self.instead_of_trial_bytes)} (predicted, never measured on a GPU; {self.rate_from}); "
            f"`precision: {self.precision}` gives the trials other ids"
        )


def saving(plan: Plan, expansion: Expansion, rated: Callable[[str], Plan]) -> Saving | None:
    """Return what bfloat16 would save of a plan in float32. None on a CPU, or if nothing is left to train.

    `rated` returns the plan of a precision from the rates alone, without the measured time of stored trials. The
    ratio of two such plans is applied to the plan's own hours.
    """
    if not plan.device.cuda or plan.precision == FASTER or not plan.gpu_hours:
        return None
    slow, fast = plan if plan.ratio is None else rated(plan.precision), rated(FASTER)
    sizes = {row.shape: _trial_bytes(expansion, row.shape, plan.precision) for row in plan.shapes if row.num_stacks}
    most = max(sizes, key=lambda shape: sizes[shape])
    return Saving(
        gpu_hours=plan.gpu_hours * fast.gpu_hours / slow.gpu_hours,
        wall_s=plan.wall_s * fast.wall_s / slow.wall_s,
        trial_bytes=_trial_bytes(expansion, most, FASTER),
        shape=plan.label(most),
        instead_of_gpu_hours=plan.gpu_hours,
        instead_of_wall_s=plan.wall_s,
        instead_of_trial_bytes=sizes[most],
        rate_from=fast.rate_from,
    )


def _trial_bytes(expansion: Expansion, shape: Shape, precision: str) -> int:
    return stack_bytes(shape, replace(expansion.setting_at(shape), precision=precision), 1, cuda=True)
