"""Scaling fits: loss against parameters at the transferred HP, as a line over the log and as a saturating power law."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.statistic import Found, Statistic, frame_of, listed
from hpxfer.analysis.statistics.transferred import transferred
from hpxfer.intervals import CONFIDENCE, RANDOM_SEED, Floats

# The fit of a saturating power law, floor + height * 2^(-exponent (x - middle)), and its draws.
#
# For a given exponent the law is linear in floor and height. The fit therefore searches the exponent alone (variable
# projection), for all draws of a bootstrap at once. Neither floor nor height may be negative.

# log2 of the exponents that are searched, evenly spaced: 12 per factor of two.
LOG2_EXPONENTS = np.linspace(-8.0, 2.0, 121)
FINE = 0.1  # of a step between them: the second, finer search is over this distance
LAW_DRAWS = 1000
# If the scatter about a law has a lower chance than this under the noise of seeds, all errors grow by the ratio of the
# two, as the Particle Data Group scales them (RPP 2024, 5.2.2).
SCATTER_CHANCE = 0.05
COEFFICIENTS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class PowerFit:
    """Fits to the data (row 0) and to B draws of it, over x = log2 of what scales."""

    floor_R: Floats  # R = 1 + B
    height_R: Floats  # at the middle
    exponent_R: Floats
    middle: float
    residual_N: Floats  # data minus fit
    widened: float  # the factor by which errors grew, as y scatters about the law beyond chance; else 1
    noise: float | None  # of one y, from the scatter, if no errors are given; None without a fourth point
    freedom: int  # degrees of freedom of the final errors
    at_end: bool  # the exponent is at an end of the range searched, so that there is no such law

    def loss(self, x: float) -> Floats:
        """Return the loss of each fit at `x`, (R,)."""
        return np.asarray(self.floor_R + self.height_R * 2.0 ** (-self.exponent_R * (x - self.middle)))


def fit_power(x: Floats, y: Floats, se: Floats | None, freedom: int) -> PowerFit:
    """Return the law through (x, y) and its draws.

    `se` are the errors of y, with `freedom` degrees of freedom. Draws are normal with Student's tails. If y scatters
    about the law beyond chance, they grow by the ratio, as everywhere in this package. Without `se`, draws are as wide
    as y scatters, with N - 3 degrees of freedom. Three points without `se` have no draws.
    """
    middle = float(x.mean())
    weight = np.ones_like(y) if se is None else 1 / np.maximum(se, 1e-12) ** 2
    first = _search(x - middle, y[None], weight)
    fit = (first[0] + first[1] * 2.0 ** (-first[2] * (x - middle)[:, None]).T)[0]
    residual = y - fit
    rng = np.random.default_rng(RANDOM_SEED)
    spare = x.size - COEFFICIENTS
    if se is None:
        if spare < 1:
            return _power(first, first, middle, residual, freedom=0)
        scatter, freedom = math.sqrt(float(residual @ residual) / spare), spare
        noise = np.full_like(y, scatter)
    else:
        noise, scatter = se, None
    ratio = 1.0
    normal_BN = rng.standard_normal((LAW_DRAWS, x.size)) * noise
    tail_B = np.sqrt(freedom / rng.chisquare(freedom, LAW_DRAWS))
    drawn = _search(x - middle, fit + normal_BN * tail_B[:, None], weight)
    if se is not None and spare > 0:
        fitted_BN = drawn[0][:, None] + drawn[1][:, None] * 2.0 ** (-drawn[2][:, None] * (x - middle))
        squares_B = ((fit + normal_BN * tail_B[:, None] - fitted_BN) ** 2) @ weight / tail_B**2
        ratio = scatter_ratio(float(weight @ residual**2), squares_B, tail_B)
        if ratio > 1:
            freedom = min(freedom, spare)
            tail_B = ratio * np.sqrt(freedom / rng.chisquare(freedom, LAW_DRAWS))
            drawn = _search(x - middle, fit + normal_BN * tail_B[:, None], weight)
    return _power(first, drawn, middle, residual, freedom=freedom, widened=ratio, noise=scatter)


def _power(
    first: tuple[Floats, Floats, Floats],
    drawn: tuple[Floats, Floats, Floats],
    middle: float,
    residual: Floats,
    *,
    freedom: int,
    widened: float = 1.0,
    noise: float | None = None,
) -> PowerFit:
    floor, height, exponent = (np.concatenate(pair) for pair in zip(first, drawn, strict=True))
    ends = 2.0 ** LOG2_EXPONENTS[[0, -1]]
    at_end = bool(height[0] <= 0 or exponent[0] <= ends[0] or exponent[0] >= ends[1])
    return PowerFit(
        floor_R=floor,
        height_R=height,
        exponent_R=exponent,
        middle=middle,
        residual_N=residual,
        widened=widened,
        noise=noise,
        freedom=freedom,
        at_end=at_end,
    )


def _search(u: Floats, y_RN: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return floor, height and exponent with the least weighted sum of squares, for every row of y."""
    squares = np.stack([_linear(u, y_RN, weight, 2.0**at)[2] for at in LOG2_EXPONENTS], axis=1)
    best = np.argmin(squares, axis=1)
    inner = np.clip(best, 1, LOG2_EXPONENTS.size - 2)
    rows = np.arange(best.size)
    before, here, after = (squares[rows, inner + step] for step in (-1, 0, 1))
    bend = before - 2 * here + after
    shift = np.where(bend > 0, 0.5 * (before - after) / np.where(bend > 0, bend, 1.0), 0.0)
    step = LOG2_EXPONENTS[1] - LOG2_EXPONENTS[0]
    moved = np.where(best == inner, LOG2_EXPONENTS[inner] + np.clip(shift, -0.5, 0.5) * step, LOG2_EXPONENTS[best])
    fine = FINE * step  # the parabola over a whole step is off by more than small errors are, so search once more
    before, here, after = (_linear(u, y_RN, weight, 2.0 ** (moved + by)[:, None])[2] for by in (-fine, 0.0, fine))
    bend = before - 2 * here + after
    shift = np.where(bend > 0, 0.5 * (before - after) / np.where(bend > 0, bend, 1.0), 0.0)
    exponent = 2.0 ** np.where(best == inner, moved + np.clip(shift, -1, 1) * fine, moved)
    floor, height, _ = _linear(u, y_RN, weight, exponent[:, None])
    return floor, height, exponent


def _linear(u: Floats, y_RN: Floats, weight: Floats, exponent: float | Floats) -> tuple[Floats, Floats, Floats]:
    """Return floor and height of each row at given exponents, neither below 0, and the weighted sum of squares."""
    falls = np.broadcast_to(2.0 ** (-exponent * u), y_RN.shape)
    total = weight.sum()
    mean_f, mean_y = falls @ weight / total, y_RN @ weight / total
    df, dy = falls - mean_f[:, None], y_RN - mean_y[:, None]
    height = np.maximum((df * dy) @ weight / np.maximum((df * df) @ weight, 1e-300), 0.0)
    floor = mean_y - height * mean_f
    alone = (falls * y_RN) @ weight / ((falls * falls) @ weight)
    height, floor = np.where(floor < 0, np.maximum(alone, 0.0), height), np.maximum(floor, 0.0)
    residual_RN = y_RN - floor[:, None] - height[:, None] * falls
    return floor, height, (residual_RN**2) @ weight


def scatter_ratio(found: float, drawn_B: Floats, tail_B: Floats) -> float:
    """Return sqrt(found / mean of draws) if fewer than SCATTER_CHANCE of the draws, with their tails, reach `found`.

    Otherwise return 1: the scatter is within chance.
    """
    usual = float(drawn_B.mean())
    if usual <= 0 or found <= usual or float(np.mean(drawn_B * tail_B**2 >= found)) >= SCATTER_CHANCE:
        return 1.0
    return math.sqrt(found / usual)


Count = Literal["total", "active", "total without embedding", "active without embedding"]
COUNTS: tuple[Count, ...] = ("total", "active", "total without embedding", "active without embedding")
LAW_POINTS = 60  # of a power law as it is drawn
LAW_SHAPES = 4  # the law has three coefficients: with one more shape it can fail


@dataclass(frozen=True, kw_only=True)
class FitPoint:
    """One shape: its number of parameters, counted as the fit says, and its loss, mean over seeds."""

    shape: str
    axis: str
    params: float
    loss_nats: float
    se_nats: float | None  # from seeds, pooled over shapes; None with one seed
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class LossFit:
    """loss = intercept + slope log2(params), least squares over the shapes of all axes of one parameterization."""

    slope: float  # nats per doubling
    slope_low: float | None  # 95%, from the scatter about the line; None below three shapes
    slope_high: float | None
    intercept: float
    r2: float | None  # None below three points

    def loss(self, params: float) -> float:
        """Return the loss on the line in nats."""
        return self.intercept + self.slope * math.log2(params)


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """loss = floor + (scale / params)^exponent, with 95% intervals from a bootstrap over seeds and residuals."""

    floor: float  # nats
    log2_scale: float
    exponent: float
    floor_low: float
    floor_high: float
    exponent_low: float
    exponent_high: float
    r2: float | None
    num_draws: int

    def loss(self, params: float) -> float:
        """Return the fitted loss in nats."""
        return float(self.floor + (2.0**self.log2_scale / params) ** self.exponent)


def loss_fit(points: Sequence[FitPoint]) -> LossFit | str:
    """Return the line through the losses of distinct shapes over log2 parameters, or why there is none."""
    x, y = np.log2([point.params for point in points]), np.array([point.loss_nats for point in points])
    if len(set(x.tolist())) < 2:
        return f"{len(set(x.tolist()))} different sizes have a finite loss, 2 are needed"
    dx, dy = x - x.mean(), y - y.mean()
    spread, rise = float(dx @ dx), float(dy @ dy)
    slope = float(dx @ dy) / spread
    squares = float(np.sum((dy - slope * dx) ** 2))
    freedom = x.size - 2
    half = None
    if freedom:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(squares / freedom / spread)
    return LossFit(
        slope=slope,
        slope_low=None if half is None else slope - half,
        slope_high=None if half is None else slope + half,
        intercept=float(y.mean() - slope * x.mean()),
        r2=1 - squares / rise if rise > 0 and freedom else None,
    )


def power_law(points: Sequence[FitPoint], freedom: int) -> PowerLaw | str:
    """Return the law through the losses of distinct shapes, or why there is none.

    `freedom` is the degrees of freedom of the errors of the points.
    """
    num = len({point.params for point in points})
    if num < LAW_SHAPES:
        return f"{num} different sizes have a finite loss, {LAW_SHAPES} are needed"
    x, y = np.log2([point.params for point in points]), np.array([point.loss_nats for point in points])
    errors = [point.se_nats for point in points if point.se_nats]
    se = np.array(errors) if len(errors) == len(points) else None
    fit = fit_power(x, y, se, freedom)
    if fit.at_end:
        return "the losses do not fall off like a power of the parameters"
    exponent, height = float(fit.exponent_R[0]), float(fit.height_R[0])
    low, high = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    floors, exponents = (np.quantile(draws[1:], [low, high]) for draws in (fit.floor_R, fit.exponent_R))
    rise = float(np.sum((y - y.mean()) ** 2))
    return PowerLaw(
        floor=float(fit.floor_R[0]),
        log2_scale=fit.middle + math.log2(height) / exponent,
        exponent=exponent,
        floor_low=float(floors[0]),
        floor_high=float(floors[1]),
        exponent_low=float(exponents[0]),
        exponent_high=float(exponents[1]),
        r2=1 - float(np.sum(fit.residual_N**2)) / rise if rise > 0 else None,
        num_draws=fit.floor_R.size - 1,
    )


def pooled_noise(losses: Iterable[Sequence[float]]) -> tuple[float | None, int]:
    """Return the standard deviation of one seed's loss, pooled over shapes, and its degrees of freedom."""
    groups = [np.asarray(of_shape, dtype=float) for of_shape in losses if len(of_shape)]
    freedom = sum(group.size - 1 for group in groups)
    if not freedom:
        return None, 0
    return math.sqrt(sum(float(np.sum((group - group.mean()) ** 2)) for group in groups) / freedom), freedom


Labels = dict[str, Any]  # parameterization, hp, value and count of a fit


def _fits(inputs: Inputs) -> list[tuple[Labels, list[FitPoint], LossFit | str]]:
    """Return the points and the line for each parameterization and way to count parameters."""
    return [(labels, points, loss_fit(points)) for labels, points, _ in _each(inputs)]


def power_laws(inputs: Inputs) -> list[tuple[Labels, PowerLaw | str]]:
    """Return the law for each parameterization and way to count parameters, or why there is none."""
    return [(labels, power_law(points, freedom)) for labels, points, freedom in _each(inputs)]


def _each(inputs: Inputs) -> Iterator[tuple[Labels, list[FitPoint], int]]:
    for label, (value, _) in inputs.once(transferred).over_all.items():
        for count in COUNTS:
            labels = {"parameterization": label, "hp": inputs.hp, "count": count, "value": value}
            yield labels, *(([], 0) if value is None else _points(inputs, label, count))


def _points(inputs: Inputs, label: str, count: Count) -> tuple[list[FitPoint], int]:
    """Return the distinct shapes with finite losses that trained on the base's schedule, by parameters.

    Also return the degrees of freedom of their errors.
    """
    known = inputs.once(transferred)
    _, every = known.over_all[label]
    base = next((trained.shape for trained in every if trained.row.is_base), None)
    schedule = None if base is None else (base.batch_tokens, base.steps)
    kept = [
        trained
        for trained in every
        if trained.cell.mean is not None and (trained.shape.batch_tokens, trained.shape.steps) == schedule
    ]
    noise, freedom = pooled_noise([trained.cell.losses for trained in kept])
    points = [
        FitPoint(
            shape=trained.row.shape,
            axis=trained.row.axis,
            params=known.params[trained.trials[0]][count],
            loss_nats=trained.cell.mean or 0.0,
            se_nats=None if noise is None else noise / len(trained.cell.losses) ** 0.5,
            num_seeds=len(trained.cell.losses),
        )
        for trained in kept
    ]
    return sorted((point for point in points if point.params > 0), key=lambda point: point.params), freedom


LABELS = {
    "parameterization": "the arm",
    "hp": "the judged HP",
    "count": "how parameters are counted",
    "value": "of the HP, transferred from the base to every shape",
}
LINE = {
    **LABELS,
    "slope": "nats per doubling of the parameters",
    "slope_low": "its 95% interval, from the scatter about the line; None below three shapes",
    "slope_high": "its upper end",
    "intercept": "nats, at one parameter",
    "r2": "share of the variance that the line explains; None below three shapes",
}
LAW = {
    **LABELS,
    "floor": "nats",
    "log2_scale": "of the parameters at which the power is one nat",
    "exponent": "of the power",
    "floor_low": "95% interval of the floor, nats",
    "floor_high": "its upper end",
    "exponent_low": "95% interval of the exponent",
    "exponent_high": "its upper end",
    "r2": "share of the variance that the law explains",
    "num_draws": "of the bootstrap",
}
POINTS = {
    "count": "how parameters are counted",
    "parameterization": "the arm",
    "axis": "the axis of the sweep",
    "shape": "the name of the shape; None for a point of a law between shapes",
    "params": "parameters",
    "loss_nats": "mean over seeds at the transferred HP",
    "se_nats": "its standard error, from seeds, pooled over shapes; None with one seed",
    "num_seeds": "of the mean",
    "line_nats": "on the line in the logarithm",
    "power_law_nats": "of the saturating power law",
    "r2": "share of the variance that the line explains",
}
TITLE_COUNT: Count = "active"  # the count that a title is about, where there is one


def _lines(inputs: Inputs) -> Found:
    rows, unknown = list[Labels](), []
    for labels, _, fit in inputs.once(_fits):
        if isinstance(fit, str):
            unknown.append((_name(labels), NO_BASE_VALUE if labels["value"] is None else fit))
        else:
            rows.append({**labels, **asdict(fit)})
    frame = frame_of(rows, LINE)
    return Found(frame=frame, title=slopes(frame), unknown=tuple(unknown))


def _laws(inputs: Inputs) -> Found:
    rows, unknown = list[Labels](), []
    for labels, law in inputs.once(power_laws):
        if isinstance(law, str):
            unknown.append((_name(labels), NO_BASE_VALUE if labels["value"] is None else law))
        else:
            rows.append({**labels, **asdict(law)})
    frame = frame_of(rows, LAW)
    said = [
        f"{row.parameterization} exponent {row.exponent:.2g} over a floor of {row.floor:.3g}"
        for row in frame[frame["count"] == TITLE_COUNT].itertuples()
    ]
    return Found(frame=frame, title=listed(said), unknown=tuple(unknown))


def _name(labels: Labels) -> str:
    return f"{labels['parameterization']} {labels['hp']} {labels['count']}"


def slopes(frame: pd.DataFrame) -> str:
    """Return the slope of each arm, e.g. `per doubling of active parameters: mup -0.03`."""
    if frame.empty:
        return ""
    count = TITLE_COUNT if (frame["count"] == TITLE_COUNT).any() else frame["count"].iloc[0]
    said = [f"{row.parameterization} {row.slope:+.3f}" for row in frame[frame["count"] == count].itertuples()]
    return f"nats per doubling of {count} parameters: {listed(said)}"


def _by_size(inputs: Inputs) -> Found:
    """Return the points of every count with its line and its law. A law bends, so that points between shapes follow."""
    law_of = {_name(labels): law for labels, law in inputs.once(power_laws)}
    rows = []
    for labels, points, fit in inputs.once(_fits):
        of, law = {name: labels[name] for name in ("count", "parameterization")}, law_of[_name(labels)]
        sizes = [point.params for point in points]
        line = {at: None if isinstance(fit, str) else fit.loss(at) for at in sizes}
        bent = [] if isinstance(law, str) or not sizes else np.geomspace(min(sizes), max(sizes), LAW_POINTS).tolist()
        rows += [
            {
                **of,
                **asdict(point),
                "line_nats": line[point.params],
                "power_law_nats": _of_law(law, point.params),
                "r2": None if isinstance(fit, str) else fit.r2,
            }
            for point in points
        ]
        rows += [{**of, "params": at, "power_law_nats": _of_law(law, at)} for at in bent]
    return Found(frame=frame_of(rows, POINTS))


def _of_law(law: PowerLaw | str, params: float) -> float | None:
    return None if isinstance(law, str) else law.loss(params)


LOSS_FITS = Statistic(
    name="loss_fits",
    title="How does the loss fall with the logarithm of the parameters?",
    note="A straight line; nats per doubling.",
    compute=_lines,
    columns=LINE,
)
POWER_LAWS = Statistic(
    name="power_laws",
    title="Does the loss saturate?",
    note="loss = floor + (2^log2_scale / parameters)^exponent; 95% intervals.",
    compute=_laws,
    columns=LAW,
)
LOSSES_BY_SIZE = Statistic(
    name="losses_by_size",
    title="The losses of all shapes by their parameters",
    compute=_by_size,
    columns=POINTS,
    is_table=False,
)
