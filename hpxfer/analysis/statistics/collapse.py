"""Loss collapse: do the loss curves of all shapes coincide, and until which step?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.scaling_fit import power_laws
from hpxfer.analysis.statistics.statistic import Statistic
from hpxfer.analysis.statistics.transferred import TrainedShape, Transferred, transferred
from hpxfer.verdict import COLLAPSE_ERROR, COLLAPSE_SHARE, Bools, Finding, Floats

WINDOWS = 48  # at most as many windows are averaged over: a figure shows no more
PERSIST = 3  # windows in a row that must differ, as a single one differs by chance
POOL = 4  # windows on either side over which noise is pooled: a sixth of a run in all
ROUNDING = 1e-12  # nats: a smaller spread is that of rounding
SHARES = 25  # of training, at which normalized curves are compared
DIFFERENT_DATA = "shapes train on different data, so that their training losses are not comparable"
NO_FLOOR = (0.0, "none known: losses themselves are normalized")
FLOOR_SHARE = 0.98  # of the lowest final loss: a fitted floor above that is not the floor of these curves


@dataclass(frozen=True, kw_only=True)
class CollapseCurve:
    """The training loss of one shape at the transferred HP, mean over the seeds that all shapes have, in nats."""

    shape: str
    scale: float
    is_base: bool
    losses: tuple[float, ...]  # at the steps of the collapse, averaged over windows
    normalized: tuple[float, ...] = ()  # at the shares of training, 1 at the end; see `normalized_collapse`
    diverged_step: int | None = None  # the first of any seed


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """The curves of one parameterization along one axis, and how far apart they are. Steps are centers of windows."""

    axis: str
    scale_name: str
    parameterization: str
    hp: str
    value: float | None = None  # of the HP, the same at every scale
    steps: tuple[float, ...] = ()
    window_steps: int = 1  # logged steps per window
    curves: tuple[CollapseCurve, ...] = ()  # by scale; the numbers below leave out a shape that diverged
    spread_nats: tuple[float, ...] = ()  # standard deviation over shapes
    noise_nats: tuple[float, ...] = ()  # the part of it due to seeds, paired as seeds share their batches
    spread_percent: tuple[float, ...] = ()  # largest minus smallest, of the mean loss
    # The first step at which shapes differ by more than seeds do; None if there is none.
    parts_at: float | None = None
    # The first step at which they differ by more than COLLAPSE_SHARE of the loss; None if there is none.
    parts_by_share_at: float | None = None
    # The normalized collapse (arXiv 2507.02119), over shares of training: deviation and noise floor of
    # (loss - floor) / (final loss - floor), relative to its mean.
    shares: tuple[float, ...] = ()
    floor_nats: float | None = None  # the loss that is subtracted: no scale goes below it
    floor_from: str = ""
    deviation: tuple[float, ...] = ()
    noise_floor: tuple[float, ...] = ()
    below_noise: float | None = None  # share of training in which the deviation is below the noise floor
    num_seeds: int = 0
    left_out: tuple[str, ...] = ()  # shapes
    other_data: tuple[str, ...] = ()  # shapes that train on other data than the smallest: they have no curve here
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

    @property
    def complete(self) -> bool:
        """Whether there are losses, and none diverged."""
        return bool(np.isfinite(self.loss_SN).all() and self.loss_SN.size and self.diverged_step is None)


def collapse(every: Sequence[ShapeCurves], blank: Collapse, floor: tuple[float, str] = NO_FLOOR) -> Collapse:
    """Return `blank` with how far the curves are apart.

    All curves that are complete must have the same seeds. `floor` is a loss in nats, and where it comes from.
    """
    kept = [curves for curves in every if curves.complete]
    left_out = tuple(curves.shape for curves in every if not curves.complete)
    if len(kept) < 2:
        return replace(blank, left_out=left_out, why_not=f"{len(kept)} shapes have whole curves, 2 are needed")
    steps_N = _common([curves.steps_N for curves in kept])
    width = max(1, -(-steps_N.size // WINDOWS))
    loss_ISW = np.stack([_windowed(curves.loss_SN[:, np.isin(curves.steps_N, steps_N)], width) for curves in kept])
    centers = _windowed(steps_N.astype(float)[None], width)[0]
    share, normalized_IX, deviation, noise_floor = normalized_collapse(kept, floor[0])
    mean_IW = loss_ISW.mean(1)
    return replace(
        blank,
        **_apart(loss_ISW, centers),
        steps=tuple(centers.tolist()),
        window_steps=width,
        curves=tuple(
            CollapseCurve(
                shape=curves.shape,
                scale=curves.scale,
                is_base=curves.is_base,
                losses=tuple(mean_IW[i].tolist()),
                normalized=tuple(normalized_IX[i].tolist()),
            )
            for i, curves in enumerate(kept)
        )
        + tuple(_cut_short(curves, steps_N, width) for curves in every if curves.shape in left_out),
        shares=tuple(share.tolist()),
        floor_nats=floor[0],
        floor_from=floor[1],
        deviation=tuple(deviation.tolist()),
        noise_floor=tuple(noise_floor.tolist()),
        below_noise=float(np.mean(deviation < noise_floor)) if noise_floor.size else None,
        num_seeds=loss_ISW.shape[1],
        left_out=left_out,
    )


def _cut_short(curves: ShapeCurves, steps_N: NDArray[np.int64], width: int) -> CollapseCurve:
    """Return the curve of a shape that is left out of the numbers, up to where its first seed ended."""
    mean_N = curves.loss_SN[:, np.isin(curves.steps_N, steps_N)].mean(axis=0) if curves.loss_SN.size else np.zeros(0)
    whole = int(np.isfinite(mean_N).argmin()) if not np.isfinite(mean_N).all() else mean_N.size
    means = _windowed(mean_N[None, : whole // width * width], width)[0]
    return CollapseCurve(
        shape=curves.shape,
        scale=curves.scale,
        is_base=curves.is_base,
        losses=tuple(means.tolist()),
        diverged_step=curves.diverged_step,
    )


def _apart(loss_ISW: Floats, centers: Floats) -> dict[str, Any]:
    """Return the spread over shapes, the part of it due to seeds, and where shapes part.

    All shapes of a seed see the same batches. Noise is therefore the loss minus the means of shapes and of seeds,
    pooled over POOL windows on either side. An F test rejects a window of equal curves with COLLAPSE_ERROR. Curves part
    where it rejects PERSIST windows in a row.
    """
    num_shapes, num_seeds, _ = loss_ISW.shape
    mean_IW = loss_ISW.mean(1)
    spread_W = mean_IW.std(0, ddof=1)
    level_W, range_W = np.abs(mean_IW.mean(0)), np.ptp(mean_IW, axis=0)
    percent_W = 100 * np.divide(range_W, level_W, out=np.zeros_like(level_W), where=level_W > 0)  # losses of zero: 0%
    out: dict[str, Any] = {
        "spread_nats": tuple(spread_W.tolist()),
        "spread_percent": tuple(percent_W.tolist()),
        "parts_by_share_at": _first(percent_W > 100 * COLLAPSE_SHARE, centers),
    }
    if num_seeds < 2:
        return out | {"why_no_noise": "one seed: how much of the spread is due to seeds is unknown"}
    residual_ISW = loss_ISW - mean_IW[:, None] - loss_ISW.mean(0) + loss_ISW.mean((0, 1))
    noise_W, freedom_W = _pooled(residual_ISW)
    limit_W = np.sqrt(stats.f.ppf(1 - COLLAPSE_ERROR, num_shapes - 1, freedom_W))
    out["noise_nats"] = tuple(noise_W.tolist())
    out["parts_at"] = _first(spread_W > limit_W * noise_W + ROUNDING, centers)
    return out


def _pooled(residual_ISW: Floats) -> tuple[Floats, Floats]:
    """Return the noise of a shape's mean in each window, and its degrees of freedom, (W,).

    The effect of a seed lasts over several windows, so windows are no independent measurements. By their covariance V
    they count as tr(V)^2 / tr(V^2) of them.
    """
    num_shapes, num_seeds, num = residual_ISW.shape
    freedom = (num_shapes - 1) * (num_seeds - 1)
    rows_RW = residual_ISW.reshape(-1, num)
    noise_W, freedom_W = np.zeros(num), np.zeros(num)
    for w in range(num):
        near = rows_RW[:, max(0, w - POOL) : w + POOL + 1]
        noise_W[w] = math.sqrt(float((near**2).sum()) / freedom / near.shape[1] / num_seeds)
        gram = near @ near.T
        whole = float(np.trace(gram))
        freedom_W[w] = freedom * (whole**2 / float((gram**2).sum()) if whole > 0 else 1.0)
    return noise_W, freedom_W


def _first(beyond_W: Bools, centers: Floats) -> float | None:
    """Return the center of the first of PERSIST windows in a row that are True; None if there are none."""
    run = min(PERSIST, beyond_W.size)
    rows = np.flatnonzero(np.convolve(beyond_W, np.ones(run), "valid") >= run)
    return float(centers[rows[0]]) if rows.size else None


def normalized_collapse(every: Sequence[ShapeCurves], floor: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Return shares of training (X,), normalized curves (I, X), their deviation (X,) and its noise floor (X,).

    As in arXiv 2507.02119, a normalized curve is (loss - floor) / (final loss - floor) over the share of training. The
    deviation is that over shapes and seeds, relative to the mean. The noise floor is the deviation of loss - floor over
    the seeds of one shape, averaged over shapes; one seed has none. The paper finds the deviation below the noise floor
    ("supercollapse") in models trained compute-optimally with learning rate decay. A sweep at constant steps need not
    collapse that far. The final loss is that of the last window, so that the noise of one batch does not enter. Where
    it does not lie above the floor, such as a loss of exactly zero, there is no normalized curve, and X is 0.
    """
    share_X = (np.arange(SHARES) + 1) / SHARES
    shape_ISX = []
    for curves in every:
        end = float(curves.steps_N[-1] + 1)
        bins = np.clip(np.ceil((curves.steps_N + 1) / end * SHARES - 1e-9).astype(int) - 1, 0, SHARES - 1)
        count_X = np.bincount(bins, minlength=SHARES)
        sums_SX = np.stack([np.bincount(bins, weights=loss_N, minlength=SHARES) for loss_N in curves.loss_SN])
        shape_ISX.append(np.where(count_X > 0, sums_SX / np.maximum(count_X, 1), np.nan))
    over_ISX = np.stack(shape_ISX) - floor
    known_X = np.isfinite(over_ISX).all((0, 1))
    if not known_X.any() or not (over_ISX[:, :, known_X][:, :, -1] > 0).all():
        return np.zeros(0), np.zeros((len(every), 0)), np.zeros(0), np.zeros(0)
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
    """Return the means over windows of `width` columns. The last window may be shorter."""
    starts = np.arange(0, rows_SN.shape[1], width)
    if not starts.size:
        return np.zeros((len(rows_SN), 0))
    counts = np.diff(np.append(starts, rows_SN.shape[1]))
    return np.asarray(np.add.reduceat(rows_SN, starts, axis=1) / counts)


def _collapses(inputs: Inputs) -> list[Collapse]:
    known = inputs.once(transferred)
    return [_of_axis(inputs, known, finding) for finding in known.findings]


def _of_axis(inputs: Inputs, known: Transferred, finding: Finding) -> Collapse:
    blank = Collapse(
        axis=finding.axis,
        scale_name=finding.scale_name,
        parameterization=finding.parameterization,
        hp=inputs.hp,
        value=finding.base_value,
    )
    if blank.value is None:
        return replace(blank, why_not=NO_BASE_VALUE)
    trained = known.along[finding.key]
    digests = [inputs.training_data(one.shape).digest for one in trained]
    along = [one for one, digest in zip(trained, digests, strict=True) if [digest] == digests[:1]]
    others = tuple(one.row.shape for one in trained if one not in along)
    if others and len(along) < 2:
        return replace(blank, other_data=others, why_not=DIFFERENT_DATA)
    blank = replace(blank, other_data=others)
    complete = [known.complete_curves(trained) for trained in along]
    seeds = [set(curves) for curves in complete if curves]
    common = sorted(set.intersection(*seeds)) if seeds else []
    every = [_shape_curves(known, trained, common) for trained in along]
    unbroken = [curves for curves in every if curves.loss_SN.size and curves.diverged_step is None]
    ends = [float(curves.loss_SN[:, -1].mean()) for curves in unbroken]
    floor = _floor(inputs, finding.parameterization)
    return collapse(every, blank, floor if ends and floor[0] < FLOOR_SHARE * min(ends) else NO_FLOOR)


def _floor(inputs: Inputs, parameterization: str) -> tuple[float, str]:
    """Return the loss that no scale goes below, and where it comes from."""
    for law in inputs.once(power_laws):
        if law.parameterization == parameterization and law.floor is not None:
            return law.floor, f"the power law of the losses over {law.count} parameters"
    return NO_FLOOR


def _shape_curves(known: Transferred, trained: TrainedShape, common: Sequence[int]) -> ShapeCurves:
    """Return the curves of the common seeds; if a seed diverged, those of all seeds, up to where each ended."""
    diverged = [known.diverged_steps[trial] for trial in trained.trials if trial in known.diverged_steps]
    complete = known.complete_curves(trained)
    if complete:
        found = [complete[seed] for seed in common]
    else:
        found = [known.curves[trial] for trial in trained.trials if trial in known.curves]
    steps = np.unique(np.concatenate([at for at, _ in found])) if found else np.zeros(0, dtype=np.int64)
    losses = np.full((len(found), steps.size), np.nan)
    for row, (at, values) in zip(losses, found, strict=True):
        row[np.searchsorted(steps, at)] = values
    return ShapeCurves(
        shape=trained.row.shape,
        scale=trained.row.scale,
        is_base=trained.row.is_base,
        steps_N=steps,
        loss_SN=losses,
        diverged_step=min(diverged, default=None),
    )


COLLAPSE = Statistic(
    name="collapse",
    title="Loss collapse",
    note="Until which step the curves of all shapes coincide, and for how much of training they follow one normalized "
    "curve (arXiv 2507.02119).",
    compute=_collapses,
)
