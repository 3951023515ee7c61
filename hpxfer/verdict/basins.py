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

import numpy as np
from numpy.typing import NDArray

from hpxfer.verdict.loss_grid import Floats

Ints = NDArray[np.int64]

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
