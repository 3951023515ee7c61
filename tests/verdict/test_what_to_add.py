"""What to add: where values lie and how they are written, the words, and that adding it decides in a few rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_lines import GRID, STAYS, line, with_status
from planted_sweeps import cell_of

from hpxfer.scaling.hps import LEAST_LOG2, MOST_LOG2
from hpxfer.verdict.drift import Move
from hpxfer.verdict.findings import Addition, Finding
from hpxfer.verdict.lacks import MAX_STEPS, MIN_GAP, between, beyond, step_at
from hpxfer.verdict.loss_grid import LossGrid, SeedLosses, ShapeLosses, loss_grids
from hpxfer.verdict.transfer import find
from hpxfer.verdict.what_to_add import what_to_add


def logs(*values: float) -> list[float]:
    return [math.log2(value) for value in values]


@given(start=st.integers(-20, 4), step=st.sampled_from([0.5, 1.0, 1.5, 2.0]), num=st.integers(2, 8))
def test_a_grid_of_powers_gets_whole_steps_beyond_it_and_halves_between(start: int, step: float, num: int) -> None:
    row = [start + step * k for k in range(num)]
    assert logs(*beyond(row, 2, upper=True)) == pytest.approx([row[-1] + step, row[-1] + 2 * step])
    assert logs(*beyond(row, 2, upper=False)) == pytest.approx([row[0] - 2 * step, row[0] - step])
    middle = between(row[0], row[1], row)
    assert middle == (() if step == 0.5 else (2.0 ** (row[0] + step / 2),))


def test_a_gap_that_was_halved_does_not_halve_the_steps_beyond_it() -> None:
    assert step_at([-9.0, -8.5, -8.0, -7.0, -6.0], upper=False) == 0.75
    assert step_at([-9.0, -8.5, -8.0, -7.0, -6.0, -5.0], upper=False) == 1.0
    assert step_at([-9.0], upper=True) == 1.0


@pytest.mark.parametrize(
    ("row", "above", "middle"),
    [((0.001, 0.003, 0.01), 0.03, 0.0017), ((0.02, 0.1), 0.5, 0.04), ((3e-4, 1e-3), 0.003, 5e-4)],
)
def test_other_grids_get_numbers_of_few_digits(row: tuple[float, ...], above: float, middle: float) -> None:
    assert beyond(logs(*row), 1, upper=True) == (above,)
    assert between(*logs(*row[:2]), logs(*row)) == (middle,)


@given(low=st.floats(1e-6, 1.0), factor=st.floats(1.7, 30.0))
def test_a_value_between_two_is_well_within_them(low: float, factor: float) -> None:
    (value,) = between(*logs(low, factor * low), logs(low, factor * low))
    assert 0.35 < math.log2(value / low) / math.log2(factor) < 0.65


@pytest.mark.parametrize("row", [(LEAST_LOG2, MOST_LOG2), (LEAST_LOG2, -3.32), (-3.32, MOST_LOG2)])
def test_the_widest_row_of_legal_values_has_finite_values_beyond_it(row: tuple[float, ...]) -> None:
    values = [value for upper in (False, True) for value in beyond(row, MAX_STEPS, upper=upper)]
    assert len(values) == 2 * MAX_STEPS
    assert all(0 < value < math.inf for value in values)


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
    grid, found = fine()
    (more,) = what_to_add(replace(found, transfer_chance=0.6), grid)
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
        "HP value 2^-4 at width 128, which has trials without a result"
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


FINE = tuple(float(x) for x in np.arange(-9.0, -3.5, 0.5))  # no gap of it is halved again


@cache
def fine(seeds: int = 3) -> tuple[LossGrid, Finding]:
    (grid,) = loss_grids(line(STAYS, grid=FINE, seeds=seeds, noise=0.005))
    return grid, find([grid])[0]


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
    grid, found = fine(seeds)
    assert [addition.seeds for addition in what_to_add(replace(found, transfer_chance=chance), grid)] == [more]


def test_seeds_follow_from_how_far_a_regret_is_from_its_limit() -> None:
    """The middle of the interval is half a limit away, and its half is as much as the limit: four times the seeds."""
    grid, found = fine()
    limit = found.shapes[2].limit_nats or 0.0
    doubtful = replace(found.shapes[2], regret_low_nats=-0.5 * limit, regret_high_nats=1.5 * limit, over_chance=0.2)
    found = replace(found, shapes=(*found.shapes[:2], doubtful), transfer_chance=0.8)
    assert [addition.seeds for addition in what_to_add(found, grid)] == [12]  # of 18, no more than four times


@pytest.mark.parametrize(("share", "seeds"), [(1.2, 7), (1.5, 11), (2.0, 12)])
def test_an_error_above_the_limit_asks_for_the_seeds_that_lower_it(share: float, seeds: int) -> None:
    """`share` is 2 standard errors over the limit. 12 of 3 is the most that a follow-up asks for."""
    grid, found = fine()
    shapes = tuple(replace(shape, regret_se_nats=(shape.limit_nats or 0.0) * share / 2) for shape in found.shapes)
    assert [more.seeds for more in what_to_add(replace(found, shapes=shapes), grid)] == [seeds]


def test_an_error_far_above_the_limit_asks_for_no_seeds() -> None:
    grid, found = fine()
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


def test_a_base_without_a_row_is_asked_for_before_any_value() -> None:
    frame = line(STAYS)
    (more,) = finding(frame[~frame["is_base"]]).to_add
    assert (more.text, more.asks_nothing) == ("nothing is known at the base shape: run it first", True)


def test_an_unfinished_sweep_is_finished_before_anything_else_is_added() -> None:
    frame = with_status(line(STAYS, noise=0.08), "missing", scale=32.0, value=2.0**-7)
    found = finding(with_status(frame, "missing", scale=64.0, value=2.0**-6))
    text = "HP value 2^-{} at width {}, which has trials without a result"
    assert found.to_add == tuple(
        Addition(text=text.format(power, width), values=(2.0**-power,), scales=(float(width),))
        for power, width in ((7, 32), (6, 64))
    )


Truth = Callable[[float, float], float]  # (doublings of the scale, log2 HP) -> loss without noise, +inf if it diverges
OCTAVES = tuple(float(x) for x in range(-9, -3))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep over a planted world. A cell keeps its losses in whichever sweep it is."""

    truth: Truth
    noise: float
    exponents: tuple[float, ...] = OCTAVES
    seeds: int = 3
    scales: tuple[float, ...] = (32.0, 64.0, 128.0)
    lost: Callable[[float, float], bool] = lambda doublings, exponent: False  # whether a cell never has a loss
    draw: int = 0

    @property
    def num_trials(self) -> int:
        return len(self.scales) * len(self.exponents) * self.seeds

    def cell(self, doublings: float, exponent: float) -> SeedLosses:
        value = 2.0**exponent
        if self.lost(doublings, exponent):
            return SeedLosses(value=value, seeds=(), losses=(), num_missing=self.seeds, num_lost=self.seeds)
        place = [self.draw, round(doublings * 8), round((exponent + 64) * 1024)]
        noise = [float(np.random.default_rng([*place, seed]).standard_normal()) for seed in range(self.seeds)]
        return cell_of(value, [self.truth(doublings, exponent) + self.noise * one for one in noise])

    def grid(self) -> LossGrid:
        rows: list[ShapeLosses] = []
        for scale in self.scales:
            doublings = math.log2(scale / self.scales[0])
            row = ShapeLosses(
                axis="width",
                scale_name="width",
                scale=scale,
                shape=f"w{scale:g}",
                is_base=not rows,
                parameterization="planted",
                cells=tuple(self.cell(doublings, x) for x in self.exponents),
            )
            rows.append(row)
        return LossGrid(rows=tuple(rows))

    def with_what_is_asked(self, finding: Finding) -> Sweep:
        """Return the sweep that the follow-up of this finding is. Everything that is asked for must be new."""
        exponents, seeds, scales = set(self.exponents), self.seeds, set(self.scales)
        for addition in finding.to_add:
            new = {math.log2(value) for value in addition.values}
            assert not new & set(self.exponents)
            exponents |= new
            assert addition.seeds is None or addition.seeds > self.seeds
            seeds = max(seeds, addition.seeds or 0)
            assert not set(addition.new_scales) & scales
            scales |= {max(addition.new_scales)} if addition.new_scales else set()
        return replace(self, exponents=tuple(sorted(exponents)), seeds=seeds, scales=tuple(sorted(scales)))


def rounds(sweep: Sweep, most: int) -> list[tuple[Sweep, Finding]]:
    """Return every sweep with its finding, until one is decided or nothing can be added; at most so many follow-ups."""
    out = [(sweep, find([sweep.grid()])[0])]
    while out[-1][1].verdict == "undecided" and len(out) <= most:
        more = out[-1][0].with_what_is_asked(out[-1][1])
        if more == out[-1][0]:
            break
        out.append((more, find([more.grid()])[0]))
    return out


def basin(at: Callable[[float], float] = lambda _: -6.2, curvature: float = 0.02) -> Truth:
    """Return parabolas with the optimum at log2 HP `at(doublings)`."""
    return lambda doublings, exponent: 3.0 - 0.1 * doublings + curvature * (exponent - at(doublings)) ** 2


def through(*losses: float) -> Truth:
    """Return basins through losses an octave apart from 2^-9 on, which go on rising beyond them."""
    steps = np.arange(len(losses)) - 9.0

    def truth(doublings: float, exponent: float) -> float:
        below, above = max(steps[0] - exponent, 0.0), max(exponent - steps[-1], 0.0)
        inside = float(np.interp(exponent, steps, losses))
        return inside + 0.15 * below**2 + 0.3 * above - 0.1 * doublings

    return truth


def cliff(doublings: float, exponent: float) -> float:
    return basin(lambda _: -5.6)(doublings, exponent) if exponent < -5.2 else math.inf


STILL, DRIFTS = basin(), basin(lambda doublings: -6.2 - doublings)
WORLDS = {
    "steep edge": (Sweep(truth=through(3.00, 3.07, 3.60, 5.0, 5.4, 5.5), noise=0.005), 18),
    "edge": (Sweep(truth=through(3.00, 3.02, 3.10, 3.5, 5.0, 5.5), noise=0.005), 18),
    "one steep cell": (
        Sweep(truth=through(3.02, 3.00, 3.03, 3.19, 3.82), noise=0.005, seeds=2, exponents=OCTAVES[:5]),
        12,
    ),
    "below": (Sweep(truth=basin(lambda _: -9.8), noise=0.005), 36),
    "above": (Sweep(truth=basin(lambda _: -3.2), noise=0.005), 36),
    "one seed": (Sweep(truth=STILL, noise=0.005, seeds=1), 45),
    "one shape": (Sweep(truth=STILL, noise=0.005, scales=(32.0,)), 27),
    "one value": (Sweep(truth=STILL, noise=0.005, exponents=(-6.0,)), 54),
    "narrow": (Sweep(truth=STILL, noise=0.005, exponents=(-6.5, -6.0, -5.5)), 36),
    "drifts": (Sweep(truth=DRIFTS, noise=0.005), 36),
    "next to divergence": (Sweep(truth=cliff, noise=0.005), 27),
    "no loss above": (Sweep(truth=basin(lambda _: -5.0), noise=0.005, lost=lambda d, x: d == 2 and x > -4.2), 18),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("draw", [0, 1])
def test_a_few_cells_decide_what_the_grid_is_to_blame_for(name: str, draw: int) -> None:
    """The limits are the trials that the follow-ups add, all shapes and seeds counted."""
    sweep, most = WORLDS[name]
    played = rounds(replace(sweep, draw=draw), 4)
    last, finding = played[-1]
    assert finding.verdict == ("drifts" if name == "drifts" else "transfers"), [f.reasons for _, f in played]
    assert last.num_trials - sweep.num_trials <= most
    if sweep.seeds > 1:
        # Noise is small, so that cells decide, and not seeds. Only the three values that grow from one may need seeds.
        assert last.seeds <= sweep.seeds + 2 * (name == "one value")


@pytest.mark.parametrize("draw", range(4))
def test_noise_is_met_with_seeds_in_few_rounds(draw: int) -> None:
    played = rounds(Sweep(truth=STILL, noise=0.03, seeds=2, draw=draw), 6)
    assert played[-1][1].verdict == "transfers", [f.reasons for _, f in played]
    assert played[-1][0].num_trials <= 384  # 12 seeds of 7 values are needed, which are 252


@pytest.mark.parametrize("name", WORLDS)
def test_proposed_values_lie_on_the_grid_and_not_beside_another(name: str) -> None:
    for sweep, _ in rounds(WORLDS[name][0], 4):
        assert all((4 * exponent).is_integer() for exponent in sweep.exponents)
        gaps = np.diff(sweep.exponents)
        assert name == "next to divergence" or min(gaps, default=1.0) >= MIN_GAP / 2


@pytest.mark.parametrize("draw", range(3))
def test_a_world_without_a_basin_is_given_up(draw: int) -> None:
    played = rounds(Sweep(truth=basin(curvature=0.0), noise=0.01, draw=draw), 6)
    last, finding = played[-1]
    assert finding.verdict == "undecided"
    assert all(addition.asks_nothing for addition in finding.to_add)
    assert len(played) <= 4
    assert all(addition.seeds is None for _, finding in played for addition in finding.to_add)
    assert last.num_trials <= 108  # twice the sweep
