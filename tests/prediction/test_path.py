"""Where a shape lies: on the axis that it continues, or on none, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sweep_text import edited

from hpxfer.prediction.path import Off, Place, places
from hpxfer.scaling.shape import Shape
from hpxfer.spec import SweepSpec, axes_of, parse_sweep

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
