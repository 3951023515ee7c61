"""Bases: worlds whose drift stops recommend the shape at which it stops; worlds whose drift goes on recommend none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest
from planted_lines import line, with_status

from hpxfer.scaling.evaluate import evaluate, evaluate_globals, parameterization
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.verdict.bases import BaseReading, from_base, read_bases
from hpxfer.verdict.estimate import estimate_all
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.transfer import find, finding_of

NUM_SWEEPS = 20
STOPS = (-6.3, -5.1, -5.1, -5.1)


def planted(optima: Sequence[float], luck: int = 7) -> pd.DataFrame:
    """Return a line of widths from 32, each twice the last, with these log2 optima."""
    return line(
        {"mup": lambda doublings: optima[round(doublings)]},
        scales=[32.0 * 2**i for i in range(len(optima))],
        grid=range(-9, -2),
        seeds=3,
        noise=0.004,
        curvature=0.014,
        luck=luck,
    )


def reading(frame: pd.DataFrame) -> BaseReading:
    estimates = estimate_all(loss_grids(frame))
    (found,) = read_bases(estimates, [finding_of(each) for each in estimates], "lr")
    return found


@cache
def readings(optima: tuple[float, ...]) -> list[BaseReading]:
    """Return what is read in sweeps of equal optima and different noise, computed once."""
    return [reading(planted(optima, luck)) for luck in range(NUM_SWEEPS)]


@pytest.mark.slow
def test_a_drift_that_stops_recommends_the_shape_at_which_it_stops() -> None:
    for found in readings(STOPS):
        assert found.recommended == found.transfers_from == "width 64"
        assert found.trend == "shrinking"
        assert found.in_brief == "width 64, steps shrinking"
        assert found.advice == "tune at width 64, not at width 32, as lr transfers from there"


@pytest.mark.slow
@pytest.mark.parametrize("octaves", [0.5, 0.7, 1.0, 1.2])
def test_a_drift_that_never_stops_recommends_no_base(octaves: float) -> None:
    found = readings(tuple(-7.0 + octaves * i for i in range(4)))
    assert {each.recommended for each in found} == {None}
    # A trend is a statement at 95%: one in twenty may be wrong.
    assert sum(each.trend not in ("constant", "unknown") for each in found) <= NUM_SWEEPS * 0.05


def test_a_short_rest_of_an_axis_is_no_stop() -> None:
    """Over the last doubling a drift of 0.7 octaves stays within the limit of one, and is the same drift."""
    found = reading(planted([-7.0, -6.3, -5.6, -4.9]))
    assert found.transfers_from == "width 128"
    assert found.recommended is None
    assert found.advice == (
        "no base is recommended, as the optimum is not seen to stop, "
        "although lr transfers from width 128 up to width 256"
    )


def test_an_optimum_that_stays_needs_no_larger_base() -> None:
    found = reading(planted([-6.2, -6.2, -6.2]))
    assert found.recommended == found.transfers_from == "width 32"
    assert found.trend == "constant"
    assert found.advice == "width 32 is large enough, as lr transfers from there"


@pytest.mark.slow
def test_steps_hold_the_difference_of_neighbors() -> None:
    found = readings(STOPS)
    planted_steps = [0.0 if i else 1.2 for i in range(3)]
    held = [
        row.octaves_low <= true <= row.octaves_high
        for each in found
        for row, true in zip(each.bases, planted_steps, strict=False)
        if row.octaves_low is not None and row.octaves_high is not None
    ]
    assert len(held) == 3 * NUM_SWEEPS
    assert sum(held) >= 0.85 * len(held)
    assert all(each.bases[-1].octaves_to_next is None for each in found)


@pytest.mark.slow
def test_steps_that_grow_and_steps_that_turn_are_named() -> None:
    assert {found.trend for found in readings((-6.8, -6.8, -6.8, -5.4))} == {"growing"}
    assert {found.trend for found in readings((-6.2, -5.2, -6.2))} == {"turning"}


def test_a_row_is_the_verdict_on_the_shapes_from_its_base_on() -> None:
    grids, found = loss_grids(planted(STOPS)), reading(planted(STOPS))
    for row in found.bases[:-1]:
        (finding,) = find(from_base(grids, row.shape))
        assert (finding.verdict, finding.base_value) == (row.verdict, row.tuned_value)
        assert finding.shapes[-1].regret_nats == row.loss_given_up_nats
    first, *others = (row.verdict for row in found.bases)
    assert first != "transfers"
    assert others == ["transfers", "transfers", None]
    assert found.bases[0].loss_given_up_nats == pytest.approx(0.014 * 1.2**2, abs=0.012)


def test_a_base_leaves_out_smaller_shapes_and_axes_without_it() -> None:
    depth = line({"mup": lambda _: -6.2}, axis="depth", scales=[2.0, 4.0])
    grids = loss_grids(pd.concat([planted(STOPS), depth]))
    (grid,) = from_base(grids, "w64")
    assert [(row.shape, row.is_base) for row in grid.rows] == [("w64", True), ("w128", False), ("w256", False)]


def test_an_optimum_that_is_not_known_leaves_its_steps_open() -> None:
    frame = planted(STOPS)
    lost = frame[frame["scale"] == 128]["value"].unique()[:-1]
    for value in lost:
        frame = with_status(frame, "failed", scale=128.0, value=value)
    found = reading(frame)
    assert [row.octaves_to_next is None for row in found.bases] == [False, True, True, True]
    assert found.recommended is None


def test_one_shape_has_no_base_to_choose() -> None:
    found = reading(planted([-6.2]))
    assert (found.why_not, found.in_brief, found.advice) == ("no shape beyond the base", "", "")


WIDTH_32 = Shape(width=32, depth=2, num_experts=4, num_active=1, expert_width=32, head_dim=32)
WIDTH_64 = replace(WIDTH_32, width=64, expert_width=64)
LARGEST = replace(WIDTH_32, width=256, depth=8, num_experts=16, num_active=4, expert_width=512)


@pytest.mark.parametrize("name", PARAMETERIZATIONS.names())
def test_the_factors_of_every_table_compose(name: str) -> None:
    """What makes every shape a base: a factor over two steps is the product of the factors of the steps."""
    choice = parameterization(name)
    for optimizer in choice.table.rows:
        first, second, both = (
            evaluate(choice, base, target, optimizer)
            for base, target in ((WIDTH_32, WIDTH_64), (WIDTH_64, LARGEST), (WIDTH_32, LARGEST))
        )
        for role, factors in both.items():
            product = {key: value * getattr(second[role], key) for key, value in vars(first[role]).items()}
            assert product == pytest.approx(vars(factors)), role
    whole = evaluate_globals(choice, WIDTH_32, LARGEST)
    parts = evaluate_globals(choice, WIDTH_32, WIDTH_64), evaluate_globals(choice, WIDTH_64, LARGEST)
    assert parts[0].route_scale * parts[1].route_scale == pytest.approx(whole.route_scale)
