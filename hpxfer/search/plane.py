"""Plane: what is known of two HPs in one arm. Points are in octaves, log2 of the two HPs in the order of the grid."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import HPs, check_hp_value
from hpxfer.search.bracket import NOISE
from hpxfer.search.compare import gain, pooled
from hpxfer.search.lr_line import end_steps
from hpxfer.search.quadratic import Quadratic, fit_quadratic
from hpxfer.search.rounds import EndedRound, SeedLosses, mean
from hpxfer.search.values import at_exponent, exponent_of
from hpxfer.verdict.tied import equal_lowest, most_central

Point = tuple[float, float]
NUM_NEAR = 4  # points whose standard errors are pooled


@dataclass(frozen=True, kw_only=True)
class Plane:
    """The measured points of two HPs, and the box that they are looked for in."""

    hps: tuple[str, str]
    start: HPs
    given: tuple[tuple[float, ...], tuple[float, ...]]  # the values of the grid, which need not be powers of two
    low: Point  # the box
    high: Point
    losses: tuple[tuple[Point, SeedLosses], ...] = ()  # in the order in which they were asked for

    @staticmethod
    def of(hps: tuple[str, str], start: HPs, given: tuple[tuple[float, ...], tuple[float, ...]]) -> Plane:
        """Return the plane of a grid before anything is measured."""
        ends = [(values[0], values[-1]) for values in map(first_values, given)]
        low, high = ((exponent_of(ends[0][i]), exponent_of(ends[1][i])) for i in range(2))
        return Plane(hps=hps, start=start, given=given, low=low, high=high)

    def hps_at(self, point: Point) -> HPs:
        """Return the HPs at a point. A value of the grid stays as it is given."""
        out = self.start
        for name, values, exponent in zip(self.hps, self.given, point, strict=True):
            spelled = {exponent_of(value): value for value in values}
            out = out.with_value(name, spelled.get(exponent, at_exponent(exponent)))
        return out

    def point_of(self, hps: HPs) -> Point:
        """Return where HPs lie."""
        first, second = (exponent_of(hps.get(name)) for name in self.hps)
        return first, second

    def with_rounds(self, rounds: Iterable[EndedRound]) -> Plane:
        """Return the plane with the losses of rounds. The box grows to hold their points."""
        known = dict(self.losses)
        for ended in rounds:
            known.update(zip(map(self.point_of, ended.round.points), ended.losses, strict=True))
        points = [self.low, self.high, *known]
        low, high = ((pick(p[0] for p in points), pick(p[1] for p in points)) for pick in (min, max))
        return replace(self, losses=tuple(known.items()), low=low, high=high)

    @property
    def finished(self) -> tuple[tuple[Point, SeedLosses], ...]:
        """The points that finished with every seed."""
        return tuple((point, losses) for point, losses in self.losses if math.isfinite(mean(losses)))

    @property
    def diverged(self) -> tuple[Point, ...]:
        """The points where a seed diverged."""
        return tuple(point for point, losses in self.losses if not math.isfinite(mean(losses)))

    def fit(self) -> Quadratic | None:
        """Return the surface through the points that finished, or None if they determine none."""
        found = self.finished
        x = np.array([point for point, _ in found], dtype=float).reshape(-1, 2)
        return fit_quadratic(x, np.array([losses for _, losses in found], dtype=float)) if found else None

    def lowest(self) -> Point | None:
        """Return the point of the lowest mean loss, of equal ones the middle one, or None if nothing finished."""
        if not self.finished:
            return None
        tied = equal_lowest([mean(losses) for _, losses in self.finished])
        return self.finished[tied[most_central([self.finished[i][0] for i in tied])]][0]

    def best(self, surface: Quadratic | None) -> Point | None:
        """Return the point of the lowest fitted loss among those that are no worse than the lowest measured one.

        The lowest of many means is partly luck, so noise does not decide among equals. A fit does not overrule what was
        measured: a point that is worse by more than NOISE standard errors is never the best.
        """
        lowest = self.lowest()
        if lowest is None or surface is None:
            return lowest
        known = dict(self.finished)
        points = list(known)
        gains = [gain(known[point], known[lowest]) for point in points]  # of the lowest over each
        near = sorted(range(len(points)), key=lambda i: math.dist(points[i], lowest))[1 : NUM_NEAR + 1]
        worse = [each.beats(NOISE) for each in pooled(gains, [gains[i] for i in near])]
        if len(known[lowest]) < 2:
            noise = NOISE * math.sqrt(2) * math.hypot(surface.noise_nats, surface.misfit_nats)
            worse = [each.mean > noise for each in gains]
        equal = [point for point, is_worse in zip(points, worse, strict=True) if not is_worse]
        fitted = surface.at(np.array(equal))
        return equal[int(np.argmin(np.round(fitted, 9)))]

    def steps(self, max_octaves: float) -> tuple[Point, Point]:
        """Return the steps by which the box grows below and above, for each HP."""
        (a, b), (c, d) = (end_steps(first_values(values)) for values in self.given)
        return (min(a, max_octaves), min(c, max_octaves)), (min(b, max_octaves), min(d, max_octaves))

    def is_legal(self, side: int, exponent: float) -> bool:
        """Return whether an HP may have a value."""
        try:
            check_hp_value(self.hps[side], at_exponent(exponent))
        except HpxferError:
            return False
        return True


def first_values(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return three values that a line starts with: its ends and its middle. One value gets an octave on either side."""
    if len(values) == 1:
        return values[0] / 2, values[0], 2 * values[0]
    low, high = values[0], values[-1]
    middle = math.sqrt(low * high)
    if len(values) == 2:
        return low, middle_of(low, high), high
    return low, min(values[1:-1], key=lambda value: (abs(round(math.log2(value / middle), 9)), value)), high


def middle_of(low: float, high: float) -> float:
    """Return the value halfway between two on a log scale."""
    return at_exponent(round((exponent_of(low) + exponent_of(high)) / 2, 10))
