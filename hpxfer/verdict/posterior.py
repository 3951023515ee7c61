"""The posterior: what the losses of all shapes of arms that share a base say about where each basin lies.

Every form of the library (`basins`) is placed at every position around the measured cells of a shape. The likelihood of
its losses, with the level and the curvature of the basin integrated out, weighs form and position. Draws of these
weights are what every answer is read from: optima, moves, regrets, and the chance that the HP transfers.

    loss of a cell = level + curvature * rise(form, log2 HP - optimum) + tolerance * rise + noise of its seeds

- The tolerance says how well a form of the library describes a real basin. It is a share of the measured rise above the
  lowest cell, and grows with the distance from it. So cells far up a wall cannot move an optimum. It is drawn too,
  because the losses of all shapes tell how well the library fits them.
- The forms of the shapes of one arm are equal to that of the base, similar or unrelated (`COHERENCE`), and the losses
  say which, for each arm by itself. So arms with the same base have one basin there, and an arm whose basins differ
  from the base's tells nothing of it. Shapes without a base are related to a form that no loss is known of. What is
  wrong with a shared form is wrong alike at all shapes and cancels in a move. If the asymmetry changes with the scale,
  the forms are unrelated, and the intervals are wider.
- Noise: a cell is a mean over seeds, and seeds are lucky along the HP (`noise`). Its variance is estimated, so that
  residuals follow Student's t.
- A cell that rises far more steeply than the others may stand behind a wall. Half of the draws leave it out.
- A form that is skewed may put its minimum a little to one side of the real one, alike at all shapes (`SKEW_ERROR`).

Array letters: F shapes that are fitted, T forms, M positions, N fitted cells, H tolerances, B draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

from hpxfer.intervals import RANDOM_SEED, Floats, Ints
from hpxfer.verdict.basins import (
    COHERENCE,
    PRIOR_T,
    SIMILAR_TT,
    SKEW_T,
    TOLERANCES,
    Cells,
    Weights,
    fitted_cells,
    rise_of_all,
    rise_of_each,
    search,
    slack,
    usual_curvature,
    weigh,
)
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.noise import SeedNoise
from hpxfer.verdict.thresholds import MISFIT_CHANCE, NUM_DRAWS

TOLERANCE_WEIGHTS = np.array([0.5, 0.35, 0.15])  # beforehand, in the order of TOLERANCES
LIKELIEST = 12  # forms that may explain the scatter of cells
NEGLIGIBLE_FORM = 8.0  # a form whose log weight is this far below the largest one at every shape is left out
SKEW_ERROR = 0.05  # octaves per unit of skew, standard deviation
WALL_SHARE = 0.5  # of the draws that leave out the cell behind a wall
MIN_CELLS = 2
THINNED = 8  # a mean curve is that of every eighth draw


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """Draws of the basins of shapes, B each. A shape with fewer than two stable cells has NaN."""

    rows: tuple[Measured, ...]
    arms: tuple[str, ...]  # of each shape, see `posterior`
    noise: SeedNoise
    optimum_BI: Floats  # log2 HP
    level_BI: Floats  # the loss at the optimum
    curvature_BI: Floats  # loss per octave squared, at the optimum
    form_BI: Ints
    tolerance_B: Floats
    misfit_I: Floats  # the factor by which cells scatter about the best basin more than seeds do; 1 within chance

    def noise_at(self, i: int) -> SeedNoise:
        """Return the noise of shape `i`."""
        return self.noise.at(self.rows[i])

    def known(self, i: int) -> bool:
        """Whether shape `i` has draws."""
        return not bool(np.isnan(self.optimum_BI[0, i]))

    def curves(self, i: int, x: Floats, every: int = 1) -> Floats:
        """Return the losses of the drawn basins of shape `i`, or of every so many, at log2 HPs, (B, len(x))."""
        some = slice(None, None, every)
        rise = rise_of_each(x[None, :] - self.optimum_BI[some, i, None], self.form_BI[some, i])
        return np.asarray(self.level_BI[some, i, None] + self.curvature_BI[some, i, None] * rise)

    def mean_curve(self, i: int, x: Floats) -> Floats:
        """Return the mean loss over drawn basins of shape `i` at log2 HPs, (len(x),)."""
        return np.asarray(self.curves(i, x, every=THINNED).mean(axis=0))

    @cached_property
    def _cell_losses(self) -> dict[int, Floats]:
        return {}

    def cell_losses(self, i: int) -> Floats:
        """Return draws of the mean losses that the cells of shape `i` would have with any number of seeds, (B, K).

        What was measured counts as far as the drawn basin is allowed to differ from it. An HP where seeds diverged has
        +inf, and one without a result has the loss of the basin.
        """
        if i not in self._cell_losses:
            measured = self.rows[i]
            drawn = self.curves(i, measured.x_K)
            y_K = np.where(measured.stable_K, measured.mean_K, 0.0)
            spread = self.tolerance_B[:, None] * slack(measured)
            variance_K = self.noise_at(i).of_means(measured)
            share = spread**2 / (spread**2 + variance_K)
            rng = np.random.default_rng([RANDOM_SEED, 7, i])
            noise = np.sqrt(share * variance_K) * rng.standard_normal(drawn.shape)
            out = np.where(measured.stable_K, drawn + share * (y_K - drawn) + noise, drawn)
            self._cell_losses[i] = np.where(measured.diverges_K, np.inf, out)
        return self._cell_losses[i]


def posterior(rows: Sequence[Measured], noise: SeedNoise, arms: Sequence[str] = ()) -> Posterior:
    """Return draws of the basins of shapes.

    `arms` names the arm of each shape, with an empty name for a base of all arms. Without it, all shapes are one arm's.
    """
    fitted = [i for i, measured in enumerate(rows) if measured.cells_N.size >= MIN_CELLS]
    fitted_arms = [arms[i] if arms else "one" for i in fitted]
    behind = any(rows[i].wall is not None for i in fitted)
    parts = [_draw(rows, fitted, fitted_arms, noise, walls=False, num=NUM_DRAWS - int(NUM_DRAWS * WALL_SHARE * behind))]
    if behind:
        parts.append(_draw(rows, fitted, fitted_arms, noise, walls=True, num=int(NUM_DRAWS * WALL_SHARE)))
    optimum, level, curvature, form, tolerance = (np.concatenate([part[k] for part in parts]) for k in range(5))
    return Posterior(
        rows=tuple(rows),
        arms=tuple(arms),
        noise=noise,
        optimum_BI=optimum,
        level_BI=level,
        curvature_BI=curvature,
        form_BI=form.astype(np.int64),
        tolerance_B=tolerance,
        misfit_I=parts[0][5],
    )


def _draw(
    rows: Sequence[Measured], fitted: Sequence[int], arms: Sequence[str], noise: SeedNoise, *, walls: bool, num: int
) -> list[Floats]:
    """Return draws of optima, levels, curvatures, forms and tolerances, and the misfit of each shape."""
    out = [np.full((num, len(rows)), np.nan) for _ in range(3)]
    form_BI = np.zeros((num, len(rows)))
    misfit_I = np.ones(len(rows))
    if not fitted:
        return [*out, form_BI, np.full(num, TOLERANCES[0]), misfit_I]
    noises = [noise.at(rows[i]) for i in fitted]
    cells = [fitted_cells(rows[i], own, walls=walls) for i, own in zip(fitted, noises, strict=True)]
    usual = usual_curvature(cells)
    searched = [search(found, own, usual) for found, own in zip(cells, noises, strict=True)]
    forms = np.flatnonzero(np.any([log_TM.max(1) > log_TM.max() - NEGLIGIBLE_FORM for _, log_TM in searched], axis=0))
    weights = [weigh(found, own, usual, forms, *at) for found, own, at in zip(cells, noises, searched, strict=True)]
    rng = np.random.default_rng([RANDOM_SEED, int(walls)])
    kind_BF, tolerance_B, shared_B = _draw_shared(weights, arms, forms, num, rng)
    skew_error_B = SKEW_ERROR * rng.standard_normal(num)
    for i, found, weight, kind_B in zip(fitted, cells, weights, kind_BF.T, strict=True):
        form_B = _draw_forms(weight, forms, kind_B, tolerance_B, shared_B, rng)
        m_B, curvature_B, level_B = _draw_basins(weight, form_B, tolerance_B, rng)
        form_BI[:, i] = forms[form_B]
        out[0][:, i] = np.clip(m_B + skew_error_B * SKEW_T[forms[form_B]], found.low, found.high)
        out[1][:, i] = level_B + float(np.min(rows[i].mean_K[rows[i].cells_N]))
        out[2][:, i] = curvature_B
        misfit_I[i] = _misfit(found, noise, forms, weight)
    return [*out, form_BI, TOLERANCES[tolerance_B], misfit_I]


def _draw_shared(
    weights: Sequence[Weights], arms: Sequence[str], forms: Ints, num: int, rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Return draws of how the form of each shape is related to the base's, of the tolerance, and of the base's form."""
    prior_T = PRIOR_T[forms]
    log_HT = np.log(TOLERANCE_WEIGHTS)[:, None] + np.log(prior_T)
    start_CHT = np.broadcast_to(np.log(COHERENCE)[:, None, None], (COHERENCE.size, *log_HT.shape))
    log_of = dict.fromkeys(arms, start_CHT)
    center = 0 if arms[0] == "" else None  # a further base is one more arm
    for f, (arm, weight) in enumerate(zip(arms, weights, strict=True)):
        top = weight.log_HTM.max(axis=(1, 2))
        each_HT = np.exp(weight.log_HTM - top[:, None, None]).sum(axis=2)
        if f == center:
            log_HT = log_HT + np.log(each_HT + 1e-300) + top[:, None]
            continue
        parts = (each_HT, each_HT @ SIMILAR_TT[np.ix_(forms, forms)].T, (each_HT @ prior_T)[:, None])
        log_CHT = np.array([np.broadcast_to(np.log(part + 1e-300), each_HT.shape) for part in parts])
        log_of[arm] = log_of[arm] + log_CHT + top[:, None]
    log_HT = log_HT + np.sum([special.logsumexp(log_CHT, axis=0) for log_CHT in log_of.values()], axis=0)
    chance = np.exp(log_HT - log_HT.max())
    sums = np.cumsum(chance)
    at_B = np.minimum(np.searchsorted(sums, sums[-1] * (np.arange(num) + 0.5) / num), chance.size - 1)
    tolerance_B, shared_B = np.unravel_index(at_B, log_HT.shape)
    kind_of = {
        arm: _pick(special.softmax(log_CHT[:, tolerance_B, shared_B], axis=0).T, rng) for arm, log_CHT in log_of.items()
    }
    kind_BF = np.stack([kind_of[arm] for arm in arms], axis=1)
    if center is not None:
        kind_BF[:, center] = 0
    return kind_BF, tolerance_B, shared_B


def _pick(weight_BP: Floats, rng: np.random.Generator) -> Ints:
    """Return one index of P by its weight for each of B draws."""
    sums_BP = np.cumsum(weight_BP, axis=1)
    even_B = (rng.permutation(len(sums_BP)) + rng.uniform(size=len(sums_BP))) / len(sums_BP)  # less luck of the draw
    below_BP = sums_BP < (even_B * sums_BP[:, -1])[:, None]
    return np.asarray(np.minimum(below_BP.sum(axis=1), weight_BP.shape[1] - 1))


def _draw_forms(
    weight: Weights, forms: Ints, kind_B: Ints, tolerance_B: Ints, shared_B: Ints, rng: np.random.Generator
) -> Ints:
    """Return draws of the form of one shape, as indices of `forms`."""
    each_HT = np.exp(weight.log_HTM - weight.log_HTM.max(axis=(1, 2), keepdims=True)).sum(axis=2)
    out = shared_B.copy()
    near_TT = SIMILAR_TT[np.ix_(forms, forms)]
    for kind, related in ((1, near_TT[shared_B]), (2, np.broadcast_to(PRIOR_T[forms], (kind_B.size, forms.size)))):
        at = np.flatnonzero(kind_B == kind)
        if at.size:
            out[at] = _pick(related[at] * each_HT[tolerance_B[at]], rng)
    return out


def _draw_basins(
    weight: Weights, form_B: Ints, tolerance_B: Ints, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Return draws of the position, curvature and level of the basin of one shape."""
    log_BM = weight.log_HTM[tolerance_B, form_B]
    at_B = _pick(np.exp(log_BM - log_BM.max(axis=1, keepdims=True)), rng)
    index = (tolerance_B, form_B, at_B)
    m_B = weight.m_M[at_B] + rng.uniform(-0.5, 0.5, at_B.size) * weight.step
    root_B = np.sqrt(weight.precision_HTM[index])
    below_B = special.ndtr(-weight.curvature_HTM[index] * root_B)
    uniform_B = np.clip(below_B + (1 - below_B) * rng.uniform(size=at_B.size), 1e-12, 1 - 1e-12)
    curvature_B = np.maximum(weight.curvature_HTM[index] + special.ndtri(uniform_B) / root_B, 0.0)
    ones_B = weight.ones_H[tolerance_B]
    level_B = (weight.mean_H[tolerance_B] - weight.cross_HTM[index] * curvature_B) / ones_B
    return m_B, curvature_B, level_B + rng.standard_normal(at_B.size) / np.sqrt(ones_B)


def _misfit(cells: Cells, noise: SeedNoise, forms: Ints, weight: Weights) -> float:
    """Return the factor by which cells scatter about the basin that fits best more than seeds do; 1 within chance.

    Each of the likeliest forms is fitted by least squares in level, curvature and, to first order, position.
    """
    free = cells.y_N.size - 3
    if free < 1:
        return 1.0
    log_TM, root_N = weight.log_HTM[0], 1 / np.sqrt(cells.variance_N)
    ratios = []
    for form in np.argsort(log_TM.max(axis=1))[-LIKELIEST:]:
        u_2N = cells.x_N - weight.m_M[log_TM[form].argmax()] + np.array([[-0.5], [0.5]]) * weight.step
        low_N, high_N = rise_of_all(u_2N, forms[form : form + 1])[0]
        design = np.column_stack([np.ones(cells.y_N.size), (low_N + high_N) / 2, high_N - low_N]) * root_N[:, None]
        residual_N = cells.y_N * root_N - design @ np.linalg.lstsq(design, cells.y_N * root_N, rcond=None)[0]
        ratios.append(float(residual_N @ residual_N) / free)
    ratio = min(ratios)
    return 1.0 if special.fdtrc(free, noise.freedom, ratio) >= MISFIT_CHANCE else math.sqrt(ratio)
