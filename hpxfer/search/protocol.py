"""What a search is: a pure function from the known losses to the trials that come next. Its arms, and common rules."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec
from hpxfer.trial import Expansion, Trial


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An arm of the sweep at a shape.

    Tables that agree at the base share one arm there, named after all of them.
    """

    part: Expansion = field(compare=False)  # of the sweep: its base values are those of the arm
    choice: Parameterization  # the first of them
    labels: tuple[str, ...]
    shape: Shape
    is_base: bool

    @property
    def spec(self) -> SweepSpec:
        """The sweep with the base values and the balance of the arm."""
        return self.part.spec

    def trial(self, hps: HPs, seed: int) -> Trial:
        """Return the trial of a point."""
        return self.part.trial(self.choice, self.shape, hps, seed)

    @property
    def name(self) -> str:
        """Its name in decisions, e.g. `completep-moe/sp at w32-d2-E4A1`."""
        return f"{'/'.join(self.labels)} at {self.shape.label(schedule=False)}"

    @property
    def parameterization(self) -> str:
        """The names of its tables in a report, e.g. `completep-moe = sp`."""
        return " = ".join(self.labels)


def arms_of(expansion: Expansion) -> tuple[Arm, ...]:
    """Return the arms of a sweep's search, those of the base first."""
    base = expansion.spec.base_shape
    shapes = [base] if expansion.spec.search.where == "base" else list(dict.fromkeys([base, *expansion.shapes]))
    out = []
    for shape in shapes:
        for part in expansion.parts:
            groups: dict[Parameterization | None, list[Parameterization]] = {}
            for choice in part.choices:
                groups.setdefault(part.own_parameterization(choice, shape), []).append(choice)
            for group in groups.values():
                labels = tuple(part.label(choice) for choice in group)
                out.append(Arm(part=part, choice=group[0], labels=labels, shape=shape, is_base=shape == base))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended: finished | diverged | stopped. `loss` is the loss that the sweep judges by, in nats.

    `seconds` is the worker time that the trial took: its part of its stack's time. None if it was not measured.
    """

    status: str
    loss: float | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, status: str, loss: float | None, wall_s: float | None, stack_size: float | None) -> Outcome:
        """Return the outcome of a trial, given its stack's time and number of trials."""
        return cls(status, loss, wall_s / stack_size if wall_s is not None and stack_size else None)

    @property
    def value(self) -> float:
        """The loss as a search compares it: +inf unless the trial finished with a number."""
        if self.status != "finished" or self.loss is None or math.isnan(self.loss):
            return math.inf
        return self.loss


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search has come at one shape. It counts the search's own trials only."""

    num_done: int
    most_left: int


class Search(Protocol):
    """Chooses trials. It holds nothing that the outcomes would not give again, so a run resumes by asking anew."""

    def ask(self, outcomes: Mapping[str, Outcome], running: Collection[str]) -> Sequence[Trial]:
        """Return the trials to start now, without those in `outcomes` or `running`.

        `outcomes` maps trial ids to how they ended. It may hold trials that the search never asked for, and holds no
        failed trial. `running` holds the ids that were started or failed in this run. The search has ended when `ask`
        returns nothing and no trial is running.
        """
        ...

    def progress(self) -> Mapping[Shape, Progress]:
        """Return shape -> how far the search had come there at the last `ask`."""
        ...

    def why(self) -> str:
        """Return what was decided up to the last `ask` and why, one line per decision."""
        ...
