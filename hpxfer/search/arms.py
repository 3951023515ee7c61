"""Arms: the parameterizations at shapes that a search gives equal budgets."""

from __future__ import annotations

from dataclasses import dataclass, field

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
