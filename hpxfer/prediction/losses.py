"""Losses: what the measured losses of an axis say of another of its shapes, or why they say nothing. Pure.

The prediction is of the transferred HP, the one that is best at the base and carried over by the table: a recipe gives
the target this HP, and nobody searches there. The target's own best HP may reach a lower loss, by the regret.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpxfer.analysis.statistics.scaling_fit import pooled_noise
from hpxfer.prediction.laws import Forecast, forecast
from hpxfer.verdict.findings import Verdict
from hpxfer.verdict.labels import scale_text, shape_label
from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses
from hpxfer.verdict.text import hp_text
from hpxfer.verdict.thresholds import PREDICT_REACH, PREDICT_SHAPES, PREDICTED

ROUNDING = 1e-9  # relative, of scales


@dataclass(frozen=True, kw_only=True)
class MeasuredShape:
    """One measured shape at the transferred HP."""

    shape: str
    scale: float
    loss: float  # mean over seeds
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class LossAnswer:
    """What is known of the loss at a scale of an axis. Without a forecast, `why_not` says why."""

    axis: str
    scale_name: str
    scale: float
    verdict: Verdict | None = None  # on the axis
    shapes: tuple[MeasuredShape, ...] = ()  # ascending
    forecast: Forecast | None = None
    why_not: str | None = None

    @property
    def name(self) -> str:
        """The name of the target within the axis, e.g. `width 512`."""
        return shape_label(self.scale_name, self.scale)

    @property
    def nearest(self) -> MeasuredShape:
        """The measured shape next to the target: the largest below it, or the smallest."""
        below = [shape for shape in self.shapes if shape.scale <= self.scale * (1 + ROUNDING)]
        return below[-1] if below else self.shapes[0]


def loss_at(
    rows: Sequence[ShapeLosses],
    hp: str,
    value: float,
    scale: float,
    verdict: Verdict | None = None,
) -> LossAnswer:
    """Return the loss that the shapes of one axis, at one HP value, let expect at `scale`."""
    known = [(row, cell) for row in rows if (cell := row.cell(value)) is not None and cell.losses]
    blank = LossAnswer(axis=rows[0].axis, scale_name=rows[0].scale_name, scale=scale, verdict=verdict)
    at = f"{hp} {hp_text(value)}"
    if diverged := [_diverged(row, cell) for row, cell in known if len(cell.finite) < len(cell.losses)]:
        return replace(blank, why_not=f"{at} diverged at {', '.join(diverged)}")
    shapes = tuple(
        MeasuredShape(shape=row.shape, scale=row.scale, loss=cell.mean, num_seeds=len(cell.losses))
        for row, cell in sorted(known, key=lambda pair: pair[0].scale)
        if cell.mean is not None
    )
    blank = replace(blank, shapes=shapes)
    noise, freedom = pooled_noise([cell.losses for _, cell in known])
    if why := _why_not(blank, at, noise):
        return replace(blank, why_not=why)
    assert noise is not None
    found = forecast(
        [math.log2(shape.scale) for shape in shapes],
        [shape.loss for shape in shapes],
        [shape.num_seeds for shape in shapes],
        noise=noise,
        freedom=freedom,
        at=math.log2(scale),
        level=PREDICTED,
    )
    return replace(blank, forecast=found)


def _diverged(row: ShapeLosses, cell: SeedLosses) -> str:
    return f"{row.name} ({len(cell.losses) - len(cell.finite)} of {len(cell.losses)} seeds)"


def _why_not(blank: LossAnswer, at: str, noise: float | None) -> str | None:
    """Return why these shapes say nothing of the target, or None."""
    scales = [shape.scale for shape in blank.shapes]
    name = blank.scale_name
    if len(set(scales)) < PREDICT_SHAPES:
        few = ", ".join(scale_text(scale) for scale in scales) or "none"
        return (
            f"at least {PREDICT_SHAPES} shapes of the axis {blank.axis} must have a loss at {at}, got "
            f"{len(set(scales))} ({name} {few}); add shapes to the axis"
        )
    if len(set(scales)) < len(scales):
        return f"two shapes of the axis {blank.axis} have the same {name}"
    if noise is None:
        return "the noise of seeds is not known, as no shape has two seeds; add seeds"
    low, high = scales[0] / PREDICT_REACH, scales[-1] * PREDICT_REACH
    if blank.scale > high * (1 + ROUNDING):
        end = f"more than {PREDICT_REACH:g} times the largest measured one, {scale_text(scales[-1])}"
        return f"{blank.name} is {end}; first measure {shape_label(name, blank.scale / PREDICT_REACH)} or more"
    if blank.scale < low * (1 - ROUNDING):
        end = f"less than 1/{PREDICT_REACH:g} of the smallest measured one, {scale_text(scales[0])}"
        return f"{blank.name} is {end}; first measure {shape_label(name, blank.scale * PREDICT_REACH)} or less"
    beyond = not scales[0] * (1 - ROUNDING) <= blank.scale <= scales[-1] * (1 + ROUNDING)
    if beyond and blank.verdict == "drifts":
        return (
            f"{at} drifts along the axis {blank.axis}: its optimum moves with {name}, so that it costs more and more "
            "beyond the measured shapes, and no law of the scale says how much; tune it there"
        )
    return None
