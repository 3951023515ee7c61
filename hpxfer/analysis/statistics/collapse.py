"""Loss collapse: do the loss curves of all shapes coincide, and until which step?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from hpxfer.analysis.statistics.inputs import NO_BASE_VALUE, Inputs
from hpxfer.analysis.statistics.scaling_fit import power_laws
from hpxfer.analysis.statistics.statistic import Found, Statistic, arms, by_axis, frame_of, listed
from hpxfer.analysis.statistics.transferred import Key, TrainedShape, Transferred, transferred
from hpxfer.intervals import Bools, Floats
from hpxfer.verdict import Finding
from hpxfer.verdict.thresholds import COLLAPSE_ERROR, COLLAPSE_SHARE

WINDOWS = 48  # at most as many windows are averaged over: a figure shows no more
PERSIST = 3  # windows in a row that must differ, as a single one differs by chance
POOL = 4  # windows on either side over which noise is pooled: a sixth of a run in all
ROUNDING = 1e-12  # nats: a smaller spread is that of rounding
SHARES = 25  # of training, at which normalized curves are compared
DIFFERENT_DATA = "shapes train on different data, so that their training losses are not comparable"
ONE_SEED = "one seed: how much of the spread is due to seeds is unknown"
NO_FLOOR = (0.0, "none known: losses themselves are normalized")
FLOOR_SHARE = 0.98  # of the lowest final loss: a fitted floor above that is not the floor of these curves


LABELS = {
    "axis": "the axis of the sweep",
    "parameterization": "the arm",
    "hp": "the judged HP",
}
COLUMNS = {
    **LABELS,
    "scale_name": "what the scale is",
    "value": "of the HP, the same at every scale",
    "parts_at": "the first step at which shapes differ by more than seeds do; None if there is none, or with one seed",
    "parts_by_share_at": "the first step at which they differ by more than 1% of the loss",
    "window_steps": "logged steps per window",
    "floor_nats": "the loss that normalized curves are over: no scale goes below it",
    "floor_from": "where it comes from",
    "below_noise": "share of training in which the deviation is below the noise floor",
    "num_seeds": "of each curve",
    "num_shapes": "that are compared",
    "left_out": "shapes that diverged, or lack curves: the numbers are without them",
    "other_data": "shapes that train on other data than the smallest: they have no curve",
}
CURVES = {
    **LABELS,
    "shape": "the name of the shape",
    "scale": "of the shape",
    "is_base": "whether it is the base",
    "step": "the center of a window of logged steps",
    "loss_nats": "training loss in the window, mean over the seeds that all shapes have",
    "difference_nats": "loss minus that of the base at the same seeds, mean over them; None if the base has no curve",
    "difference_se": "standard error of it, from seeds; None with one seed",
    "spread_nats": "standard deviation over shapes, the same for all of them",
    "noise_nats": "the part of it due to seeds, paired as seeds share their batches; None with one seed",
    "spread_percent": "largest minus smallest, of the mean loss",
    "diverged": "whether this is the last window before a seed diverged",
}
NORMALIZED = {
    **LABELS,
    "shape": "the name of the shape",
    "scale": "of the shape",
    "is_base": "whether it is the base",
    "share": "of training",
    "normalized_loss": "(loss - floor) / (final loss - floor), as in arXiv 2507.02119",
    "deviation": "over shapes and seeds, relative to the mean",
    "noise_floor": "the deviation over the seeds of one shape, averaged over shapes; None with one seed",
}


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


@dataclass(frozen=True, kw_only=True)
class Collapse:
    """Curves of one parameterization along one axis: a row of numbers, and a row per point of both kinds of curves."""

    numbers: Mapping[str, Any] = field(default_factory=dict)
    curves: tuple[Mapping[str, Any], ...] = ()
    normalized: tuple[Mapping[str, Any], ...] = ()
    why_not: str | None = None


def collapse(every: Sequence[ShapeCurves], floor: tuple[float, str] = NO_FLOOR) -> Collapse:
    """Return how far the curves are apart.

    All curves that are complete must have the same seeds. `floor` is a loss in nats, and where it comes from.
    """
    kept = [curves for curves in every if curves.complete]
    left_out = [curves for curves in every if not curves.complete]
    if len(kept) < 2:
        return Collapse(why_not=f"{len(kept)} shapes have whole curves, 2 are needed")
    steps_N = _common([curves.steps_N for curves in kept])
    width = max(1, -(-steps_N.size // WINDOWS))
    loss_ISW = np.stack([_windowed(curves.loss_SN[:, np.isin(curves.steps_N, steps_N)], width) for curves in kept])
    centers = _windowed(steps_N.astype(float)[None], width)[0]
    share, normalized_IX, deviation, noise_floor = normalized_collapse(kept, floor[0])
    numbers, apart = _apart(loss_ISW, centers)
    lines = list(zip(kept, loss_ISW.mean(1), _to_base(kept, loss_ISW), strict=True))
    lines += [(curves, _cut_short(curves, steps_N, width), {}) for curves in left_out]
    return Collapse(
        numbers={
            **numbers,
            "window_steps": width,
            "floor_nats": floor[0],
            "floor_from": floor[1],
            "below_noise": float(np.mean(deviation < noise_floor)) if noise_floor.size else None,
            "num_seeds": loss_ISW.shape[1],
            "num_shapes": len(kept),
            "left_out": ", ".join(curves.shape for curves in left_out) or None,
        },
        curves=tuple(
            row
            for curves, loss_W, to_base in lines
            for row in _points(curves, "step", centers, loss_W, {**to_base, **apart})
        ),
        normalized=tuple(
            row
            for curves, loss_X in zip(kept, normalized_IX, strict=True)
            for row in _points(curves, "share", share, loss_X, {"deviation": deviation, "noise_floor": noise_floor})
        ),
    )


def _points(
    curves: ShapeCurves, x: str, at: Floats, losses: Floats, beside: Mapping[str, Floats]
) -> Iterator[dict[str, Any]]:
    """Yield a row per point of a curve, which may end early, with what all shapes have there."""
    of = {"shape": curves.shape, "scale": curves.scale, "is_base": curves.is_base}
    y = "loss_nats" if x == "step" else "normalized_loss"
    for i in range(min(at.size, losses.size)):
        there = {name: float(values[i]) if values.size else None for name, values in beside.items()}
        ends = {"diverged": curves.diverged_step is not None and i == losses.size - 1} if x == "step" else {}
        yield {**of, x: float(at[i]), y: float(losses[i]), **there, **ends}


def _to_base(kept: Sequence[ShapeCurves], loss_ISW: Floats) -> list[dict[str, Floats]]:
    """Return the loss of each shape minus that of the base, paired by seeds, which see the same batches."""
    base = next((i for i, curves in enumerate(kept) if curves.is_base), None)
    if base is None:
        return [{} for _ in kept]
    num_seeds = loss_ISW.shape[1]
    found = []
    for loss_SW in loss_ISW - loss_ISW[base]:
        se_W = loss_SW.std(0, ddof=1) / math.sqrt(num_seeds) if num_seeds > 1 else np.zeros(0)
        found.append({"difference_nats": loss_SW.mean(0), "difference_se": se_W})
    return found


def _cut_short(curves: ShapeCurves, steps_N: NDArray[np.int64], width: int) -> Floats:
    """Return the curve of a shape that is left out of the numbers, up to where its first seed ended."""
    mean_N = curves.loss_SN[:, np.isin(curves.steps_N, steps_N)].mean(axis=0) if curves.loss_SN.size else np.zeros(0)
    whole = int(np.isfinite(mean_N).argmin()) if not np.isfinite(mean_N).all() else mean_N.size
    return np.asarray(_windowed(mean_N[None, : whole // width * width], width)[0])


def _apart(loss_ISW: Floats, centers: Floats) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Return where shapes part and, by window, the spread over shapes and the part of it due to seeds.

    All shapes of a seed see the same batches. Noise is therefore the loss minus the means of shapes and of seeds,
    pooled over POOL windows on either side. An F test rejects a window of equal curves with COLLAPSE_ERROR. Curves part
    where it rejects PERSIST windows in a row. With one seed, how much is due to seeds is unknown.
    """
    num_shapes, num_seeds, _ = loss_ISW.shape
    mean_IW = loss_ISW.mean(1)
    spread_W = mean_IW.std(0, ddof=1)
    level_W, range_W = np.abs(mean_IW.mean(0)), np.ptp(mean_IW, axis=0)
    percent_W = 100 * np.divide(range_W, level_W, out=np.zeros_like(level_W), where=level_W > 0)  # losses of zero: 0%
    parts = {"parts_at": None, "parts_by_share_at": _first(percent_W > 100 * COLLAPSE_SHARE, centers)}
    noise_W = np.zeros(0)
    if num_seeds > 1:
        noise_W, freedom_W = _pooled(loss_ISW - mean_IW[:, None] - loss_ISW.mean(0) + loss_ISW.mean((0, 1)))
        limit_W = np.sqrt(stats.f.ppf(1 - COLLAPSE_ERROR, num_shapes - 1, freedom_W))
        parts["parts_at"] = _first(spread_W > limit_W * noise_W + ROUNDING, centers)
    return parts, {"spread_nats": spread_W, "noise_nats": noise_W, "spread_percent": percent_W}


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


def _collapses(inputs: Inputs) -> dict[Key, tuple[dict[str, Any], Collapse]]:
    """Return the labels and the curves of each parameterization along each axis."""
    known = inputs.once(transferred)
    return {finding.key: _of_axis(inputs, known, finding) for finding in known.findings}


def _of_axis(inputs: Inputs, known: Transferred, finding: Finding) -> tuple[dict[str, Any], Collapse]:
    labels: dict[str, Any] = {"axis": finding.axis, "parameterization": finding.parameterization, "hp": inputs.hp}
    labels |= {"scale_name": finding.scale_name, "value": finding.base_value, "other_data": None}
    if finding.base_value is None:
        return labels, Collapse(why_not=NO_BASE_VALUE)
    trained = known.along[finding.key]
    digests = [inputs.training_data(one.shape).digest for one in trained]
    along = [one for one, digest in zip(trained, digests, strict=True) if [digest] == digests[:1]]
    others = [one.row.shape for one in trained if one not in along]
    if others and len(along) < 2:
        return labels, Collapse(why_not=f"{DIFFERENT_DATA}: {', '.join(others)}")
    labels["other_data"] = ", ".join(others) or None
    complete = [known.complete_curves(trained) for trained in along]
    seeds = [set(curves) for curves in complete if curves]
    common = sorted(set.intersection(*seeds)) if seeds else []
    every = [_shape_curves(known, trained, common) for trained in along]
    unbroken = [curves for curves in every if curves.loss_SN.size and curves.diverged_step is None]
    ends = [float(curves.loss_SN[:, -1].mean()) for curves in unbroken]
    floor = _floor(inputs, finding.parameterization)
    return labels, collapse(every, floor if ends and floor[0] < FLOOR_SHARE * min(ends) else NO_FLOOR)


def _floor(inputs: Inputs, parameterization: str) -> tuple[float, str]:
    """Return the loss that no scale goes below, and where it comes from."""
    for labels, law in inputs.once(power_laws):
        if labels["parameterization"] == parameterization and not isinstance(law, str):
            return law.floor, f"the power law of the losses over {labels['count']} parameters"
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


def _numbers(inputs: Inputs) -> Found:
    every = inputs.once(_collapses).values()
    frame = frame_of(({**labels, **of.numbers} for labels, of in every if of.numbers), COLUMNS)
    unknown = [(_name(labels), of.why_not) for labels, of in every if of.why_not is not None]
    unknown += [(_name(labels), ONE_SEED) for labels, of in every if of.numbers and of.numbers["num_seeds"] < 2]
    return Found(frame=frame, title=by_axis(frame, lambda rows: listed(list(_said(rows)))), unknown=tuple(unknown))


def _name(labels: Mapping[str, Any]) -> str:
    return f"{labels['axis']} {labels['parameterization']} {labels['hp']}"


def _said(frame: pd.DataFrame) -> Iterator[str]:
    for name, rows in arms(frame):
        yield f"{name} {parts(rows.iloc[0])}"


def parts(row: pd.Series) -> str:
    """Return from which step curves part, in words."""
    if row["num_seeds"] < 2:
        return "unknown (one seed)"
    return "at no step" if pd.isna(row["parts_at"]) else f"from step {row['parts_at']:.0f}"


def _curves(inputs: Inputs, columns: Mapping[str, str]) -> Found:
    every = inputs.once(_collapses).values()
    points = ((labels, of.curves if columns is CURVES else of.normalized) for labels, of in every)
    rows = ({**{name: labels[name] for name in LABELS}, **row} for labels, found in points for row in found)
    return Found(frame=frame_of(rows, columns))


COLLAPSE = Statistic(
    name="collapse",
    title="From which step do the losses of shapes part?",
    note="Until which step the curves of all shapes coincide, and for how much of training they follow one normalized "
    "curve (arXiv 2507.02119).",
    compute=_numbers,
    columns=COLUMNS,
    hidden=("scale_name",),
)
COLLAPSE_CURVES = Statistic(
    name="collapse_curves",
    title="The training losses of all shapes at the transferred HP",
    compute=lambda inputs: _curves(inputs, CURVES),
    columns=CURVES,
    is_table=False,
)
NORMALIZED_CURVES = Statistic(
    name="normalized_curves",
    title="The normalized losses of all shapes at the transferred HP",
    compute=lambda inputs: _curves(inputs, NORMALIZED),
    columns=NORMALIZED,
    is_table=False,
)
