"""Plane look: what is known of the optimum of two HPs after a round, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hpxfer.search.bowl import Bowl, bowl_of
from hpxfer.search.plane import Plane, Point
from hpxfer.search.plane_design import lowest_in_box, trusted
from hpxfer.search.quadratic import Floats, Quadratic, slopes

FALLS = 0.5  # standard errors by which a surface must fall at a side of the box for the box to grow
AXIS_SHARE = 0.1  # a ridge whose direction has a smaller share of one HP runs along the other


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """What is known of a plane after a round."""

    plane: Plane
    surface: Quadratic | None
    bowl: Bowl | None
    best: Point | None  # the measured point that the search would end with
    sides: tuple[tuple[int, Literal[-1, 1]], ...]  # (HP, below or above) at which the surface still falls

    @staticmethod
    def at(plane: Plane) -> Look:
        """Return the look at a plane."""
        surface = plane.fit()
        return Look(
            plane=plane,
            surface=surface,
            bowl=None if surface is None else bowl_of(surface),
            best=plane.best(surface),
            sides=() if surface is None else tuple(_falling(plane, surface)),
        )

    def agrees(self, before: Look, until: float) -> bool:
        """Return whether the optimum is known to this width, and whether the look before found the same.

        A surface through distant points may be sure of a place where it was never measured.
        """
        bowl, other = self.bowl, before.bowl
        if bowl is None or other is None or not bowl.is_known_to(until) or bowl.form != other.form:
            return False
        at, was = self._place(), before._place()
        moved = at - was
        return abs(float(bowl.steep @ moved)) <= until / 2 if bowl.form == "ridge" else math.hypot(*moved) <= until / 2

    def _place(self) -> Floats:
        """Return the lowest point that is believed (2,)."""
        near = self.plane.lowest()
        assert near is not None
        assert self.surface is not None
        return lowest_in_box(self.surface, *trusted(self.plane, near))

    def text(self) -> str:
        """Return in words what is known of the optimum."""
        plane, bowl = self.plane, self.bowl
        if self.best is None:
            return "everything diverged"
        out = f"best {_spelled(plane, self.best)}"
        if bowl is None:
            return f"{out}; the points determine no surface yet"
        across, along = bowl.half_widths
        if bowl.form == "ridge":
            known = "" if across is None else f", known to {2 * across:.2g} octaves across"
            return f"{out}; a ridge: {ridge_text(plane.hps, bowl)}{known}"
        if bowl.at is None or across is None or along is None:
            return f"{out}; the surface has no sure lowest point yet"
        lowest = _spelled(plane, (float(bowl.at[0]), float(bowl.at[1])))
        return f"{out}; lowest point of the surface {lowest}, region {2 * across:.2g} by {2 * along:.2g} octaves"


def ridge_text(hps: tuple[str, str], bowl: Bowl) -> str:
    """Return the direction of a ridge in words."""
    first, second = (float(part) for part in bowl.flat)
    for (name, part), (other, rest) in (((hps[0], first), (hps[1], second)), ((hps[1], second), (hps[0], first))):
        if abs(part) < AXIS_SHARE * abs(rest):
            return f"the loss hardly depends on {other} along {name} = const"
    slope = first / second
    return f"{hps[0]} {'rises' if slope > 0 else 'falls'} by {abs(slope):.2g} octaves per octave of {hps[1]}"


def _spelled(plane: Plane, point: Point) -> str:
    return ", ".join(f"{name} 2^{round(at, 3):g}" for name, at in zip(plane.hps, point, strict=True))


def _falling(plane: Plane, surface: Quadratic) -> Iterator[tuple[int, Literal[-1, 1]]]:
    """Yield the sides of the box where the lowest point that is believed lies, and where the surface falls outwards."""
    near = plane.lowest()
    assert near is not None, "a surface has points that finished"
    at = lowest_in_box(surface, *trusted(plane, near))
    rows = slopes(at - surface.center)
    for side in range(2):
        slope, error = float(rows[side] @ surface.coefficients), surface.error(rows[side])
        if at[side] <= plane.low[side] + 1e-9 and slope > FALLS * error:
            yield side, -1
        if at[side] >= plane.high[side] - 1e-9 and -slope > FALLS * error:
            yield side, 1
