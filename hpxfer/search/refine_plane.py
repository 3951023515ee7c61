"""Refine plane: the strategy that refines two HPs in one arm.

It starts with a coarse grid. Each round fits a quadratic in log2 of both HPs (`quadratic`), and trains its lowest point
and the points that make the optimum surer (`plane_design`). The box of the grid grows where the surface still falls at
its side. The search ends when two looks in a row know the optimum to `until` octaves: in every direction, or across a
ridge (`bowl`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from hpxfer.search.plane import Plane, Point, first_values
from hpxfer.search.plane_design import POINTS, lattice_step, next_points
from hpxfer.search.plane_look import Look
from hpxfer.search.rounds import End, EndedRound, Losses, OutOfBudget, Round, Strategy
from hpxfer.search.values import exponent_of

FIRST = 9  # points: three values of each HP, so that a quadratic is determined even where a corner diverges
MOST_ROUNDS = 8  # of POINTS each, beside those for which the box grows


def refine_plane(start: Plane, until: float, max_octaves: float) -> Strategy:
    """Return the strategy that refines two HPs in one arm."""
    plane, step, refined = start, lattice_step(until), 0
    before: Look | None = None
    try:
        first = tuple((a, b) for a in _first(start, 0) for b in _first(start, 1))
        plane = yield from _measured(plane, first, f"three values of {' and of '.join(plane.hps)}", whole=True)
        while True:
            look = Look.at(plane)
            grown, said = _grown(look, max_octaves)
            if grown is None:
                bound = _bound(look)
                # A side that may not be moved is tried once more: the points of the last round may change it.
                is_stuck = before is not None and bool(look.sides) and before.sides == look.sides
                is_known = before is not None and not look.sides and look.agrees(before, until)
                if look.best is None or is_stuck or is_known:
                    return _end(look, bound)
                if refined == MOST_ROUNDS:
                    return _end(look, bound, f"it tries no more than {FIRST + POINTS * MOST_ROUNDS} points in one box")
                refined += 1
            before, plane = look, plane if grown is None else grown
            points = _below_all(look, plane) if look.best is None else next_points(plane, look.surface, look.bowl, step)
            if not points:
                return _end(look, _bound(look), "no point of its lattice is left to try")
            plane = yield from _measured(plane, points, f"{look.text()}: {said or 'tried where it tells most'}")
    except OutOfBudget as spent:
        return _end(Look.at(start.with_rounds(spent.rounds)))


def _first(plane: Plane, side: int) -> list[float]:
    return [exponent_of(value) for value in first_values(plane.given[side])]


def _measured(
    plane: Plane, points: tuple[Point, ...], why: str, whole: bool = False
) -> Generator[Round, Losses, Plane]:
    """Return the plane with the losses of more points."""
    asked = Round(points=tuple(map(plane.hps_at, points)), why=why, whole=whole, about=plane.hps)
    losses = yield asked
    return plane.with_rounds([EndedRound(round=asked, losses=losses)])


def _grown(look: Look, max_octaves: float) -> tuple[Plane | None, str]:
    """Return the plane with a larger box and why it grew, or None if no side may or need be moved."""
    plane = look.plane
    sides = ((0, -1), (1, -1)) if look.best is None else look.sides
    ends, moved = {-1: list(plane.low), 1: list(plane.high)}, []
    for side, sign in sides:
        end = _end_of(plane, max_octaves, side, sign)
        if end is not None:
            ends[sign][side] = end
            moved.append(f"{plane.hps[side]} to 2^{end:g}")
    if not moved:
        return None, ""
    why = "everything diverged" if look.best is None else "the loss still falls there"
    (a, b), (c, d) = ends[-1], ends[1]
    return replace(plane, low=(a, b), high=(c, d)), f"widened {' and '.join(moved)}, as {why}"


def _end_of(plane: Plane, max_octaves: float, side: int, sign: int) -> float | None:
    """Return the next end of the box at a side, or None if it may not be moved farther."""
    below, above = plane.steps(max_octaves)
    first = _first(plane, side)
    here, step, limit = (
        (plane.low[side], below[side], first[0] - max_octaves)
        if sign < 0
        else (plane.high[side], above[side], first[-1] + max_octaves)
    )
    end = round(here + sign * step, 10)
    is_far = end < limit - 1e-9 if sign < 0 else end > limit + 1e-9
    return None if is_far or step == 0 or not plane.is_legal(side, end) else end


def _below_all(look: Look, grown: Plane) -> tuple[Point, ...]:
    """Return points below all that diverged."""
    (a, b), (low_a, low_b) = look.plane.low, grown.low
    wanted = [(low_a, low_b), (low_a, b), (a, low_b)]
    known = dict(grown.losses)
    return tuple(point for point in dict.fromkeys(wanted) if point not in known)


def _bound(look: Look) -> str:
    """Return at which sides the optimum is a bound, or nothing."""
    names = [f"{look.plane.hps[side]} {'below' if sign < 0 else 'above'}" for side, sign in look.sides]
    return f"a bound, not an optimum: the loss still falls towards {' and '.join(names)}" if names else ""


def _end(look: Look, *more: str) -> End:
    best = None if look.best is None else look.plane.hps_at(look.best)
    return End(why="; ".join([look.text(), *(text for text in more if text)]), best=best)
