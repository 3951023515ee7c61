"""Arms: the parameterizations at shapes that a search gives equal budgets."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Expansion


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A parameterization under a variant of the sweep, at a shape.

    Tables that agree at the base share one arm there, named after all of them.
    """

    choice: Parameterization  # the first of them
    labels: tuple[str, ...]
    shape: Shape
    is_base: bool

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
        groups: dict[Parameterization | None, list[Parameterization]] = {}
        for choice in expansion.choices:
            groups.setdefault(expansion.own_parameterization(choice, shape), []).append(choice)
        for part in expansion.parts:
            for group in groups.values():
                labels = tuple(part.label(choice) for choice in group)
                out.append(Arm(choice=group[0], labels=labels, shape=shape, is_base=shape == base))
    return tuple(out)
