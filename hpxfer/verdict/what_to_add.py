"""What to add: the cells, seeds or shapes that would decide an undecided verdict.

First comes what the grid lacks: cells without a result, values beyond an edge, a value between two that tie. Seeds come
only when the grid lacks nothing, and only as many as the measured noise and the distance to the limit ask for. A shape
comes last. A sweep has one grid and one list of seeds, so every value and every seed is added at every shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

from hpxfer.host import scale_text, value_text
from hpxfer.verdict.findings import DEFAULT_RULES, Addition, Finding, Rules
from hpxfer.verdict.lacks import Lack, Row, beside_best, values_lacking, why_hopeless, why_lost, without_result
from hpxfer.verdict.loss_grid import LossGrid
from hpxfer.verdict.thresholds import MOVE_OCTAVES, NUM_SE

MIN_SEEDS = 3  # with two, an unlucky run cannot be distinguished from noise
MAX_SEEDS = 20  # with more, a longer axis or a finer grid says more at lower cost
HOPELESS_SEEDS = 2 * MAX_SEEDS  # where noise alone asks for more, no follow-up asks for seeds
LONG_AXIS = 64  # the largest ratio of two scales on an axis that a follow-up makes longer
SEED_MARGIN = 1.5  # without one, about half of all follow-ups would just miss
WIDE_SHARE = 0.7  # of the widest interval of an optimum: an interval as wide as that is to blame too
MISFIT = 3.0  # a scatter of cells about every basin that is this many times that of seeds is no noise
MAX_GROWTH = 4  # at most so many times the seeds per follow-up: how many decide is itself known from few seeds


def what_to_add(finding: Finding, grid: LossGrid, rules: Rules = DEFAULT_RULES) -> tuple[Addition, ...]:
    """Return what an undecided finding on the losses of a grid needs, the most urgent first.

    Nothing else is asked for before everything planned that counts has been run.
    """
    if finding.base is None:
        return (Addition(text="nothing is known at the base shape: run it first"),)
    if finding.doubts:
        return (_nothing("mend the trainer first"),)
    pairs = zip(finding.shapes, grid.rows, strict=True)
    rows = [Row(finding=finding, shape=shape, cells=row.cells) for shape, row in pairs]
    if lost := [(row, values, "which has trials without a result") for row in rows if (values := without_result(row))]:
        return tuple(addition for lack in lost for addition in _wanted([lack]))
    value = finding.base_value if finding.has_transferred else None
    if value is not None and (untried := [row for row in rows if all(cell.value != value for cell in row.cells)]):
        return tuple(_wanted((row, (value,), "the transferred HP, which was not run there") for row in untried))
    if finding.rests_on is not None:
        return tuple(_more_seeds(finding, rules)) or (_nothing(f"check {finding.rests_on}"),)
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
    tie = _wanted(lack for row in rows if row.shape.is_base for lack in beside_best(row, if_tied=True))
    return tuple(out or _within_noise(finding, tie, rules) or tie or _precision(finding, rows, rules))


def _nothing(why: str) -> Addition:
    return Addition(text=f"more trials will hardly decide: {why}")


def _wanted(lacks: Iterable[Lack]) -> list[Addition]:
    """Return what shapes lack, with one addition for all that lack values for the same reason: one grid serves them."""
    by_reason: dict[str, list[tuple[Row, Sequence[float]]]] = {}
    for row, values, why in lacks:
        by_reason.setdefault(why, []).append((row, values))
    out = []
    for why, same in by_reason.items():
        found = tuple(sorted({value for _, values in same for value in values}))
        listed = f"{'value' if len(found) == 1 else 'values'} {', '.join(map(value_text, found))}"
        text = f"HP {listed} at {', '.join(row.name for row, _ in same)}, {why}"
        out.append(Addition(text=text, values=found, scales=tuple(row.shape.scale for row, _ in same)))
    return out


def _within_noise(finding: Finding, tie: Sequence[Addition], rules: Rules) -> list[Addition]:
    """Return the seeds without which no regret can be said to be within its limit, and the value between a tie."""
    if _in_dispute(finding):
        return _more_seeds(finding, rules)
    if (at_noise := seeds_at_noise(finding)) <= SEED_MARGIN * finding.num_seeds:
        return []
    # What is likely to drift is decided by a regret far over its limit, and needs no small error.
    if (finding.transfer_chance or 0.0) < rules.error:
        return []
    if at_noise <= HOPELESS_SEEDS:
        return [*tie, *_more_seeds(finding, rules)]
    noise = finding.judged.amount(finding.noise_nats or 0.0)
    limit = min(shape.limit_nats for shape in finding.others if shape.limit_nats)
    why = f"it takes about {math.ceil(at_noise)} seeds, as the noise of one is {noise} and the limit {limit:.2g}"
    return [_nothing(f"{why}; a longer run or more validation tokens lower the noise")]


def seeds_at_noise(finding: Finding) -> float:
    """Return how many seeds lower the error of each regret well below its limit: it falls with the root of them."""
    over = [NUM_SE * (shape.noise_se or 0.0) / shape.limit_nats for shape in finding.others if shape.limit_nats]
    return SEED_MARGIN * finding.num_seeds * max(over, default=0.0) ** 2


def _in_dispute(finding: Finding) -> bool:
    """Return whether a verdict waits for one more seed: to tell which of two runs is right, and not for less noise."""
    apart = any(shape.limit_nats and NUM_SE * shape.doubt_se > shape.limit_nats for shape in finding.others)
    return finding.rests_on is not None or (apart and seeds_at_noise(finding) <= SEED_MARGIN * finding.num_seeds)


def seeds_needed(finding: Finding, rules: Rules = DEFAULT_RULES) -> float:
    """Return how many seeds probably decide an undecided finding, if estimates stay where they are.

    One more tells which of two runs is right. Else an interval must shrink about its middle until it is clear of its
    limit. Where all are, the chance of a transfer is read as a normal distance in standard errors, which doubles if all
    errors halve.
    """
    if _in_dispute(finding):
        return finding.num_seeds + 1
    open_ = [((high - low) / 2, abs((low + high) / 2 - limit)) for low, high, limit in _limits(finding)]
    factor = max((half / room if room else math.inf for half, room in open_), default=0.0)
    if factor <= 1 and finding.transfer_chance is not None:
        now, enough = stats.norm.ppf(np.clip([finding.transfer_chance, 1 - rules.error], 1e-9, 1 - 1e-9)).tolist()
        factor = enough / abs(now) if now else math.inf
    return max(SEED_MARGIN * finding.num_seeds * max(factor, 1.0) ** 2, seeds_at_noise(finding))


def _more_seeds(finding: Finding, rules: Rules) -> list[Addition]:
    """Return the seeds that probably decide, or the most that a follow-up asks for, which then probably do not."""
    now, needed = finding.num_seeds, seeds_needed(finding, rules)
    seeds = max(min(max(math.ceil(min(needed, MAX_SEEDS)), now + 1), MAX_GROWTH * now, MAX_SEEDS), MIN_SEEDS)
    hardly = ", which will probably not decide" if needed > seeds else ""
    text = f"{seeds} seeds instead of {now} at every shape{hardly}"
    return [Addition(text=text, seeds=seeds)] if seeds > now else []


def _precision(finding: Finding, rows: Sequence[Row], rules: Rules) -> list[Addition]:
    """Return what narrows the intervals of a finding whose grid lacks nothing: cells, seeds, or a longer axis."""
    if (finding.transfer_chance or 0.0) >= 1 - rules.error:
        return [_nothing(finding.reasons[0])]  # nothing is in doubt that a shorter interval would settle
    doubtful = _in_doubt(rows, rules)
    if finer := _wanted(lack for row in doubtful for lack in beside_best(row, if_tied=False)):
        return finer
    if bad := [row for row in doubtful if (row.shape.optimum.misfit or 0.0) >= MISFIT]:
        return [_nothing(f"{bad[0].name}: its cells scatter about every basin more than seeds do; look at its trials")]
    now, needed = finding.num_seeds, seeds_needed(finding, rules)
    # Whether the move or a regret is known well, and its limit lies within what is known.
    is_near_limit = any(low <= limit < high and high - low <= limit for low, high, limit in _limits(finding))
    if now < MAX_SEEDS and (needed <= MAX_SEEDS or not is_near_limit):
        return _more_seeds(finding, rules)
    scales = [row.shape.scale for row in rows]
    if not is_near_limit or max(scales) >= LONG_AXIS * min(scales):
        return [_nothing(f"{now} seeds do not decide, nor would a finer grid")]
    why = f"the optimum's move or a regret is so close to its limit that {MAX_SEEDS} seeds would not decide"
    text = f"a shape at {finding.scale_name} {scale_text(2 * max(scales))}, twice the largest: {why}"
    return [Addition(text=text, new_scales=(2 * max(scales),))]


def _in_doubt(rows: Sequence[Row], rules: Rules) -> list[Row]:
    """Return the shapes to blame: those whose regret may be over its limit, or those whose optimum is known least."""
    if found := [row for row in rows if rules.error / 2 < (row.shape.over_chance or 0.0) < 1 - rules.error]:
        return found
    ends = [(row.shape.optimum.low_log2, row.shape.optimum.high_log2) for row in rows]
    widths = [math.inf if low is None or high is None else high - low for low, high in ends]
    return [row for row, width in zip(rows, widths, strict=True) if width >= WIDE_SHARE * max(widths)]


def _limits(finding: Finding) -> list[tuple[float, float, float]]:
    """Return the known intervals that a verdict rests on, each with its limit: of regrets, of the move both ways."""
    known = [(shape.regret_low_nats, shape.regret_high_nats, shape.limit_nats) for shape in finding.others]
    if (move := finding.move) is not None and move.low is not None and move.high is not None:
        known += [(move.low, move.high, MOVE_OCTAVES), (-move.high, -move.low, MOVE_OCTAVES)]
    return [
        (low, high, limit)
        for low, high, limit in known
        if low is not None and high is not None and limit is not None and high < math.inf
    ]
