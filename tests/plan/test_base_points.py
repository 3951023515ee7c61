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
GIVEN = tuple(str(2.0**exponent) for exponent in range(-9, -3))
BOTH = "  lr: {log2: [-9, -4]}\n  init_scale: [0.5, 1, 2]"


def expansion(hps: str, grid: str = BOTH, *more: tuple[str, str]) -> Expansion:
    return Expansion(parse_sweep(edited((HPS, f"{HPS}\n{hps}" if hps else HPS), (GRID, grid), *more)), DATA)


def said(hps: str, grid: str = BOTH, *more: tuple[str, str]) -> tuple[str, ...]:
    return cautions(expansion(hps, grid, *more))


def num_trials(made: Expansion) -> int:
    return sum(1 for _ in made.trials())


def test_a_rounded_power_of_two_is_named_with_its_cost_and_its_exact_spelling() -> None:
    (line,) = said("  lr: 0.0156")
    assert line == (
        "hps.lr: 0.0156 is within 0.2% of a point of grid.lr, 2^-6, and is not that point: the line of init_scale runs "
        "through it, which is 6 trials more than at 2^-6; write hps.lr: {log2: -6} or 0.015625"
    )
    assert num_trials(expansion("  lr: 0.0156")) - num_trials(expansion("  lr: {log2: -6}")) == 6
    assert said("  lr: {log2: -6}") == said("  lr: 0.015625") == ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.01", "lies between two points of grid.lr, 2^-7 and 2^-6"),
        ("0.5", "lies above every point of grid.lr, the highest is 2^-4"),
        ("0.0001", "lies below every point of grid.lr, the lowest is 2^-9"),
    ],
)
def test_a_value_outside_the_grid_or_between_its_points(value: str, words: str) -> None:
    (line,) = said(f"  lr: {value}")
    assert line.startswith(f"hps.lr: {value} {words}: the line of init_scale runs through it, which is 6 trials more")
    assert f"; add {value} to grid.lr at no further cost, or write hps.lr: {{log2: -" in line
    added = expansion(f"  lr: {value}", BOTH.replace("{log2: [-9, -4]}", f"[{', '.join(GIVEN)}, {value}]"))
    assert num_trials(added) == num_trials(expansion(f"  lr: {value}"))


def test_a_value_that_differs_by_rounding_only() -> None:
    close = 2.0**-6 * (1 + 2**-52)
    (line,) = said(f"  lr: {close!r}")
    assert "differs from a point of grid.lr, 2^-6, only by rounding" in line


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


def test_an_hp_of_the_training_section_takes_no_power_of_two() -> None:
    (line,) = said(
        "  lr: 0.01",
        "  lr: [0.01, 0.02]\n  weight_decay: {log2: [-4, -2]}",
        ("steps: 200", "steps: 200\n  weight_decay: 0.0624"),
    )
    assert line.endswith("write training.weight_decay: 0.0625")


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
    ("hps", "grid", "where"),
    [
        ("  lr: 0.5", "  lr: {log2: [-9, -4]}", "hps.lr: 0.5 lies above every point of grid.lr, the highest is 2^-4"),
        ("  lr: 0.0156", "  lr: {log2: [-9, -4]}", "hps.lr: 0.0156 is within 0.2% of a point of grid.lr, 2^-6, and"),
        (
            "  lr: 0.01\n  init_scale: 0.7",
            "  init_scale: [0.5, 1]",
            "hps.init_scale: 0.7 lies between two points of grid.init_scale, 2^-1 and 2^0",
        ),
    ],
)
def test_a_value_that_no_line_runs_through_has_no_effect(hps: str, grid: str, where: str) -> None:
    (line,) = said(hps, grid)
    assert line.startswith(where)
    assert line.endswith(": no other line runs through it, so it has no effect; take it out")
    key, _, value = hps.splitlines()[-1].strip().partition(": ")
    other = hps.replace(f"{key}: {value}", f"{key}: 0.123")
    assert list(expansion(hps, grid).trials()) == list(expansion(other, grid).trials())


def test_a_product_cannot_read_lines_through_a_value_that_it_does_not_have() -> None:
    (line,) = said("  lr: 0.0156", BOTH, ("seeds: 2", "seeds: 2\nproduct: true"))
    assert line == (
        "hps.lr: 0.0156 is within 0.2% of a point of grid.lr, 2^-6, and is not that point, which the lines of "
        "init_scale would run through, so these lines cannot be read; write hps.lr: {log2: -6} or 0.015625"
    )


def test_lines_that_meet_nowhere() -> None:
    """One base value on its grid saves nothing as long as no other line has its base value there."""
    both = expansion("  lr: 0.0156", "  lr: {log2: [-9, -4]}\n  init_scale: [0.5, 2]")
    first, second = cautions(both)
    assert "which shares no trial with the line of lr" in first
    assert second.startswith("hps.init_scale: 1.0 lies between two points of grid.init_scale, 2^-1 and 2^1")
    one = expansion("  lr: 0.015625", "  lr: {log2: [-9, -4]}\n  init_scale: [0.5, 2]")
    assert num_trials(both) == num_trials(one)


def test_an_adaptive_search_counts_nothing() -> None:
    (line,) = said("  lr: 0.0156", BOTH, ("seeds: 2", "seeds: 2\nsearch: refine"))
    assert "runs through it; write hps.lr: {log2: -6}" in line


@pytest.mark.parametrize("command", ["plan", "run"])
def test_the_commands_warn(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ("  lr: {log2: [-8, -4]}", "  lr: {log2: [-8, -4]}\n  init_scale: [1, 2]\nhps: {lr: 0.0156}")
    sweep = write_tiny(tmp_path, lines)
    within = ("--hardware", "h200", "--max-gpu-hours", "0")  # so that `run` ends before it trains
    _, _, err = hpxfer(capsys, command, sweep, "--results", tmp_path / "results", *within)
    assert "warning: hps.lr: 0.0156 is within 0.2% of a point of grid.lr, 2^-6" in err
