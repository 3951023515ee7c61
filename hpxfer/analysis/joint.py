"""Joint drift: how far the optimum moves with each dimension, in one regression over the shapes of all axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, stats

from hpxfer.analysis.basin import Basin
from hpxfer.analysis.bootstrap import Draws, draw_optima, pool_noise, scatter_ratio
from hpxfer.analysis.cube import Floats
from hpxfer.analysis.drift import TINY, Observed, log_between
from hpxfer.analysis.estimate import Fitted, estimate, fitted
from hpxfer.analysis.optimum import Optimum
from hpxfer.analysis.thresholds import CONFIDENCE
from hpxfer.scaling.shape import Shape

# What a shape is measured by, the first ones first where they move together.
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
FAR = 1e15  # negative log likelihood, where it has no number
FINEST = 1e-4  # octaves: an error below is that of a fit to losses without noise, and only hinders the search
REACH = 1e4  # errors of a coefficient within which it is looked for
MOST_STEPS = 5  # threefold each: an interval that is 200 errors long is open


@dataclass(frozen=True, kw_only=True)
class JointSlope:
    """Octaves of the optimum per doubling of one dimension, the others held. An interval is open where it is None."""

    dimension: str  # e.g. `width`
    octaves_per_doubling: float
    se: float | None  # None without two seeds
    low: float | None  # 95%
    high: float | None


@dataclass(frozen=True, kw_only=True)
class JointPoint:
    """A shape as the regression sees it: its doublings of every dimension over the base, and its optimum or bound."""

    shape: str
    doublings: tuple[float, ...]  # in the order of the slopes
    log2_value: float | None  # None for a bound
    low: float | None  # what the optimum is known to lie above; None is unknown
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
    confounded: tuple[str, ...] = ()  # dimensions that move only together with those of the slopes
    left_out: tuple[str, ...] = ()  # shapes of which nothing is known
    why_not: str | None = None


def joint_drift(every: Sequence[tuple[Basin, Shape]], groups: Sequence[Sequence[Basin]], hp: str) -> JointDrift:
    """Return the joint drift of one parameterization: its basins, a distinct shape each, the base first.

    `groups` are those of all parameterizations, from which the seeds' noise is pooled.
    """
    bare = JointDrift(parameterization=every[0][0].parameterization, hp=hp)
    names = moving([shape for _, shape in every])
    if len(names) < 2:
        return replace(bare, why_not="fewer than two dimensions move: the drift along the axis says it all")
    fits = [fitted(group) for group in groups]
    noise = pool_noise([(one.cube, one.fit) for one in fits if one.fit is not None])
    one = fitted([basin for basin, _ in every])
    if noise is None or one.fit is None:
        return replace(bare, why_not="one seed, or no shape with three stable HPs: optima have no error to weigh by")
    table = np.array([[_number(shape, name) for name in names] for _, shape in every])
    doublings = np.log2(table / table[0])
    draws = draw_optima(one.cube, one.fit, noise)
    rows = _observed(one, estimate(one, noise).optima, draws)
    known = [i for i, row in rows.items() if row.value is not None]
    kept, confounded = _independent(doublings[known], names)
    out = tuple(basin.shape for i, (basin, _) in enumerate(every) if i not in rows)
    bare = replace(bare, confounded=confounded, left_out=out)
    if not kept:
        why = f"{len(known)} shapes have an optimum inside the grid: too few to tell dimensions apart"
        return replace(bare, why_not=why)
    design = np.column_stack([np.ones(len(every)), doublings[:, kept]])
    normal_BF = draws.normal_BF[:, [one.at[i] for i in known]]
    found = _regression(design[list(rows)], list(rows.values()), normal_BF, draws.freedom)
    return _told(bare, [names[k] for k in kept], [basin.shape for basin, _ in every], design, rows, found)


def _told(
    bare: JointDrift,
    names: Sequence[str],
    shapes: Sequence[str],
    design: Floats,
    rows: dict[int, Observed],
    found: _Regression,
) -> JointDrift:
    """Return `bare` with what the regression over the shapes in `rows` found."""
    return replace(
        bare,
        slopes=tuple(
            JointSlope(dimension=name, octaves_per_doubling=float(slope), se=se, low=low, high=high)
            for name, slope, (se, low, high) in zip(names, found.at_P[1:], found.ends, strict=True)
        ),
        base_log2=float(found.at_P[0]),
        points=tuple(
            JointPoint(
                shape=shapes[i],
                doublings=tuple(design[i, 1:].tolist()),
                log2_value=row.value,
                low=row.low if math.isfinite(row.low) else None,
                high=row.high if math.isfinite(row.high) else None,
                fitted_log2=float(design[i] @ found.at_P),
            )
            for i, row in rows.items()
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


def _observed(one: Fitted, optima: Sequence[Optimum], draws: Draws) -> dict[int, Observed]:
    """Return what is known of each shape that is fitted and bends: its estimate, or the range its optimum is in.

    Draws of an optimum far beyond the grid all end where it is followed to, which is no small error: a bound is no
    surer than the surest estimate.
    """
    told = {i: optimum for i, optimum in enumerate(optima) if optimum.kind != "none" and i in one.at}
    se = {i: float(draws.se_F[one.at[i]]) for i in told}
    surest = min((se[i] for i, optimum in told.items() if optimum.kind == "interior"), default=0.0)
    out = {}
    for i, optimum in told.items():
        inside = optimum.kind == "interior"
        out[i] = Observed(
            name=one.group[i].shape,
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Regression:
    at_P: Floats  # the base's optimum, then the slopes
    ends: tuple[tuple[float | None, float | None, float | None], ...]  # of each slope: se, low, high
    freedom: int


def _regression(design: Floats, rows: Sequence[Observed], normal_BF: Floats, freedom: int) -> _Regression:
    """Return the weighted regression of estimates, in one likelihood with the bounds, as `drift.fit_observed` does."""
    known = [i for i, row in enumerate(rows) if row.value is not None]
    y = np.array([rows[i].value for i in known], dtype=float)
    root = 1 / np.maximum(np.array([rows[i].se for i in known]), TINY)
    solve = np.linalg.pinv(design[known] * root[:, None]) * root
    at = solve @ y
    change_BP = (normal_BF - y) @ solve.T
    left_B = (((normal_BF - y) - change_BP @ design[known].T) * root) ** 2 @ np.ones(len(known))
    spare, ratio = len(known) - at.size, 1.0
    if spare > 0:
        tail_B = np.sqrt(freedom / np.random.default_rng(0).chisquare(freedom, len(left_B)))
        ratio = scatter_ratio(float(np.sum(((y - design[known] @ at) * root) ** 2)), left_B, tail_B)
        freedom = min(freedom, spare) if ratio > 1 else freedom
    low, high = np.quantile(change_BP, stats.norm.cdf([-1, 1]), axis=0)
    se = np.maximum(ratio * (high - low) / 2, TINY)
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    if len(known) == len(rows):
        ends = tuple((float(s), float(b - t * s), float(b + t * s)) for b, s in zip(at[1:], se[1:], strict=True))
        return _Regression(at_P=at, ends=ends, freedom=freedom)
    likelihood = _Likelihood(design=design, rows=tuple(replace(row, se=row.se * ratio) for row in rows))
    best = likelihood.best(at)
    sides = [(likelihood.end(best, p, -se[p], t), likelihood.end(best, p, se[p], t)) for p in range(1, at.size)]
    return _Regression(
        at_P=best,
        ends=tuple((_half(float(best[p]), *side, t), *side) for p, side in enumerate(sides, start=1)),
        freedom=freedom,
    )


def _half(at: float, low: float | None, high: float | None, t: float) -> float | None:
    """Return the error that the longer side of an interval stands for."""
    sides = [abs(end - at) for end in (low, high) if end is not None]
    return max(sides) / t if sides else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Likelihood:
    """Normal about the plane, where a bound counts by its probability (Tobit): concave in the coefficients."""

    design: Floats
    rows: tuple[Observed, ...]

    def cost(self, at: Floats) -> tuple[float, Floats]:
        """Return the negative log likelihood and its gradient."""
        value, se, low, high = (
            np.array([np.nan if (one := getattr(row, name)) is None else one for row in self.rows], dtype=float)
            for name in ("value", "se", "low", "high")
        )
        se = np.maximum(se, FINEST)
        known, mu = ~np.isnan(value), self.design @ at
        z = np.where(known, (np.where(known, value, 0.0) - mu) / se, 0.0)
        a, b = np.where(known, -np.inf, (low - mu) / se), np.where(known, np.inf, (high - mu) / se)
        with np.errstate(divide="ignore", over="ignore"):
            inside = np.maximum(log_between(a, b), -FAR)
            pull = np.exp(stats.norm.logpdf(a) - inside) - np.exp(stats.norm.logpdf(b) - inside)
        slope = np.where(known, z, pull) / se
        return float(np.sum(np.where(known, z**2 / 2, -inside))), -(slope @ self.design)

    def best(self, start: Floats, held: int | None = None) -> Floats:
        """Return the coefficients of greatest likelihood, with one of them held."""
        free = [p for p in range(start.size) if p != held]
        # In these units the curvature is at most one, so that the first step of the search does not overshoot.
        weighted = self.design[:, free] / np.maximum([[row.se] for row in self.rows], FINEST)
        unit = np.linalg.inv(np.linalg.qr(weighted, mode="r"))

        def cost(part: Floats) -> tuple[float, Floats]:
            whole = start.copy()
            whole[free] += unit @ part
            value, slope = self.cost(whole)
            return value, slope[free] @ unit

        out = start.copy()
        reach = [(-REACH, REACH)] * len(free)
        out[free] += unit @ optimize.minimize(cost, np.zeros(len(free)), jac=True, method="L-BFGS-B", bounds=reach).x
        return out

    def end(self, best: Floats, p: int, step: float, t: float) -> float | None:
        """Return where the profile of a coefficient has fallen by t^2 / 2 towards `step`; None if it never does."""
        limit, at = self.cost(best)[0] + t**2 / 2, best.copy()

        def over(value: float) -> float:
            at[p] = value
            return self.cost(self.best(at, held=p))[0] - limit

        inner, outer = float(best[p]), float(best[p]) + step
        for _ in range(MOST_STEPS):
            if over(outer) > 0:
                return float(optimize.brentq(over, inner, outer, xtol=abs(step) * 1e-3))
            inner, outer = outer, outer + 2 * (outer - float(best[p]))
        return None
