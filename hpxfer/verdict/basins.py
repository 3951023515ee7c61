"""The library of basins: the forms that the loss may take around its optimum, and how likely each is beforehand.

A basin is smooth and has one minimum. Its form is the curvature as a function of u, the octaves from the optimum:

    f''(u) = 2 c exp(skew u + growth u^2)          the bottom is flat if the form says so: 2 c 6 u^2 exp(skew u)
                                                   or it is a kink between two lines, whose slopes differ by exp(skew)

`skew` makes one side steeper. `growth` makes both sides steeper than a parabola further out (growth > 0), or less steep
(growth < 0). A parabola is skew 0, growth 0. The library holds T such forms with c = 1. No form is fitted: losses weigh
the forms, and an answer averages over all that the losses allow. So the interval of an optimum is wider where the
losses do not tell the forms apart, e.g. with three HP values, and shorter where they do.

Real basins differ from every form, so that losses are compared with some tolerance (`posterior`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from hpxfer.intervals import Floats, Ints
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.noise import SeedNoise

SKEWS = np.arange(-2.5, 2.51, 0.25)  # per octave: exp(2.5) is a curvature that grows 12-fold within one octave
# Per octave squared. NaN: a flat bottom, inf: a kink.
GROWTHS = np.array([-0.3, -0.1, 0.0, 0.15, 0.4, 0.8, 1.5, 3.0, np.nan, np.inf])
# Skews between -0.8 and 0.8 hold two thirds of the weight. Basins close to a parabola are the usual ones.
SKEW_WEIGHTS = np.exp(-np.abs(SKEWS) / 0.8)
GROWTH_WEIGHTS = np.array([0.06, 0.12, 0.26, 0.2, 0.13, 0.1, 0.05, 0.03, 0.05, 0.03])
FLATTER, KINKED = 6, -2  # a flat bottom and a kink count as so many steps of the growth from the most negative one
KINK = 1 / 16  # octaves: a kink is so wide

# How the basins of the shapes of one parameterization are related: equal in form, similar, or unrelated.
COHERENCE = np.array([0.55, 0.35, 0.1])
SIMILAR = 0.5  # the distance of two forms at which "similar" has fallen to 1/e: a skew of 0.5, or 1.7 steps of growth
GROWTH_STEP = 0.3  # the distance of neighboring growths, in units of skew

REACH = 24.0  # octaves from the optimum that the table of rises covers
STEP = 1 / 64  # octaves between its points
STEEPEST = 8.0  # log of the largest curvature

_FORMS = [(s, g) for s in range(SKEWS.size) for g in range(GROWTHS.size)]
SKEW_T = SKEWS[[s for s, _ in _FORMS]]
GROWTH_T = GROWTHS[[g for _, g in _FORMS]]
PRIOR_T = np.array([SKEW_WEIGHTS[s] * GROWTH_WEIGHTS[g] for s, g in _FORMS])
PRIOR_T /= PRIOR_T.sum()


def _rises() -> Floats:
    """Return the rise above the minimum of each form, (T, U), at -REACH to REACH octaves from the optimum."""
    u_U = np.arange(-REACH, REACH + STEP / 2, STEP)
    flat_T1, kinked_T1 = np.isnan(GROWTH_T)[:, None], np.isinf(GROWTH_T)[:, None]
    log_TU = SKEW_T[:, None] * u_U + np.where(np.isfinite(GROWTH_T), GROWTH_T, 0.0)[:, None] * u_U**2
    bend_TU = 2 * np.exp(np.minimum(log_TU, STEEPEST)) * np.where(flat_T1, 6 * u_U**2, 1.0)
    kink_U = 2 * np.exp(-((u_U / KINK) ** 2)) / (KINK * np.sqrt(np.pi))
    slope_TU = np.where(kinked_T1, np.exp(np.sign(u_U) * SKEW_T[:, None] / 2), 1.0)
    return _integral(_integral(np.where(kinked_T1, kink_U, bend_TU))) * slope_TU


def _integral(y_TU: Floats) -> Floats:
    """Return the integral from u = 0, by trapezoids."""
    sums_TU = np.cumsum((y_TU[:, 1:] + y_TU[:, :-1]) / 2, axis=1) * STEP
    out = np.concatenate([np.zeros((len(y_TU), 1)), sums_TU], axis=1)
    return np.asarray(out - out[:, out.shape[1] // 2, None])


def _similar() -> Floats:
    """Return the weight of each form beside another one if basins are similar, (T, T)."""
    step_of = {GROWTHS.size - 2: FLATTER, GROWTHS.size - 1: KINKED}
    step_T = np.array([step_of.get(g, g) for _, g in _FORMS]) * GROWTH_STEP
    distance = np.abs(SKEW_T[:, None] - SKEW_T) + np.abs(step_T[:, None] - step_T)
    out = np.exp(-distance / SIMILAR) * PRIOR_T
    return np.asarray(out / out.sum(axis=1, keepdims=True))


TABLE_TU = _rises()
SIMILAR_TT = _similar()


def rise_of_all(u: Floats, forms: Ints) -> Floats:
    """Return the rises of these forms at u octaves from the optimum, (T, *u.shape)."""
    at, part = _place(u)
    table = TABLE_TU[forms]
    return np.asarray(table[:, at] * (1 - part) + table[:, at + 1] * part)


def rise_of_each(u: Floats, forms: Ints) -> Floats:
    """Return the rise of form b at u[b, ...], an array like u."""
    at, part = _place(u)
    form = forms.reshape(-1, *[1] * (u.ndim - 1))
    return np.asarray(TABLE_TU[form, at] * (1 - part) + TABLE_TU[form, at + 1] * part)


def _place(u: Floats) -> tuple[Ints, Floats]:
    """Return the point of the table below each u, and how far u lies beyond it, in steps."""
    steps = np.clip((u + REACH) / STEP, 0, TABLE_TU.shape[1] - 1.001)
    at = steps.astype(np.int64)
    return at, steps - at


# Weights: how well each form of the library, at each position, describes the losses of one shape.
#
# The level and the curvature of the basin are integrated out. `posterior` says what the terms of the likelihood mean.
#
# Array letters: T forms, M positions, N fitted cells, H tolerances, P pairs of a form and a position.

TOLERANCES = np.array([0.02, 0.06, 0.2])  # of the rise
NEAR = 1.5  # octaves from the lowest cell up to which the tolerance is that share; beyond, it grows with the square
CURVATURE_SPREAD = 0.6  # of log curvature about that of the measured rises, standard deviation
OUTSIDE = 1.0  # octaves beyond the measured cells at which a position is 1/e as likely beforehand
BEYOND = 4.0  # octaves beyond the measured cells that positions reach
COARSE, FINE = 0.25, 0.06  # octaves between positions in the search, and after it
FEWEST, MOST = 48, 160  # positions after the search
ENOUGH, REFINED = 24, 4  # of these that matter: with fewer, they are spaced more closely, so many times at most
NEGLIGIBLE = 10.0  # a position whose log weight is this far below the largest one is left out after the search
ROUNDING = 1e-14  # loss squared


@dataclass(frozen=True, kw_only=True, eq=False)
class Cells:
    """The fitted cells of a shape, or those below a wall."""

    x_N: Floats
    y_N: Floats  # means, above the lowest
    num_N: Floats
    variance_N: Floats  # of the means, without the levels of seeds
    slack_N: Floats  # the tolerance of a share of one
    low: float
    high: float
    octaves_N: Floats  # from the lowest cell


@dataclass(frozen=True, kw_only=True, eq=False)
class Weights:
    """The log weights of the forms and positions of a shape at each tolerance, and what draws a level and curvature."""

    m_M: Floats
    step: float
    log_HTM: Floats
    curvature_HTM: Floats
    precision_HTM: Floats
    cross_HTM: Floats
    ones_H: Floats
    mean_H: Floats


def fitted_cells(measured: Measured, noise: SeedNoise, *, walls: bool) -> Cells:
    """Return the fitted cells of a shape with its noise, or those below a wall."""
    stop = measured.cells_N.size
    high = measured.high
    if (wall := measured.wall) is not None:
        stop = wall if walls else wall + 1
        high = float(measured.x_K[measured.cells_N[wall]]) if walls else high
    at = measured.cells_N[:stop]
    x_N, y_N = measured.x_K[at], measured.mean_K[at]
    return Cells(
        x_N=x_N,
        y_N=y_N - y_N.min(),
        num_N=measured.num_K[at].astype(float),
        variance_N=noise.of_means(measured)[at],
        slack_N=slack(measured)[at],
        low=measured.low,
        high=high,
        octaves_N=x_N - measured.x_K[measured.lowest],
    )


def slack(measured: Measured) -> Floats:
    """Return the tolerance of each cell of a shape if it is a share of one, (K,); 0 for one that is not stable."""
    assert measured.lowest is not None
    distance_K = np.abs(measured.x_K - measured.x_K[measured.lowest]) / NEAR
    rise_K = np.where(measured.stable_K, measured.mean_K - measured.mean_K[measured.lowest], 0.0)
    return np.asarray(np.maximum(rise_K, 0.0) * np.maximum(1.0, distance_K) ** 2)


def usual_curvature(cells: Sequence[Cells]) -> float:
    """Return the median over shapes of the median curvature of the measured rises within two octaves."""
    found = []
    for part in cells:
        distance = np.abs(part.octaves_N)
        near = (distance > 0) & (distance <= 2.1)
        near = near if near.any() else distance > 0
        if near.any():
            found.append(float(np.median(part.y_N[near] / distance[near] ** 2)))
    return max(float(np.median(found)), 1e-9) if found else 1e-9


def search(cells: Cells, noise: SeedNoise, usual: float) -> tuple[Floats, Floats]:
    """Return coarse positions, and the log weights of all forms there at the largest tolerance, (T, M)."""
    low = max(cells.x_N[0] - BEYOND, cells.low)
    high = min(cells.x_N[-1] + BEYOND, cells.high)
    m_M, rise_TMN = _coarse(cells.x_N.tobytes(), float(low), float(high))
    log_TM = _evidence(cells, rise_TMN, noise, float(TOLERANCES[-1]), usual, COARSE)[0]
    return m_M, log_TM + np.log(PRIOR_T)[:, None] + _outside(cells, m_M)


@lru_cache(maxsize=64)
def _coarse(x_bytes: bytes, low: float, high: float) -> tuple[Floats, Floats]:
    x_N = np.frombuffer(x_bytes)
    m_M = np.arange(low, high + COARSE / 2, COARSE)
    return m_M, rise_of_all(x_N[None, :] - m_M[:, None], np.arange(PRIOR_T.size))


def _outside(cells: Cells, m_M: Floats) -> Floats:
    beyond = np.maximum(np.maximum(cells.x_N[0] - m_M, m_M - cells.x_N[-1]), 0.0)
    return np.asarray(-beyond / OUTSIDE)


def weigh(cells: Cells, noise: SeedNoise, usual: float, forms: Ints, m_C: Floats, log_TC: Floats) -> Weights:
    """Return the weights of forms at the positions that the search found to matter, more closely spaced."""
    top_C = log_TC[forms].max(axis=0)
    good = np.flatnonzero(top_C > top_C.max() - NEGLIGIBLE)
    low, high = m_C[max(good[0] - 1, 0)], m_C[min(good[-1] + 1, m_C.size - 1)]
    high = max(high, low + FINE)
    for _ in range(REFINED):
        m_M = np.linspace(low, high, int(min(max(FEWEST, (high - low) / FINE), MOST)))
        step = float(m_M[1] - m_M[0])
        rise_TMN = rise_of_all(cells.x_N[None, :] - m_M[:, None], forms)
        found = [_evidence(cells, rise_TMN, noise, float(tolerance), usual, step) for tolerance in TOLERANCES]
        top_M = np.max([part[0] for part in found], axis=(0, 1))
        good = np.flatnonzero(top_M > top_M.max() - NEGLIGIBLE)
        if good.size >= ENOUGH:
            break
        low, high = m_M[max(good[0] - 1, 0)], m_M[min(good[-1] + 1, m_M.size - 1)]
    return Weights(
        m_M=m_M,
        step=step,
        log_HTM=np.array([part[0] for part in found]) + _outside(cells, m_M),
        curvature_HTM=np.array([part[1] for part in found]),
        precision_HTM=np.array([part[2] for part in found]),
        cross_HTM=np.array([part[3] for part in found]),
        ones_H=np.array([part[4] for part in found]),
        mean_H=np.array([part[5] for part in found]),
    )


def _evidence(
    cells: Cells, rise_TMN: Floats, noise: SeedNoise, tolerance: float, usual: float, step: float
) -> tuple[Floats, Floats, Floats, Floats, float, float]:
    """Return the log likelihood of each form and position, (T, M), and the moments that level and curvature follow.

    The level is integrated out with a flat prior. The log of the curvature has a normal prior about the usual one.
    Positions are `step` octaves apart. A basin between two of them misses cells by what the step changes on its flanks.
    """
    shared = noise.slope_variance * np.outer(cells.octaves_N, cells.octaves_N) / cells.num_N.mean()
    flank_N = 2 * usual * (np.abs(cells.octaves_N) + 0.5) * step
    own = cells.variance_N + (tolerance * cells.slack_N) ** 2 + flank_N**2 / 12 + ROUNDING
    root_NN = np.linalg.cholesky(np.linalg.inv(shared + np.diag(own)))
    y_N, ones_N = cells.y_N @ root_NN, root_NN.sum(axis=0)
    ones, mean = float(ones_N @ ones_N), float(ones_N @ y_N)
    shape = rise_TMN.shape[:2]
    rise_PN = rise_TMN.reshape(-1, cells.y_N.size) @ root_NN
    cross_P, with_y_P = rise_PN @ ones_N, rise_PN @ y_N
    rise_PN *= rise_PN
    precision_P = np.maximum(rise_PN.sum(axis=1) - cross_P**2 / ones, 1e-12)
    with_y_P -= cross_P * (mean / ones)
    curvature_P = with_y_P / precision_P
    squares_P = np.maximum(float(y_N @ y_N) - mean**2 / ones - with_y_P * curvature_P, 0.0)
    z_P = with_y_P / np.sqrt(precision_P)
    above_P = np.maximum(z_P, 0.0)
    num = noise.freedom + max(cells.y_N.size - 2, 1)
    log_P = (
        float(np.log(np.diag(root_NN)).sum())
        - 0.5 * math.log(ones)
        - 0.5 * np.log1p(above_P**2)
        - 0.5 * num * np.log1p(squares_P / noise.freedom)
    )
    size_P = np.sqrt((1 + above_P**2) / precision_P)
    log_P -= 0.5 * (np.log(size_P / usual) / CURVATURE_SPREAD) ** 2
    small = z_P < 3
    log_P[small] += special.log_ndtr(z_P[small])
    return (*(v.reshape(shape) for v in (log_P, curvature_P, precision_P, cross_P)), ones, mean)
