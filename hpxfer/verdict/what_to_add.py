"""What to add: the HP values, seeds or shapes that would decide an undecided verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from scipy import stats

from hpxfer.verdict.estimate import FLAT
from hpxfer.verdict.findings import Addition, Finding, ShapeFinding
from hpxfer.verdict.judge import move, regret_limit
from hpxfer.verdict.loss_grid import LossGrid, ShapeLosses
from hpxfer.verdict.thresholds import ERROR_RATE, MIN_POINTS, MOVE_OCTAVES

MIN_SEEDS = 3  # with two, an unlucky run cannot be distinguished from noise
MAX_SEEDS = 20  # with more, a longer axis or a finer grid says more at lower cost


def what_to_add(finding: Finding, grid: LossGrid) -> tuple[Addition, ...]:
    """Return what an undecided finding on the losses of a grid needs, the most urgent first.

    The number of seeds is only estimated once everything planned has been run.
    """
    out, unfinished = [], False
    for shape, row in zip(finding.shapes, grid.rows, strict=True):
        found = _cells(finding, shape, row)
        unfinished |= any(row.cell(value) is not None for addition in found for value in addition.values)
        out += found
    if len(finding.shapes) < 2:
        text = f"a shape beyond the base, at four times its {finding.scale_name} or more"
        out.append(Addition(text=text, new_scales=tuple(4 * shape.scale for shape in finding.shapes)))
    if not unfinished and (more := _seeds(finding)):
        out.append(more)
    return tuple(dict.fromkeys(out))


def _cells(finding: Finding, shape: ShapeFinding, row: ShapeLosses) -> list[Addition]:
    """Return the HP values that one shape lacks."""
    exponents = [cell.log2 for cell in row.cells]
    step = min((b - a for a, b in pairwise(exponents)), default=1.0)
    kind, name = shape.optimum.kind, finding.name(shape)
    if kind in ("lower_edge", "upper_edge") and exponents:
        side, first = (-1, exponents[0]) if kind == "lower_edge" else (1, exponents[-1])
        return [_values(name, [first + side * step * k for k in (1, 2)], shape)]
    if kind == "at_divergence" and shape.optimum.grid_value is not None:
        here = math.log2(shape.optimum.grid_value)
        return [_values(name, [here - step / 2, here + step / 2], shape)]
    if kind == "none" or shape.regret_nats is None or shape.optimum.open_because:
        lacking = [cell.value for cell in row.cells if cell.num_missing]
        if lacking:
            text = f"{name}: run what has no result ({', '.join(f'{value:.4g}' for value in lacking)})"
            return [Addition(text=text, values=tuple(lacking), scales=(shape.scale,))]
    if kind == "none" and exponents:
        finite = [cell for cell in row.cells if cell.finite and not cell.censored]
        if wanted := _until_three(exponents, step, len(finite), below=any(cell.censored for cell in row.cells)):
            return [_values(name, wanted, shape)]
    return []


def _until_three(exponents: Sequence[float], step: float, num_finite: int, *, below: bool) -> list[float]:
    """Return the log2 HPs of the cells that a parabola lacks: `below` those that diverge, or else on both sides."""
    short = MIN_POINTS - num_finite
    if short <= 0:
        return []
    if below:
        return [exponents[0] - step * k for k in range(1, short + 1)]
    return [exponents[0] - step, exponents[-1] + step]


def _values(name: str, exponents: Sequence[float], shape: ShapeFinding) -> Addition:
    values = tuple(2.0**exponent for exponent in sorted(exponents))
    text = f"{name}: HP values {', '.join(f'2^{math.log2(value):g}' for value in values)}"
    return Addition(text=text, values=values, scales=(shape.scale,))


def _seeds(finding: Finding) -> Addition | None:
    """Return the number of seeds that narrows the move and the regrets enough to decide, if their centers stay."""
    now = max((shape.num_seeds for shape in finding.shapes), default=0)
    if now < 2:
        return Addition(text=f"{MIN_SEEDS} seeds at every shape", seeds=MIN_SEEDS)
    needed = [1.0, *(_regret_factor(shape) for shape in finding.shapes if not shape.is_base)]
    if any(shape.optimum.open_because == FLAT for shape in finding.shapes):
        seeds = max(MIN_SEEDS, 2 * now)
        if seeds <= MAX_SEEDS:
            return Addition(text=f"{seeds} seeds instead of {now} at every shape, or a wider grid", seeds=seeds)
        return None
    if moved := move(finding):
        center, half = sum(moved) / 2, (moved[1] - moved[0]) / 2
        if math.isinf(half):
            return None
        if max(-moved[0], moved[1]) > MOVE_OCTAVES:
            room = abs(abs(center) - MOVE_OCTAVES)
            needed.append(half / room if room else math.inf)
    if max(needed) <= 1:
        return None
    freedom = finding.drift.freedom if finding.drift and finding.drift.freedom else now - 1
    for seeds in range(max(now + 1, MIN_SEEDS), MAX_SEEDS + 1):
        if max(needed) <= math.sqrt(seeds / now) * _quantile(freedom) / _quantile(freedom * (seeds - 1) / (now - 1)):
            return Addition(text=f"{seeds} seeds instead of {now} at every shape", seeds=seeds)
    why = f"the optimum's move or a regret is so close to its limit that {MAX_SEEDS} seeds would not decide"
    largest = max(shape.scale for shape in finding.shapes)
    return Addition(text=f"a shape at twice the largest {finding.scale_name}: {why}", new_scales=(2 * largest,))


def _quantile(freedom: float) -> float:
    return float(stats.t.ppf(1 - ERROR_RATE, freedom))


def _regret_factor(shape: ShapeFinding) -> float:
    """Return the factor by which the error of a regret must fall to be clear of the limit of the regret."""
    if shape.regret_nats is None or not shape.regret_se_nats or not math.isfinite(shape.regret_nats):
        return 0.0
    over = shape.regret_nats - regret_limit(shape)
    return 2 * shape.regret_se_nats / over if over > 0 else 0.0
