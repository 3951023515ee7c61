"""Where a shape lies, and the loss along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sweep_text import edited

from hpxfer.prediction.losses import LossAnswer, Off, Place, loss_at, places
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec, axes_of, parse_sweep
from hpxfer.verdict.findings import Verdict
from hpxfer.verdict.loss_grid import SeedLosses, ShapeLosses

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)


def spec_of(axes: str) -> SweepSpec:
    return parse_sweep(edited(("  width: [32, 64]", axes)))


def where(axes: str, **dims: int) -> tuple[list[Place], list[Off]]:
    spec = spec_of(axes)
    return places(axes_of(spec), replace(BASE, **dims), spec.model)


@pytest.mark.parametrize(
    ("axes", "dims", "axis", "scale"),
    [
        ("  width: [32, 64, 128]", {"width": 256, "expert_width": 256}, "width", 256),
        ("  width: [32, 64, 128]", {"width": 96, "expert_width": 96}, "width", 96),
        ("  depth: [2, 4]", {"depth": 8}, "depth", 8),
        ("  experts: [4, 8]", {"num_experts": 16, "num_active": 4}, "experts", 16),
        ("  granularity: [1, 2]", {"num_experts": 16, "num_active": 4, "expert_width": 8}, "granularity", 4),
        ("  expert_ratio: [1, 2]", {"expert_width": 128}, "expert_ratio", 4),
        (
            "  both:\n    - {width: 64, depth: 4}\n    - {width: 128, depth: 8}",
            {"width": 256, "depth": 16, "expert_width": 256},
            "both",
            None,
        ),
    ],
)
def test_a_shape_that_continues_an_axis_lies_on_it(axes: str, dims: Any, axis: str, scale: float | None) -> None:
    (place,), off = where(axes, **dims)
    assert (place.axis.name, off) == (axis, [])
    assert scale is None or place.scale == scale
    base = spec_of(axes).base_shape
    assert place.shape == replace(BASE, **dims, batch_tokens=base.batch_tokens, steps=base.steps)


@pytest.mark.parametrize(
    ("axes", "dims", "why"),
    [
        ("  width: [32, 64]", {"width": 128, "depth": 4, "expert_width": 128}, "width 128 has depth 2 (got 4)"),
        ("  width: [32, 64]", {"width": 128}, "width 128 has expert_width 128 (got 32)"),
        ("  width: [32, 64]", {"width": 128, "expert_width": 128, "head_dim": 64}, "has head_dim 32 (got 64)"),
        ("  experts: [4, 8]", {"num_experts": 16}, "num_experts 16 has num_active 4 (got 1)"),
        ("  both:\n    - {width: 64, depth: 4}\n    - {width: 128, depth: 4}", {"width": 256, "depth": 4}, "one rule"),
        ("  width: [32]", {"width": 64, "expert_width": 64}, "along width, width 32 is the only shape"),
    ],
)
def test_a_shape_beside_an_axis_lies_on_none(axes: str, dims: Any, why: str) -> None:
    found, (off,) = where(axes, **dims)
    assert found == []
    assert why in off.why


def test_a_measured_shape_lies_on_its_axis_though_the_axis_follows_no_rule() -> None:
    axes = "  both:\n    - {width: 64, depth: 4}\n    - {width: 128, depth: 4}"
    (place,), _ = where(axes, width=128, depth=4, expert_width=128)
    assert place.scale == place.axis.points[-1].scale


def test_batch_and_steps_must_continue_the_axis_too() -> None:
    axes = "  width: [32, 64]"
    base = spec_of(axes).base_shape
    dims = {"width": 128, "expert_width": 128, "batch_tokens": base.batch_tokens}
    assert where(axes, **dims, steps=base.steps)[0]
    found, (off,) = where(axes, **dims, steps=2 * base.steps)
    assert found == []
    assert f"steps {base.steps} (got {2 * base.steps})" in off.why


def test_an_axis_of_steps_says_which_scale_a_longer_run_has() -> None:
    base = spec_of("  width: [32, 64]").base_shape
    steps = base.steps
    schedule = {"batch_tokens": base.batch_tokens, "steps": 4 * steps}
    (place,), (off,) = where(f"  duration: [{steps}, {2 * steps}]\n  width: [32, 64]", **schedule)
    assert (place.axis.name, place.scale, off.axis.name) == ("duration", 4 * steps, "width")


def test_the_base_lies_on_every_axis_and_the_longest_comes_first() -> None:
    found, off = where("  width: [32, 64]\n  depth: [2, 4, 8]")
    assert [place.axis.name for place in found] == ["depth", "width"]
    assert off == []


def test_the_nearest_axis_is_named_first_and_the_reason_is_short() -> None:
    found, off = where("  depth: [2, 4]\n  width: [32, 64]", width=128, expert_width=128, depth=4)
    assert found == []
    assert [each.axis.name for each in off] == ["width", "depth"]
    assert off[1].why.endswith("and 2 more")


def test_heads_that_are_given_are_the_ones_that_follow_the_width() -> None:
    found, _ = where("  width: [32, 64]", width=128, expert_width=128, num_heads=4, kv_heads=4)
    assert found
    assert not where("  width: [32, 64]", width=128, expert_width=128, num_heads=4, kv_heads=2)[0]


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
