"""Levels of seeds: what the means of cells are worth that were trained with different seeds.

A seed shares its batches and initial draws over all HPs, so that its losses lie above or below those of other seeds by
a level. Where all cells have the same seeds, levels cancel in every difference of two means. Where a seed is missing,
or one part of a grid was trained with new seeds, they do not. Then levels count as normal numbers with a variance:

    loss = mean of the cell + level of the seed + noise of the trial

The means are those of least squares by this covariance. A mean that no shared seed links to another one is known to the
levels of its seeds. The variance of a level over that of a trial follows from the losses (REML, see `noise`).
"""

from __future__ import annotations

import numpy as np

from hpxfer.verdict.loss_grid import Bools, Floats

LEVELS = np.array([0.0, 0.3, 1.0, 3.0, 10.0, 1e2, 1e4])  # the variance of a level over that of a trial
LOG_CHANCES = np.log([1.0, 1.0, 1.0, 1.0, 1.0, 0.01, 1e-4])  # beforehand
LEAST = 1e-12  # nats squared: below it is rounding


def balanced(loss_CS: Floats, linked_S: Bools) -> tuple[Floats, Floats, Floats]:
    """Return means (R, C), their variances over that of a trial (R, C), and log likelihoods (R,), by `LEVELS`.

    NaN is missing, and every cell has a loss. Seeds that are not `linked_S` have no level. The sum of the variances of
    two means is at least that of their difference.
    """
    known_CS = np.isfinite(loss_CS)
    y_CS = np.where(known_CS, loss_CS, 0.0)
    of_CS = (known_CS & linked_S).astype(float)
    num_S, sums_S = of_CS.sum(axis=0), (of_CS * y_CS).sum(axis=0)
    weight_RS = LEVELS[:, None] / (1 + LEVELS[:, None] * num_S)
    # The inverse of 1 + level Z Z^T takes a share of the sum of each seed away (Sherman and Morrison 1950).
    information_RCC = np.diag(known_CS.sum(axis=1)) - (of_CS * weight_RS[:, None, :]) @ of_CS.T
    right_RC = y_CS.sum(axis=1) - (weight_RS * sums_S) @ of_CS.T
    covariance_RCC = np.linalg.inv(information_RCC)
    mean_RC = (covariance_RCC @ right_RC[:, :, None])[:, :, 0]
    squares_R = (y_CS**2).sum() - weight_RS @ sums_S**2 - (right_RC * mean_RC).sum(axis=1)
    free = int(known_CS.sum()) - len(loss_CS)
    volume_R = np.log1p(LEVELS[:, None] * num_S).sum(axis=1) + np.linalg.slogdet(information_RCC)[1]
    log_R = -0.5 * volume_R - 0.5 * free * np.log(np.maximum(squares_R, LEAST))
    own_RC = np.diagonal(covariance_RCC, axis1=1, axis2=2)
    difference_RCC = own_RC[:, :, None] + own_RC[:, None, :] - 2 * covariance_RCC
    alone = len(loss_CS) == 1
    return mean_RC, own_RC if alone else difference_RCC.max(axis=2) / 2, log_R
