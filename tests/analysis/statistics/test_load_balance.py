"""Load balance: the largest deviation of any layer, mean over seeds, by shape and HP."""

from __future__ import annotations

import pandas as pd
import pytest

from hpxfer.analysis.statistics.curves import Curve, curves_by_trial
from hpxfer.analysis.statistics.load_balance import load_balance
from hpxfer.scaling.shape import Shape
from hpxfer.verdict.loss_grid import LossGrid, loss_grids

SHAPE = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
DENSE = Shape(width=32, depth=2, head_dim=32, dense_width=32)
SHAPES = {("width", "w32"): SHAPE, ("width", "dense"): DENSE}


def cells(*rows: tuple[str, str, float, str]) -> LossGrid:
    """Return the grid of (trial, shape, value, status)."""
    frame = pd.DataFrame(rows, columns=["trial_id", "shape", "value", "status"])
    frame = frame.assign(axis="width", scale_name="width", scale=32.0, is_base=True, parameterization="planted")
    (grid,) = loss_grids(frame.assign(seed=range(len(frame)), loss=3.0))
    return grid


def curves(*rows: tuple[str, int, int, float]) -> dict[str, Curve]:
    """Return the curves of (trial, layer, step, value), read from a frame as a store has it: names are categories."""
    frame = pd.DataFrame(rows, columns=["trial_id", "layer", "step", "value"]).assign(metric="load_deviation")
    frame = frame.astype({"trial_id": "category", "metric": "category"})
    return curves_by_trial(frame, "load_deviation", {row[0] for row in rows})


def test_the_worst_layer_counts_and_seeds_are_averaged() -> None:
    balance = load_balance(
        cells(("a", "w32", 0.1, "finished"), ("b", "w32", 0.1, "finished"), ("c", "w32", 0.2, "finished")),
        curves(
            *[("a", 0, 0, 0.1), ("a", 1, 0, 0.3), ("a", 1, 5, 0.1), ("a", 0, 5, 0.2)],
            *[("b", 0, 0, 0.5), ("b", 0, 5, 0.4), ("c", 0, 0, 0.9)],
        ),
        SHAPES,
        "lr",
    )
    first, second = balance.lines
    assert (first.value, first.steps, first.num_seeds, first.fair_share) == (0.1, (0, 5), 2, 0.25)
    assert first.max_deviation == pytest.approx((0.4, 0.3))
    assert (first.peak, first.final) == pytest.approx((0.4, 0.3))
    assert (second.value, second.max_deviation) == (0.2, (0.9,))


def test_a_diverged_seed_ends_the_mean_and_is_counted() -> None:
    balance = load_balance(
        cells(("a", "w32", 0.1, "finished"), ("b", "w32", 0.1, "diverged")),
        curves(("a", 0, 0, 0.1), ("a", 0, 5, 0.2), ("b", 0, 0, 0.3)),
        SHAPES,
        "lr",
    )
    assert (balance.lines[0].steps, balance.lines[0].num_diverged) == ((0,), 1)


def test_dense_models_and_missing_curves_say_why() -> None:
    none = curves()
    assert load_balance(cells(("a", "dense", 0.1, "finished")), none, SHAPES, "lr").why_not == "no shape has experts"
    missing = load_balance(cells(("a", "w32", 0.1, "missing")), none, SHAPES, "lr")
    assert missing.why_not == "no trial has a curve of its load"
