"""How often answers about the sweeps of a world are right: `measure` counts, and `VerdictCounts.rates` divides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from foreign_worlds import World
from world_truth import TrueVerdict, Truth, true_verdict, truth_of

from hpxfer.verdict.findings import Finding
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.transfer import find

Interval = tuple[float, float]  # infinite on an open side


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a method says about a sweep. None is what it does not say."""

    value: float | None  # the HP that is transferred
    verdict: Literal["transfers", "drifts", "undecided"]
    optima: tuple[Interval | None, ...]  # log2 HP, 95%, a shape each
    drift: Interval | None = None  # octaves per doubling, 95%
    move: Interval | None = None  # octaves, 95%
    is_line: bool | None = None
    most: float | None = None  # nats that the HP costs at most at any shape beyond the base


Method = Callable[[LossGrid], Answer]


def report(grid: LossGrid) -> Answer:
    """Return the answer of `hpxfer report`."""
    (finding,) = find([grid])
    return answer_of(finding)


def answer_of(finding: Finding) -> Answer:
    """Return what a finding says."""
    move = getattr(finding, "move", None)
    return Answer(
        value=finding.base_value,
        verdict=finding.verdict,
        optima=tuple(_interval(shape.optimum.low_log2, shape.optimum.high_log2) for shape in finding.shapes),
        drift=_interval(finding.drift.low, finding.drift.high) if finding.drift else None,
        move=_interval(move.low, move.high) if move else None,
        is_line=move.is_line if move else None,
        most=most_of(finding),
    )


def most_of(finding: Finding) -> float | None:
    """Return what a finding says is lost at most, or would say if it decided; None if a shape has no such number."""
    most = [shape.most_lost for shape in finding.others]
    known = [nats for nats in most if nats is not None]
    return max(known) if len(known) == len(most) > 0 and math.isfinite(max(known)) else None


@dataclass(frozen=True, kw_only=True)
class VerdictCounts:
    """Counts over sweeps of one world, or of several."""

    sweeps: int = 0
    truly_transfers: int = 0
    false_transfers: int = 0
    false_drifts: int = 0
    decided: int = 0
    clear: int = 0
    clear_decided: int = 0
    visible: int = 0  # optima inside the grid with enough finite cells around them
    optima: int = 0  # of these, with an interval
    optima_covered: int = 0
    drifts: int = 0  # sweeps with an interval of the drift
    drifts_covered: int = 0
    moves: int = 0  # sweeps with an interval of the move
    ends_covered: int = 0  # that hold the move from the smallest to the largest shape
    moves_covered: int = 0  # that hold that move and the largest one between two shapes
    lines: int = 0  # sweeps whose optima lie on a line, where the method says whether they do
    not_lines: int = 0  # of these, said not to
    bounds: int = 0  # sweeps with a bound of what is lost at most
    bounds_held: int = 0
    widths: tuple[float, ...] = ()  # of the intervals of visible optima
    wrong: tuple[int, ...] = ()  # random seeds of the sweeps with a wrong verdict

    def __add__(self, other: VerdictCounts) -> VerdictCounts:
        names = [field.name for field in fields(VerdictCounts)]
        return VerdictCounts(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def as_json(self) -> dict[str, Any]:
        """Return counts and rates, without what grows with the number of sweeps."""
        counts = {field.name: getattr(self, field.name) for field in fields(VerdictCounts)}
        return {name: count for name, count in counts.items() if not isinstance(count, tuple)} | {"rates": self.rates()}

    def rates(self) -> dict[str, float | None]:
        """Return the shares that a table shows; None where nothing was counted."""
        truly_drift = self.sweeps - self.truly_transfers
        return {
            "false_transfers": _share(self.false_transfers, truly_drift),
            "false_drifts": _share(self.false_drifts, self.truly_transfers),
            "right_of_decided": _share(self.decided - self.false_transfers - self.false_drifts, self.decided),
            "clear_decided": _share(self.clear_decided, self.clear),
            "optimum_coverage": _share(self.optima_covered, self.optima),
            "drift_coverage": _share(self.drifts_covered, self.drifts),
            "move_coverage": _share(self.moves_covered, self.moves),
            "bound_held": _share(self.bounds_held, self.bounds),
            "not_a_line": _share(self.not_lines, self.lines),
            "width_octaves": _finite(float(np.median(self.widths))) if self.widths else None,
        }


def measure(world: World, seeds: Iterable[int], method: Method = report, draw: int = 0) -> VerdictCounts:
    """Return the counts of one method over the sweeps of a world with these random seeds."""
    return measure_all(world, seeds, {"": method}, draw)[""]


def measure_all(
    world: World, seeds: Iterable[int], methods: dict[str, Method], draw: int = 0
) -> dict[str, VerdictCounts]:
    """Return the counts of several methods over the same sweeps."""
    totals = dict.fromkeys(methods, VerdictCounts())
    for seed in seeds:
        sweep = world.draw(seed, draw)
        truth, grid = truth_of(sweep), sweep.grid()
        for name, method in methods.items():
            answer = method(grid)
            totals[name] += count(truth, true_verdict(sweep, truth, answer.value), answer, seed)
    return totals


def count(truth: Truth, true: TrueVerdict, answer: Answer, seed: int) -> VerdictCounts:
    """Return the counts of one answer. Its drift and move are those of the shapes whose optimum it knows."""
    decided = answer.verdict != "undecided"
    false_transfers = answer.verdict == "transfers" and not true.transfers
    false_drifts = answer.verdict == "drifts" and true.transfers
    pairs = [
        (interval, float(at))
        for interval, at, seen in zip(answer.optima, truth.optimum_I, truth.visible_I, strict=True)
        if interval is not None and seen
    ]
    truth = truth.of([i for i, interval in enumerate(answer.optima) if interval is not None])
    ends = answer.move is not None and _within(answer.move, truth.ends)
    widest = answer.move is not None and any(_within(answer.move, move) for move in truth.widest)
    asked = truth.is_line and answer.is_line is not None
    return VerdictCounts(
        sweeps=1,
        truly_transfers=int(true.transfers),
        false_transfers=int(false_transfers),
        false_drifts=int(false_drifts),
        decided=int(decided),
        clear=int(true.clear),
        clear_decided=int(true.clear and decided),
        visible=sum(truth.visible_I),
        optima=len(pairs),
        optima_covered=sum(_within(interval, at) for interval, at in pairs),
        drifts=int(answer.drift is not None),
        drifts_covered=int(answer.drift is not None and _within(answer.drift, truth.drift)),
        moves=int(answer.move is not None),
        ends_covered=int(ends),
        moves_covered=int(ends and widest),
        lines=int(asked),
        not_lines=int(asked and not answer.is_line),
        bounds=int(answer.most is not None),
        bounds_held=int(answer.most is not None and true.most_lost <= answer.most),
        widths=tuple(high - low for (low, high), _ in pairs),
        wrong=(seed,) if false_transfers or false_drifts else (),
    )


def _interval(low: float | None, high: float | None) -> Interval | None:
    if low is None and high is None:
        return None
    return -math.inf if low is None else low, math.inf if high is None else high


def _within(interval: Interval, at: float) -> bool:
    return interval[0] <= at <= interval[1]


def _finite(width: float) -> float | None:
    """Return a median width; None if most intervals are open."""
    return width if math.isfinite(width) else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
