"""The line of one HP in one arm: what is known of it, and the search for its best learning rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpxfer.intervals import lowest_of
from hpxfer.scaling.hps import HPs
from hpxfer.search.rounds import End, Losses, Round, mean
from hpxfer.search.values import SeedLosses, at_exponent, bound_text, end_steps, exponent_of
from hpxfer.spec import SweepSpec
from hpxfer.trial import base_hps


@dataclass(frozen=True, kw_only=True)
class Line:
    """One HP in one arm, and what is known of it: exponent -> losses. Exponents are log2 of the HP."""

    hp: str
    start: HPs
    given: tuple[float, ...]  # the values of the grid, which need not be powers of two
    known: Mapping[float, SeedLosses] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: SweepSpec, hp: str) -> Line:
        """Return the line of an HP of the grid, of which nothing is known yet."""
        return cls(hp=hp, start=base_hps(spec), given=spec.grid[hp].numbers())

    @property
    def first(self) -> tuple[float, ...]:
        """The exponents of the grid."""
        return tuple(map(exponent_of, self.given))

    def point(self, exponent: float) -> HPs:
        """Return the HPs at an exponent."""
        spelled = dict(zip(self.first, self.given, strict=True)).get(exponent)
        return self.start.with_value(self.hp, at_exponent(exponent) if spelled is None else spelled)

    def measure(self, exponents: Sequence[float], why: str, whole: bool = False) -> Generator[Round, Losses, Line]:
        """Return the line with the losses of more points."""
        losses = yield Round(points=tuple(map(self.point, exponents)), why=why, whole=whole, about=self.hp)
        return replace(self, known={**self.known, **dict(zip(exponents, losses, strict=True))})


def best_lr(spec: SweepSpec, moves: int) -> Generator[Round, Losses, End]:
    """Return the HPs with the best LR of the grid's line, with a sentence about it. The HPs are None if all diverged.

    If the best LR lies on an edge, half of the line is added beyond that edge, at most `moves` times.
    """
    line = Line.of(spec, "lr")
    low_step, high_step = end_steps(line.given)
    new, why = sorted(line.first), f"the line of lr, {len(line.given)} values"
    for move in range(moves + 1):
        line = yield from line.measure(new, why, whole=True)
        places = sorted(line.known)
        best = places[lowest_of([mean(line.known[exponent]) for exponent in places], places)]
        lost = mean(line.known[best]) == math.inf
        edge = "lowest" if lost or best == places[0] else "highest" if best == places[-1] else None
        text = "every lr diverged" if lost else f"the best lr 2^{best:g}"
        if edge is None or move == moves:
            break
        steps = range(1, max(1, len(line.given) // 2) + 1)
        new = [round(places[0] - k * low_step if edge == "lowest" else places[-1] + k * high_step, 10) for k in steps]
        why = f"{text} is the {edge}: moved, to 2^{new[-1]:g}"
    hps = None if lost else line.point(best)
    if hps is None or edge is None:
        return End(why=text, best=hps)
    text += f" is still the {edge} after {moves} moves: a bound, not an optimum"
    return End(why=text, best=hps, bounds=(bound_text("lr", hps.lr, is_highest=edge == "highest"),))


def line_rounds(spec: SweepSpec, moves: int) -> Counter[int]:
    """Return points -> the most rounds of that many points, for the line of lr and its moves. None without lr."""
    if "lr" not in spec.grid:
        return Counter()
    size = len(spec.grid["lr"].numbers())
    return Counter([size]) + Counter({max(1, size // 2): moves})
