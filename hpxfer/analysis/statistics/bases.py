"""Bases: from which shape on does an HP transfer, and which is the smallest shape that it should be tuned at?

The factors of a parameterization are monomials in the ratios shape/base, so factors compose: the factor from width 32
to 128 is the factor from 32 to 64 times that from 64 to 128. A trial therefore belongs to every base at once. Its HP
differs between two bases by a factor per role, which is the same for all shapes.

An example: under mup the LR of hidden matrices goes as 1/width. With base 32 and LR 2^-6, hidden matrices train with
2^-7 at width 64 and with 2^-8 at width 128. With base 64, whose hidden matrices have 2^-7, they train with 2^-8 at
width 128 too. The embedding, whose factor is 1, has 2^-6 in both cases. It is the same model.

So `tuned at width 64` asks about the trials that are there already: the HP that is best at width 64, in units of the
sweep's base, is used at every larger shape in the same units. The verdict on the shapes from width 64 on, with width 64
as their base, answers whether that HP transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hpxfer.host import shape_label
from hpxfer.intervals import ENDS, Floats
from hpxfer.verdict import Estimates, Finding, LossGrid, Rules, Step, Verdict, find
from hpxfer.verdict.thresholds import MOVE_OCTAVES

Trend = Literal["shrinking", "constant", "growing", "turning", "unknown"]
MIN_STEPS = 2


@dataclass(frozen=True, kw_only=True)
class TunedAt:
    """One shape as the base: the HP that is best there, the loss given up at the largest shape, and the next optimum.

    Intervals hold 95%. A None is not known.
    """

    shape: str
    scale: float
    tuned_value: float | None  # the HP, in units of the sweep's base
    verdict: Verdict | None  # on this shape and all larger ones; None at the largest
    transfer_chance: float | None  # the probability that the HP transfers from here
    loss_given_up_nats: float | None  # at the largest shape; +inf if the HP diverges there
    loss_given_up_low: float | None
    loss_given_up_high: float | None
    limit_nats: float | None  # the largest loss given up that counts as none
    octaves_to_next: float | None = None  # by which the optimum of the next shape lies above that of this one
    octaves_low: float | None = None
    octaves_high: float | None = None
    tuning_flops: float | None = None  # of all trials of the HP's line at this shape


@dataclass(frozen=True, kw_only=True)
class BaseReading:
    """Every shape of one parameterization along one axis as the base, the smallest first.

    `trend` says what the steps of the optimum from shape to shape do, per doubling of the scale:

    - `shrinking` or `growing`: they surely do.
    - `constant`: from the first step to the last they surely change by less than MOVE_OCTAVES.
    - `turning`: two steps surely go opposite ways.
    - `unknown`: the losses do not tell.
    """

    axis: str
    parameterization: str
    hp: str
    scale_name: str = ""
    bases: tuple[TunedAt, ...] = ()
    trend: Trend = "unknown"
    transfers_from: str | None = None  # the smallest shape whose HP transfers to all larger ones, e.g. `width 64`
    recommended: str | None = None  # the smallest shape to tune at; None if the losses show none
    in_brief: str = ""  # the recommendation and the trend in a few words
    advice: str = ""  # in one sentence
    why_not: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Its axis and parameterization."""
        return self.axis, self.parameterization

    def name(self, row: TunedAt) -> str:
        """Return the name of a base within this axis, e.g. `width 64`."""
        return shape_label(self.scale_name, row.scale)


def read_bases(
    estimates: Sequence[Estimates], findings: Sequence[Finding], hp: str, rules: Rules
) -> tuple[BaseReading, ...]:
    """Return what each shape would do as the base, for every grid of the line of an HP, in the order of the estimates.

    `findings` are those on the same grids, in the same order and judged by the same rules.
    """
    grids = [each.grid for each in estimates]
    shapes = dict.fromkeys(row.shape for grid in grids for row in grid.rows)
    found = {shape: {start.key: start for start in _find_from(grids, findings, shape, rules)} for shape in shapes}
    return tuple(
        _reading(each, whole, [found[shape.shape][whole.key] for shape in whole.shapes], hp, rules)
        for each, whole in zip(estimates, findings, strict=True)
    )


def _find_from(grids: Sequence[LossGrid], findings: Sequence[Finding], shape: str, rules: Rules) -> Sequence[Finding]:
    """Return the findings from a base. They are known if it is the base and the smallest shape of every axis."""
    judged = from_base(grids, shape)
    return findings if [grid.rows for grid in judged] == [grid.rows for grid in grids] else find(judged, rules)


def from_base(grids: Sequence[LossGrid], shape: str) -> tuple[LossGrid, ...]:
    """Return the grids as they read with `shape` as the base: its axes, from this shape on."""
    out = []
    for grid in grids:
        scale = next((row.scale for row in grid.rows if row.shape == shape), None)
        if scale is not None:
            kept = [replace(row, is_base=row.shape == shape) for row in grid.rows if row.scale >= scale]
            out.append(replace(grid, rows=tuple(kept)))
    return tuple(out)


def _reading(estimates: Estimates, whole: Finding, starts: Sequence[Finding], hp: str, rules: Rules) -> BaseReading:
    """Return the reading of one grid, from what is known of all of it and the findings from each of its shapes on."""
    optimum_BI = _optimum_draws(estimates)
    doublings = np.log2([shape.scale for shape in whole.shapes])
    step_from = {} if whole.drift is None else {step.start: step for step in whole.drift.steps}
    following = [*(shape.scale for shape in whole.shapes[1:]), None]
    steps = [step_from.get(shape.scale) for shape in whole.shapes]
    bases = tuple(
        _tuned_at(start, step if step is not None and step.stop == after else None, largest=after is None)
        for start, step, after in zip(starts, steps, following, strict=True)
    )
    transferring = [i for i, row in enumerate(bases) if row.verdict == "transfers"]
    stopping = [i for i in transferring if _stops(optimum_BI, doublings, i, rules)]
    reading = BaseReading(
        axis=whole.axis,
        parameterization=whole.parameterization,
        hp=hp,
        scale_name=whole.scale_name,
        bases=bases,
        trend=_trend(optimum_BI, doublings),
        transfers_from=_name(starts[transferring[0]]) if transferring else None,
        recommended=_name(starts[stopping[0]]) if stopping else None,
    )
    if len(bases) < 2:
        return replace(reading, why_not="no shape beyond the base")
    return replace(reading, in_brief=_in_brief(reading), advice=_advice(reading))


def _name(start: Finding) -> str:
    return start.name(start.shapes[0])


def _tuned_at(finding: Finding, step: Step | None, *, largest: bool) -> TunedAt:
    """Return the row of the base of a finding, with the step to the next shape, if it is known."""
    base = next(shape for shape in finding.shapes if shape.is_base)
    last = finding.shapes[-1]
    return TunedAt(
        shape=base.shape,
        scale=base.scale,
        tuned_value=finding.base_value,
        verdict=None if largest else finding.verdict,
        transfer_chance=None if largest else finding.transfer_chance,
        loss_given_up_nats=last.regret_nats,
        loss_given_up_low=last.regret_low_nats,
        loss_given_up_high=last.regret_high_nats,
        limit_nats=last.limit_nats,
        octaves_to_next=None if step is None else step.octaves,
        octaves_low=None if step is None else step.low,
        octaves_high=None if step is None else step.high,
    )


def _optimum_draws(estimates: Estimates) -> Floats:
    """Return draws of log2 of the optima, (draws, shapes); NaN at a shape whose optimum is not known."""
    known = [estimates.has_noise and optimum.kind != "none" for optimum in estimates.optima]
    return np.where(known, estimates.optimum_BI, np.nan)


def _trend(optimum_BI: Floats, doublings: Floats) -> Trend:
    """Return what the steps do, from draws of the optima. Steps count up in the direction of the largest one."""
    known = ~np.isnan(optimum_BI).any(axis=0)
    apart = np.diff(doublings[known])
    rate_BJ = np.diff(optimum_BI[:, known])[:, apart > 0] / apart[apart > 0]
    if rate_BJ.shape[1] < MIN_STEPS:
        return "unknown"
    low_J, high_J = np.quantile(rate_BJ, ENDS, axis=0)
    if (low_J > 0).any() and (high_J < 0).any():
        return "turning"
    middle_J = np.median(rate_BJ, axis=0)
    upward_BJ = rate_BJ * np.sign(middle_J[np.argmax(np.abs(middle_J))])
    place_J = np.linspace(-0.5, 0.5, rate_BJ.shape[1])
    low, high = np.quantile(upward_BJ @ place_J / (place_J @ place_J), ENDS)
    if high < 0:
        return "shrinking"
    if low > 0:
        return "growing"
    return "constant" if max(-low, high) < MOVE_OCTAVES else "unknown"


def _stops(optimum_BI: Floats, doublings: Floats, i: int, rules: Rules) -> bool:
    """Return whether the optimum is seen to stop at shape `i`, so that this base differs from the smallest one.

    From a later shape on, the optimum has less room to move. If it moved at one pace everywhere, a late base would seem
    to transfer only because few doublings lie beyond. So one of two things must hold:

    - the optimum surely moves less per doubling after the shape than before it, or
    - it is not seen to move after the shape, and at least MIN_STEPS steps lie there.

    The smallest shape has nothing before it.
    """
    if not doublings[0] < doublings[i] < doublings[-1]:
        return i == 0
    after_B = optimum_BI[:, -1] - optimum_BI[:, i]
    before_B = optimum_BI[:, i] - optimum_BI[:, 0]
    pace_after_B = np.abs(after_B) / (doublings[-1] - doublings[i])
    pace_before_B = np.abs(before_B) / (doublings[i] - doublings[0])
    if np.mean(pace_after_B < pace_before_B) >= 1 - rules.error:
        return True
    low, high = np.quantile(after_B, ENDS)
    return bool(low <= 0 <= high) and optimum_BI.shape[1] - 1 - i >= MIN_STEPS


def _in_brief(reading: BaseReading) -> str:
    """Return the recommendation and the trend, e.g. `width 64, steps shrinking`."""
    trend = "not known" if reading.trend == "unknown" else reading.trend
    return f"{reading.recommended or 'none'}, steps {trend}"


def _advice(reading: BaseReading) -> str:
    """Return what to do in one sentence, e.g. `tune at width 64, not at width 32, as lr transfers from there`."""
    hp, smallest, largest = reading.hp, *(reading.name(reading.bases[end]) for end in (0, -1))
    if reading.recommended == smallest:
        return f"{smallest} is large enough, as {hp} transfers from there"
    if reading.recommended is not None:
        return f"tune at {reading.recommended}, not at {smallest}, as {hp} transfers from there"
    if reading.transfers_from is not None:
        reach = f"{hp} transfers from {reading.transfers_from} up to {largest}"
        return f"no base is recommended, as the optimum is not seen to stop, although {reach}"
    judged = [row.verdict for row in reading.bases if row.verdict is not None]
    if all(verdict == "drifts" for verdict in judged):
        return f"no base is large enough, as {hp} drifts from every shape"
    return f"no base is known to be large enough, as {hp} is undecided from some shapes and transfers from none"
