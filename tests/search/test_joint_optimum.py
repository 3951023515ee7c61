"""What a report says of two HPs that were refined together: the statistic, the figure, the texts and the recipe."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from landscape import expansion_of
from matplotlib.text import Text
from searched import searched

from hpxfer.analysis import analyze
from hpxfer.analysis.statistics.joint_optimum import JointOptimum, joint_optima
from hpxfer.figures import all_figures
from hpxfer.recipe import recipe_of
from hpxfer.report import make_report
from hpxfer.report.page import draw_page
from hpxfer.report.write import source_of, write_report
from hpxfer.results import Results
from hpxfer.search import Outcome
from hpxfer.trial import Trial

TWO = ("[0.01]", "{log2: [-9, -4]}\n  init_scale: {log2: [-2, 2]}")
SWEEP = expansion_of(TWO, search="{kind: refine, budget: 40}", more="product: true\n")
ANGLE = math.pi / 4
CURVATURES = {"bowl": (0.08, 0.05), "ridge": (0.08, 0.0), "wall": (0.08, 0.05), "bound": (0.08, 0.05)}


def land(kind: str, trial: Trial) -> Outcome:
    """Return a turned parabola about (-6.3, 0.6). Under sp at the wide shape, the optimum lies an octave lower."""
    a, b = math.log2(trial.hps.lr), math.log2(trial.hps.init_scale)
    if kind == "wall" and a > -5.5:
        return Outcome("diverged")
    is_sp = trial.parameterization is not None and trial.parameterization.name == "sp"
    at = 3.0 if kind == "bound" else -7.3 if is_sp else -6.3
    p, q = (a - at + b - 0.6) / math.sqrt(2), (b - 0.6 - a + at) / math.sqrt(2)
    steep, flat = CURVATURES[kind]
    luck = 0.003 * np.random.default_rng(int(trial.id[:12], 16)).standard_normal()
    return Outcome("finished", 3 + steep * p * p / 2 + flat * q * q / 2 + luck)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    @cache
    def make(kind: str, most: int | None = None) -> Results:
        return searched(SWEEP, lambda trial: land(kind, trial), tmp_path_factory.mktemp(kind), most=most)

    return make


def of(results: Results) -> dict[tuple[str, bool], JointOptimum]:
    return {(one.parameterization, one.is_base): one for one in joint_optima(results)}


def test_a_bowl_has_an_optimum_with_a_region(made) -> None:  # type: ignore[no-untyped-def]
    found = of(made("bowl"))
    assert set(found) == {("completep-moe = sp", True), ("completep-moe", False), ("sp", False)}
    for (name, _), one in found.items():
        assert one.form == "bowl"
        assert one.log2_first is not None
        assert one.log2_second is not None
        assert one.half_first is not None
        assert one.half_second is not None
        assert abs(one.log2_first - (-7.3 if name == "sp" else -6.3)) <= one.half_first
        assert abs(one.log2_second - 0.6) <= one.half_second
        assert one.ridge == ""
        assert one.bound == ""
        assert one.has_ended


def test_the_regret_of_the_bases_best_point_is_that_of_a_transfer(made) -> None:  # type: ignore[no-untyped-def]
    found = of(made("bowl"))
    assert found["completep-moe = sp", True].regret_nats is None
    one, control = found["completep-moe", False], found["sp", False]
    assert one.regret_nats is not None
    assert one.regret_nats < 0.01
    assert control.regret_nats == pytest.approx((0.08 + 0.05) / 4, abs=0.012), "an octave of lr, along the diagonal"


def test_a_ridge_has_a_direction_and_a_length(made) -> None:  # type: ignore[no-untyped-def]
    one = of(made("ridge"))["completep-moe = sp", True]
    assert one.form == "ridge"
    assert one.ridge_slope == pytest.approx(-1.0, abs=0.15)
    assert one.ridge.startswith("lr falls by")
    assert one.ridge_is_longer, "a flat ridge ends with the box only"
    assert one.ridge_octaves is not None
    assert one.ridge_octaves > 4
    for a, b in one.ridge_ends:
        assert abs(a + 6.3 + b - 0.6) < 0.7
    assert "a ridge of at least" in one.sentence


def test_walls_and_bounds_are_said(made) -> None:  # type: ignore[no-untyped-def]
    wall = of(made("wall"))["completep-moe = sp", True]
    assert wall.num_diverged >= 3
    assert wall.form == "bowl"
    bound = of(made("bound"))["completep-moe = sp", True]
    assert "lr above" in bound.bound
    assert bound.log2_first is None
    assert "a bound, the loss still falls towards lr above" in bound.sentence


def test_the_surface_is_the_one_that_the_report_draws(made) -> None:  # type: ignore[no-untyped-def]
    results = made("bowl")
    one = joint_optima(results)[0]
    assert one.surface is not None
    near = [point for point in one.points if point.loss is not None and point.loss < 3.01]
    fitted = one.surface.at(np.array([(point.log2_first, point.log2_second) for point in near]))
    np.testing.assert_allclose(fitted, [point.loss for point in near], atol=0.008)
    assert one.surface.curvatures == pytest.approx((0.08, 0.05), rel=0.35)


@pytest.mark.parametrize("kind", sorted(CURVATURES))
def test_the_figure_draws_without_a_warning(made, kind: str) -> None:  # type: ignore[no-untyped-def]
    results = made(kind)
    figures, missing = all_figures(results, analyze(results))
    (figure,) = [figure for figure in figures if figure.name == "search-contours-lr-init_scale"]
    figure.figure.draw_without_rendering()
    assert figure.svg.startswith("<svg")
    assert len(figure.csv.splitlines()) == 1 + sum(len(one.points) for one in joint_optima(results))
    assert not any(line.startswith("surface") for line in missing), "the search's own surfaces are drawn"
    assert ("a ridge of" in figure.title) == (kind == "ridge")


def test_text_page_and_json_say_it(made, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    results = made("ridge")
    written = write_report([results.folder], output=tmp_path / "md", form="md")
    assert "a ridge of at least" in written.text()
    headline, why, question, *arms = written.text().splitlines()
    assert headline.startswith("At the base, completep-moe = sp at w")
    assert "The base's best point gives up" in headline
    assert "nats with sp at w" in headline
    assert why.startswith("There is no transfer verdict: refine with product moves lr and init_scale together")
    assert question.startswith("Where is the optimum of lr and init_scale together?")
    assert len(arms) == 3
    page = (tmp_path / "md" / "report.md").read_text()
    assert "Two HPs refined together" in page
    assert "figures/search-contours-lr-init_scale.png" in page
    assert "There is no transfer verdict: refine with product" in page
    assert "nothing can be judged" not in page
    assert page.index("figures/search-contours-lr-init_scale.png") < page.index("What is not known")
    write_report([results.folder], output=tmp_path / "json", form="json")
    (section,) = json.loads((tmp_path / "json" / "report.json").read_text())["sweeps"]
    assert "a ridge of at least" in section["headline"]
    assert json.loads(json.dumps(analyze(results).to_dict()))["joint_optima"][0]["form"] == "ridge"


def test_the_full_text_starts_as_the_short_one(made, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    short, full = (
        write_report([made("bowl").folder], output=tmp_path, form="text", full=full).text() for full in (False, True)
    )
    assert full.startswith(short)
    assert "Two HPs refined together" in full


@pytest.mark.parametrize("form", ["text", "html", "png"])
def test_there_is_no_figure_of_a_line_that_does_not_exist(made, form: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    old = tmp_path / "transfer.png"
    old.write_bytes(b"of a version before")
    written = write_report([made("bowl").folder], output=tmp_path, form=form)
    assert not [path for path in written.files if path.stem == "transfer"]
    assert {path.name for path in tmp_path.iterdir()} - {"report.html", "report.png", "figures"} == {"transfer.png"}


def test_the_contours_are_the_headline_of_the_page(made, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_report([made("bowl").folder], output=tmp_path)
    page = (tmp_path / "report.html").read_text()
    contours = page.index("<h3>completep-moe = sp at w")
    assert page.index("There is no transfer verdict: refine with product") < contours < page.index('id="figures"')
    assert "nothing can be judged" not in page


@pytest.mark.parametrize("kind", ["bowl", "ridge", "bound"])
def test_the_summary_on_one_page_has_contours_a_table_and_the_control(made, kind: str) -> None:  # type: ignore[no-untyped-def]
    figure = draw_page(make_report([source_of(made(kind), "png")]).sections[0], whole=False)
    figure.draw_without_rendering()
    texts = [text for text in figure.findobj(Text) if text.get_text().strip()]
    said = " ".join(" ".join(text.get_text().split()) for text in texts)
    assert "log2 init_scale (octaves)" in said
    assert said.count("(base)") == 2, "a panel and a row of the table"
    assert "There is no transfer verdict: refine with product" in said
    assert "Control: sp." in said
    drawn = [text for part in figure.subfigs for text in part.texts]
    drawn += [text for axes in figure.axes for text in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    for text in drawn:
        box = text.get_window_extent()
        assert min(box.x0, box.y0) >= 0, text.get_text()
        assert box.x1 <= figure.bbox.width, text.get_text()
        assert box.y1 <= figure.bbox.height, text.get_text()


def test_the_recipe_has_both_hps_of_the_best_point(made) -> None:  # type: ignore[no-untyped-def]
    results = made("bowl")
    one, hps = joint_optima(results)[0], recipe_of(results).file.hps
    assert (hps.lr, hps.init_scale) == (one.best_first, one.best_second)


def test_a_search_that_has_only_begun_says_what_is_missing(made) -> None:  # type: ignore[no-untyped-def]
    begun = made("bowl", 4)
    assert {one.why_not for one in joint_optima(begun)} == {"no round has ended"}
    half = made("bowl", 56)
    assert not any(one.has_ended for one in joint_optima(half) if not one.is_base)
    assert any("the search has not ended" in one.sentence for one in joint_optima(half))


def test_what_was_run_counts_each_trial_once(made) -> None:  # type: ignore[no-untyped-def]
    """The start is at the base value of init_scale, and other points may be: they are on no line of this search."""
    cells = made("bowl").cells
    assert set(cells["line"]) == {"refine"}
    assert not cells.duplicated(["axis", "parameterization", "shape", "trial_id"]).any()


def test_another_search_has_no_joint_optimum(tmp_path: Path) -> None:
    grid = expansion_of(("[0.01]", "[0.01, 0.02]"), search="grid")
    assert joint_optima(searched(grid, lambda trial: Outcome("finished", 3.0), tmp_path)) == []
