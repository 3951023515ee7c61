"""Joint drift: how far the optimum moves with each dimension, in one regression over the shapes of all axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, frame_of
from hpxfer.intervals import CONFIDENCE, Floats, half_width, interval, mean_interval
from hpxfer.scaling.shape import Shape
from hpxfer.verdict import DrawnOptima, Estimates, Optimum

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


COLUMNS = {
    "parameterization": "the arm",
    "hp": "an HP that is scanned",
    "dimension": "of the shapes, e.g. `width`",
    "octaves_per_doubling": "of the optimum per doubling of the dimension, at fixed others",
    "se": "its standard error; None without two seeds",
    "low": "its 95% interval; None leaves it open",
    "high": "its upper end",
    "base_log2": "the fitted optimum at the base",
    "confounded": "dimensions that move only together with those that have a slope",
    "left_out": "shapes about which nothing is known",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class DistinctShapes:
    """The distinct shapes of one parameterization over all axes, the base first, and draws of their optima."""

    parameterization: str
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    optima: tuple[Optimum, ...]
    drawn: DrawnOptima
    has_noise: bool


def joint_drift(distinct: DistinctShapes, hp: str) -> list[dict[str, Any]] | str:
    """Return a row per slope of one arm: the weighted regression of every draw of the optima. Or why there is none.

    A shape weighs 1 / error^2. An optimum beyond the measured HPs counts as unbounded there.
    """
    names = moving(distinct.shapes)
    if len(names) < 2:
        return "fewer than two dimensions move: the drift along the axis says it all"
    if not distinct.has_noise:
        return "one seed: optima have no error to weigh by"
    table = np.array([[_number(shape, name) for name in names] for shape in distinct.shapes])
    doublings = np.log2(table / table[0])
    known = [i for i, optimum in enumerate(distinct.optima) if optimum.kind != "none"]
    inside = [i for i in known if distinct.optima[i].kind == "interior"]
    kept, confounded = _independent(doublings[inside], names)
    if not kept:
        return f"{len(inside)} shapes have an optimum inside the grid: too few to tell dimensions apart"
    design = np.column_stack([np.ones(len(known)), doublings[known][:, kept]])
    drawn = distinct.drawn.of(known)
    error_I = np.array([half_width(draws_B) for draws_B in drawn.optimum_BI.T])
    root_I = 1 / np.maximum(error_I, LEAST_ERROR)
    solve_PI = np.linalg.pinv(design * root_I[:, None]) * root_I
    draws_BP = drawn.optimum_BI @ solve_PI.T
    at_P = np.median(draws_BP, axis=0)
    low_BP, high_BP = drawn.sums(solve_PI.T)
    of = {"parameterization": distinct.parameterization, "hp": hp, "base_log2": float(at_P[0])}
    of["confounded"] = ", ".join(confounded) or None
    of["left_out"] = ", ".join(name for i, name in enumerate(distinct.names) if i not in known) or None
    rows = []
    for p, k in enumerate(kept, start=1):
        low, high = interval(low_BP[:, p], high_BP[:, p])
        slope, se = float(at_P[p]), half_width(draws_BP[:, p])
        rows.append({**of, "dimension": names[k], "octaves_per_doubling": slope, "se": se, "low": low, "high": high})
    return rows


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


def _joint(inputs: Inputs) -> Found:
    rows, unknown = list[dict[str, Any]](), []
    for line in inputs.lines:
        by_arm: dict[str, list[Estimates]] = {}
        for estimates in line.estimates:
            by_arm.setdefault(estimates.grid.parameterization, []).append(estimates)
        for name, found in by_arm.items():
            slopes = joint_drift(distinct_shapes(found, inputs), line.hp)
            if isinstance(slopes, str):
                unknown.append((f"{name} {line.hp}", slopes))
            else:
                rows += slopes
    frame = frame_of(rows, COLUMNS)
    of_judged = frame[frame["hp"] == inputs.hp]
    said = [
        f"{name} " + ", ".join(f"{slope:+.2f} with {dimension}" for dimension, slope in _rounded(of))
        for name, of in arms(of_judged)
    ]
    title = f"octaves of {inputs.hp} per doubling of each dimension: {'; '.join(said)}" if said else ""
    return Found(frame=frame, title=title, unknown=tuple(unknown))


def _rounded(slopes: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield each dimension and its slope, without a minus before zero."""
    for dimension, slope in zip(slopes["dimension"], slopes["octaves_per_doubling"], strict=True):
        yield dimension, round(float(slope), 2) + 0.0


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
    title="How does the optimum move with each dimension?",
    note="Octaves by which the optimum moves per doubling of one dimension, the others held; 95% intervals.",
    compute=_joint,
    columns=COLUMNS,
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
    x, value_SN = by_common_seed(values)
    if not value_SN.size or not (value_SN > 0).all() or np.ptp(x) == 0:
        return None, None, None
    slope, low, high = slope_of_seeds(x, np.log2(value_SN))
    return (None, None, None) if low is not None and high is not None and high - low > TELLS else (slope, low, high)


def by_common_seed(values: Sequence[tuple[float, Mapping[int, float]]]) -> tuple[Floats, Floats]:
    """Return log2 scale (N,) and the values (S, N) of the seeds that every scale has."""
    seeds = sorted(set.intersection(*(set(of_seed) for _, of_seed in values))) if values else []
    value_SN = np.array([[of_seed[seed] for _, of_seed in values] for seed in seeds])
    return (np.log2([scale for scale, _ in values]) if values else np.zeros(0)), value_SN


def slope_of_seeds(x: Floats, y_SN: Floats) -> tuple[float, float | None, float | None]:
    """Return the slope of y over x, and its 95% interval as in `wider_slope`; None for ends that nothing bounds."""
    dx = x - x.mean()
    slope, low, high = mean_interval(y_SN @ dx / float(dx @ dx))
    half = 0.0 if low is None or high is None else (high - low) / 2
    if freedom := x.size - 2:
        mean_N = y_SN.mean(0)
        off_N = mean_N - mean_N.mean() - slope * dx
        t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
        half = max(half, t * math.sqrt(float(off_N @ off_N) / freedom / float(dx @ dx)))
    return (slope, slope - half, slope + half) if freedom or low is not None else (slope, None, None)
