"""Optima with intervals: what they hold, where they are open, and that they cover what was planted."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from foreign_worlds import Noise, World
from planted_lines import GRID, MOVES, STAYS, line, with_status
from planted_sweeps import Planted, plant
from there import there
from verdict_counts import Answer, measure, measure_all, report
from world_list import line as moving

from hpxfer.analysis import Optimum, report_line
from hpxfer.verdict.estimate import FLAT, bends, estimate_all
from hpxfer.verdict.findings import ShapeFinding
from hpxfer.verdict.loss_grid import LossGrid, loss_grids
from hpxfer.verdict.transfer import find


def optima(*args: object, **kwargs: object) -> list[Optimum]:
    report = report_line(line(*args, **kwargs), sweep="planted", hp="lr")  # type: ignore[arg-type]
    return [shape.optimum for shape in report.findings[0].shapes]


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
    rates = measure(World(name="smooth luck", offsets=moving(0.0, 5), noise=luck, base=-6.0), range(40)).rates()
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


def test_an_interior_optimum_has_an_error_an_interval_and_a_curvature() -> None:
    for optimum in optima(STAYS, noise=0.005, seeds=3, curvature=0.04):
        assert optimum.kind == "interior"
        assert optimum.log2_value == pytest.approx(-6.2, abs=0.2)
        assert optimum.se_log2 is not None
        assert there(optimum.low_log2) < -6.2 < there(optimum.high_log2)
        assert optimum.curvature == pytest.approx(0.04, rel=0.2)


def test_one_seed_has_an_optimum_and_no_interval() -> None:
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


def test_a_missing_seed_changes_an_optimum_little() -> None:
    frame = line(STAYS, noise=0.002, seeds=3)
    frame["loss"] += 0.3 * frame["seed"]  # levels of seeds differ by far more than the basin is deep
    holes = with_status(frame, "failed", scale=64.0, value=2.0**-7, seed=0)
    whole, with_hole = (
        report_line(given, sweep="planted", hp="lr").findings[0].shapes[1].optimum for given in (frame, holes)
    )
    assert with_hole.log2_value == pytest.approx(whole.log2_value, abs=0.05)


def test_widths_and_edges() -> None:
    report = report_line(
        line({**STAYS, **MOVES}, noise=1e-4, curvature=0.0075, diverges_above=1.9),
        sweep="x",
        hp="lr",
    )
    shape = report.findings[0].shapes[0]
    assert shape.width_quarter_octaves == pytest.approx(2 * math.sqrt(0.0025 * 3.0 / 0.0075), rel=0.05)
    assert shape.width_one_octaves is None  # four octaves: more than lie on both sides
    assert shape.edge_log2 == -5.0
    assert shape.edge_octaves == pytest.approx(1.2, abs=0.05)
    stable = report_line(line(STAYS), sweep="x", hp="lr").findings[0].shapes[0]
    assert (stable.edge_log2, stable.edge_octaves) == (None, None)
    assert len(GRID) == 6
