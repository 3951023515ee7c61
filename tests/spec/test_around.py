"""Grids around the base value: the same sweep as with its exponents written out."""

from __future__ import annotations

import math

import pytest
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.spec import dump_sweep, parse_sweep

LR = "grid:\n  lr: [0.01]"


def with_grid(grid: str, hps: str = "") -> str:
    return edited((LR, f"grid: {grid}"), ("hps:\n", f"hps:\n{hps}"))


@pytest.mark.parametrize(
    ("around", "written", "hps"),
    [
        ("{lr: {around: [-2, 1]}}", "{lr: {log2: [-8, -5]}}", "  lr: {log2: -6}\n"),
        ("{lr: {around: [-1, 1], step: 0.5}}", "{lr: {log2: [-7, -5], step: 0.5}}", "  lr: 0.015625\n"),
        ("{init_scale: {around: [-1, 1]}}", "{init_scale: {log2: [-1, 1]}}", "  lr: 1\n"),
        (
            "{router.lr_mult: {around: [0, 2]}}",
            "{router.lr_mult: {log2: [-1, 1]}}",
            "  lr: 1\n  multipliers: {router.lr_mult: 0.5}\n",
        ),
        ("{expert_out.init_mult: {around: [0, 2]}}", "{expert_out.init_mult: {log2: [0, 2]}}", "  lr: 1\n"),
    ],
)
def test_exponents_are_counted_from_the_base_value(around: str, written: str, hps: str) -> None:
    spec = parse_sweep(with_grid(around, hps))
    assert spec == parse_sweep(with_grid(written, hps))
    assert parse_sweep(dump_sweep(spec)) == spec
    assert "around" not in dump_sweep(spec)


def test_values_that_are_no_power_of_two_are_kept() -> None:
    numbers = parse_sweep(with_grid("{lr: {around: [-1, 1]}}", "  lr: 0.003\n")).grid["lr"].numbers()
    assert all(
        math.isclose(number, wanted, rel_tol=1e-12)
        for number, wanted in zip(numbers, (0.0015, 0.003, 0.006), strict=True)
    )


@pytest.mark.parametrize(
    ("grid", "hps", "message"),
    [
        (
            "{lr: {around: [-1, 1]}}",
            "",
            "grid.lr.around: must be [low, high], in octaves from a base value of lr above zero, in hps or by",
        ),
        (
            "{weight_decay: {around: [-1, 1]}}",
            "  lr: 1\n",
            "grid.weight_decay.around: must be [low, high], in octaves from a base value of weight_decay",
        ),
        (
            "{lr: {around: [1, -1]}}",
            "  lr: 1\n",
            "grid.lr.around: must be [low, high] with low <= high, got [1.0, -1.0]",
        ),
        ("{lr: {around: 3}}", "  lr: 1\n", "grid.lr.around: must be a list, got 3"),
        ("{lr: {around: [0, .nan]}}", "  lr: 1\n", "grid.lr.around[1]: must be a finite number, got nan"),
        (
            "{lr: {around: [0, 1], log2: [0, 1]}}",
            "  lr: 1\n",
            "must be a list of values, or one of {log2: [low, high]} and",
        ),
        ("{lr: {around: [0]}}", "  lr: 1\n", "grid.lr.around: must be [low, high] with low <= high, got [0.0]"),
    ],
)
def test_bad_input_is_named(grid: str, hps: str, message: str) -> None:
    with pytest.raises(HpxferError) as error:
        parse_sweep(with_grid(grid, hps))
    assert message in str(error.value)
