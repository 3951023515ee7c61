"""Axes: which shapes a path holds, and the scale that it is measured on."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from strategies import sweeps
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.shape import Shape, check_shape
from hpxfer.spec import Path, SweepSpec, parse_sweep, paths
from hpxfer.spec.axes import moved
from hpxfer.spec.sweep import ShapeChange

BASE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=64, head_dim=16)


def path_of(axis: str) -> Path:
    (path,) = paths(parse_sweep(edited(("  width: [32, 64]", axis))))
    return path


@pytest.mark.parametrize(
    ("change", "dims"),
    [
        ({}, {}),
        ({"width": 64}, {"width": 64, "expert_width": 128}),  # the ratio is kept
        ({"width": 64, "expert_width": 64}, {"width": 64}),
        ({"width": 64, "expert_ratio": 0.5}, {"width": 64, "expert_width": 32}),
        ({"depth": 3}, {"depth": 3}),
        ({"num_experts": 12}, {"num_experts": 12, "num_active": 3}),  # kappa is kept
        ({"num_experts": 12, "num_active": 1}, {"num_experts": 12}),
        ({"num_active": 2}, {"num_active": 2}),
    ],
)
def test_moved(change: dict[str, Any], dims: dict[str, int]) -> None:
    assert moved(BASE, ShapeChange(**change)) == dataclasses.replace(BASE, **dims)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_experts": 6},
            "num_active must follow num_experts to hold kappa 0.25, got 1.5 of 6; "
            "give num_active, or another num_experts",
        ),
        (
            {"num_experts": 2},
            "num_active must follow num_experts to hold kappa 0.25, got 0.5 of 2; "
            "give num_active, or another num_experts",
        ),
        ({"expert_ratio": 1.0, "expert_width": 32}, "give one of expert_ratio and expert_width, got both"),
        ({"expert_ratio": 0.3}, "expert_width must be a whole number, got 9.6 at width 32"),
        ({"width": 40}, "width must be a multiple of head_dim, got width 40 and head_dim 16"),
        ({"num_active": 5}, "num_active must be at most num_experts, got 5 of 4"),
    ],
)
def test_moved_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HpxferError) as caught:
        moved(BASE, ShapeChange(**change))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("axis", "scale_name", "scales"),
    [
        ("  width: [64, 128]", "width", [32, 64, 128]),
        ("  depth: [4]", "depth", [2, 4]),
        ("  experts: [16, 8]", "num_experts", [4, 8, 16]),
        ("  active: {values: [2], allow_kappa_change: true}", "num_active", [1, 2]),
        ("  expert_ratio: [2, 0.5]", "expert_ratio", [0.5, 1, 2]),
        ("  expert_width: [64]", "expert_width", [32, 64]),
        ("  wide: [{width: 64}]", "width", [32, 64]),
        ("  deep: [{depth: 4}, {depth: 8}]", "depth", [2, 4, 8]),
        ("  big: [{width: 64, depth: 4}]", "hidden weights", [24576, 4 * (4 * 64**2 + 2 * 4 * 64 * 64)]),
        ("  thin: [{width: 64, expert_width: 32}]", "hidden weights", [24576, 2 * (4 * 64**2 + 2 * 4 * 64 * 32)]),
    ],
)
def test_scales(axis: str, scale_name: str, scales: list[float]) -> None:
    path = path_of(axis)
    assert path.scale_name == scale_name
    assert [point.scale for point in path.points] == scales


def test_experts_at_a_held_number_of_active_ones() -> None:
    path = path_of("  experts: {values: [8, 16], num_active: 1, allow_kappa_change: true}")
    assert [(one.shape.num_experts, one.shape.num_active) for one in path.points] == [(4, 1), (8, 1), (16, 1)]


def test_the_base_and_repeated_shapes_stand_once() -> None:
    assert len(path_of("  width: [32, 64, 64]").points) == 2


@given(sweeps())
def test_every_path_is_legal_ascending_and_holds_the_base(spec: SweepSpec) -> None:
    for path in paths(spec):
        shapes = [point.shape for point in path.points]
        scales = [point.scale for point in path.points]
        assert spec.base_shape in shapes
        assert len(set(shapes)) == len(shapes)
        assert scales == sorted(scales)
        assert not any(check_shape(shape) for shape in shapes)
        assert {shape.kappa for shape in shapes} == {spec.base_shape.kappa}
