"""What to add: the cells, seeds or shapes that would decide an undecided verdict.

First comes what the grid lacks: cells without a result, values beyond an edge, a value between two that tie. Seeds come
only when the grid lacks nothing, and only as many as the measured noise and the distance to the limit ask for. A shape
comes last. A sweep has one grid and one list of seeds, so every value and every seed is added at every shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy import stats

from hpxfer.host import scale_text, value_text
from hpxfer.verdict.findings import DEFAULT_RULES, Addition, Finding, Rules
from hpxfer.verdict.lacks import (
    Lack,
    Row,
    between_ties,
    seeds_cannot_mend,
    to_see_rise,
    to_sharpen,
    values_lacking,
    why_hopeless,
    why_lost,
    without_result,
)
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.thresholds import MOVE_OCTAVES, NUM_SE

MIN_SEEDS = 3  # with two, an unlucky run cannot be distinguished from noise
MAX_SEEDS = 20  # with more, a longer axis or a finer grid says more at lower cost
HOPELESS_SEEDS = 2 * MAX_SEEDS  # where noise alone asks for more, no follow-up asks for seeds
LONG_AXIS = 64  # the largest ratio of two scales on an axis that a follow-up makes longer
SEED_MARGIN = 1.5  # without one, about half of all follow-ups would just miss
WIDE_SHARE = 0.7  # of the widest interval of an optimum: an interval as wide as that is to blame too
MAX_GROWTH = 4  # at most so many times the seeds per follow-up: how many decide is itself known from few seeds


def what_to_add(finding: Finding, grid: LossGrid, rules: Rules = DEFAULT_RULES) -> tuple[Addition, ...]:
    """Return what an undecided finding on the losses of a grid needs, the most urgent first.

    Nothing else is asked for before everything planned that counts has been run.
    """
    if finding.doubts:
        return (_nothing("mend the trainer first"),)
    pairs = zip(finding.shapes, grid.rows, strict=True)
    rows = [Row(finding=finding, shape=shape, cells=row.cells) for shape, row in pairs]
    if lost := [(row, values) for row in rows if (values := without_result(row))]:
        return tuple(_values([row], values, before="the trials without a result of ") for row, values in lost)
    if finding.has_transferred and (new := _wanted(_untried(rows))):
        return tuple(new)
    if finding.rests_on is not None:
        return tuple(_more_seeds(finding, 0)) or (_nothing(f"check {finding.rests_on}"),)
    hopeless = {i: why for i, row in enumerate(rows) if (why := why_hopeless(row)) is not None}
    if hopeless and len(hopeless) == len(rows):
        return (_nothing(hopeless[0]),)
    out = _wanted(lack for i, row in enumerate(rows) if i not in hopeless for lack in values_lacking(row))
    if len(rows) < 2:
        text = f"a shape beyond the base, at four times its {finding.scale_name} or more"
        out.append(Addition(text=text, new_scales=tuple(4 * row.shape.scale for row in rows)))
    if finding.num_seeds < 2:
        out.append(Addition(text=f"{MIN_SEEDS} seeds at every shape", seeds=MIN_SEEDS))
    vain = [*(why for row in rows if (why := why_lost(row)) is not None), *hopeless.values()]
    if vain and not out:
        return (_nothing(vain[0]),)
    tie = _wanted(lack for row in rows if row.shape.is_base for lack in between_ties(row))
    return tuple(out or _within_noise(finding, tie, rules) or tie or _precision(finding, rows, rules))


def _nothing(why: str) -> Addition:
    return Addition(text=f"more trials will hardly decide: {why}")


def _untried(rows: Iterable[Row]) -> Iterator[Lack]:
    """Yield the transferred HP where a shape does not have it among its values."""
    for row in rows:
        value = row.finding.base_value
        if value is not None and not any(map(row.is_transferred, range(len(row.cells)))):
            yield row, (value,), "the transferred HP, which was not run there"


def _wanted(lacks: Iterable[Lack]) -> list[Addition]:
    """Return what shapes lack, with one addition for all that lack values for the same reason: one grid serves them."""
    by_reason: dict[str, list[tuple[Row, Sequence[float]]]] = {}
    for row, values, why in lacks:
        by_reason.setdefault(why, []).append((row, values))
    return [
        _values([row for row, _ in same], {value for _, values in same for value in values}, after=f", {why}")
        for why, same in by_reason.items()
    ]


def _values(rows: Sequence[Row], values: Iterable[float], *, before: str = "", after: str = "") -> Addition:
    """Return the addition of HP values at shapes, with words before and after their names."""
    found = tuple(sorted(values))
    listed = f"{'value' if len(found) == 1 else 'values'} {', '.join(map(value_text, found))}"
    text = f"{before}HP {listed} at {', '.join(row.name for row in rows)}{after}"
    return Addition(text=text, values=found, scales=tuple(row.shape.scale for row in rows))


def _within_noise(finding: Finding, tie: Sequence[Addition], rules: Rules) -> list[Addition]:
    """Return the seeds without which no regret can be said to be within its limit, and the value between a tie."""
    limits = [(shape, shape.limit_nats) for shape in finding.others if shape.limit_nats]
    factor = _width(finding)
    if factor <= 1 and any(NUM_SE * shape.doubt_se > limit for shape, limit in limits):
        return _more_seeds(finding, 0)
    # What is likely to drift is decided by a regret far over its limit, and needs no small error.
    if factor <= 1 or (finding.transfer_chance or 0.0) < rules.error:
        return []
    needed, noise = math.ceil(seeds_at_noise(finding)), finding.judged.amount(finding.noise_nats or 0.0)
    if needed <= HOPELESS_SEEDS:
        return [*tie, *_more_seeds(finding, _seeds_needed(finding, rules))]
    limit = min(limit for _, limit in limits)
    why = f"it takes about {needed} seeds, as the noise of one is {noise} and the limit {limit:.2g}"
    return [_nothing(f"{why}; a longer run or more validation tokens lower the noise")]


def _width(finding: Finding) -> float:
    """Return two standard errors of a regret over its limit, the largest of all shapes."""
    wide = [NUM_SE * (shape.noise_se or 0.0) / shape.limit_nats for shape in finding.others if shape.limit_nats]
    return max(wide, default=0.0)


def seeds_at_noise(finding: Finding) -> float:
    """Return how many seeds lower the error of each regret well below its limit: it falls with the root of them."""
    return SEED_MARGIN * finding.num_seeds * _width(finding) ** 2


def _seeds_needed(finding: Finding, rules: Rules) -> float:
    """Return how many seeds probably decide."""
    return max(SEED_MARGIN * finding.num_seeds * _error_factor(finding, rules) ** 2, seeds_at_noise(finding))


def _more_seeds(finding: Finding, needed: float) -> list[Addition]:
    """Return the seeds that probably decide, or the most that a follow-up asks for, which then probably do not."""
    now = finding.num_seeds
    most = min(max(MAX_GROWTH * now, MIN_SEEDS), MAX_SEEDS)
    seeds = max(math.ceil(min(needed, most)), min(now + 1, most), MIN_SEEDS)
    hardly = ", which will probably not decide" if needed > seeds else ""
    text = f"{seeds} seeds instead of {now} at every shape{hardly}"
    return [Addition(text=text, seeds=seeds)] if seeds > now else []


def _precision(finding: Finding, rows: Sequence[Row], rules: Rules) -> list[Addition]:
    """Return what narrows the intervals of a finding whose grid lacks nothing: cells, seeds, or a longer axis."""
    if (finding.transfer_chance or 0.0) >= 1 - rules.error:
        return [_nothing(finding.reasons[0])]  # nothing is in doubt that a shorter interval would settle
    now, needed = finding.num_seeds, _seeds_needed(finding, rules)
    doubtful = _in_doubt(rows, rules)
    if wider := _wanted(lack for row in doubtful for lack in to_see_rise(row)):
        return wider
    mended = needed <= MAX_SEEDS and now < MAX_SEEDS
    sharpened = [row for row in doubtful if needed >= 2 * now or not mended or seeds_cannot_mend(row)]
    if finer := _wanted(lack for row in sharpened for lack in to_sharpen(row)):
        return finer
    if bad := [row for row in doubtful if row.is_misfit]:
        return [_nothing(f"{bad[0].name}: its cells scatter about every basin more than seeds do; look at its trials")]
    # Whether the move or a regret is known well, and its limit lies within what is known.
    is_near_limit = any(low <= limit < high and high - low <= limit for low, high, limit in _limits(finding))
    if mended or (now < MAX_SEEDS and not is_near_limit):
        return _more_seeds(finding, needed)
    scales = [row.shape.scale for row in rows]
    if not is_near_limit or max(scales) >= LONG_AXIS * min(scales):
        return [_nothing(f"{now} seeds do not decide, nor would a finer grid")]
    why = f"the optimum's move or a regret is so close to its limit that {MAX_SEEDS} seeds would not decide"
    text = f"a shape at {finding.scale_name} {scale_text(2 * max(scales))}, twice the largest: {why}"
    return [Addition(text=text, new_scales=(2 * max(scales),))]


def _in_doubt(rows: Sequence[Row], rules: Rules) -> list[Row]:
    """Return the shapes to blame: those whose regret may be over its limit, or those whose optimum is known least."""
    found = [row for row in rows if rules.error / 2 < (row.shape.over_chance or 0.0) < 1 - rules.error]
    widest = max(row.interval_octaves for row in rows)
    return found or [row for row in rows if row.interval_octaves >= WIDE_SHARE * widest]


def _limits(finding: Finding) -> Iterator[tuple[float, float, float]]:
    """Yield the known intervals that a verdict rests on, each with its limit: of regrets, and of the move both ways."""
    for shape in finding.others:
        low, high, limit = shape.regret_low_nats, shape.regret_high_nats, shape.limit_nats
        if low is not None and high is not None and math.isfinite(high) and limit is not None:
            yield low, high, limit
    if finding.move is not None and finding.move.low is not None and finding.move.high is not None:
        yield finding.move.low, finding.move.high, MOVE_OCTAVES
        yield -finding.move.high, -finding.move.low, MOVE_OCTAVES


def _error_factor(finding: Finding, rules: Rules) -> float:
    """Return the factor by which errors must fall to decide a finding if its estimates stay; 1 if they need not.

    An interval must shrink about its middle until it is clear of its limit. Where all are, the chance of a transfer is
    read as a normal distance in standard errors, which doubles if all errors halve.
    """
    needed = [
        (high - low) / 2 / room if (room := abs((low + high) / 2 - limit)) else math.inf
        for low, high, limit in _limits(finding)
        if low <= limit <= high
    ]
    factor = max(needed, default=0.0)
    if factor > 1 or finding.transfer_chance is None:
        return max(factor, 1.0)
    chances = np.clip([finding.transfer_chance, 1 - rules.error], 1e-9, 1 - 1e-9)
    now, enough = stats.norm.ppf(chances).tolist()
    return max(1.0, enough / abs(now)) if now else math.inf
