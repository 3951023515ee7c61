"""Base values beside the grid: a warning where another line runs through a value that the grid does not have."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import hpxfer
from made_results import DATA
from sweep_text import edited
from tiny import write_tiny

from hpxfer.plan.cautions import cautions
from hpxfer.spec import parse_sweep
from hpxfer.trial import Expansion

HPS, GRID = "  router_bias_lr: 0.01", "  lr: [0.01]"
BOTH = "  lr: {log2: [-9, -4]}\n  init_scale: [0.5, 1, 2]"


def expansion(hps: str, grid: str = BOTH, *more: tuple[str, str]) -> Expansion:
    return Expansion(parse_sweep(edited((HPS, f"{HPS}\n{hps}" if hps else HPS), (GRID, grid), *more)), DATA)


def said(hps: str, grid: str = BOTH, *more: tuple[str, str]) -> tuple[str, ...]:
    return cautions(expansion(hps, grid, *more))


def num_trials(made: Expansion) -> int:
    return sum(1 for _ in made.trials())


def test_a_value_that_the_grid_has_not_is_named_with_the_nearest_that_it_has() -> None:
    (line,) = said("  lr: 0.0156")
    assert line == (
        "hps.lr: 0.0156 is no point of grid.lr, of which the nearest is 0.015625; the lines of init_scale run through "
        "it, and meet that of lr nowhere"
    )
    assert num_trials(expansion("  lr: 0.0156")) - num_trials(expansion("  lr: {log2: -6}")) == 6
    assert said("  lr: {log2: -6}") == said("  lr: 0.015625") == ()


@pytest.mark.parametrize(
    ("hps", "grid", "key"),
    [
        ("  lr: 0.01\n  init_scale: 1.01", "  lr: [0.01, 0.02]\n  init_scale: [0.5, 1, 2]", "hps.init_scale: 1.01"),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  init_scale: [0.5, 2]", "hps.init_scale: 1.0"),  # by default
        (
            "  lr: 0.01\n  multipliers: {router.lr_mult: 0.2501}",
            "  lr: [0.01, 0.02]\n  router.lr_mult: [0.25, 1]",
            "hps.multipliers.router.lr_mult: 0.2501",
        ),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  weight_decay: [0.1, 0.2]", "training.weight_decay: 0.0"),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  eps: [1.0e-8, 1.0e-6]", "training.eps: 1e-12"),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  beta2: [0.9501, 0.99]", "training.betas[1]: 0.95"),
    ],
)
def test_every_hp_is_looked_at(hps: str, grid: str, key: str) -> None:
    (line,) = said(hps, grid)
    assert line.startswith(f"{key} ")


@pytest.mark.parametrize(
    ("hps", "grid", "more"),
    [
        ("  lr: {log2: -6}", "  lr: {log2: [-9, -4]}", ()),
        ("  lr: 0.01", "  init_scale: [0.5, 2]", ()),  # 1 by default
        ("  lr: {log2: -6}", BOTH, (("seeds: 2", "seeds: 2\nproduct: true"),)),
        ("", BOTH, (("seeds: 2", "seeds: 2\nproduct: true"),)),
        ("", BOTH, (("seeds: 2", "seeds: 2\nsearch: {kind: random, points: 4}"),)),  # points in a box
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  router.lr_mult: [0.5, 1]", ()),  # 1 by default
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  beta2: [0.95, 0.99]", ()),
        ("  lr: 0.01", "  lr: [0.01, 0.02]\n  weight_decay: [0, 0.1]", ()),
    ],
)
def test_no_false_alarm(hps: str, grid: str, more: tuple[tuple[str, str], ...]) -> None:
    assert said(hps, grid, *more) == ()


@pytest.mark.parametrize(
    ("hps", "grid"),
    [("  lr: 0.5", "  lr: {log2: [-9, -4]}"), ("  init_scale: 0.7\n  lr: 0.01", "  init_scale: [0.5, 1]")],
)
def test_a_value_that_no_line_runs_through_has_no_effect(hps: str, grid: str) -> None:
    (line,) = said(hps, grid)
    key, _, value = hps.splitlines()[0].strip().partition(": ")
    assert line.startswith(f"hps.{key}: {value} is no point of grid.{key}, ")
    assert line.endswith("; no other line runs through it, so it has no effect")
    assert list(expansion(hps, grid).trials()) == list(expansion(hps.replace(value, "0.123"), grid).trials())


def test_a_product_cannot_read_lines_through_a_value_that_it_does_not_have() -> None:
    (line,) = said("  lr: 0.0156", BOTH, ("seeds: 2", "seeds: 2\nproduct: true"))
    assert line.endswith("; the lines of init_scale run through it, and cannot be read")


@pytest.mark.parametrize("command", ["plan", "run"])
def test_the_commands_warn(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("  lr: {log2: [-8, -4]}", "  lr: {log2: [-8, -4]}\n  init_scale: [1, 2]\nhps: {lr: 0.0156}")
    sweep = write_tiny(tmp_path, lines)
    within = ("--hardware", "h200", "--max-gpu-hours", "0")  # so that `run` ends before it trains
    _, _, err = hpxfer(capsys, command, sweep, "--results", tmp_path / "results", *within)
    assert "warning: hps.lr: 0.0156 is no point of grid.lr" in err
