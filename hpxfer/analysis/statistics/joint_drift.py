"""Joint drift: how far the optimum moves with each dimension, in one regression over the shapes of all axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpxfer.analysis.statistics.inputs import Inputs
from hpxfer.analysis.statistics.joint_regression import Regression, regression
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.bootstrap import Draws, SeedNoise
from hpxfer.verdict.drift import Observed
from hpxfer.verdict.estimate import Estimates, Fitted, estimate, fit_grid, noise_of
from hpxfer.verdict.loss_grid import Floats, LossGrid, ShapeLosses
from hpxfer.verdict.report import JudgedLine

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
    freedom: int | None = None
    confounded: tuple[str, ...] = ()  # dimensions that move only together with those that have a slope
    left_out: tuple[str, ...] = ()  # shapes about which nothing is known
    why_not: str | None = None


def joint_drift(fitted: Fitted, shapes: Sequence[Shape], noise: SeedNoise | None, hp: str) -> JointDrift:
    """Return the joint drift of one parameterization.

    The rows of the fitted grid are its distinct shapes over all axes, the base first, and `shapes` their dimensions.
    """
    rows = fitted.grid.rows
    blank = JointDrift(parameterization=fitted.grid.parameterization, hp=hp)
    names = moving(shapes)
    if len(names) < 2:
        return replace(blank, why_not="fewer than two dimensions move: the drift along the axis says it all")
    found = estimate(fitted, noise)
    if found.draws is None:
        return replace(blank, why_not="one seed, or no shape with three stable HPs: optima have no error to weigh by")
    table = np.array([[_number(shape, name) for name in names] for shape in shapes])
    doublings = np.log2(table / table[0])
    observed = _observed(found, found.draws)
    known = [i for i, shape in observed.items() if shape.value is not None]
    kept, confounded = _independent(doublings[known], names)
    left_out = tuple(row.shape for i, row in enumerate(rows) if i not in observed)
    blank = replace(blank, confounded=confounded, left_out=left_out)
    if not kept:
        why = f"{len(known)} shapes have an optimum inside the grid: too few to tell dimensions apart"
        return replace(blank, why_not=why)
    design = np.column_stack([np.ones(len(rows)), doublings[:, kept]])
    normal_BF = found.draws.normal_BF[:, [fitted.at[i] for i in known]]
    fit = regression(design[list(observed)], list(observed.values()), normal_BF, found.draws.freedom)
    return _filled(blank, [names[k] for k in kept], design, observed, fit)


def _filled(
    blank: JointDrift, names: Sequence[str], design: Floats, observed: dict[int, Observed], found: Regression
) -> JointDrift:
    """Return `blank` with the result of the regression over the observed shapes."""
    return replace(
        blank,
        slopes=tuple(
            JointSlope(dimension=name, octaves_per_doubling=float(slope), se=se, low=low, high=high)
            for name, slope, (se, low, high) in zip(names, found.at_P[1:], found.ends, strict=True)
        ),
        base_log2=float(found.at_P[0]),
        points=tuple(
            JointPoint(
                shape=shape.name,
                doublings=tuple(design[i, 1:].tolist()),
                log2_value=shape.value,
                low=shape.low if math.isfinite(shape.low) else None,
                high=shape.high if math.isfinite(shape.high) else None,
                fitted_log2=float(design[i] @ found.at_P),
            )
            for i, shape in observed.items()
        ),
        freedom=found.freedom,
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


def _observed(found: Estimates, draws: Draws) -> dict[int, Observed]:
    """Return the estimate of each fitted shape that bends, or the bounds of its optimum, by its index in the grid.

    All draws of an optimum far beyond the grid end at the same limit, which makes its error look small. The error of a
    bound is therefore at least that of the surest estimate.
    """
    at, rows = found.fitted.at, found.fitted.grid.rows
    known = {i: optimum for i, optimum in enumerate(found.optima) if optimum.kind != "none" and i in at}
    se = {i: float(draws.se_F[at[i]]) for i in known}
    surest = min((se[i] for i, optimum in known.items() if optimum.kind == "interior"), default=0.0)
    out = {}
    for i, optimum in known.items():
        inside = optimum.kind == "interior"
        out[i] = Observed(
            name=rows[i].shape,
            doublings=0.0,
            value=optimum.log2_value if inside else None,
            se=se[i] if inside else max(se[i], surest),
            low=-math.inf if optimum.low_log2 is None else optimum.low_log2,
            high=math.inf if optimum.high_log2 is None else optimum.high_log2,
        )
    return out


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
    """Return the joint drift of each parameterization. Seeds' noise is pooled over all of them."""
    distinct: dict[str, dict[Shape, ShapeLosses]] = {}
    for estimates in line.estimates:
        grid = estimates.fitted.grid
        for row in sorted(grid.rows, key=lambda row: not row.is_base):
            distinct.setdefault(grid.parameterization, {}).setdefault(inputs.shapes[row.axis, row.shape], row)
    fits = []
    for found in distinct.values():
        ordered = sorted(found.items(), key=lambda pair: not pair[1].is_base)
        grid = LossGrid(rows=tuple(row for _, row in ordered))
        fits.append((fit_grid(grid), [shape for shape, _ in ordered]))
    noise = noise_of(fitted for fitted, _ in fits)
    return [joint_drift(fitted, shapes, noise, line.hp) for fitted, shapes in fits]


JOINT = Statistic(
    name="joint",
    title="Drift along all axes at once",
    note="Octaves by which the optimum moves per doubling of one dimension, the others held; 95% intervals.",
    compute=_joint,
    parts="slopes",
)
