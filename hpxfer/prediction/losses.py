"""What the measured losses of an axis say of another of its shapes, and on which axis a shape lies. Pure.

The prediction is of the transferred HP, the one that is best at the base and carried over by the table: a recipe gives
the target this HP, and nobody searches there. The target's own best HP may reach a lower loss, by the regret.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpxfer.analysis.statistics.scaling_fit import pooled_noise
from hpxfer.host import hp_text, scale_text, shape_label
from hpxfer.prediction.laws import Forecast, forecast
from hpxfer.scaling.shape import DIMENSIONS, Shape
from hpxfer.spec import Axis, Options, scale_of
from hpxfer.verdict import SeedLosses, ShapeLosses, Verdict
from hpxfer.verdict.thresholds import PREDICT_REACH, PREDICT_SHAPES, PREDICTED

# Path: on which axis of a sweep a shape lies, and at which scale. Pure.
#
# Each dimension of the shapes of an axis either stays, or goes as a power of the axis's scale, or as a straight line of
# it. A shape that was not measured lies on the axis if all its dimensions, batch and steps included, go on so. Nothing
# is known of other shapes: no sweep says what two axes do together.

SAME = 1e-6  # relative: dimensions are whole numbers, and powers of two of these are exact
MAX_NAMED = 2  # dimensions that a reason names
SCHEDULE = ("batch_tokens", "steps")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a shape lies on an axis. `shape` has the axis's batch and steps if it was given without any."""

    axis: Axis
    scale: float
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Off:
    """Why a shape lies on no axis: what each axis would have in its place."""

    axis: Axis
    why: str
    num_other: float  # dimensions that differ; the axis with the fewest is the nearest, one without a rule the last


def places(axes: Sequence[Axis], target: Shape, options: Options) -> tuple[list[Place], list[Off]]:
    """Return where the shape lies, the axis with most shapes first, and why not on the others, the nearest first."""
    found = [_on(axis, target, options) for axis in axes]
    on = sorted((each for each in found if isinstance(each, Place)), key=lambda place: -len(place.axis.points))
    return on, sorted((each for each in found if isinstance(each, Off)), key=lambda off: off.num_other)


def _on(axis: Axis, target: Shape, options: Options) -> Place | Off:
    for point in axis.points:
        wanted = _scheduled(target, {name: getattr(point.shape, name) for name in SCHEDULE})
        if _dims(wanted) == _dims(point.shape):
            return Place(axis=axis, scale=point.scale, shape=wanted)
    if len(axis.points) == 1:
        only = shape_label(axis.scale_name, axis.points[0].scale)
        return Off(axis=axis, why=f"along {axis.name}, {only} is the only shape", num_other=math.inf)
    scale = _scale(axis, target, options)
    if scale is None or not scale > 0:
        return Off(
            axis=axis, why=f"along {axis.name}, the scale {axis.scale_name} cannot be computed", num_other=math.inf
        )
    at = shape_label(axis.scale_name, scale)
    if any(point.own_decay for point in axis.points):
        why = (
            f"along {axis.name}, shapes have LR schedules of their own, so that only the measured ones are on the axis"
        )
        return Off(axis=axis, why=why, num_other=math.inf)
    expected = {name: _followed(axis, name, scale) for name in _dims(axis.points[0].shape)}
    crooked = [name for name, value in expected.items() if value is None]
    if crooked:
        why = (
            f"along {axis.name}, {' and '.join(crooked)} do not follow {axis.scale_name} by one rule, so that only the "
            "measured shapes are on the axis"
        )
        return Off(axis=axis, why=why, num_other=math.inf)
    known = {name: value for name, value in expected.items() if value is not None}
    wanted = _scheduled(target, {name: round(known[name]) for name in SCHEDULE})
    got = _dims(wanted)
    other = [name for name, value in known.items() if abs(got[name] - value) > SAME * max(value, 1)]
    if not other:
        return Place(axis=axis, scale=scale, shape=wanted)
    spelled = [f"{name} {scale_text(round(known[name], 2))} (got {got[name]})" for name in other]
    more = [f"{len(spelled) - MAX_NAMED} more"] if len(spelled) > MAX_NAMED else []
    why = f"along {axis.name}, {at} has {' and '.join([*spelled[:MAX_NAMED], *more])}"
    return Off(axis=axis, why=why, num_other=len(other))


def _scheduled(target: Shape, schedule: Mapping[str, Any]) -> Shape:
    """Return the shape with this batch and these steps, unless it has its own."""
    return target if target.tokens else replace(target, **schedule)


def _dims(shape: Shape) -> dict[str, int]:
    """Return every dimension, with the numbers of heads that the shape has whether or not they were given."""
    given = {name: getattr(shape, name) for name in DIMENSIONS}
    return {**given, "num_heads": shape.query_heads, "kv_heads": shape.key_heads}


def _scale(axis: Axis, target: Shape, options: Options) -> float | None:
    """Return the scale of a shape on an axis: the same quantity that the axis counts."""
    name, scales = scale_of(axis.name, [*(point.shape for point in axis.points), target], options)
    if name == axis.scale_name:
        return scales[-1]
    value = getattr(target, axis.scale_name, None)  # another dimension differs too
    return None if value is None else float(value)


def _followed(axis: Axis, name: str, scale: float) -> float | None:
    """Return what a dimension is at a scale by the rule of the axis; None without a rule."""
    x = np.array([point.scale for point in axis.points])
    y = np.array([float(_dims(point.shape)[name]) for point in axis.points])
    if bool(np.all(y == y[0])):
        return float(y[0])
    if x[0] == x[-1]:
        return None
    if bool(np.all(y > 0)):
        power = math.log(y[-1] / y[0]) / math.log(x[-1] / x[0])
        if np.allclose(y, y[0] * (x / x[0]) ** power, rtol=SAME, atol=0):
            return float(y[0] * (scale / x[0]) ** power)
    slope = (y[-1] - y[0]) / (x[-1] - x[0])
    if np.allclose(y, y[0] + slope * (x - x[0]), rtol=SAME, atol=SAME):
        return float(y[0] + slope * (scale - x[0]))
    return None


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
