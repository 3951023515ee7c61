"""What a plan says about the precision: which one the trials have, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hpxfer.spec.precision import precision_on


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
