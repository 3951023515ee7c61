"""The optimum of the means, of equal losses the middle one, and the intervals of what is fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from foreign_worlds import Noise, World
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import GRID, MOVES, STAYS, grid_of, line
from planted_sweeps import Planted, plant
from there import there
from verdict_counts import Answer, measure_all, report
from verdict_counts import measure as measured_on
from world_list import line as moving

from hpxfer.analysis import report_line
from hpxfer.intervals import equal_lowest, lowest_of, most_central
from hpxfer.verdict.estimate import FLAT, bends, best_cell, estimate_all
from hpxfer.verdict.findings import ShapeFinding
from hpxfer.verdict.loss_grid import LossGrid, loss_grids
from hpxfer.verdict.measured import Measured
from hpxfer.verdict.odd_runs import measure
from hpxfer.verdict.optimum import Optimum, measured_optimum, range_of, vertex
from hpxfer.verdict.thresholds import DEAD_SHARE
from hpxfer.verdict.transfer import find

INF = math.inf
LOG2 = (-4.0, -3.0, -2.0, -1.0, 0.0)


def one_seed(losses: Sequence[float | None], log2: Sequence[float] = LOG2) -> Measured:
    """Return what one seed measured: None without a result, inf where it diverged."""
    cells = [[math.nan if loss is None else loss] for loss in losses]
    return measure(grid_of(cells, log2_values=log2).rows)[0]


def of_one_seed(losses: Sequence[float | None], log2: Sequence[float] = LOG2) -> Optimum:
    return measured_optimum(one_seed(losses, log2))


def of_frame(frame: pd.DataFrame) -> Optimum:
    return measured_optimum(measure(loss_grids(frame)[0].rows)[0])


@pytest.mark.parametrize("planted", [-7.5, -6.0, -5.9, -5.51])
def test_a_parabola_gives_back_its_vertex(planted: float) -> None:
    at = round(planted)
    x = [at - 1.0, float(at), at + 1.0]
    assert vertex(x, [3 + 0.1 * (e - planted) ** 2 for e in x]) == pytest.approx(planted, abs=1e-9)
    found = of_one_seed([3 + 0.1 * (e - planted) ** 2 for e in GRID], GRID)
    assert (found.kind, found.bracketed) == ("interior", True)
    assert abs((found.log2_value or 0.0) - planted) <= 0.5 + 1e-9
    uneven = [at - 1.0, at - 0.5, at + 2.0]
    assert vertex(uneven, [(e - at + 0.4) ** 2 for e in uneven]) == pytest.approx(at - 0.4, abs=1e-9)


@given(rises=st.tuples(st.floats(0.01, 5), st.floats(0.0, 5)), gaps=st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)))
@settings(deadline=None, max_examples=examples(60))
def test_a_vertex_lies_between_middles_of_neighbors(rises: tuple[float, float], gaps: tuple[float, float]) -> None:
    at = vertex([-gaps[0], 0.0, gaps[1]], [rises[0], 0.0, rises[1]])
    assert -gaps[0] / 2 - 1e-9 <= at <= gaps[1] / 2 + 1e-9


@pytest.mark.parametrize(
    ("losses", "kind", "log2_value", "bracketed"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], "lower_edge", -4.0, False),
        ([5.0, 4.0, 3.0, 2.0, 1.0], "upper_edge", 0.0, False),
        ([5.0, 4.0, 3.0, 2.0, INF], "at_divergence", -1.0, True),
        ([INF, 2.0, 3.0, 4.0, 5.0], "at_divergence", -3.0, True),
        ([1.0, 2.0, 3.0, INF, INF], "lower_edge", -4.0, False),
        ([3.0, 2.0, INF, INF, INF], "none", None, False),
        ([INF] * 5, "none", None, False),
        ([None] * 5, "none", None, False),
        ([4.0, 3.0, 3.0, 4.0, 5.0], "interior", -3.0, True),
        ([4.0, 3.0, None, 4.0, 5.0], "interior", -3.0, False),
        ([None, 4.0, 3.0, 4.0, 5.0], "interior", -2.0, True),
        ([None, 3.0, 4.0, 5.0, 6.0], "lower_edge", -3.0, False),
        ([4.0, 3.0, 2.0, 3.0, None], "interior", -2.0, True),
        ([5.0, 4.0, 3.0, 2.0, None], "upper_edge", -1.0, False),
    ],
)
def test_kinds(losses: list[float | None], kind: str, log2_value: float | None, bracketed: bool) -> None:
    found = of_one_seed(losses)
    assert (found.kind, found.log2_value, found.bracketed) == (kind, log2_value, bracketed)


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([3.0, 2.0, INF, None, INF], "2 HP values have a finite loss, 3 are needed"),
        ([3.0, None, INF, None, INF], "1 HP value has a finite loss, 3 are needed"),
        ([4.0, 3.0, None, 4.0, 5.0], "HP 0.25 next to the best one has no result"),
    ],
)
def test_why_an_optimum_is_open(losses: list[float | None], why: str) -> None:
    assert of_one_seed(losses).open_because == why


@given(losses=st.lists(st.one_of(st.floats(1.0, 10.0), st.just(INF), st.none()), min_size=5, max_size=5))
@settings(deadline=None, max_examples=examples(100))
def test_the_optimum_of_the_means_is_the_lowest_measured_cell(losses: list[float | None]) -> None:
    found = of_one_seed(losses)
    if found.grid_value is None:
        lowest = min((loss for loss in losses if loss is not None), default=INF)
        alive = (1 + DEAD_SHARE) * lowest  # what ends higher may have died, and counts as diverged
        assert sum(loss is not None and loss < min(alive, INF) for loss in losses) < 3
        return
    at = LOG2.index(math.log2(found.grid_value))
    assert losses[at] == min(loss for loss in losses if loss is not None)
    assert found.log2_value == LOG2[at]


def test_the_spread_is_over_the_optima_of_single_seeds() -> None:
    frame = line(STAYS, scales=(32.0,), noise=0.0)
    exponent = np.log2(frame["value"])
    frame["loss"] = 3 + 0.1 * (exponent - np.where(frame["seed"] == 0, -6.4, -6.1)) ** 2
    found = of_frame(frame)
    assert (found.log2_value, found.grid_value) == (-6.0, 2.0**-6)
    assert (found.seed_low_log2, found.seed_high_log2) == (pytest.approx(-6.4), pytest.approx(-6.1))


def test_the_range_is_that_of_cells_with_a_result() -> None:
    assert range_of(one_seed([None, 4.0, INF, 4.0, None]).row) == (-3.0, -1.0)
    assert range_of(one_seed([None] * 5).row) == (INF, -INF)


@pytest.mark.parametrize(
    ("losses", "chosen"),
    [
        ([3.0, 1.0, 2.0], 1),
        ([1.0, 1.0, 1.0, 2.0], 1),
        ([2.0, 1.0, 1.0, 1.0, 1.0, 1.0], 3),
        ([1.0, 1.0, 2.0], 0),  # as close to the middle as its neighbor: the lower place
        ([INF, 1.0, 5.0, 1.0, 1.0], 3),
        ([INF, INF, INF], 1),
        ([1.0 + 1e-16, 2.0, 1.0], 0),
    ],
)
def test_the_middle_of_equal_losses(losses: list[float], chosen: int) -> None:
    assert lowest_of(losses, list(range(len(losses)))) == chosen


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, INF]), min_size=1, max_size=8))
def test_the_choice_is_one_of_the_lowest_and_does_not_favor_an_end(losses: list[float]) -> None:
    places = [float(k) for k in range(len(losses))]
    chosen = lowest_of(losses, places)
    assert chosen in equal_lowest(losses)
    mirrored = len(losses) - 1 - lowest_of(losses[::-1], places)
    assert abs(mirrored - chosen) <= (len(losses) - 1) % 2 + 1 or losses[mirrored] == losses[chosen]
    middle = (equal_lowest(losses)[0] + equal_lowest(losses)[-1]) / 2
    assert abs(chosen - middle) == min(abs(k - middle) for k in equal_lowest(losses))


def test_the_place_in_the_middle_over_two_hps() -> None:
    assert most_central([(0.0, 0.0), (4.0, 4.0), (2.0, 2.5)]) == 2


def test_the_first_of_equal_losses_is_not_preferred() -> None:
    losses = [[0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.5, 0.5]]
    (measured,) = measure(grid_of(losses).rows)
    assert measured.lowest == 2
    optimum = measured_optimum(measured)
    assert (optimum.log2_value, optimum.seed_low_log2, optimum.seed_high_log2) == (2.0, 2.0, 2.0)
    (estimates,) = estimate_all([grid_of(losses)])
    assert best_cell(estimates, 0) == 2


def optima(*args: object, **kwargs: object) -> list[Optimum]:
    report = report_line(line(*args, **kwargs), sweep="planted", hp="lr")  # type: ignore[arg-type]
    return [shape.optimum for shape in report.findings[0].shapes]


@pytest.mark.first
@pytest.mark.parametrize("seeds", [2, 3])
def test_intervals_cover_at_least_as_often_as_they_say(seeds: int) -> None:
    """The form of a basin is not known, so intervals cover parabolas more often. Half as wide they would not cover."""
    world = World(name="moves", offsets=moving(0.25, 5), centered=True, base=-6.0, seeds=seeds, noise=Noise(sd=0.01))
    counts = measure_all(world, range(40), {"said": said, "half": half_as_wide})
    rates = counts["said"].rates()
    assert (rates["optimum_coverage"] or 0.0) >= 0.93
    assert (rates["drift_coverage"] or 0.0) >= 0.9
    assert (counts["half"].rates()["optimum_coverage"] or 0.0) < 0.93


@lru_cache(maxsize=1)
def said(grid: LossGrid) -> Answer:
    return report(grid)


def half_as_wide(grid: LossGrid) -> Answer:
    answer = said(grid)
    optima = tuple(
        None if ends is None else ((3 * ends[0] + ends[1]) / 4, (ends[0] + 3 * ends[1]) / 4) for ends in answer.optima
    )
    return replace(answer, optima=optima)


@pytest.mark.slow
def test_intervals_cover_where_a_seed_s_luck_is_smooth() -> None:
    """The negative twin: with residuals of cells taken as independent, they would not."""
    kind = Planted(noise=0.002, luck_slope=0.006, seeds=3)
    luck = Noise(sd=0.002, luck_slope=0.006, luck_shared=False)
    rates = measured_on(World(name="smooth luck", offsets=moving(0.0, 5), noise=luck, base=-6.0), range(40)).rates()
    assert (rates["optimum_coverage"] or 0.0) >= 0.9
    naive = []
    for seed in range(60):
        sweep = plant(kind, seed)
        u = sweep.x_K - sweep.optimum_I[0]
        near = np.abs(u) <= 2.5
        design = np.kron(np.vander(u[near], 3), np.ones((3, 1)))
        (c, b, _), left, *_ = np.linalg.lstsq(design, sweep.loss_IKS[0][near].ravel(), rcond=None)
        error = math.sqrt(left[0] / (len(design) - 3) * np.linalg.inv(design.T @ design)[1, 1]) / (2 * c)
        naive.append(abs(-b / (2 * c)) <= 2.1 * error)
    assert np.mean(naive) < 0.88


def test_one_seed_has_an_optimum_and_no_interval() -> None:
    assert of_frame(line(STAYS, scales=(32.0,), seeds=1)).seed_low_log2 is None
    for optimum in optima(STAYS, seeds=1):
        assert optimum.log2_value == pytest.approx(-6.2, abs=0.2)
        assert (optimum.se_log2, optimum.low_log2, optimum.high_log2) == (None, None, None)


def test_a_bound_is_open_on_one_side() -> None:
    top = optima({"sp": lambda doublings: -6.0 - 2.0 * doublings})[-1]
    assert (top.kind, top.log2_value, top.low_log2, top.se_log2) == ("lower_edge", -9.0, None, None)
    assert -9.0 <= there(top.high_log2) < -8.0  # beyond the grid nothing is claimed but the side
    other = optima({"sp": lambda doublings: -6.0 + 2.0 * doublings})[-1]
    assert (other.kind, other.log2_value, other.high_log2) == ("upper_edge", -4.0, None)
    assert -5.0 < there(other.low_log2) <= -4.0


def test_next_to_divergence_the_optimum_lies_before_it() -> None:
    for optimum in optima(STAYS, diverges_above=0.9):
        assert optimum.kind == "at_divergence"
        assert there(optimum.log2_value) == pytest.approx(-6.2, abs=0.35)
        assert there(optimum.low_log2) < -6.2 < there(optimum.high_log2) <= -5.0  # the HP that diverges


def test_a_basin_that_does_not_bend_has_no_optimum_and_says_so() -> None:
    (found,) = find([plant(Planted(noise=0.02, curvature=0.0), 1).grid()])
    for optimum in (shape.optimum for shape in found.shapes):
        assert (optimum.kind, optimum.log2_value, optimum.open_because) == ("none", None, FLAT)


@pytest.mark.first
@pytest.mark.parametrize(("curvature", "fewest", "most"), [(0.0, 0, 3), (0.03, 57, 60)])
def test_seeds_that_tilt_a_row_do_not_bend_it(curvature: float, fewest: int, most: int) -> None:
    num = 0
    for luck in range(20):
        frame = line({"sp": lambda _: -6.0}, noise=0.01, curvature=curvature, luck=luck)
        slopes = 0.03 * np.random.default_rng(luck).standard_normal(6)
        frame["loss"] += slopes[frame.groupby(["scale", "seed"]).ngroup()] * np.log2(frame["value"])
        (found,) = estimate_all(loss_grids(frame))
        num += sum(bends(found, i) for i in range(3))
    assert fewest <= num <= most


def top_with_lower(nats: float) -> ShapeFinding:
    """Return the larger shape if all seeds measured so much less at 2^-5, where the optimum is 2^-6.2."""
    frame = line(STAYS, scales=(32.0, 64.0), noise=0.01, curvature=0.008, seeds=3)
    frame.loc[(frame["value"] == 2.0**-5) & (frame["scale"] == 64.0), "loss"] -= nats
    return find(loss_grids(frame))[0].shapes[-1]


def test_a_cell_that_is_lucky_within_its_error_does_not_move_the_best_value() -> None:
    lucky = top_with_lower(0.01)
    assert lucky.lowest_value == 2.0**-5
    assert lucky.best_value == 2.0**-6
    assert 0 < there(lucky.best_loss) - there(lucky.lowest_loss) <= 2 * there(lucky.regret_se_nats)


def test_a_cell_that_measured_lower_by_far_is_the_best_whatever_the_basin_says() -> None:
    assert top_with_lower(0.06).best_value == 2.0**-5


def test_widths_and_edges() -> None:
    report = report_line(line({**STAYS, **MOVES}, noise=1e-4, curvature=0.0075, diverges_above=1.9), sweep="x", hp="lr")
    shape = report.findings[0].shapes[0]
    assert shape.width_quarter_octaves == pytest.approx(2 * math.sqrt(0.0025 * 3.0 / 0.0075), rel=0.05)
    assert shape.width_one_octaves is None  # four octaves: more than lie on both sides
    assert shape.edge_log2 == -5.0
    assert shape.edge_octaves == pytest.approx(1.2, abs=0.05)
    stable = report_line(line(STAYS), sweep="x", hp="lr").findings[0].shapes[0]
    assert (stable.edge_log2, stable.edge_octaves) == (None, None)
    assert len(GRID) == 6
