"""Sweeps of the base alone: the best point of all HPs, its bounds, and each pair against the whole stage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from landscape import LR, Landscape, expansion_of
from searched import searched
from there import there

from hpxfer.analysis import analyze
from hpxfer.analysis.statistics.pair_optima import PairOptimum
from hpxfer.figures import all_figures
from hpxfer.figures.pairs import pairs_info
from hpxfer.recipe.from_sweep import recipe_of
from hpxfer.report.write import write_report
from hpxfer.results import Results
from hpxfer.search import Outcome
from hpxfer.spec.recipe_file import doubts
from hpxfer.trial import Expansion, Trial

ONE_SHAPE = ("width: [32, 64]", "width: [32]")
STAGED = (
    "{kind: staged-grid, multipliers: [init_scale, router.lr_mult, attn_q.lr_mult], broad: {points: 3, ratio: 64}, "
    "fine: {points: 5, ratio: 4}, recenters: 0}"
)
# Octaves. The second lies beyond broad and fine grid: 6 + 2 x 2.
FAR = {"lr": -6.0, "init_scale": 1.0, "router.lr_mult": -14.0, "attn_q.lr_mult": 6.0}
THREE = (
    "lr: [0.01]",
    "init_scale: {log2: [-2, 2], step: 2}\n  router.lr_mult: {log2: [-4, 4], step: 4}\n  attn_q.lr_mult: [1, 4, 16]",
)
BEST = {"init_scale": 1.0, "router.lr_mult": 2.0**-4, "attn_q.lr_mult": 4.0}


def staged() -> Expansion:
    return expansion_of(LR, ONE_SHAPE, search=STAGED)


def product() -> Expansion:
    return expansion_of(THREE, ONE_SHAPE, ("hps:\n", "hps:\n  lr: 0.01\n"), more="product: true\n")


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


def test_each_hp_on_an_edge_of_the_last_grid_is_a_bound(far: Results) -> None:
    bound = f"router.lr_mult <= {2.0**-10:.6g}"
    (arm,) = analyze(far).found("search_best")
    assert arm.on_edge == bound
    recipe = recipe_of(far).file
    assert there(recipe.provenance.search).bounds == (bound,)
    assert f"{bound} is a bound, no optimum" in doubts(recipe)
    inside = searched(staged(), Landscape(optima={**FAR, "router.lr_mult": -7.0}), far.folder / "inside", at_once=64)
    (arm,) = analyze(inside).found("search_best")
    assert arm.on_edge == ""
    assert not any("bound" in doubt for doubt in doubts(recipe_of(inside).file))


def test_a_bound_of_the_learning_rate_lasts_to_the_end(tmp_path: Path) -> None:
    low = searched(staged(), Landscape(optima={"lr": -30.0}), tmp_path, at_once=64)
    (arm,) = analyze(low).found("search_best")
    assert arm.on_edge == f"lr <= {2.0**-9:.6g}"


def test_of_equal_points_the_report_and_the_recipe_have_the_same(tmp_path: Path) -> None:
    """Error rates tie, and then the point closest to the center counts."""
    equal = searched(staged(), Landscape(optima={"lr": -6.0}), tmp_path, at_once=64)
    (arm,) = analyze(equal).found("search_best")
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
    assert written.next_steps == (f"Next: start the next sweep from the recipe of: hpxfer recipe {far.folder}",)
    data = json.loads((tmp_path / "report.json").read_text())
    (found,) = data["sweeps"]
    assert found["headline"] == headline


def test_pairs_alone_are_compared_with_the_whole_stage(tmp_path: Path) -> None:
    def valley(trial: Trial) -> Outcome:
        x, y, z = (math.log2(trial.hps.get(name)) for name in BEST)
        return Outcome("finished", 2 + 0.1 * (x + y) ** 2 + 0.1 * (x - z) ** 2 + 0.05 * (z - 4) ** 2)

    results = searched(staged(), valley, tmp_path, at_once=64)
    analysis = analyze(results)
    found: list[PairOptimum] = list(analysis.found("pair_optima"))
    assert [(pair.stage, pair.first, pair.second) for pair in found[3:]] == [
        ("fine", "init_scale", "router.lr_mult"),
        ("fine", "init_scale", "attn_q.lr_mult"),
        ("fine", "router.lr_mult", "attn_q.lr_mult"),
    ]
    for pair in found:
        assert there(pair.cost_nats) >= 0
        assert pair.differ == ((pair.best_first, pair.best_second) != (pair.alone_first, pair.alone_second))
    assert any(pair.differ for pair in found)
    plain = searched(staged(), Landscape(optima={**FAR, "router.lr_mult": 4.0}), tmp_path / "plain", at_once=64)
    assert not any(pair.differ for pair in analyze(plain).found("pair_optima")), "a separable loss has one optimum"
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
    (arm,) = analysis.found("search_best")
    assert arm.num_diverged == 2 * 3, "two of nine pairs of multipliers, at three scales of the init"
    surfaces = analysis.found("surfaces")
    info = pairs_info(surfaces, surfaces[0].parameterization)
    assert not isinstance(info, str)
    assert len(info.panels) == 3
    lowest = {(pair.first, pair.second): min(c.loss for c in pair.cells if c.loss is not None) for pair in info.panels}
    assert set(lowest.values()) == {arm.best_nats}, "every plane goes through the best point"


def test_a_product_with_larger_shapes_is_judged_by_lines(grid: Results) -> None:
    wide = expansion_of(THREE, ("hps:\n", "hps:\n  lr: 0.01\n"), more="product: true\n")
    results = replace(grid, spec=wide.spec.model_copy(update={"data": grid.spec.data}))
    assert analyze(results).found("search_best") == ()
