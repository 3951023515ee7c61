"""Compare measured sizes with predicted exponents: slopes in log-log, their intervals, a verdict, and numbers by scale.

A verdict is about size ~ scale^exponent over at least three scales:

    ok             the slope is within the tolerance of the prediction, and so is half the width of its interval
    miss           the whole interval is farther away than the tolerance, and is so without any one seed too; or the
                   size is not finite somewhere; or it is exactly zero at a scale and should not be, or should be zero
                   and is not
    unclear        neither: noise leaves the question open, so it counts neither as passed nor as failed; or a seed is
                   exactly zero at a scale, and the slope over the other scales is within the tolerance
    zero           exactly zero at every scale, and no prediction says otherwise
    no prediction  nothing is predicted, so it passes nothing

A scale at which a seed is exactly zero is left out of the slope, and `dropped` names it. At least three must remain.

What an update adds to a layer's output has two parts: one that aligns with the input and grows with the fan-in, and one
that a random matrix of its size would add, which grows with its root. A prediction is about the first. It is judged at
the scales at which it leads, and the random part is taken off; nothing is predicted where fewer than three remain.

A prediction may also be an upper or a lower bound, or an interval. Then a slope below or above it, or inside, is ok as
well. This module knows no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from hpxfer.host import aligned, json_ready

# Numbers of a check that are shown at every scale: shares and entropies, which are no powers of it, and some sizes.
#
# Nothing is predicted of them.

Kind = Literal["share", "size"]  # a size may be a power of the scale, and has a slope


@dataclass(frozen=True, kw_only=True)
class ByScale:
    """A number at every scale after `step` updates.

    `values` are means over the seeds that have the number, and NaN where none has it. A size is shown as an RMS, and
    has a slope of log size on log scale with its interval, unless it is not finite somewhere.
    """

    measure: str
    role: str
    layer: int | None  # a block, from 0. None is outside the blocks, or over all blocks
    step: int
    kind: Kind
    scales: tuple[float, ...]
    values: tuple[float, ...]
    slope: float | None = None
    low: float | None = None
    high: float | None = None
    dropped: tuple[float, ...] = ()  # scales at which it is exactly zero; the slope is that of the others

    def at(self, scale: float) -> float | None:
        """Return the value at a scale. It is None where the measure does not exist."""
        return self.values[self.scales.index(scale)] if scale in self.scales else None


def by_scale(observations: Iterable[Observation], kinds: Mapping[str, Kind]) -> tuple[ByScale, ...]:
    """Return the measures, which `kinds` names, over the scales that have them, in the order of the observations."""
    groups: dict[tuple[str, str, int | None, int], list[Observation]] = {}
    for seen in observations:
        groups.setdefault((seen.quantity, seen.role, seen.layer, seen.step), []).append(seen)
    return tuple(_by_scale(group, kinds[measure]) for (measure, *_), group in groups.items())


def over_blocks(observations: Iterable[Observation], kinds: Mapping[str, Kind]) -> list[Observation]:
    """Return the mean over the blocks of every share, and the RMS of every size, as observations of layer None."""
    groups: dict[tuple[str, str, int, float], list[Observation]] = {}
    for seen in observations:
        groups.setdefault((seen.quantity, seen.role, seen.step, seen.scale), []).append(seen)
    out = []
    for (measure, *_), group in groups.items():
        values = np.array([seen.values for seen in group])
        joined = np.sqrt(np.mean(values**2, 0)) if kinds[measure] == "size" else np.mean(values, 0)
        out.append(replace(group[0], layer=None, values=tuple(joined.tolist())))
    return out


def sizes_as_data(fits: Iterable[Fit]) -> list[dict[str, Any]]:
    """Return the sizes over all blocks as JSON-ready data, an entry per quantity: `rms[i][j]` is at step i, scale j."""
    groups: dict[tuple[str, str], list[Fit]] = {}
    for found in fits:
        if found.layer is None:
            groups.setdefault((found.quantity, found.role), []).append(found)
    out = []
    for (quantity, role), group in groups.items():
        scales = sorted({scale for found in group for scale in found.scales})
        at = [dict(zip(found.scales, found.magnitudes, strict=True)) for found in group]
        entry = {"quantity": quantity, "role": role, "steps": [found.step for found in group], "scales": scales}
        out.append(json_ready({**entry, "rms": [[of_step.get(scale) for scale in scales] for of_step in at]}))
    return out


def as_data(measures: Sequence[ByScale]) -> list[dict[str, Any]]:
    """Return the measures as JSON-ready data, one entry per measure and block: `values[i][j]` is at step i, scale j.

    It is None where a measure does not exist, such as the margin of a router all of whose experts are active.
    """
    scales = _scales(measures)
    groups: dict[tuple[str, str, int | None], list[ByScale]] = {}
    for found in measures:
        groups.setdefault((found.measure, found.role, found.layer), []).append(found)
    out = []
    for (measure, role, layer), group in groups.items():
        entry: dict[str, Any] = {"measure": measure, "role": role, "layer": layer, "kind": group[0].kind}
        entry |= {"steps": [found.step for found in group], "scales": scales}
        entry["values"] = [[found.at(scale) for scale in scales] for found in group]
        if group[0].kind == "size":
            entry["slopes"] = [[found.slope, found.low, found.high] for found in group]
        out.append(json_ready(entry))
    return out


def _scales(measures: Iterable[ByScale]) -> tuple[float, ...]:
    """Return the scales at which any measure exists, ascending."""
    return tuple(sorted({scale for found in measures for scale in found.scales}))


def as_text(measures: Sequence[ByScale], scale_name: str) -> list[str]:
    """Return the measures over all blocks at their first and last step as aligned lines, or nothing."""
    groups: dict[tuple[str, str], list[ByScale]] = {}
    for found in measures:
        if found.layer is None:
            groups.setdefault((found.role, found.measure), []).append(found)
    if not groups:
        return []
    scales = _scales(measures)
    head = ("role", "measure", "step", *(f"{scale:g}" for scale in scales), "slope", "95% interval")
    roles = list(dict.fromkeys(role for role, _ in groups))
    ordered = sorted(groups.values(), key=lambda group: roles.index(group[0].role))
    kept = [group for group in ordered if not _is_repeated(group, groups)]
    shown = [found for group in kept for found in dict.fromkeys((group[0], group[-1]))]
    return [
        f"routers and the probe, at each {scale_name} (means over seeds and blocks; sizes: RMS, with a slope)",
        *aligned([head, *(_row(found, scales) for found in shown)]),
    ]


def _is_repeated(group: Sequence[ByScale], groups: Mapping[tuple[str, str], Sequence[ByScale]]) -> bool:
    """Return whether a measure repeats another one, as the two entropies do where all experts are active."""
    other = groups.get((group[0].role, "entropy_of_all"), ())
    of_both = [[(found.step, found.scales, found.values) for found in each] for each in (group, other)]
    return group[0].measure == "entropy_of_active" and of_both[0] == of_both[1]


def _row(found: ByScale, scales: Sequence[float]) -> tuple[str, ...]:
    slope, interval = "", ""
    if found.slope is not None and found.low is not None and found.high is not None:
        slope = f"{found.slope:+.2f}{without(found.dropped)}"
        interval = f"{found.low:+.2f} .. {found.high:+.2f}"
    values = ("" if (value := found.at(scale)) is None else f"{value:.4g}" for scale in scales)
    return (found.role, found.measure, str(found.step), *values, slope, interval)


def without(dropped: Sequence[float]) -> str:
    """Return what to say beside a slope of the scales that it leaves out, because they hold exact zeros."""
    return f" without {', '.join(f'{scale:g}' for scale in dropped)}" if dropped else ""


def _by_scale(group: Sequence[Observation], kind: Kind) -> ByScale:
    members = sorted(group, key=lambda seen: seen.scale)
    slope: Slope | None = None
    dropped: tuple[float, ...] = ()
    if kind == "size":
        slope, dropped = slope_without_zeros([seen.scale for seen in members], [seen.values for seen in members])
    first = members[0]
    return ByScale(
        measure=first.quantity,
        role=first.role,
        layer=first.layer,
        step=first.step,
        kind=kind,
        scales=tuple(seen.scale for seen in members),
        values=tuple(_over_seeds(seen.values, kind) for seen in members),
        slope=slope.value if slope else None,
        low=slope.low if slope else None,
        high=slope.high if slope else None,
        dropped=dropped,
    )


def _over_seeds(values: Sequence[float], kind: Kind) -> float:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan
    if kind == "size":
        return math.sqrt(math.fsum(value**2 for value in known) / len(known))
    return math.fsum(known) / len(known)


Verdict = Literal["ok", "miss", "unclear", "no prediction", "zero"]
# Whether a slope must be as predicted, or may also be smaller or larger.
Bound = Literal["equal", "at most", "at least"]

# Exponents are multiples of 1/2, and this is less than half the distance between two of them.
TOLERANCE = 0.15
CONFIDENCE = 0.95
MIN_SCALES = 3
NOT_ALIGNED = "what updates add here is mostly what random matrices of their size would add, so no power law is derived"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The size of a quantity at one scale: the RMS over coordinates (and tokens), with one value per seed."""

    quantity: str
    role: str
    layer: int | None  # a block, from 0. None is outside the blocks, or the RMS over all blocks
    step: int  # number of updates before
    scale: float
    values: tuple[float, ...]
    random: tuple[float, ...] = ()  # of what an update adds: the size of what a random matrix of its size would add


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A prediction for a quantity along a path: size ~ scale^exponent at steps `first` to `last`."""

    quantity: str
    role: str
    exponent: float | None  # None predicts nothing, and `source` gives the reason
    source: str
    zero: bool = False  # exactly zero
    first: int = 0
    last: int | None = None
    bound: Bound = "equal"
    least: float | None = None  # an interval is predicted, from `least` to `exponent`

    def is_about(self, seen: Observation) -> bool:
        """Return whether the prediction is about this observation."""
        same = (self.quantity, self.role) == (seen.quantity, seen.role)
        return same and self.first <= seen.step and (self.last is None or seen.step <= self.last)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The slope of a quantity at one step: of log size on log scale, with its interval and the prediction.

    `slope`, `low` and `high` are None where a size is not finite, or fewer than three scales are free of exact zeros.
    `magnitudes` holds the RMS over seeds at each of the ascending `scales`, and `dropped` the scales without the slope.
    """

    quantity: str
    role: str
    layer: int | None
    step: int
    slope: float | None
    low: float | None
    high: float | None
    predicted: float | None
    verdict: Verdict
    scales: tuple[float, ...]
    magnitudes: tuple[float, ...]
    source: str | None = None  # of the prediction, or the reason why there is none
    dropped: tuple[float, ...] = ()
    bound: Bound = "equal"  # what the prediction is: a slope below or above a bound is ok as well
    least: float | None = None  # the lower end, where an interval is predicted


def fit(
    observations: Iterable[Observation], predictions: Sequence[Prediction], tolerance: float = TOLERANCE
) -> tuple[Fit, ...]:
    """Return one slope per quantity, role, layer and step, in the order of the observations.

    The first prediction that is about an observation counts.
    """
    groups: dict[tuple[str, str, int | None, int], list[Observation]] = {}
    for seen in observations:
        groups.setdefault((seen.quantity, seen.role, seen.layer, seen.step), []).append(seen)
    fits = []
    for group in groups.values():
        members = sorted(group, key=lambda seen: seen.scale)
        assert len({seen.scale for seen in members}) == len(members), f"{members[0]} was seen twice at one scale"
        found = next((prediction for prediction in predictions if prediction.is_about(members[0])), None)
        fits.append(_fit(members, found, tolerance))
    return tuple(fits)


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A least-squares slope and its confidence interval."""

    value: float
    low: float
    high: float


def slope_of(scales: Sequence[float], values: Sequence[Sequence[float]]) -> Slope:
    """Return the slope of log RMS-over-seeds on log scale. `values` holds one size > 0 per seed at each scale.

    The variance of a point is the larger of two estimates. The first is the scatter of the seeds about a common curve.
    The second is the scatter of the residuals, which gives a curve that is no power law a wide interval. A seed has the
    same data at every scale, so its own offset is no noise of the slope. The degrees of freedom are those of both
    estimates together. At four scales and six seeds the interval holds the truth in 93 of 100 cases if the seeds
    scatter, and in 83 if the scales scatter and the seeds agree.
    """
    x, y = np.log(scales), np.array([math.log(_rms(of_scale)) for of_scale in values])
    dx = x - x.mean()
    spread = float(np.sum(dx**2))
    slope = float(np.sum(dx * y)) / spread
    residuals = y - y.mean() - slope * dx
    freedom = len(scales) - 2
    variance = float(np.sum(residuals**2)) / freedom
    num_seeds = len(values[0])
    if num_seeds > 1:
        logs = np.log(np.asarray(values, dtype=np.float64))
        scatter = logs - logs.mean(0, keepdims=True) - logs.mean(1, keepdims=True) + logs.mean()
        more = (len(scales) - 1) * (num_seeds - 1)
        variance = max(variance, float(np.sum(scatter**2)) / more / num_seeds)
        freedom += more
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / spread)
    return Slope(value=slope, low=slope - half, high=slope + half)


def slope_without_zeros(
    scales: Sequence[float], values: Sequence[Sequence[float]]
) -> tuple[Slope | None, tuple[float, ...]]:
    """Return the slope over the scales at which no seed is exactly zero, and the scales that were left out.

    The slope is None where fewer than three scales remain, or a number is negative or not finite.
    """
    if any(not math.isfinite(size) or size < 0 for of_scale in values for size in of_scale):
        return None, ()
    kept = [at for at, of_scale in enumerate(values) if all(of_scale)]
    if len(kept) < MIN_SCALES:
        return None, ()
    dropped = tuple(scale for at, scale in enumerate(scales) if at not in kept)
    return slope_of([scales[at] for at in kept], [values[at] for at in kept]), dropped


def judge(
    slope: Slope, predicted: float, tolerance: float, bound: Bound = "equal", least: float | None = None
) -> Verdict:
    """Return the verdict on a slope, as the docstring of the module defines it."""
    low, high = (predicted if least is None else least) - tolerance, predicted + tolerance
    if (slope.low > high and bound != "at least") or (slope.high < low and bound != "at most"):
        return "miss"
    if low <= slope.value <= high and (slope.high - slope.low) / 2 <= tolerance:
        return "ok"
    beyond = (bound == "at most" and slope.high <= high) or (bound == "at least" and slope.low >= low)
    return "ok" if beyond else "unclear"


def over_layers(observations: Iterable[Observation]) -> list[Observation]:
    """Return the RMS over the blocks of every quantity inside blocks, as observations of layer None."""

    def key(seen: Observation) -> tuple[str, str, int, float]:
        return seen.quantity, seen.role, seen.step, seen.scale

    every = list(observations)
    outside = {(seen.quantity, seen.role) for seen in every if seen.layer is None}
    inside = [seen for seen in every if seen.layer is not None and (seen.quantity, seen.role) not in outside]
    out = []
    for (quantity, role, step, scale), found in groupby(sorted(inside, key=key), key=key):
        group = list(found)
        values = np.array([seen.values for seen in group])
        randoms = np.array([seen.random for seen in group])
        rms, random = (tuple(np.sqrt(np.mean(each**2, axis=0)).tolist()) for each in (values, randoms))
        out.append(
            Observation(quantity=quantity, role=role, layer=None, step=step, scale=scale, values=rms, random=random)
        )
    return out


def everywhere(observations: Sequence[Observation], num_scales: int) -> Iterator[Observation]:
    """Yield what was seen inside single blocks, of those blocks that every shape of the path has."""
    groups: dict[tuple[str, str, int | None, int], list[Observation]] = {}
    for seen in observations:
        groups.setdefault((seen.quantity, seen.role, seen.layer, seen.step), []).append(seen)
    for group in groups.values():
        if group[0].layer is not None and len(group) == num_scales:
            yield from group


def _aligned(seen: Observation) -> Observation | None:
    """Return the part of what an update adds that aligns with its input, or None if the random part leads."""
    whole = _rms(seen.values)
    if not seen.random or not _has_log(whole):
        return seen
    share = 1 - (_rms(seen.random) / whole) ** 2  # the squares of the two parts add up
    if share < 0.5:
        return None
    # A seed's distance from the RMS over seeds is that of the whole, and a larger share of this part.
    values = tuple(math.sqrt(share) * whole * (value / whole) ** (1 / share) for value in seen.values)
    return replace(seen, values=values)


def _fit(members: Sequence[Observation], found: Prediction | None, tolerance: float) -> Fit:
    left_out: tuple[float, ...] = ()
    aligned = [part for seen in members if (part := _aligned(seen)) is not None]
    if len(aligned) >= MIN_SCALES:
        left_out = tuple({seen.scale for seen in members} - {seen.scale for seen in aligned})
        members = aligned
    elif len(aligned) < len(members) and found is not None:
        found = replace(found, exponent=None, zero=False, source=NOT_ALIGNED)
    values = [seen.values for seen in members]
    magnitudes = tuple(_rms(of_scale) for of_scale in values)
    slope, dropped = slope_without_zeros([seen.scale for seen in members], values)
    verdict = _verdict(slope, dropped, magnitudes, found, tolerance)
    if verdict == "miss" and slope is not None and all(magnitudes) and _is_of_one_seed(members, found, tolerance):
        verdict = "unclear"
    first = members[0]
    return Fit(
        quantity=first.quantity,
        role=first.role,
        layer=first.layer,
        step=first.step,
        slope=slope.value if slope else None,
        low=slope.low if slope else None,
        high=slope.high if slope else None,
        predicted=found.exponent if found else None,
        verdict=verdict,
        scales=tuple(seen.scale for seen in members),
        magnitudes=magnitudes,
        source=found.source if found else None,
        dropped=tuple(sorted((*left_out, *dropped))),
        bound=found.bound if found else "equal",
        least=found.least if found else None,
    )


def _is_of_one_seed(members: Sequence[Observation], found: Prediction | None, tolerance: float) -> bool:
    """Return whether a slope no longer misses its prediction once some seed is left out.

    A size is an RMS over seeds. One seed in 20 that is ten times as large as the others decides the RMS at its scale,
    and the scatter of the logs of the seeds does not show how much.
    """
    scales, count = [seen.scale for seen in members], len(members[0].values)
    if found is None or found.exponent is None or count < 3:
        return False
    for seed in range(count):
        others = [seen.values[:seed] + seen.values[seed + 1 :] for seen in members]
        slope, _ = slope_without_zeros(scales, others)
        if slope is not None and judge(slope, found.exponent, tolerance, found.bound, found.least) != "miss":
            return True
    return False


def _verdict(
    slope: Slope | None,
    dropped: Sequence[float],
    magnitudes: Sequence[float],
    found: Prediction | None,
    tolerance: float,
) -> Verdict:
    nothing = not any(magnitudes)
    if found is None or (found.exponent is None and not found.zero):
        return "zero" if nothing else "no prediction"
    if found.zero:
        return "zero" if nothing else "miss"
    if not all(magnitudes) and found.bound != "at most":
        return "miss"  # no power of the scale is zero
    if slope is not None and found.exponent is not None:
        verdict = judge(slope, found.exponent, tolerance, found.bound, found.least)
        return "unclear" if dropped and verdict == "ok" else verdict
    if nothing and found.bound == "at most":
        return "zero"
    return "unclear" if all(_has_log(size) for size in magnitudes) else "miss"


def _has_log(size: float) -> bool:
    return math.isfinite(size) and size > 0


def _rms(values: Sequence[float]) -> float:
    squares: NDArray[np.float64] = np.square(np.asarray(values, dtype=np.float64))
    return float(np.sqrt(np.mean(squares)))
