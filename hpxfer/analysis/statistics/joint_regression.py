"""The regression behind the joint drift: optima and bounds on the dimensions of their shapes, in one likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, stats

from hpxfer.verdict.bootstrap import scatter_ratio
from hpxfer.verdict.drift import TINY, Observed, log_between
from hpxfer.verdict.loss_grid import Floats
from hpxfer.verdict.thresholds import CONFIDENCE

FAR = 1e15  # the negative log likelihood where it is not finite
FINEST = 1e-4  # octaves: smaller errors come from losses without noise, and only hinder the search
SEARCHED = 1e4  # a coefficient is searched within this many of its errors
MAX_STEPS = 5  # threefold each: an interval longer than 200 errors counts as open


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression:
    """The coefficients, and for each slope its standard error and the ends of its 95% interval (None: open)."""

    at_P: Floats  # the base's optimum, then the slopes
    ends: tuple[tuple[float | None, float | None, float | None], ...]  # se, low, high
    freedom: int


def regression(design: Floats, rows: Sequence[Observed], normal_BF: Floats, freedom: int) -> Regression:
    """Return the weighted regression of estimates, in one likelihood with the bounds, as `drift.fit_observed` does.

    `normal_BF` are the draws of the shapes that have an estimate, in their order.
    """
    known = [i for i, row in enumerate(rows) if row.value is not None]
    y = np.array([rows[i].value for i in known], dtype=float)
    root = 1 / np.maximum(np.array([rows[i].se for i in known]), TINY)
    solve = np.linalg.pinv(design[known] * root[:, None]) * root
    at = solve @ y
    change_BP = (normal_BF - y) @ solve.T
    squares_B = (((normal_BF - y) - change_BP @ design[known].T) * root) ** 2 @ np.ones(len(known))
    spare, ratio = len(known) - at.size, 1.0
    if spare > 0:
        tail_B = np.sqrt(freedom / np.random.default_rng(0).chisquare(freedom, len(squares_B)))
        ratio = scatter_ratio(float(np.sum(((y - design[known] @ at) * root) ** 2)), squares_B, tail_B)
        freedom = min(freedom, spare) if ratio > 1 else freedom
    low, high = np.quantile(change_BP, stats.norm.cdf([-1, 1]), axis=0)
    se = np.maximum(ratio * (high - low) / 2, TINY)
    t = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))
    if len(known) == len(rows):
        ends = tuple((float(s), float(b - t * s), float(b + t * s)) for b, s in zip(at[1:], se[1:], strict=True))
        return Regression(at_P=at, ends=ends, freedom=freedom)
    likelihood = _Likelihood(design=design, rows=tuple(replace(row, se=row.se * ratio) for row in rows))
    best = likelihood.best(at)
    sides = [(likelihood.end(best, p, -se[p], t), likelihood.end(best, p, se[p], t)) for p in range(1, at.size)]
    return Regression(
        at_P=best,
        ends=tuple((_half(float(best[p]), *side, t), *side) for p, side in enumerate(sides, start=1)),
        freedom=freedom,
    )


def _half(at: float, low: float | None, high: float | None, t: float) -> float | None:
    """Return the standard error that corresponds to the longer side of an interval."""
    sides = [abs(end - at) for end in (low, high) if end is not None]
    return max(sides) / t if sides else None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Likelihood:
    """Normal about the plane, with the probability of each bound (Tobit). Its log is concave in the coefficients."""

    design: Floats
    rows: tuple[Observed, ...]

    def cost(self, at: Floats) -> tuple[float, Floats]:
        """Return the negative log likelihood and its gradient."""
        value, se, low, high = (
            np.array([getattr(row, name) for row in self.rows], dtype=float) for name in ("value", "se", "low", "high")
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
        """Return the coefficients of greatest likelihood; coefficient `held` stays as it starts."""
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
        bounds = [(-SEARCHED, SEARCHED)] * len(free)
        out[free] += unit @ optimize.minimize(cost, np.zeros(len(free)), jac=True, method="L-BFGS-B", bounds=bounds).x
        return out

    def end(self, best: Floats, p: int, step: float, t: float) -> float | None:
        """Return where the profile of a coefficient has fallen by t^2 / 2, going by `step`; None if it never does."""
        limit, at = self.cost(best)[0] + t**2 / 2, best.copy()

        def over(value: float) -> float:
            at[p] = value
            return self.cost(self.best(at, held=p))[0] - limit

        inner, outer = float(best[p]), float(best[p]) + step
        for _ in range(MAX_STEPS):
            if over(outer) > 0:
                return float(optimize.brentq(over, inner, outer, xtol=abs(step) * 1e-3))
            inner, outer = outer, outer + 2 * (outer - float(best[p]))
        return None
