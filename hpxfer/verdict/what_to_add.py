"""What to add: the cells, seeds or shapes that would decide an undecided verdict.

First comes what the grid lacks: cells without a result, values beyond an edge, a value between two that tie. Seeds come
only when the grid lacks nothing, and only as many as the measured noise and the distance to the limit ask for. A shape
comes last. A sweep has one grid and one list of seeds, so every value and every seed is added at every shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scipy import stats

from hpxfer.verdict.findings import Addition, Finding, ShapeFinding
from hpxfer.verdict.labels import scale_text
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.row_needs import (
    Lack,
    Row,
    cells_to_run_again,
    seeds_cannot_mend,
    value_between_ties,
    values_lacking,
    values_to_sharpen,
    values_wanted,
    why_hopeless,
)
from hpxfer.verdict.thresholds import ERROR_RATE, MOVE_OCTAVES, NUM_SE, REGRET_SHARE

MIN_SEEDS = 3  # with two, an unlucky run cannot be distinguished from noise
MAX_SEEDS = 20  # with more, a longer axis or a finer grid says more at lower cost
SEED_MARGIN = 1.25  # without one, about half of all follow-ups would just miss
MAX_GROWTH = 3  # at most so many times the seeds per follow-up: how many decide is itself known from few seeds


def what_to_add(finding: Finding, grid: LossGrid) -> tuple[Addition, ...]:
    """Return what an undecided finding on the losses of a grid needs, the most urgent first.

    Seeds are counted only once everything planned has been run.
    """
    rows = [Row.of(finding, shape, row) for shape, row in zip(finding.shapes, grid.rows, strict=True)]
    if again := [addition for row in rows if (addition := cells_to_run_again(row)) is not None]:
        return tuple(again)
    hopeless = [why for row in rows if (why := why_hopeless(row)) is not None]
    if hopeless and len(hopeless) == len(rows):
        return (Addition(text=f"nothing that a sweep can add: {hopeless[0]}"),)
    out = _wanted(lack for row in rows if why_hopeless(row) is None for lack in values_lacking(row))
    if len(rows) < 2:
        text = f"a shape beyond the base, at four times its {finding.scale_name} or more"
        out.append(Addition(text=text, new_scales=tuple(4 * row.shape.scale for row in rows)))
    if _num_seeds(finding) < 2:
        out.append(Addition(text=f"{MIN_SEEDS} seeds at every shape", seeds=MIN_SEEDS))
    return tuple(out or _base_tie(rows) or _precision(finding, rows))


def asks_nothing(addition: Addition) -> bool:
    """Return whether no trial helps, so that the addition only says why."""
    return not (addition.seeds or addition.values or addition.new_scales or addition.parameterization)


def _wanted(lacks: Iterable[Lack]) -> list[Addition]:
    """Return what shapes lack, with one addition for all that lack values for the same reason."""
    by_reason: dict[str, list[Lack]] = {}
    for lack in lacks:
        by_reason.setdefault(lack.why, []).append(lack)
    return [values_wanted(same) for same in by_reason.values()]


def _num_seeds(finding: Finding) -> int:
    return max((shape.num_seeds for shape in finding.shapes), default=0)


def _base_tie(rows: Sequence[Row]) -> list[Addition]:
    return _wanted(lack for row in rows if row.shape.is_base and (lack := value_between_ties(row)) is not None)


def _precision(finding: Finding, rows: Sequence[Row]) -> list[Addition]:
    """Return what narrows the intervals of a finding whose grid lacks nothing: cells, seeds, or a longer axis."""
    now, factor = _num_seeds(finding), error_factor(finding)
    seeds = _seeds_that_decide(now, factor)
    doubtful = [row for row in rows if _in_doubt(row.shape)] or list(rows)
    sharpened = [row for row in doubtful if seeds is None or factor <= 1 or seeds_cannot_mend(row)]
    if finer := _wanted(lack for row in sharpened if (lack := values_to_sharpen(row)) is not None):
        return finer
    if seeds is not None:
        return [Addition(text=f"{seeds} seeds instead of {now} at every shape", seeds=seeds)]
    largest = max(row.shape.scale for row in rows)
    why = f"the optimum's move or a regret is so close to its limit that {MAX_SEEDS} seeds would not decide"
    text = f"a shape at {finding.scale_name} {scale_text(2 * largest)}, twice the largest: {why}"
    return [Addition(text=text, new_scales=(2 * largest,))]


def _seeds_that_decide(now: int, factor: float) -> int | None:
    """Return the number of seeds that lowers errors by a factor, with a margin; None if that is more than MAX_SEEDS."""
    if now >= MAX_SEEDS or now * factor**2 > MAX_SEEDS:
        return None
    seeds = max(now + 1, MIN_SEEDS, math.ceil(SEED_MARGIN * now * factor**2))
    return min(seeds, MAX_GROWTH * now, MAX_SEEDS)


def error_factor(finding: Finding) -> float:
    """Return the factor by which errors must fall to decide a finding if its estimates stay; 1 if they need not."""
    needed = [1.0, *(_regret_factor(shape) for shape in finding.shapes if not shape.is_base)]
    chance = finding.transfer_chance
    if chance is not None:
        sure, seen = stats.norm.ppf(1 - ERROR_RATE), abs(stats.norm.ppf(chance))
        needed.append(sure / seen if seen > 0 else math.inf)
    else:
        needed.append(_move_factor(finding))
    return float(max(needed))


def _move_factor(finding: Finding) -> float:
    low, high = _move_ends(finding)
    if low is None or high is None or max(-low, high) <= MOVE_OCTAVES:
        return 1.0
    room = abs(abs(low + high) / 2 - MOVE_OCTAVES)
    return (high - low) / 2 / room if room else math.inf


def _move_ends(finding: Finding) -> tuple[float | None, float | None]:
    if finding.move is not None:
        return finding.move.low, finding.move.high
    interval = None if finding.drift is None else finding.drift.interval(1 - 2 * ERROR_RATE)
    if interval is None or finding.drift is None or not all(map(math.isfinite, interval)):
        return None, None
    return interval[0] * finding.drift.doublings, interval[1] * finding.drift.doublings


def _regret_factor(shape: ShapeFinding) -> float:
    """Return the factor by which the error of a regret must fall to be clear of its limit."""
    limit, ends = limit_of(shape), regret_ends(shape)
    if limit is None or ends is None or ends[1] <= limit:
        return 0.0
    half, room = (ends[1] - ends[0]) / 2, abs((shape.regret_nats or 0.0) - limit)
    return half / room if room else math.inf


def _in_doubt(shape: ShapeFinding) -> bool:
    """Return whether the interval of a regret holds its limit."""
    limit, ends = limit_of(shape), regret_ends(shape)
    return not shape.is_base and limit is not None and ends is not None and ends[0] <= limit < ends[1]


def limit_of(shape: ShapeFinding) -> float | None:
    """Return the largest regret that counts as none, in nats; None where nothing was measured."""
    if shape.limit_nats is not None or shape.best_loss is None:
        return shape.limit_nats
    return REGRET_SHARE * abs(shape.best_loss)


def regret_ends(shape: ShapeFinding) -> tuple[float, float] | None:
    """Return the interval of a regret in nats; None without a finite regret or its error."""
    regret, se = shape.regret_nats, shape.regret_se_nats
    if regret is None or not math.isfinite(regret):
        return None
    if shape.regret_low_nats is not None and shape.regret_high_nats is not None:
        return shape.regret_low_nats, shape.regret_high_nats
    return None if se is None else (regret - NUM_SE * se, regret + NUM_SE * se)
