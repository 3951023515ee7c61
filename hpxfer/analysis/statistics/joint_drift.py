"""Joint drift: how far the optimum moves with each dimension, in one regression over the shapes of all axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.scaling.shape import Shape
from hpxfer.verdict import (
    CONFIDENCE,
    DrawnOptima,
    Estimates,
    Floats,
    JudgedLine,
    Optimum,
    half_width,
    interval,
    mean_interval,
)

LEAST_ERROR = 0.02  # octaves: shapes with a smaller error weigh no more

# The dimensions of a shape. Of dimensions that move together, the first one here gets the slope.
DIMENSIONS = (
    "width",
    "depth",
    "num_experts",
    "kappa",
    "expert_ratio",
    "dense_ratio",
    "num_groups",
    "batch_tokens",
    "steps",
)


@dataclass(frozen=True, kw_only=True)
class JointSlope:
    """Octaves of the optimum per doubling of one dimension, at fixed others. A None leaves the interval open."""

    dimension: str  # e.g. `width`
    octaves_per_doubling: float
    se: float | None  # None without two seeds
    low: float | None  # 95%
    high: float | None


@dataclass(frozen=True, kw_only=True)
class JointPoint:
    """A shape in the regression: the doublings of every dimension over the base, and its optimum or bound."""

    shape: str
    doublings: tuple[float, ...]  # in the order of the slopes
    log2_value: float | None  # None for a bound
    low: float | None  # the optimum lies above it; None if unknown
    high: float | None
    fitted_log2: float  # by the regression


@dataclass(frozen=True, kw_only=True)
class JointDrift:
    """The regression of log2 optimum on the log2 dimensions, of one parameterization over all axes of a sweep."""

    parameterization: str
    hp: str
    slopes: tuple[JointSlope, ...] = ()
    base_log2: float | None = None  # the fitted optimum at the base
    points: tuple[JointPoint, ...] = ()
    confounded: tuple[str, ...] = ()  # dimensions that move only together with those that have a slope
    left_out: tuple[str, ...] = ()  # shapes about which nothing is known
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DistinctShapes:
    """The distinct shapes of one parameterization over all axes, the base first, and draws of their optima."""

    parameterization: str
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    optima: tuple[Optimum, ...]
    drawn: DrawnOptima
    has_noise: bool


def joint_drift(distinct: DistinctShapes, hp: str) -> JointDrift:
    """Return the joint drift of one parameterization: the weighted regression of every draw of the optima.

    A shape weighs 1 / error^2. An optimum beyond the measured HPs counts as unbounded there.
    """
    blank = JointDrift(parameterization=distinct.parameterization, hp=hp)
    names = moving(distinct.shapes)
    if len(names) < 2:
        return replace(blank, why_not="fewer than two dimensions move: the drift along the axis says it all")
    if not distinct.has_noise:
        return replace(blank, why_not="one seed: optima have no error to weigh by")
    table = np.array([[_number(shape, name) for name in names] for shape in distinct.shapes])
    doublings = np.log2(table / table[0])
    known = [i for i, optimum in enumerate(distinct.optima) if optimum.kind != "none"]
    inside = [i for i in known if distinct.optima[i].kind == "interior"]
    kept, confounded = _independent(doublings[inside], names)
    left_out = tuple(name for i, name in enumerate(distinct.names) if i not in known)
    blank = replace(blank, confounded=confounded, left_out=left_out)
    if not kept:
        why = f"{len(inside)} shapes have an optimum inside the grid: too few to tell dimensions apart"
        return replace(blank, why_not=why)
    design = np.column_stack([np.ones(len(known)), doublings[known][:, kept]])
    drawn = distinct.drawn.of(known)
    error_I = np.array([half_width(draws_B) for draws_B in drawn.optimum_BI.T])
    root_I = 1 / np.maximum(error_I, LEAST_ERROR)
    solve_PI = np.linalg.pinv(design * root_I[:, None]) * root_I
    draws_BP = drawn.optimum_BI @ solve_PI.T
    at_P = np.median(draws_BP, axis=0)
    low_BP, high_BP = drawn.sums(solve_PI.T)
    slopes = []
    for p, k in enumerate(kept, start=1):
        low, high = interval(low_BP[:, p], high_BP[:, p])
        slope = float(at_P[p])
        se = half_width(draws_BP[:, p])
        slopes.append(JointSlope(dimension=names[k], octaves_per_doubling=slope, se=se, low=low, high=high))
    return replace(
        blank,
        slopes=tuple(slopes),
        base_log2=float(at_P[0]),
        points=tuple(
            JointPoint(
                shape=distinct.names[i],
                doublings=tuple(design[n, 1:].tolist()),
                log2_value=distinct.optima[i].log2_value if i in inside else None,
                low=distinct.optima[i].low_log2,
                high=distinct.optima[i].high_log2,
                fitted_log2=float(design[n] @ at_P),
            )
            for n, i in enumerate(known)
        ),
    )


def moving(shapes: Sequence[Shape]) -> tuple[str, ...]:
    """Return the dimensions that differ among shapes and have a logarithm at all of them."""
    out = []
    for name in DIMENSIONS:
        numbers = {_number(shape, name) for shape in shapes}
        if len(numbers) > 1 and min(numbers) > 0:
            out.append(name)
    return tuple(out)


def _number(shape: Shape, name: str) -> float:
    return float(getattr(shape, name))


def _independent(doublings: Floats, names: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """Return the columns that add to the rank, the first ones first, and the names of the others."""
    kept: list[int] = []
    for k in range(len(names)):
        design = np.column_stack([np.ones(len(doublings)), doublings[:, [*kept, k]]])
        if len(doublings) and np.linalg.matrix_rank(design) == len(kept) + 2:
            kept.append(k)
    return kept, tuple(name for k, name in enumerate(names) if k not in kept)


def _joint(inputs: Inputs) -> list[JointDrift]:
    return [drift for line in inputs.lines for drift in _of_line(line, inputs)]


def _of_line(line: JudgedLine, inputs: Inputs) -> list[JointDrift]:
    """Return the joint drift of each parameterization."""
    arms: dict[str, list[Estimates]] = {}
    for estimates in line.estimates:
        arms.setdefault(estimates.grid.parameterization, []).append(estimates)
    return [joint_drift(distinct_shapes(found, inputs), line.hp) for found in arms.values()]


def distinct_shapes(found: Sequence[Estimates], inputs: Inputs) -> DistinctShapes:
    """Return the distinct shapes of the axes of one parameterization. Their draws are joint."""
    places: dict[Shape, tuple[Estimates, int]] = {}
    for estimates in found:
        rows = estimates.grid.rows
        for i in sorted(range(len(rows)), key=lambda i: not rows[i].is_base):
            places.setdefault(inputs.shapes[rows[i].axis, rows[i].shape], (estimates, i))
    ordered = sorted(places.items(), key=lambda item: not item[1][0].grid.rows[item[1][1]].is_base)
    at = [place for _, place in ordered]
    return DistinctShapes(
        parameterization=found[0].grid.parameterization,
        names=tuple(estimates.grid.rows[i].shape for estimates, i in at),
        shapes=tuple(shape for shape, _ in ordered),
        optima=tuple(estimates.optima[i] for estimates, i in at),
        drawn=DrawnOptima.together([estimates.drawn([i]) for estimates, i in at]),
        has_noise=found[0].has_noise,
    )


JOINT = Statistic(
    name="joint",
    title="Drift along all axes at once",
    note="Octaves by which the optimum moves per doubling of one dimension, the others held; 95% intervals.",
    compute=_joint,
    parts="slopes",
)


TELLS = 2.0  # a wider interval holds all laws that a table claims, from -1 to 1


def wider_slope(
    values: Sequence[tuple[float, Mapping[int, float]]],
) -> tuple[float | None, float | None, float | None]:
    """Return the slope of log2 value over log2 scale, and its 95% interval. `values` holds scale -> seed -> value.

    Seeds that every scale has count. The interval is the wider of two by Student's t: that of the slopes of single
    seeds, and that of the line through the means of at least three scales. The first knows nothing of a curve that is
    no power law. The second knows nothing of luck that grows with the scale. None where a value is not above zero,
    where scales do not differ, where the interval is wider than TELLS, and for ends that nothing bounds.
    """
    seeds = sorted(set.intersection(*(set(of_seed) for _, of_seed in values))) if values else []
    value_SN = np.array([[of_seed[seed] for _, of_seed in values] for seed in seeds])
    x = np.log2([scale for scale, _ in values]) if values else np.zeros(0)
    if not value_SN.size or not (value_SN > 0).all() or np.ptp(x) == 0:
        return None, None, None
    dx = x - x.mean()
    y_SN = np.log2(value_SN)
    slope, low, high = mean_interval(y_SN @ dx / float(dx @ dx))
    half = 0.0 if low is None or high is None else (high - low) / 2
    if freedom := x.size - 2:
        mean_N = y_SN.mean(0)
        off_N = mean_N - mean_N.mean() - slope * dx
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
        half = max(half, t * math.sqrt(float(off_N @ off_N) / freedom / float(dx @ dx)))
    if 2 * half > TELLS:
        return None, None, None
    return (slope, slope - half, slope + half) if freedom or low is not None else (slope, None, None)
