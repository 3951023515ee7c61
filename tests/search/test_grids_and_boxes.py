"""Staged grids, with their heatmaps, and random search in a box."""

from __future__ import annotations

import itertools
import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from landscape import LR, Landscape, Ran, bound_of, expansion_of, run, search_of
from there import there

from hpxfer.errors import HpxferError
from hpxfer.scaling.hps import HPs
from hpxfer.search import Outcome
from hpxfer.search.random_pairs import pair_cells
from hpxfer.search.random_search import random_points
from hpxfer.search.rounds import History, RoundSearch, lowest_point, mean
from hpxfer.search.staged_grid import HeatmapCell, heatmap_cells
from hpxfer.search.values import GridAround
from hpxfer.spec import SweepSpec

TWO = "multipliers: [init_scale, router.lr_mult]"
SIX = "[init_scale, router.lr_mult, expert_in.lr_mult, expert_out.lr_mult, embedding.lr_mult, attn_q.lr_mult]"


def staged(landscape: Landscape, options: str = TWO) -> Ran:
    return run(expansion_of(LR, search=f"{{kind: staged-grid, {options}}}"), landscape, at_once=16)


def played(ran: Ran) -> History:
    assert isinstance(ran.search, RoundSearch)
    return ran.search.play(ran.outcomes)[0]


def found(ran: Ran) -> HPs:
    end = there(played(ran).end)
    return there(end.best)


@given(init=st.floats(-11, 11), router=st.floats(-11, 11))
@example(init=1.0 + 2.0**-52, router=0.0)  # the losses at 1 and at 4 are equal in float64, and 4 is nearer
def test_it_finds_a_planted_optimum_within_its_last_ratio(init: float, router: float) -> None:
    landscape = Landscape(optima={"lr": -6.0, "init_scale": init, "router.lr_mult": router})
    best = found(staged(landscape))
    # At d octaves from the middle of two points, their losses differ by 4 d curvature. Both are about 2 and sums of
    # several terms, each rounded to 2**-52 or so. Differences below 2**-50 are thus no differences in float64.
    half_a_ratio = 1.0 + 2.0**-50 / (4 * landscape.curvature)
    assert abs(math.log2(best.init_scale) - init) <= half_a_ratio
    assert abs(math.log2(best.get("router.lr_mult")) - router) <= half_a_ratio
    assert best.lr == 2.0**-6


def test_an_optimum_beyond_its_reach_is_said_to_be_a_bound() -> None:
    near, far = (
        staged(Landscape(optima={"lr": -6.0, "init_scale": away}), f"{TWO}, recenters: 0").search.why()
        for away in (1.0, -19.0)
    )
    assert "on its edge in init_scale after 0 moves: a bound there, not an optimum" in far
    assert "bound" not in near


def test_a_best_on_an_edge_moves_the_grid_along_that_dimension_only() -> None:
    ran = staged(Landscape(optima={"lr": -6.0, "init_scale": -8.0, "router.lr_mult": 0.0}))
    grids = [ended.round.points for ended in played(ran).rounds if isinstance(ended.round.points, GridAround)]
    assert [grid.center.init_scale for grid in grids[:2]] == [1.0, 2.0**-4]
    assert [grid.center.get("router.lr_mult") for grid in grids[:2]] == [1.0, 1.0]


def of_line(lr: float) -> HPs:
    return HPs(lr=lr, eps=1e-12)


def test_grids_that_diverge_but_for_their_center_end_there() -> None:
    ran = run(
        expansion_of(LR, search=f"{{kind: staged-grid, {TWO}}}"),
        lambda trial: (
            Landscape(optima={"lr": -6.0})(trial) if trial.hps == of_line(trial.hps.lr) else Outcome("diverged")
        ),
    )
    assert found(ran) == of_line(2.0**-6), "its center is all that finished"
    assert "moves" not in ran.search.why()


def test_entries_that_are_joined_move_together() -> None:
    options = "multipliers: [attn_q.lr_mult + attn_k.lr_mult, init_scale]"
    ran = staged(Landscape(optima={"lr": -6.0, "attn_k.lr_mult": 4.0}), options)
    assert all(trial.hps.get("attn_q.lr_mult") == trial.hps.get("attn_k.lr_mult") for trial in ran.trials.values())
    assert found(ran).get("attn_q.lr_mult") == 16.0


@pytest.mark.slow
def test_six_dimensions_are_15625_points() -> None:
    expansion = expansion_of(
        LR, ("seeds: 2", "seeds: 1"), search=f"{{kind: staged-grid, multipliers: {SIX}, recenters: 0}}"
    )
    search = search_of(expansion)
    assert list(bound_of(expansion).values()) == [6 + 3**6 + 5**6]
    landscape = Landscape(optima={"lr": -6.0, "init_scale": 1.0})
    ran = run(expansion, landscape, stop_after=6 + 3**6)
    asked = search.ask(ran.outcomes, ())
    (history,) = search.play(ran.outcomes)
    points = {trial.hps for trial in history.trials}
    assert len(history.trials) == len(points) == 5**6
    known = {trial.hps for trial in ran.trials.values() if trial.id in ran.outcomes}
    assert {trial.hps for trial in asked} == points - known


@given(points=st.sampled_from((3, 5, 7)), ratio=st.floats(1.5, 64), index=st.integers(0, 342))
def test_a_grid_is_the_product_of_its_dimensions(points: int, ratio: float, index: int) -> None:
    names = ("init_scale", "router.lr_mult", "eps")
    grid = GridAround(HPs(lr=0.1, eps=1e-8), names, points, ratio)
    index %= len(grid)
    for name, step in zip(names, grid.steps(index), strict=True):
        assert abs(step) <= points // 2
        assert grid[index].get(name) == pytest.approx(grid.center.get(name) * ratio**step, rel=1e-5)
    assert grid[-1] == grid[len(grid) - 1]
    assert tuple(islice(grid, 4)) == grid[:4]
    assert grid[len(grid) // 2] == grid.center
    with pytest.raises(IndexError):
        grid[len(grid)]


def interacting(trial):  # type: ignore[no-untyped-def]
    """A valley along the sum of two multipliers, and a third that decides where on it the bottom is."""
    x, y, z = (math.log2(trial.hps.get(name)) for name in ("init_scale", "router.lr_mult", "attn_q.lr_mult"))
    return Outcome("finished", 2 + 0.1 * (x + y) ** 2 + 0.1 * (x - z) ** 2 + 0.05 * (z - 4) ** 2)


THREE = "multipliers: [init_scale, router.lr_mult, attn_q.lr_mult], fine: {points: 5, ratio: 4}"


def test_heatmaps_show_each_pair_of_each_stage() -> None:
    ran = run(expansion_of(LR, search=f"{{kind: staged-grid, {THREE}}}"), interacting)
    cells: dict[tuple[str, str, str], list[HeatmapCell]] = {}
    for cell in heatmap_cells(played(ran).strategy.arm, played(ran)):  # type: ignore[attr-defined]
        cells.setdefault((cell.stage, cell.x, cell.y), []).append(cell)
    assert list(cells)[3:] == [
        ("fine", "init_scale", "router.lr_mult"),
        ("fine", "init_scale", "attn_q.lr_mult"),
        ("fine", "router.lr_mult", "attn_q.lr_mult"),
    ]
    best = found(ran)
    for (stage, x, y), heatmap in cells.items():
        (at_best,) = [cell for cell in heatmap if cell.is_best]
        (alone,) = [cell for cell in heatmap if cell.is_best_at_center]
        if stage == "fine":
            assert (at_best.x_value, at_best.y_value) == (best.get(x), best.get(y))
        lowest = min(there(cell.lowest_nats) for cell in heatmap)
        assert at_best.lowest_nats == at_best.through_best_nats == lowest
        assert all(there(cell.lowest_nats) <= there(cell.through_best_nats) for cell in heatmap)
        assert alone.at_center_nats == min(there(cell.at_center_nats) for cell in heatmap)


VALLEY = (
    "[0.01]",
    "[0.015625]\n  init_scale: {log2: [-3, 3]}\n  router.lr_mult: {log2: [-3, 3]}\n  attn_q.lr_mult: {log2: [-3, 3]}",
)


def pairs(search: str, landscape: Landscape) -> tuple[Ran, dict[tuple[str, str], list[HeatmapCell]]]:
    ran = run(expansion_of(VALLEY, search=search), landscape)
    cells: dict[tuple[str, str], list[HeatmapCell]] = {}
    for cell in pair_cells(played(ran).strategy.arm, played(ran)):  # type: ignore[attr-defined]
        cells.setdefault((cell.x, cell.y), []).append(cell)
    return ran, cells


def test_pairs_are_scanned_around_the_best_random_point_and_say_which_has_a_lower_one() -> None:
    ran, cells = pairs("{kind: random-pairs, points: 16, pairs: {points: 5, ratio: 2}}", interacting)
    random_round, *planes = played(ran).rounds
    center = there(lowest_point(random_round.pairs))
    assert list(cells) == [
        ("init_scale", "router.lr_mult"),
        ("init_scale", "attn_q.lr_mult"),
        ("router.lr_mult", "attn_q.lr_mult"),
    ]
    for (x, y), plane in cells.items():
        (point,) = [cell for cell in plane if cell.is_best]
        (alone,) = [cell for cell in plane if cell.is_best_at_center]
        assert (point.x_value, point.y_value) == (center.get(x), center.get(y))
        assert alone.lowest_nats == min(there(cell.lowest_nats) for cell in plane)
    lowest = min(there(cell.lowest_nats) for plane in cells.values() for cell in plane)
    assert min(mean(losses) for ended in planes for _, losses in ended.pairs) == lowest
    best = found(ran)
    assert sum(best.get(hp) != center.get(hp) for hp in ("init_scale", "router.lr_mult", "attn_q.lr_mult")) == 2
    assert "best of all planes at lr 0.01562" in ran.search.why()


def test_a_point_in_the_corner_of_a_plane_is_a_bound() -> None:
    far = Landscape(optima={"init_scale": 9.0, "router.lr_mult": -9.0, "attn_q.lr_mult": 0.0})
    ran, _ = pairs("{kind: random-pairs, points: 8, pairs: {points: 3, ratio: 2}}", far)
    bounds = there(played(ran).end).bounds
    assert [bound.partition("=")[0] for bound in bounds] == ["init_scale >", "router.lr_mult <"]
    near = Landscape(optima={"init_scale": 0.0, "router.lr_mult": 0.0, "attn_q.lr_mult": 0.0})
    assert (
        there(played(pairs("{kind: random-pairs, points: 64, pairs: {points: 5, ratio: 16}}", near)[0]).end).bounds
        == ()
    )


@pytest.mark.parametrize(
    ("search", "grid", "says"),
    [
        ("random-pairs", VALLEY, "search.points: must be given with random-pairs"),
        ("{kind: random-pairs, points: 4, pairs: {points: 4, ratio: 2}}", VALLEY, "search.pairs.points: must be odd"),
        ("{kind: random-pairs, points: 4}", LR, "grid: must have two HPs with two ends each"),
        ("{kind: random-pairs, points: 4, budget: 2}", VALLEY, "search.budget: must buy the random points"),
        (
            "{kind: random-pairs, points: 4}",
            ("[0.01]", "{log2: [-6, -3]}\n  beta1: [0.1, 0.5]"),
            "search.pairs: reaches 16 times beyond the grid of beta1, and beta1 must be",
        ),
    ],
)
def test_pairs_that_cannot_be_scanned_are_refused(search: str, grid: tuple[str, str], says: str) -> None:
    with pytest.raises(HpxferError) as caught:
        expansion_of(grid, search=search)
    assert says in str(caught.value)


BOX = ("[0.01]", "{log2: [-9, -4]}\n  init_scale: [0.5, 8]\n  router.lr_mult: [0.25]")


def spec_of(search: str) -> SweepSpec:
    return expansion_of(BOX, search=search).spec


def first(search: str, count: int) -> list[HPs]:
    return list(random_points(spec_of(search), count))


@pytest.mark.parametrize("sequence", ["sobol", "uniform"])
def test_fewer_points_are_the_first_of_more(sequence: str) -> None:
    search = f"{{kind: random, points: 1, sequence: {sequence}}}"
    longest = first(search, 37)
    assert all(first(search, count) == longest[:count] for count in (1, 2, 3, 8, 16, 17, 36))
    assert len(set(longest)) == 37


@pytest.mark.parametrize("sequence", ["sobol", "uniform"])
def test_points_fill_the_box_evenly_on_a_log_scale(sequence: str) -> None:
    points = first(f"{{kind: random, points: 1, sequence: {sequence}}}", 512)
    for name, low, high in (("lr", -9, -4), ("init_scale", -1, 3)):
        at = (np.log2([point.get(name) for point in points]) - low) / (high - low)
        assert at.min() >= 0
        assert at.max() <= 1
        # 99.9% point of Kolmogorov's statistic for a uniform sample.
        assert np.abs(np.sort(at) - (np.arange(512) + 0.5) / 512).max() < 1.95 / math.sqrt(512)
    assert {point.get("router.lr_mult") for point in points} == {0.25}


def test_the_seed_of_the_search_chooses_the_points() -> None:
    kinds = [first(f"{{kind: random, points: 4, seed: {seed}}}", 4) for seed in (0, 0, 1)]
    assert kinds[0] == kinds[1]
    assert not set(kinds[0]) & set(kinds[2])


def test_every_arm_gets_the_same_points_and_the_same_number() -> None:
    ran = run(expansion_of(LR, search="{kind: random, budget: 17}"), Landscape(optima={"lr": -6}))
    assert set(ran.arms().values()) == {16}, "17 trials buy 8 points with 2 seeds"
    assert ran.values("lr", 32) == ran.values("lr", 64)


def test_a_point_of_which_a_seed_diverged_is_not_the_best() -> None:
    def landscape(trial):  # type: ignore[no-untyped-def]
        wall = -5.0 if trial.seed else -7.0
        return Landscape(optima={"lr": -6.0}, walls={"lr": wall})(trial)

    ran = run(expansion_of(LR, search="{kind: random, points: 32}"), landscape)
    best = ran.search.why().splitlines()[1].partition("best at lr ")[2]
    assert math.log2(float(best)) <= -7.0
    assert any(math.log2(value) > -7.0 for value in itertools.chain(ran.values("lr")))
