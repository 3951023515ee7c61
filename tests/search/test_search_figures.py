"""What a search came to: data, tables, figures; and sweeps of the base alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from found_rows import rows
from landscape import LR, Landscape, expansion_of
from searched import searched
from there import there

from hpxfer.analysis import Analysis, analyze
from hpxfer.figures import DrawnFigure, all_figures
from hpxfer.figures.surface import pairs_block
from hpxfer.recipe.facts import doubts
from hpxfer.recipe.from_sweep import recipe_of
from hpxfer.report.write import write_report
from hpxfer.results import Results
from hpxfer.search import Outcome
from hpxfer.search.points import arm_points
from hpxfer.trial import Expansion, Trial

LAND = Landscape(
    optima={"lr": -6.3, "init_scale": 1.0, "router.lr_mult": -3.0}, noise=0.002, walls={"lr": -4.5}, drift=1.0
)
TWO = (("lr: [0.01]", "lr: {log2: [-9, -3]}\n  init_scale: {log2: [-2, 2]}"), ("hps:\n", "hps:\n  lr: 0.01\n"))
SEEDS = ("seeds: 2", "seeds: 3")
KINDS = {
    "optuna": expansion_of(*TWO, search="{kind: optuna, sampler: RandomSampler, budget: 24}"),
    "random": expansion_of(*TWO, search="{kind: random, points: 12}"),
    "random-pairs": expansion_of(*TWO, search="{kind: random-pairs, points: 12, pairs: {points: 3, ratio: 2}}"),
    "refine": expansion_of(LR, search="{kind: refine, until_octaves: 0.5}"),
    "coordinate": expansion_of(
        LR, SEEDS, search="{kind: coordinate, multipliers: [router.lr_mult, embedding.lr_mult]}"
    ),
    "staged-grid": expansion_of(LR, search="{kind: staged-grid, multipliers: [init_scale, router.lr_mult]}"),
    "verdict": expansion_of(LR, SEEDS, search="{kind: verdict, budget: 18}"),
    "grid": expansion_of(LR, search="grid"),
}
FIGURES = {
    "optuna": {"search-best"},
    "random": {"search-best"},
    "random-pairs": {
        "search-best",
        "search-heatmaps-completep-moe_sp_at_w32_d2_E4A1_h32-pairs",
        "search-heatmaps-completep-moe_at_w64_d2_E4A1_h64-pairs",
        "search-heatmaps-sp_at_w64_d2_E4A1_h64-pairs",
    },
    "refine": {"search-best", "search-refine-lr", "doubt"},
    "verdict": {"doubt"},
    "coordinate": {"search-best", "search-steps-completep-moe_sp-w32_d2_E4A1_h32"},
    "staged-grid": {
        "search-best",
        "search-heatmaps-completep-moe_sp_at_w32_d2_E4A1_h32-broad",
        "search-heatmaps-completep-moe_sp_at_w32_d2_E4A1_h32-fine",
    },
    "grid": set(),
}
Told = tuple[Results, Analysis, dict[str, DrawnFigure]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    @cache
    def make(kind: str, most: int | None = None) -> Told:
        results = searched(KINDS[kind], LAND, tmp_path_factory.mktemp(kind), at_once=most or 8, most=most)
        analysis = analyze(results)
        figures, _ = all_figures(results, analysis)
        return (
            results,
            analysis,
            {figure.name: figure for figure in figures if figure.name.startswith(("search", "doubt"))},
        )

    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_search_has_its_figures_each_with_its_data(told, kind: str) -> None:  # type: ignore[no-untyped-def]
    _, analysis, figures = told(kind)
    assert set(figures) == FIGURES[kind]
    for figure in figures.values():
        figure.figure.draw_without_rendering()  # a warning is an error
        assert len(figure.csv.splitlines()) > 1
        assert figure.title
        assert figure.svg.startswith("<svg")
    assert analysis.found("search_best").frame.empty == (kind in ("grid", "verdict"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "grid"])
def test_a_search_that_has_only_begun_is_told_as_far_as_it_is(told, kind: str) -> None:  # type: ignore[no-untyped-def]
    _, analysis, figures = told(kind, 1)
    assert analysis.found("search_best").frame.empty
    assert bool(analysis.found("search_best").unknown) == (kind != "verdict")
    assert figures == {}


def test_the_best_so_far_never_rises_and_is_the_lowest_of_what_ended(told) -> None:  # type: ignore[no-untyped-def]
    results, _, figures = told("random")
    for arm in arm_points(results):
        assert [point.num_trials for point in arm.points] == [2 * k for k in range(1, 13)]
        means = [point.mean for point in arm.points]
        best = [point.lowest for point in arm.points]
        assert best == [min(means[: k + 1]) for k in range(len(means))]
    drawn = figures["search-best"]
    assert len(drawn.csv.splitlines()) == 1 + 36
    crosses = [line for axes in drawn.figure.axes for line in axes.get_lines() if line.get_marker() == "x"]
    points = [point for arm in arm_points(results) for point in arm.points]
    assert sum(len(line.get_xdata()) for line in crosses) == sum(not math.isfinite(point.mean) for point in points)


def test_arms_of_unequal_length_are_cut_to_the_shorter(tmp_path: Path) -> None:
    results = searched(KINDS["random"], LAND, tmp_path, at_once=1, most=60)
    arms = {arm.parameterization: arm for arm in arm_points(results) if not arm.is_base}
    assert arms["completep-moe"].num_trials != arms["sp"].num_trials
    shorter = min(arm.num_trials for arm in arms.values())
    for best in rows(analyze(results).found("search_best").frame):
        if best.parameterization in arms:
            assert best.num_trials == shorter
            points = arms[best.parameterization].points
            assert best.best_nats == min(point.mean for point in points if point.num_trials <= shorter)


def test_coordinate_keeps_what_wins_and_says_by_how_much(told) -> None:  # type: ignore[no-untyped-def]
    _, analysis, figures = told("coordinate")
    (kept,) = rows(analysis.found("search_steps").frame, kept=True)
    assert kept.multiplier == "router.lr_mult"
    assert kept.ratio in (2.0**-4, 2.0**-2), "both are an octave from the planted optimum"
    assert kept.gain_nats > kept.needed * kept.se_nats
    (figure,) = [figure for name, figure in figures.items() if name.startswith("search-steps")]
    assert "1 of 2 changes won" in figure.title


def test_heatmaps_say_where_a_pair_alone_would_end(told) -> None:  # type: ignore[no-untyped-def]
    """Here the dimensions do not interact: a pair by itself ends at the best, and costs nothing."""
    _, _, figures = told("staged-grid")
    fine = figures["search-heatmaps-completep-moe_sp_at_w32_d2_E4A1_h32-fine"]
    assert fine.title.endswith("a pair tuned by itself costs nothing")
    assert len(fine.csv.splitlines()) == 1 + 25


def test_pairs_say_how_much_lower_another_point_is_than_the_best_random_one(told) -> None:  # type: ignore[no-untyped-def]
    results, analysis, figures = told("random-pairs")
    pairs = analysis.found("pair_optima")
    assert set(pairs.frame["stage"]) == {"pairs"}
    assert (pairs.frame["cost_nats"] <= 0).all()
    assert pairs.title.startswith(f"{int(pairs.frame['differ'].sum())} of 3 pairs have a lower point, by at most ")
    (name,) = {name for name in figures if "completep-moe_sp" in name}
    base = next(arm for arm in arm_points(results) if arm.is_base)
    (row,) = rows(pairs.frame, shape="w32 d2 E4A1 h32")
    lowest = base.best()
    assert lowest is not None
    assert row.alone_nats == lowest.mean
    assert (row.alone_first, row.alone_second) == pytest.approx((lowest.hps.lr, lowest.hps.init_scale), rel=1e-5)
    said = (
        "in 1 of 1 pairs another point is lower, by at most" if row.differ else "in 0 of 1 pairs another point is lower"
    )
    assert said in figures[name].title


ONE_SHAPE = ("width: [32, 64]", "width: [32]")
STAGED = (
    "{kind: staged-grid, multipliers: [init_scale, router.lr_mult, attn_q.lr_mult], broad: {points: 3, ratio: 64}, "
    "fine: {points: 5, ratio: 4}, recenters: 0}"
)
# Octaves. The second lies beyond broad and fine grid: 6 + 2 x 2.
FAR = {"lr": -6.0, "init_scale": 1.0, "router.lr_mult": -14.0, "attn_q.lr_mult": 6.0}
THREE_HPS = (
    "lr: [0.01]",
    "init_scale: {log2: [-2, 2], step: 2}\n  router.lr_mult: {log2: [-4, 4], step: 4}\n  attn_q.lr_mult: [1, 4, 16]",
)
BEST = {"init_scale": 1.0, "router.lr_mult": 2.0**-4, "attn_q.lr_mult": 4.0}


def staged() -> Expansion:
    return expansion_of(LR, ONE_SHAPE, search=STAGED)


def product() -> Expansion:
    return expansion_of(THREE_HPS, ONE_SHAPE, ("hps:\n", "hps:\n  lr: 0.01\n"), more="product: true\n")


def interacting(trial: Trial) -> Outcome:
    """The best init_scale moves with the two multipliers, so that no line through base values holds the best point."""
    x, y, z = (math.log2(trial.hps.get(name)) for name in BEST)
    if y + z > 4:
        return Outcome("diverged")
    return Outcome("finished", 2 + 0.01 * (x + y / 2 + z) ** 2 + 0.02 * (y + 5) ** 2 + 0.02 * (z - 2) ** 2)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return searched(staged(), Landscape(optima=FAR), tmp_path_factory.mktemp("far"), at_once=64)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return searched(product(), interacting, tmp_path_factory.mktemp("grid"), at_once=64)


def best_of(results: Results) -> list[SimpleNamespace]:
    return rows(analyze(results).found("search_best").frame)


def test_each_hp_on_an_edge_of_the_last_grid_is_a_bound(far: Results) -> None:
    bound = f"router.lr_mult <= {2.0**-10:.6g}"
    (arm,) = best_of(far)
    assert arm.on_edge == bound
    recipe = recipe_of(far).file
    assert there(recipe.provenance.search).bounds == (bound,)
    assert f"{bound} is a bound, no optimum" in doubts(recipe)
    inside = searched(staged(), Landscape(optima={**FAR, "router.lr_mult": -7.0}), far.folder / "inside", at_once=64)
    (arm,) = best_of(inside)
    assert arm.on_edge == ""
    assert not any("bound" in doubt for doubt in doubts(recipe_of(inside).file))


def test_a_bound_of_the_learning_rate_lasts_to_the_end(tmp_path: Path) -> None:
    low = searched(staged(), Landscape(optima={"lr": -30.0}), tmp_path, at_once=64)
    (arm,) = best_of(low)
    assert arm.on_edge == f"lr <= {2.0**-9:.6g}"


def test_of_equal_points_the_report_and_the_recipe_have_the_same(tmp_path: Path) -> None:
    """Error rates tie, and then the point closest to the center counts."""
    equal = searched(staged(), Landscape(optima={"lr": -6.0}), tmp_path, at_once=64)
    (arm,) = best_of(equal)
    assert (arm.at, arm.kept) == ("lr 0.01562, init_scale 1, router.lr_mult 1, attn_q.lr_mult 1", "")
    assert recipe_of(equal).file.hps.multipliers == {}


def test_what_coordinate_keeps_stands_beside_the_lowest_point(tmp_path: Path) -> None:
    search = "{kind: coordinate, multipliers: [router.lr_mult], noise: 1000}"
    land = Landscape(optima={"lr": -6.0, "router.lr_mult": -2.0}, noise=0.01)
    results = searched(expansion_of(LR, ONE_SHAPE, search=search), land, tmp_path)
    text = write_report([results.folder], output=tmp_path / "report", form="json").text()
    assert "router.lr_mult 0.25 (2.0" in text
    assert "The search keeps lr 0.01562, router.lr_mult 1." in text
    assert recipe_of(results).file.hps.multipliers == {}


def test_the_report_names_the_best_point_and_judges_no_transfer(far: Results, tmp_path: Path) -> None:
    written = write_report([far.folder], output=tmp_path, form="json")
    headline, question, *_ = written.text().splitlines()
    assert headline.startswith("At the base, completep-moe = sp is best at lr 0.01562, init_scale ")
    assert f"Bounds, no optima: router.lr_mult <= {2.0**-10:.6g}." in headline
    assert question == (
        "Which HPs are best at the base? Sweep small, judged by validation loss. There is no larger shape, so nothing "
        "transfers."
    )
    assert written.next_steps == (f"Next: start the next sweep from the recipe of: hpxfer recipe write {far.folder}",)
    data = json.loads((tmp_path / "report.json").read_text())
    (found,) = data["sweeps"]
    assert found["headline"] == headline


def test_pairs_alone_are_compared_with_the_whole_stage(tmp_path: Path) -> None:
    def valley(trial: Trial) -> Outcome:
        x, y, z = (math.log2(trial.hps.get(name)) for name in BEST)
        return Outcome("finished", 2 + 0.1 * (x + y) ** 2 + 0.1 * (x - z) ** 2 + 0.05 * (z - 4) ** 2)

    sweep = expansion_of(LR, ONE_SHAPE, search=STAGED.replace("points: 5", "points: 3"))
    results = searched(sweep, valley, tmp_path, at_once=64)
    analysis = analyze(results)
    found = rows(analysis.found("pair_optima").frame)
    assert [(pair.stage, pair.first, pair.second) for pair in found[3:]] == [
        ("fine", "init_scale", "router.lr_mult"),
        ("fine", "init_scale", "attn_q.lr_mult"),
        ("fine", "router.lr_mult", "attn_q.lr_mult"),
    ]
    for pair in found:
        assert pair.cost_nats >= 0
        assert pair.differ == ((pair.best_first, pair.best_second) != (pair.alone_first, pair.alone_second))
    assert any(pair.differ for pair in found)
    plain = searched(sweep, Landscape(optima={**FAR, "router.lr_mult": 4.0}), tmp_path / "plain", at_once=64)
    assert not analyze(plain).found("pair_optima").frame["differ"].any(), "a separable loss has one optimum"
    names = {figure.name: figure for figure in all_figures(results, analysis)[0]}
    planes = next(figure for name, figure in names.items() if name.endswith("-fine-planes"))
    assert "planes through its best point" in planes.title
    planes.figure.draw_without_rendering()  # a warning is an error


def test_a_product_grid_of_the_base_has_the_best_of_all_its_cells(grid: Results) -> None:
    """The line of an HP through base values has another best, which no report may name."""
    recipe = recipe_of(grid).file
    assert {name: recipe.hps.multipliers.get(name, recipe.hps.init_scale) for name in BEST} == BEST
    assert there(recipe.provenance.search).bounds == ("router.lr_mult <= 0.0625",)
    analysis = analyze(grid)
    (arm,) = best_of(grid)
    assert arm.num_diverged == 2 * 3, "two of nine pairs of multipliers, at three scales of the init"
    cells = analysis.found("pair_cells")
    info = pairs_block(cells, cells.frame["parameterization"].iloc[0])
    assert not isinstance(info, str)
    lowest = info.frame.groupby(["first", "second"])["loss_nats"].min()
    assert lowest.to_list() == [arm.best_nats] * 3, "every plane goes through the best point"


def test_a_product_with_larger_shapes_is_judged_by_lines(grid: Results) -> None:
    wide = expansion_of(THREE_HPS, ("hps:\n", "hps:\n  lr: 0.01\n"), more="product: true\n")
    results = replace(grid, spec=wide.spec.model_copy(update={"data": grid.spec.data}))
    assert best_of(results) == []
