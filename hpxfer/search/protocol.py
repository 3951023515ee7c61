"""What a search is: a pure function from the known losses to the trials that come next. Its arms, and common rules."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hpxfer.errors import shown
from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.search.values import names_in
from hpxfer.spec import SweepSpec
from hpxfer.spec.base_values import base_values
from hpxfer.spec.budget import arm_budget
from hpxfer.spec.check_shapes import keyed_shapes
from hpxfer.spec.checks import too_many_trials
from hpxfer.spec.fields import GridValues, Problem, WhyNot
from hpxfer.spec.yaml_file import KeyPath
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


def buys(spec: SweepSpec, points: int, what: str) -> Iterator[Problem]:
    """Yield a budget that does not buy the points that the search starts with."""
    budget, least = spec.search.budget, points * len(spec.seeds)
    if budget is not None and budget < least:
        text = f"must buy {what}: at least {least} trials per arm, {len(spec.seeds)} seeds counted, got {budget}"
        yield ("search", "budget"), f"{text}; raise it, or scan less"


def countable(spec: SweepSpec, at: KeyPath) -> Iterator[Problem]:
    """Yield why a search whose trials are all known in advance has more of them than can be listed."""
    shapes = {shape for _, shape in keyed_shapes(spec)}
    if problem := too_many_trials(spec, arm_budget(spec), len(shapes)):
        yield at, problem


def on_log_scale(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the HPs of the grid that have no log scale."""
    for name, values in spec.grid.items():
        yield from above_zero(name, values)


def above_zero(name: str, values: GridValues) -> Iterator[Problem]:
    """Yield the values of an HP of the grid if one of them is not above zero."""
    if any(value <= 0 for value in values.numbers()):
        yield ("grid", name), f"must be above zero to be searched on a log scale, got {min(values.numbers()):g}"


def only_lr(spec: SweepSpec) -> Iterator[Problem]:
    """Yield the HPs of the grid other than lr."""
    for name in spec.grid:
        if name != "lr":
            rule = f"{spec.search.kind} scans only lr beside its multipliers"
            yield ("grid", name), f"{rule}; take it out, or name it in search.multipliers"


def varied_hps(spec: SweepSpec, multipliers: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the HPs of the grid, then those that `search.multipliers` names."""
    return tuple(dict.fromkeys([*spec.grid, *(name for entry in multipliers or () for name in names_in(entry))]))


def multiplier_problems(
    spec: SweepSpec, multipliers: tuple[str, ...] | None, why_not: WhyNot, *, dotted: bool
) -> Iterator[Problem]:
    """Yield what is wrong with the names of `search.multipliers`. `dotted` allows constant multipliers only."""
    seen: set[str] = set()
    for index, entry in enumerate(multipliers or ()):
        at: KeyPath = ("search", "multipliers", index)
        for name in names_in(entry):
            if name == "lr" or (dotted and "." not in name):
                held = "lr and init stay fixed" if dotted else "lr has its own stage"
                yield at, f"{held}: must be multipliers such as router.lr_mult, got {shown(name)}"
            elif why := why_not(name):
                yield at, f"{name}: {why}"
            elif name in ("beta1", "beta2"):
                yield at, f"{name} has no multiplicative scale; scan it in a grid"
            elif name in seen:
                yield at, f"{name} stands twice"
            elif base_values(spec).get(name, 1.0) <= 0:
                yield at, f"{name} must be above zero to be multiplied, got a base value of 0; give it one in the file"
            seen.add(name)
