"""Loss collapse: do the loss curves of all shapes lie on one another, and until which step?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hpxfer.analysis.cube import Bools, Floats
from hpxfer.analysis.thresholds import COLLAPSE_SHARE, ERROR_RATE

WINDOWS = 48  # that curves are averaged over, at most: what a figure can show
PERSIST = 3  # windows in a row that must differ: one alone does by chance
POOL = 4  # windows to either side from which noise is pooled: a sixth of a run in all
ROUNDING = 1e-12  # nats: below, a spread is that of the last bit
SHARES = 25  # of training, at which normalized curves are compared
NO_FLOOR = (0.0, "none known: losses themselves are normalized")


@dataclass(frozen=True, kw_only=True)
class CollapseCurve:
    """The training loss of one shape at the transferred HP, mean over the seeds that all shapes have, in nats."""

    shape: str
    scale: float
    is_base: bool
    losses: tuple[float, ...]  # at the steps of the collapse, averaged over a window
    normalized: tuple[float, ...] = ()  # at its shares of training: 1 at the end; see `normalized_collapse`
    diverged_step: int | None = None  # the first of any seed


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """The curves of one parameterization along one axis, and how far apart they are. Steps are windows' centers."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    value: float | None = None  # of the HP, the same at every scale
    steps: tuple[float, ...] = ()
    window_steps: int = 1  # logged steps that are averaged
    curves: tuple[CollapseCurve, ...] = ()  # by scale; a shape that diverged is left out of the numbers below
    spread_nats: tuple[float, ...] = ()  # standard deviation over shapes
    noise_nats: tuple[float, ...] = ()  # what seeds alone make of it; paired: seeds share their batches
    spread_percent: tuple[float, ...] = ()  # largest minus smallest, of the mean loss
    # The first step at which shapes differ by more than seeds do; None if they never do.
    parts_at: float | None = None
    # The first step at which they differ by more than COLLAPSE_SHARE of the loss; None if they never do.
    parts_by_share_at: float | None = None
    # The normalized collapse (arXiv 2507.02119), over shares of training: deviation and noise floor of
    # (loss - floor) / (final loss - floor), relative to its mean.
    shares: tuple[float, ...] = ()
    floor_nats: float | None = None  # the loss that no scale goes below, as it was taken off
    floor_from: str = ""
    deviation: tuple[float, ...] = ()
    noise_floor: tuple[float, ...] = ()
    below_noise: float | None = None  # share of training in which the deviation is below the noise floor
    num_seeds: int = 0
    left_out: tuple[str, ...] = ()  # shapes
    why_no_noise: str | None = None  # why `parts_at` and the noise are unknown
    why_not: str | None = None


@dataclass(frozen=True, kw_only=True)
class ShapeCurves:
    """The training losses of one shape: `loss_SN` over seeds and logged steps, NaN after a divergence."""

    shape: str
    scale: float
    is_base: bool
    steps_N: NDArray[np.int64]
    loss_SN: Floats
    diverged_step: int | None = None


def collapse(every: Sequence[ShapeCurves], bare: Collapse, floor: tuple[float, str] = NO_FLOOR) -> Collapse:
    """Return `bare` with how far the curves are apart.

    All that are whole must have the same seeds; `floor` is a loss in nats and its source.
    """
    kept = [one for one in every if np.isfinite(one.loss_SN).all() and one.loss_SN.size and one.diverged_step is None]
    left_out = tuple(one.shape for one in every if all(one is not other for other in kept))
    if len(kept) < 2:
        return replace(bare, left_out=left_out, why_not=f"{len(kept)} shapes have whole curves, 2 are needed")
    steps_N = _common([one.steps_N for one in kept])
    width = max(1, -(-steps_N.size // WINDOWS))
    loss_ISW = np.stack([_windowed(one.loss_SN[:, np.isin(one.steps_N, steps_N)], width) for one in kept])
    centers = _windowed(steps_N.astype(float)[None], width)[0]
    share, normalized_IX, deviation, noise_floor = normalized_collapse(kept, floor[0])
    mean_IW = loss_ISW.mean(1)
    return replace(
        bare,
        **_apart(loss_ISW, centers),
        steps=tuple(centers.tolist()),
        window_steps=width,
        curves=tuple(
            CollapseCurve(
                shape=one.shape,
                scale=one.scale,
                is_base=one.is_base,
                losses=tuple(mean_IW[i].tolist()),
                normalized=tuple(normalized_IX[i].tolist()),
            )
            for i, one in enumerate(kept)
        )
        + tuple(_cut_short(one, steps_N, width) for one in every if one.shape in left_out),
        shares=tuple(share.tolist()),
        floor_nats=floor[0],
        floor_from=floor[1],
        deviation=tuple(deviation.tolist()),
        noise_floor=tuple(noise_floor.tolist()),
        below_noise=float(np.mean(deviation < noise_floor)) if noise_floor.size else None,
        num_seeds=loss_ISW.shape[1],
        left_out=left_out,
    )


def _cut_short(one: ShapeCurves, steps_N: NDArray[np.int64], width: int) -> CollapseCurve:
    """Return the curve of a shape that is not in the numbers, as far as all of its seeds went."""
    mean_N = one.loss_SN[:, np.isin(one.steps_N, steps_N)].mean(axis=0) if one.loss_SN.size else np.zeros(0)
    whole = int(np.isfinite(mean_N).argmin()) if not np.isfinite(mean_N).all() else mean_N.size
    means = _windowed(mean_N[None, : whole // width * width], width)[0]
    return CollapseCurve(
        shape=one.shape,
        scale=one.scale,
        is_base=one.is_base,
        losses=tuple(means.tolist()),
        diverged_step=one.diverged_step,
    )


def _apart(loss_ISW: Floats, centers: Floats) -> dict[str, Any]:
    """Return the spread over shapes, the part that seeds make, and where shapes part.

    Shapes of one seed see the same batches, so noise is what is left of the losses without the means of shapes and of
    seeds, pooled over POOL windows to either side. Its F test rejects a window of equal curves with ERROR_RATE; curves
    part where PERSIST windows in a row do.
    """
    num_shapes, num_seeds, _ = loss_ISW.shape
    mean_IW = loss_ISW.mean(1)
    spread_W = mean_IW.std(0, ddof=1)
    percent_W = 100 * np.ptp(mean_IW, axis=0) / np.abs(mean_IW.mean(0))
    out: dict[str, Any] = {
        "spread_nats": tuple(spread_W.tolist()),
        "spread_percent": tuple(percent_W.tolist()),
        "parts_by_share_at": _first(percent_W > 100 * COLLAPSE_SHARE, centers),
    }
    if num_seeds < 2:
        return out | {"why_no_noise": "one seed: what seeds make of the spread is unknown"}
    left_ISW = loss_ISW - mean_IW[:, None] - loss_ISW.mean(0) + loss_ISW.mean((0, 1))
    noise_W, freedom_W = _pooled(left_ISW)
    limit_W = np.sqrt(stats.f.ppf(1 - ERROR_RATE, num_shapes - 1, freedom_W))
    out["noise_nats"] = tuple(noise_W.tolist())
    out["parts_at"] = _first(spread_W > limit_W * noise_W + ROUNDING, centers)
    return out


def _pooled(left_ISW: Floats) -> tuple[Floats, Floats]:
    """Return the noise of a shape's mean in each window, and its degrees of freedom, (W,).

    A seed's luck lasts over windows, so these are no independent measurements: they count as tr(V)^2 / tr(V^2) of them
    by their own covariance V, which is at most the freedom of one.
    """
    num_shapes, num_seeds, num = left_ISW.shape
    freedom = (num_shapes - 1) * (num_seeds - 1)
    rows_RW = left_ISW.reshape(-1, num)
    noise_W, freedom_W = np.zeros(num), np.zeros(num)
    for w in range(num):
        near = rows_RW[:, max(0, w - POOL) : w + POOL + 1]
        noise_W[w] = math.sqrt(float((near**2).sum()) / freedom / near.shape[1] / num_seeds)
        gram = near @ near.T
        whole = float(np.trace(gram))
        freedom_W[w] = freedom * (whole**2 / float((gram**2).sum()) if whole > 0 else 1.0)
    return noise_W, freedom_W


def _first(beyond_W: Bools, centers: Floats) -> float | None:
    """Return the center of the first of PERSIST windows in a row that are beyond; None if there are none."""
    run = min(PERSIST, beyond_W.size)
    rows = np.flatnonzero(np.convolve(beyond_W, np.ones(run), "valid") >= run)
    return float(centers[rows[0]]) if rows.size else None


def normalized_collapse(every: Sequence[ShapeCurves], floor: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Return shares of training (X,), normalized curves (I, X), their deviation (X,) and its noise floor (X,).

    After arXiv 2507.02119: (loss - floor) / (final loss - floor) over the share of the run, the deviation over shapes
    and seeds relative to the mean, and the noise floor that of loss - floor over the seeds of one shape, the mean of
    shapes (no floor with one seed). The paper finds the deviation below the noise floor ("supercollapse") in models
    trained compute-optimally with learning rate decay; a sweep at constant steps need not collapse so. The final loss
    is that of the last window, so the noise of one batch plays no part.
    """
    share_X = (np.arange(SHARES) + 1) / SHARES
    shape_ISX = []
    for one in every:
        end = float(one.steps_N[-1] + 1)
        bins = np.clip(np.ceil((one.steps_N + 1) / end * SHARES - 1e-9).astype(int) - 1, 0, SHARES - 1)
        count_X = np.bincount(bins, minlength=SHARES)
        sums_SX = np.stack([np.bincount(bins, weights=loss_N, minlength=SHARES) for loss_N in one.loss_SN])
        shape_ISX.append(np.where(count_X > 0, sums_SX / np.maximum(count_X, 1), np.nan))
    over_ISX = np.stack(shape_ISX) - floor
    known_X = np.isfinite(over_ISX).all((0, 1))
    share_X, over_ISX = share_X[known_X], over_ISX[:, :, known_X]
    normalized_ISX = over_ISX / over_ISX[:, :, -1:]
    deviation_X = normalized_ISX.std(axis=(0, 1), ddof=1) / normalized_ISX.mean((0, 1))
    noise_X = np.zeros(0)
    if over_ISX.shape[1] > 1:
        noise_X = (over_ISX.std(axis=1, ddof=1) / over_ISX.mean(1)).mean(0)
    return share_X, normalized_ISX.mean(1), deviation_X, noise_X


def _common(every: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    out = every[0]
    for steps in every[1:]:
        out = np.intersect1d(out, steps)
    return out


def _windowed(rows_SN: Floats, width: int) -> Floats:
    """Return means over windows of `width` columns, the last one of what is left."""
    starts = np.arange(0, rows_SN.shape[1], width)
    if not starts.size:
        return np.zeros((len(rows_SN), 0))
    counts = np.diff(np.append(starts, rows_SN.shape[1]))
    return np.asarray(np.add.reduceat(rows_SN, starts, axis=1) / counts)
