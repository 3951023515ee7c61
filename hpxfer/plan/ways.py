"""Ways: how many pieces of its batch a stack computes at once, and whether it computes its blocks again.

Both change memory and speed, and no bit. The planner takes the first way of this list in which the stack fits:

    1. keep everything, the most pieces that fill the device
    2. keep everything, fewer pieces
    3. compute blocks again (a third more FLOPs), the most pieces
    4. compute blocks again, fewer pieces
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpxfer.plan.footprint import ONE, Way, can_recompute, most_trials, stack_bytes
from hpxfer.scaling.shape import Shape
from hpxfer.spec.check_shapes import divisors
from hpxfer.spec.resources_section import Recompute, ResourcesSpec
from hpxfer.trial import Setting


@dataclass(frozen=True, kw_only=True)
class How:
    """What a sweep asks for. None and auto leave it to the planner."""

    micro_batch_tokens: int | None = None
    recompute: Recompute = "auto"
    ranks: int = 1

    @classmethod
    def of(cls, resources: ResourcesSpec) -> How:
        """Return what the sweep's resources ask for."""
        return cls(
            micro_batch_tokens=resources.micro_batch_tokens, recompute=resources.recompute, ranks=resources.ranks
        )


ANY = How()


def ways(shape: Shape, setting: Setting, tokens_at_once: float, how: How = ANY, *, cuda: bool) -> list[Way]:
    """Return the ways in the order in which the planner prefers them.

    `tokens_at_once` of a trial fill the device. The pieces that are computed at once divide those of a lane.
    """
    at_once = [number for number in divisors(setting.pieces_per_lane) if _may(number, setting, tokens_at_once, how)]
    again = {"auto": (False, True), "none": (False,), "blocks": (True,)}[how.recompute]
    if not can_recompute(shape, setting, cuda=cuda):
        again = (False,)
    return [
        Way(pieces=number, recompute=each, ranks=how.ranks)
        for each in again
        for number in sorted(at_once, reverse=True)
    ]


@dataclass(frozen=True, kw_only=True)
class StackMemory:
    """The bytes that stacks of a shape need, by the model of memory.

    In the way in which stored trials were computed, what they needed counts. In other ways, the model's number times
    `ratio`, which is what they needed relative to the model.
    """

    shape: Shape
    setting: Setting
    cuda: bool
    way: Way = ONE  # of the stored trials
    trial_bytes: float | None = None  # that they needed
    ratio: float = 1.0

    def of(self, way: Way, num_trials: int) -> int:
        """Return the bytes that a stack of so many trials needs."""
        if self.trial_bytes is not None and way == self.way:
            return int(num_trials * self.trial_bytes)
        return int(self.ratio * stack_bytes(self.shape, self.setting, num_trials, cuda=self.cuda, way=way))

    def most(self, way: Way, room: float) -> int:
        """Return how many trials fit."""
        if self.trial_bytes is not None and way == self.way:
            return int(room // self.trial_bytes)
        return most_trials(self.shape, self.setting, room / self.ratio, cuda=self.cuda, way=way)

    def most_of(self, choices: Sequence[Way], room: float, wanted: int) -> int:
        """Return how many trials fit: `wanted` if any way holds so many, else the most that some way holds."""
        most = 0
        for way in choices:
            most = max(most, min(wanted, self.most(way, room)))
            if most == wanted:
                break
        return most

    def first(self, choices: Sequence[Way], num_trials: int, room: float) -> Way:
        """Return the first way in which so many trials fit, or the one that needs the least memory."""
        if len(choices) == 1:
            return choices[0]
        fitting = (way for way in choices if self.of(way, num_trials) <= room)
        return next(fitting, None) or min(choices, key=lambda way: self.of(way, num_trials))


def _may(number: int, setting: Setting, tokens_at_once: float, how: How) -> bool:
    most = how.micro_batch_tokens or tokens_at_once
    return number == 1 or number * setting.piece_tokens <= most
