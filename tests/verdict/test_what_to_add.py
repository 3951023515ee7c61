"""What to add: the words, and that adding it decides."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from planted_lines import GRID, STAYS, Optima, line, with_status

from hpxfer.analysis import Finding
from hpxfer.verdict.drift import Move
from hpxfer.verdict.findings import Addition
from hpxfer.verdict.loss_grid import loss_grids
from hpxfer.verdict.transfer import find
from hpxfer.verdict.what_to_add import what_to_add

NARROW: Optima = {"completep-moe": lambda _: -6.2}


def finding(frame: pd.DataFrame) -> Finding:
    """Return the finding by itself: not yet held against a control, which would be asked for too."""
    return find(loss_grids(frame))[0]


def test_a_base_on_the_edge_asks_for_values_beyond_it() -> None:
    found = finding(line({"sp": lambda _: -10.0}))
    names = "width 32, width 64, width 128"
    assert found.to_add[0].text == f"HP values 2^-11, 2^-10 at {names}, beyond the lower edge of the grid"
    assert found.to_add[0].values == (2.0**-11, 2.0**-10)
    assert found.to_add[0].scales == (32.0, 64.0, 128.0)
    assert f"to decide: {found.to_add[0].text}" in found.reasons
    wider = finding(line({"sp": lambda _: -10.0}, grid=range(-13, -3)))
    assert wider.verdict == "transfers"


def test_a_missing_cell_is_named() -> None:
    found = finding(with_status(line(STAYS), "missing", scale=64.0, value=2.0**-6))
    text = "the trials without a result of HP value 2^-6 at width 64"
    assert found.to_add == (Addition(text=text, values=(2.0**-6,), scales=(64.0,)),)


def test_a_transferred_hp_that_was_never_run_elsewhere_is_the_first_thing_to_add() -> None:
    """Each shape has a grid of its own. No number of seeds measures what the base's best HP costs there."""
    frame = line(STAYS, seeds=3)
    frame.loc[~frame["is_base"], "value"] *= 2.0**0.3
    (grid,) = loss_grids(frame)
    (more,) = find([grid])[0].to_add
    assert (more.values, more.scales, more.seeds) == ((2.0**-6,), (64.0, 128.0), None)
    more_seeds = line(STAYS, seeds=9)
    more_seeds.loc[~more_seeds["is_base"], "value"] *= 2.0**0.3
    assert find(loss_grids(more_seeds))[0].to_add == (more,)


def test_a_wide_grid_with_one_seed_asks_for_seeds_as_nothing_is_known_of_noise() -> None:
    (more,) = finding(line(STAYS, grid=range(-12, -1), seeds=1)).to_add
    assert more.seeds == 3


def test_seeds_that_will_probably_not_decide_are_called_so() -> None:
    (grid,) = loss_grids(line(STAYS, grid=FINE, seeds=3, noise=0.005))
    (more,) = what_to_add(replace(find([grid])[0], transfer_chance=0.6), grid)
    assert more.text == "12 seeds instead of 3 at every shape, which will probably not decide"


def test_what_ended_without_a_loss_at_the_top_asks_for_a_smaller_range() -> None:
    """It is finished, and so no run trains it again. Values beyond it would do no better."""
    frame = line({"sp": lambda _: -5.0}, seeds=3)
    frame.loc[(frame["value"] == 2.0**-4) & (frame["scale"] == 128.0), "loss"] = math.nan
    (grid,) = loss_grids(frame)
    (more,) = what_to_add(find([grid])[0], grid)
    assert more.text == "HP value 2^-4.5 at width 128, for a smaller range, as 2^-4 ended without a loss"
    failed = with_status(frame, "failed", value=2.0**-4, scale=128.0)
    (grid,) = loss_grids(failed)
    assert [more.text for more in what_to_add(find([grid])[0], grid)] == [
        "the trials without a result of HP value 2^-4 at width 128"
    ]


@pytest.mark.parametrize(
    ("frame", "values"),
    [
        (line(STAYS, grid=(-6.0,)), (2.0**-7, 2.0**-5)),
        (line(STAYS, grid=(-6.0, -4.0)), (2.0**-8, 2.0**-2)),
        (line(STAYS, grid=(math.log2(0.003), math.log2(0.01))), (0.0009, 0.03)),
        (with_status(line(STAYS), "diverged"), (2.0**-12, 2.0**-11, 2.0**-10)),
        (line(STAYS, grid=range(-7, -3), diverges_above=0.5), (2.0**-8,)),
    ],
)
def test_too_few_points_for_a_parabola_ask_for_more(frame: pd.DataFrame, values: tuple[float, ...]) -> None:
    """Below what diverges; else on both sides."""
    found = finding(frame)
    assert found.verdict == "undecided"
    assert [more.values for more in found.to_add] == [values]
    assert found.to_add[0].scales == (32.0, 64.0, 128.0)


def test_one_seed_asks_for_three() -> None:
    found = finding(line(STAYS, seeds=1))
    assert [(addition.text, addition.seeds) for addition in found.to_add] == [("3 seeds at every shape", 3)]


FINE = tuple(float(x) for x in np.arange(-9.0, -3.5, 0.5))  # no gap of it is halved again


@pytest.mark.parametrize(
    ("chance", "seeds", "more"),
    [
        (0.95, 3, 8),  # 2.05 / 1.64 times the error: 1.6 times the seeds, and half as many again
        (0.05, 3, 8),
        (0.91, 3, 11),
        (0.86, 3, 12),  # 3.6 times the seeds and more, but no more than four times
        (0.97, 13, 20),
    ],
)
def test_seeds_follow_from_how_sure_the_verdict_is(chance: float, seeds: int, more: int) -> None:
    (grid,) = loss_grids(line(STAYS, grid=FINE, seeds=seeds, noise=0.005))
    found = replace(find([grid])[0], transfer_chance=chance)
    assert [addition.seeds for addition in what_to_add(found, grid)] == [more]


def test_seeds_follow_from_how_far_a_regret_is_from_its_limit() -> None:
    """The middle of the interval is half a limit away, and its half is as much as the limit: four times the seeds."""
    (grid,) = loss_grids(line(STAYS, grid=FINE, seeds=3, noise=0.005))
    found = find([grid])[0]
    limit = found.shapes[2].limit_nats or 0.0
    doubtful = replace(found.shapes[2], regret_low_nats=-0.5 * limit, regret_high_nats=1.5 * limit, over_chance=0.2)
    found = replace(found, shapes=(*found.shapes[:2], doubtful), transfer_chance=0.8)
    assert [addition.seeds for addition in what_to_add(found, grid)] == [12]  # of 18, no more than four times


@pytest.mark.parametrize(("share", "seeds"), [(1.2, 7), (1.5, 11), (2.0, 12)])
def test_an_error_above_the_limit_asks_for_the_seeds_that_lower_it(share: float, seeds: int) -> None:
    """`share` is 2 standard errors over the limit. 12 of 3 is the most that a follow-up asks for."""
    (grid,) = loss_grids(line(STAYS, grid=FINE, seeds=3, noise=0.005))
    found = find([grid])[0]
    shapes = tuple(replace(shape, regret_se_nats=(shape.limit_nats or 0.0) * share / 2) for shape in found.shapes)
    assert [more.seeds for more in what_to_add(replace(found, shapes=shapes), grid)] == [seeds]


def test_an_error_far_above_the_limit_asks_for_no_seeds() -> None:
    (grid,) = loss_grids(line(STAYS, grid=FINE, seeds=3, noise=0.005))
    found = find([grid])[0]
    shapes = tuple(replace(shape, regret_se_nats=3 * (shape.limit_nats or 0.0)) for shape in found.shapes)
    (none,) = what_to_add(replace(found, shapes=shapes), grid)
    assert none == Addition(text=none.text)
    assert "it takes about 162 seeds" in none.text


def test_a_move_at_its_limit_asks_for_cells_and_then_for_a_longer_axis() -> None:
    coarse, fine = (loss_grids(line(STAYS, grid=values, seeds=3))[0] for values in (GRID, FINE))
    near = Move(octaves=0.99, low=0.9, high=1.1, scales=(32.0, 128.0), is_line=True)
    (cells,) = what_to_add(replace(find([coarse])[0], move=near, transfer_chance=0.5), coarse)
    assert cells.values == (2.0**-6.5, 2.0**-5.5)
    (shape,) = what_to_add(replace(find([fine])[0], move=near, transfer_chance=0.5), fine)
    assert shape.new_scales == (256.0,)
    assert shape.text.startswith("a shape at width 256, twice the largest: ")


def test_cells_that_scatter_about_any_basin_ask_for_cells_at_that_shape() -> None:
    """Seeds cannot mend a shape that no basin fits."""
    (grid,) = loss_grids(line(STAYS, seeds=3))
    found = find([grid])[0]
    bad = replace(found.shapes[2], optimum=replace(found.shapes[2].optimum, misfit=4.0))
    known = {"misfit": 1.0, "low_log2": -6.21, "high_log2": -6.19}
    fits = [replace(shape, optimum=replace(shape.optimum, **known)) for shape in found.shapes[:2]]
    (cells,) = what_to_add(replace(found, shapes=(*fits, bad), transfer_chance=0.97), grid)
    assert (cells.values, cells.scales) == ((2.0**-6.5, 2.0**-5.5), (128.0,))


def test_a_tie_at_the_base_asks_for_the_value_between() -> None:
    (grid,) = loss_grids(line({"sp": lambda _: -6.5}, noise=0.01, seeds=3))
    (more,) = what_to_add(replace(find([grid])[0], transfer_chance=0.9), grid)
    assert (more.text, more.values) == ("HP value 2^-6.5 at width 32, as 2^-7 and 2^-6 tie", (2.0**-6.5,))


def test_losses_that_are_all_equal_ask_for_nothing_that_a_sweep_can_add() -> None:
    found = finding(line(STAYS, curvature=0.0, noise=0.0))
    (more,) = found.to_add
    assert "every HP value has exactly the same loss" in more.text
    assert more == Addition(text=more.text)  # no values, no seeds, no shape


def test_equal_losses_at_the_lower_end_ask_for_lower_values_only() -> None:
    frame = line(STAYS, noise=0.0)
    low = frame["value"] < 2.0**-6.5
    frame["loss"] = np.where(low, 2.9, 3.0 + frame["value"])
    assert all(value < 2.0**-9 for addition in finding(frame).to_add for value in addition.values)


def test_a_single_shape_asks_for_another() -> None:
    frame = line(STAYS)
    assert finding(frame[frame["is_base"]]).to_add[0].text.startswith("a shape beyond the base")


@pytest.mark.parametrize("frame", [line(STAYS), line({"sp": lambda doublings: -6.2 - doublings})])
def test_what_is_decided_asks_for_nothing(frame: pd.DataFrame) -> None:
    assert finding(frame).to_add == ()


def test_an_unfinished_sweep_is_finished_before_anything_else_is_added() -> None:
    frame = with_status(line(STAYS, noise=0.08), "missing", scale=32.0, value=2.0**-7)
    found = finding(with_status(frame, "missing", scale=64.0, value=2.0**-6))
    assert [addition.text for addition in found.to_add] == [
        "the trials without a result of HP value 2^-7 at width 32",
        "the trials without a result of HP value 2^-6 at width 64",
    ]


def test_losses_that_do_not_bend_ask_for_a_wider_grid_and_at_last_for_nothing() -> None:
    found = finding(line(STAYS, curvature=0.0, noise=0.05))
    assert {addition.seeds for addition in found.to_add} == {None}
    assert {value for addition in found.to_add for value in addition.values} & {2.0**-10, 2.0**-3}
    (wide,) = loss_grids(line(STAYS, curvature=0.0, noise=0.05, grid=range(-13, -1), luck=8))
    (more,) = what_to_add(find([wide])[0], wide)
    assert more == Addition(text=more.text)  # no values, no seeds, no shape
