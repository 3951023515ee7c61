"""The plan of a verdict search: which trials of a line shrink its doubt most per FLOP.

A line starts at its base with one seed. All shapes follow around the base's best value. From then on every round first
closes gaps without which no verdict can be said: a lowest cell without neighbors, a shape with one seed, and the
transferred HP where it was not tried. Then it buys the trials that narrow the optima most per FLOP. The variance of an
optimum that `n` trials know falls by 1/n - 1/(n+1) of itself with one more, so small shapes get more trials than large
ones.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpxfer.intervals import lowest_of
from hpxfer.model.cost import relative_cost
from hpxfer.scaling.shape import Shape
from hpxfer.search.protocol import Outcome
from hpxfer.search.verdict_lines import MIN_SEEDS, Doubt, LineShape, VerdictLine
from hpxfer.trial import Trial
from hpxfer.verdict import ShapeFinding
from hpxfer.verdict.thresholds import NUM_SE

COARSE_OCTAVES = 1.0  # between the values of the first round, and around the best value of the second
NEAR_OCTAVES = 1.5  # how far from an optimum a trial still tells where it lies
LARGEST_FIRST = 4  # trials of the largest shape in the round that first measures it: three values, one of them twice
WIDEST = 1.5  # octaves: the standard error of an optimum of which nothing is known
SUREST = 0.05  # octaves: an optimum is never surer than that, as its basin is no parabola
TIGHT = 1e-9


@dataclass
class Purse:
    """The trials that were asked for, what is known of them, and what the budget of each arm leaves."""

    budget: int  # trials per arm
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    asked: dict[str, Trial] = field(default_factory=dict)
    of_arm: Counter[object] = field(default_factory=Counter)  # (parameterization, shape): tables share a base

    def can_buy(self, trial: Trial) -> bool:
        """Return whether a trial is a new one that the budget of its arm buys."""
        return trial.id not in self.asked and self.of_arm[trial.parameterization, trial.shape] < self.budget

    def buy(self, trial: Trial) -> bool:
        """Ask for a trial if it can be bought. Return whether it was."""
        if not self.can_buy(trial):
            return False
        self.asked[trial.id] = trial
        self.of_arm[trial.parameterization, trial.shape] += 1
        return True

    def give_back(self, trial: Trial) -> None:
        """Take back what was asked for a trial."""
        del self.asked[trial.id]
        self.of_arm[trial.parameterization, trial.shape] -= 1

    def num_seeds(self, trials: Sequence[Trial]) -> int:
        """Return how many of these trials were asked for."""
        return sum(trial.id in self.asked for trial in trials)

    def lowest(self, shape: LineShape) -> float | None:
        """Return the value with the lowest mean loss at a shape, of equal ones the middle one.

        It is None if every value diverged or none was measured.
        """
        means = {}
        for value, trials in shape.trials.items():
            ids = [trial.id for trial in trials if trial.id in self.asked and trial.id in self.outcomes]
            if ids:
                means[value] = math.fsum(self.outcomes[name].value for name in ids) / len(ids)
        if min(means.values(), default=math.inf) == math.inf:
            return None
        return list(means)[lowest_of(list(means.values()), [math.log2(value) for value in means])]


def affordable(
    trials: Sequence[Trial], earlier: Sequence[Trial], outcomes: Mapping[str, Outcome], hours: float | None
) -> tuple[Trial, ...]:
    """Return the first of the trials, as many as fit into what the earlier ones left of the hours.

    A trial is expected to take as long as the median one of its shape. At a shape that has none, it is expected to take
    as long per FLOP as at the largest measured shape, or per token with a user's own trainer. Without any measured
    time, every trial fits.
    """
    found: dict[Shape, list[float]] = {}
    for trial in earlier:
        if (known := outcomes[trial.id].seconds) is not None:
            found.setdefault(trial.shape, []).append(known)
    if hours is None or not found:
        return tuple(trials)
    costs = {trial.shape: relative_cost(trial.shape, trial.setting) for trial in (*trials, *earlier)}
    measured = {shape: statistics.median(of_shape) for shape, of_shape in found.items()}
    largest = max(measured, key=costs.__getitem__)
    left = 3600 * hours - math.fsum(second for of_shape in found.values() for second in of_shape)
    for number, trial in enumerate(trials):
        left -= measured.get(trial.shape, measured[largest] / costs[largest] * costs[trial.shape])
        if left < 0:
            return tuple(trials[:number])
    return tuple(trials)


def first_line(line: VerdictLine) -> Iterator[Trial]:
    """Yield the first trials of a line: values of the base, an octave apart, with the first seed."""
    last = -math.inf
    for value, trials in line.base.trials.items():
        if math.log2(value) >= last + COARSE_OCTAVES - TIGHT:
            last = math.log2(value)
            yield trials[0]


def around_the_best(line: VerdictLine, purse: Purse) -> Iterator[Trial]:
    """Buy and yield the trials of every shape around the base's best value. They are few where a trial costs much."""
    best = purse.lowest(line.base)
    if best is None:
        return
    dearest = max(shape.flops for shape in line.shapes)
    for shape in line.shapes:
        values = _window(tuple(shape.trials), best)
        pairs = [(value, seed) for seed in range(2) for value in values]
        number = len(pairs) if shape.is_base else round(LARGEST_FIRST * math.sqrt(dearest / shape.flops))
        for value, seed in pairs[: max(LARGEST_FIRST, number)]:
            if seed < len(shape.trials[value]) and purse.buy(shape.trials[value][seed]):
                yield shape.trials[value][seed]


def _window(values: tuple[float, ...], best: float) -> tuple[float, ...]:
    """Return the best value and its neighbors an octave away, or farther on a coarser grid, the best first.

    At an end of the grid, both neighbors lie on the other side.
    """
    below, above = _sides(values, best)
    near = [*below[:1], *above[:1]] if below and above else [*below[:2], *above[:2]]
    return (best, *near)


def _sides(values: tuple[float, ...], best: float) -> tuple[list[float], list[float]]:
    """Return the values below and above the best one, an octave or more from it and from each other, the nearest first.

    The end of the grid is always among them.
    """
    logs = {value: math.log2(value / best) for value in values}
    below = [value for value in reversed(values) if logs[value] <= -COARSE_OCTAVES + TIGHT or value == values[0]]
    above = [value for value in values if logs[value] >= COARSE_OCTAVES - TIGHT or value == values[-1]]
    low, high = ([value for value in _apart(side) if value != best] for side in (below, above))
    return low, high


def _apart(values: Sequence[float]) -> list[float]:
    """Return values at least an octave apart, the first one and the last one among them."""
    out: list[float] = []
    for value in values:
        if not out or abs(math.log2(value / out[-1])) >= COARSE_OCTAVES - TIGHT or value == values[-1]:
            out.append(value)
    return out


class _Known:
    """What is known of a shape's optimum, in octaves."""

    def __init__(self, shape: LineShape, finding: ShapeFinding | None, purse: Purse) -> None:
        self.shape, self.purse, error = shape, purse, WIDEST
        best = purse.lowest(shape)
        self.at = math.log2(next(iter(shape.trials)) if best is None else best)
        if finding is not None:
            found = finding.optimum
            if found.log2_value is not None and found.bracketed:
                self.at = found.log2_value
            if found.low_log2 is not None and found.high_log2 is not None:
                error = (found.high_log2 - found.low_log2) / 4
        self.error = min(WIDEST, max(SUREST, error))

    def away(self, value: float) -> float:
        return abs(math.log2(value) - self.at)

    def gain(self) -> float:
        """Return the fall of the optimum's variance per FLOP, with one more trial near it."""
        reach = max(NEAR_OCTAVES, 2 * self.error) + TIGHT
        near = (trials for value, trials in self.shape.trials.items() if self.away(value) <= reach)
        return self.error**2 / (sum(map(self.purse.num_seeds, near)) + 1) / self.shape.flops

    def next_trial(self) -> Trial | None:
        """Return the trial of the fewest seeds near the optimum, then the nearest one; None if all were asked for."""
        reach, trials = max(COARSE_OCTAVES, 2 * self.error), self.shape.trials

        def rank(value: float) -> tuple[float, int, float]:
            away = self.away(value)
            return max(0.0, away - reach - TIGHT), self.purse.num_seeds(trials[value]), away

        in_order = (trial for value in sorted(trials, key=rank) for trial in trials[value])
        return next(filter(self.purse.can_buy, in_order), None)


def more_trials(line: VerdictLine, doubt: Doubt, purse: Purse, flops: float) -> Iterator[Trial]:
    """Yield the next trials of a line: those that close gaps, then trials of about as many FLOPs in all.

    They are yielded after they are bought. At least one follows if any is left.
    """
    findings = {found.shape: found for found in doubt.finding.shapes}
    spent = 0.0
    for shape in line.shapes:
        for gap in _gaps(shape, doubt, findings.get(shape.name), purse):
            if purse.buy(gap):
                spent += shape.flops
                yield gap
    shapes = [_Known(shape, findings.get(shape.name), purse) for shape in line.shapes]
    while spent < flops:
        choices = [(known, trial) for known in shapes if (trial := known.next_trial()) is not None]
        if not choices:
            return
        known, trial = max(choices, key=lambda choice: choice[0].gain())
        purse.buy(trial)
        spent += known.shape.flops
        yield trial


def _gaps(shape: LineShape, doubt: Doubt, found: ShapeFinding | None, purse: Purse) -> Iterator[Trial]:
    """Yield the trials of a shape without which no verdict can be said."""
    best, values, base_value = purse.lowest(shape), tuple(shape.trials), doubt.finding.base_value
    wanted = [] if best is None else [side[0] for side in _sides(values, best) if side]
    for value in (*wanted, *(value for value in values if value == base_value)):
        if not purse.num_seeds(shape.trials[value]):
            yield shape.trials[value][0]
    at_best = shape.trials[values[0] if best is None else best]
    num_seeds = max(map(purse.num_seeds, shape.trials.values()))
    if num_seeds < MIN_SEEDS <= len(at_best):
        yield at_best[num_seeds]
    if doubt.chance > 0.5 and found is not None:
        yield from _to_be_sure(shape, found, base_value, purse)


def _to_be_sure(shape: LineShape, found: ShapeFinding, base_value: float | None, purse: Purse) -> Iterator[Trial]:
    """Yield more seeds of the transferred HP and of the best one if their difference is not known to the limit.

    No more than as many as there are: the noise is better known after them.
    """
    error = NUM_SE * (found.regret_se_nats or 0.0)
    if found.is_base or not found.limit_nats or error <= found.limit_nats:
        return
    for value in dict.fromkeys((base_value, found.best_value)):
        trials = shape.trials.get(value or 0.0, ())
        have = purse.num_seeds(trials)
        yield from trials[have : min(2 * have, math.ceil(have * (error / found.limit_nats) ** 2))]
