"""Bracket: where the optimum of a line lies, as its seeds show it.

The bracket extends from the best point to the nearest points below and above that are worse by more than `NOISE`
standard errors of the paired difference, or that diverged. It is not the interval of `hpxfer.verdict`, which rests on
the losses of all shapes: a bracket exists after the first round of one arm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpxfer.scaling.hps import HPs
from hpxfer.search.compare import gain, pooled
from hpxfer.search.rounds import SeedLosses, mean
from hpxfer.search.values import at_exponent, exponent_of
from hpxfer.verdict import loss_grid as verdict
from hpxfer.verdict.estimate import best_cell, estimate_all
from hpxfer.verdict.tied import lowest_of

NOISE = 2.0  # standard errors
NUM_NEAR = 4  # points whose standard errors are pooled


@dataclass(frozen=True, kw_only=True)
class MeasuredLine:
    """What is known of one HP in one arm: exponent -> losses. Exponents are log2 of the HP."""

    hp: str
    start: HPs
    given: tuple[float, ...]  # the values of the grid, which need not be powers of two
    losses: tuple[tuple[float, SeedLosses], ...] = ()  # ascending

    @property
    def first(self) -> tuple[float, ...]:
        """The exponents of the grid."""
        return tuple(exponent_of(value) for value in self.given)

    def point(self, exponent: float) -> HPs:
        """Return the HPs at an exponent."""
        spelled = dict(zip(self.first, self.given, strict=True)).get(exponent)
        return self.start.with_value(self.hp, at_exponent(exponent) if spelled is None else spelled)

    def best(self) -> int | None:
        """Return the index of the lowest mean loss, of equal ones the middle one, or None if nothing finished."""
        means = [mean(losses) for _, losses in self.losses]
        best = lowest_of(means, [exponent for exponent, _ in self.losses])
        return None if means[best] == math.inf else best


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """Where the optimum is, in exponents. A side is None if no point there is known to be worse."""

    at: float
    low: float | None
    high: float | None
    high_diverged: bool

    @property
    def octaves(self) -> float:
        """The width, or +inf if a side is open."""
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def text(self, hp: str) -> str:
        """Return the bracket in words."""
        sides = ("open" if side is None else f"2^{side:g}" for side in (self.low, self.high))
        width = f"{self.octaves:g} octaves" if math.isfinite(self.octaves) else "no interval"
        diverged = ", where training diverges" if self.high_diverged else ""
        return f"best {hp} 2^{self.at:g}, interval {' to '.join(sides)} ({width}){diverged}"


def handed_on(line: MeasuredLine) -> HPs:
    """Return the point that a verdict would hand on from a base with these losses: the lowest, as far as they tell."""
    cells = tuple(
        verdict.SeedLosses(value=2.0**exponent, seeds=tuple(range(len(losses))), losses=losses, num_missing=0)
        for exponent, losses in line.losses
    )
    row = verdict.ShapeLosses(
        axis=line.hp,
        scale_name=line.hp,
        scale=1.0,
        shape="base",
        is_base=True,
        parameterization="",
        cells=cells,
    )
    (estimates,) = estimate_all([verdict.LossGrid(rows=(row,))])
    best = best_cell(estimates, 0)
    assert best is not None, "a line where nothing finished hands on nothing"
    return line.point(line.losses[best][0])


def bracket_of(line: MeasuredLine) -> Bracket | None:
    """Return where the optimum is, or None if nothing finished."""
    best = line.best()
    if best is None:
        return None
    exponents = [exponent for exponent, _ in line.losses]
    losses = [of_seeds for _, of_seeds in line.losses]
    others = (index for index in range(len(losses)) if index != best)
    # Seeds differ more at distant points, so the standard errors of the nearest points are pooled.
    near = sorted(others, key=lambda index: abs(exponents[index] - exponents[best]))[:NUM_NEAR]
    gains = [gain(of_seeds, losses[best]) for of_seeds in losses]  # of the best over each
    worse = [each.beats(NOISE) for each in pooled(gains, [gains[index] for index in near])]
    low = max((index for index in range(best) if worse[index]), default=None)
    high = min((index for index in range(best + 1, len(losses)) if worse[index]), default=None)
    return Bracket(
        at=exponents[best],
        low=None if low is None else exponents[low],
        high=None if high is None else exponents[high],
        high_diverged=high is not None and mean(losses[high]) == math.inf,
    )
