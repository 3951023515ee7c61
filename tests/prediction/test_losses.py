"""The loss along an axis: said where it can be, and each reason where it cannot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hpxfer.prediction.losses import LossAnswer, loss_at
from hpxfer.verdict.findings import Verdict
from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses

HP = 2.0**-6
SCALES = (32, 64, 128)


def row(scale: float, *losses: float) -> ShapeLosses:
    seeds = tuple(range(len(losses)))
    return ShapeLosses(
        axis="width",
        scale_name="width",
        scale=scale,
        shape=f"w{scale:g}",
        is_base=scale == 32,
        parameterization="mup",
        cells=(SeedLosses(value=HP, seeds=seeds, losses=losses, num_missing=0),),
    )


def falling(scales: Sequence[float] = SCALES, noise: float = 0.01) -> list[ShapeLosses]:
    return [row(scale, loss - noise, loss + noise) for scale in scales for loss in [2 + 2 / math.sqrt(scale)]]


def ask(rows: Sequence[ShapeLosses], scale: float, verdict: Verdict = "transfers") -> LossAnswer:
    return loss_at(rows, "lr", HP, scale, verdict)


@pytest.mark.parametrize("scale", [16, 24, 32, 96, 200, 256])
def test_up_to_one_doubling_beyond_the_measured_shapes_the_loss_is_said(scale: float) -> None:
    found = ask(falling(), scale)
    assert found.why_not is None
    assert found.forecast is not None
    assert found.forecast.low < 2 + 2 / math.sqrt(scale) < found.forecast.high
    assert found.forecast.level == 0.9


@pytest.mark.parametrize(
    ("rows", "scale", "why"),
    [
        (
            falling(),
            257,
            "width 257 is more than 2 times the largest measured one, 128; first measure width 128.5 or more",
        ),
        (falling(), 15, "width 15 is less than 1/2 of the smallest measured one, 32; first measure width 30 or less"),
        (
            falling((32, 64)),
            128,
            "at least 3 shapes of the axis width must have a loss at lr 2^-6, got 2 (width 32, 64)",
        ),
        ([*falling((32, 64)), row(128)], 256, "got 2 (width 32, 64)"),
        ([row(scale, 2.0) for scale in SCALES], 256, "the noise of seeds is not known"),
        ([*falling((32, 64)), row(128, 2.0, math.inf)], 256, "lr 2^-6 diverged at width 128 (1 of 2 seeds)"),
        ([*falling(), row(128, 2.0, 2.1)], 256, "two shapes of the axis width have the same width"),
    ],
)
def test_what_cannot_be_said_has_a_reason(rows: Sequence[ShapeLosses], scale: float, why: str) -> None:
    found = ask(rows, scale)
    assert found.forecast is None
    assert found.why_not is not None
    assert why in found.why_not


def test_an_hp_that_drifts_is_followed_between_measured_shapes_only() -> None:
    assert ask(falling(), 96, "drifts").forecast is not None
    beyond = ask(falling(), 130, "drifts")
    assert beyond.forecast is None
    assert "lr 2^-6 drifts along the axis width" in str(beyond.why_not)
    assert ask(falling(), 130, "undecided").forecast is not None


def test_an_hp_that_was_not_tried_has_no_loss() -> None:
    found = loss_at(falling(), "lr", 2.0**-5, 256)
    assert (found.forecast, found.shapes) == (None, ())
    assert "got 0 (width none)" in str(found.why_not)


def test_the_nearest_measured_shape_is_the_one_below() -> None:
    assert [ask(falling(), scale).nearest.scale for scale in (20, 32, 100, 128, 200)] == [32, 32, 64, 128, 128]


def test_the_order_of_the_shapes_does_not_matter() -> None:
    assert ask(falling()[::-1], 200) == ask(falling(), 200)
