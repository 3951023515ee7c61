"""All figures of planted stores, whole and partial: what can be drawn is, and what cannot says why."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from figure_store import PRODUCT, stored
from looks import plain, unlabeled

from hpxfer.analysis import analyze
from hpxfer.figures import DrawnFigure, all_figures
from hpxfer.figures.chart import Block, draw
from hpxfer.figures.style import INK, MAX_POINTS
from hpxfer.figures.training import best_cells, training_block
from hpxfer.results import Results
from hpxfer.trial import Trial

SMALL = (
    PRODUCT.replace("width: [32, 64, 128, 256]", "width: [32, 64, 128]")
    .replace("granularity: [1, 2, 4]", "granularity: [1, 2]")
    .replace("seeds: 3", "seeds: 2")
)
JUDGED = ("transfer", "optimum", "regret", "base-choice", "stability")
OF_AXES = ("training", "collapse", "normalized-collapse", "balance")
NAMES = {
    *(f"{kind}-lr-{axis}" for kind in JUDGED for axis in ("width", "granularity")),
    *(f"{kind}-{axis}" for kind in OF_AXES for axis in ("width", "granularity")),
    *("surface-lr-init_scale", "pairs-completep-moe", "loss-parameters", "experts-size"),
}


TINY = SMALL.replace("  granularity: [1, 2]\n", "").replace("width: [32, 64, 128]", "width: [32, 64]")


def drawn_from(results: Results) -> tuple[dict[str, DrawnFigure], list[str]]:
    figures, missing = all_figures(results, analyze(results))
    found = {figure.name: figure for figure in figures}
    assert len(found) == len(figures), "names are unique"
    return found, missing


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, DrawnFigure], list[str]]:
    return drawn_from(stored(tmp_path_factory.mktemp("whole"), SMALL))


def test_figures_of_an_hp_that_is_not_judged_stand_aside(whole: tuple[dict[str, DrawnFigure], list[str]]) -> None:
    aside = {name for name, figure in whole[0].items() if figure.aside}
    assert aside == {name.replace("-lr-", "-init_scale-") for name in NAMES if "-lr-" in name} & set(whole[0]) - NAMES
    assert {"transfer-init_scale-width", "regret-init_scale-granularity"} <= aside


def test_a_whole_product_sweep_has_every_kind_the_judged_hp_first(
    whole: tuple[dict[str, DrawnFigure], list[str]],
) -> None:
    found, missing = whole
    assert set(found) >= NAMES
    assert next(iter(found)) == "transfer-lr-granularity"
    assert not {line.partition(":")[0] for line in missing} & set(found)


def test_every_figure_has_a_conclusion_labels_and_data(whole: tuple[dict[str, DrawnFigure], list[str]]) -> None:
    for name, figure in whole[0].items():
        assert plain(figure.figure.get_suptitle()) == plain(figure.title), name
        assert figure.caption, name
        assert not unlabeled(figure.figure), name
        table = pd.read_csv(io.StringIO(figure.csv))
        assert len(table), name


def test_pictures_are_rendered_small(whole: tuple[dict[str, DrawnFigure], list[str]]) -> None:
    sizes = {}
    for name in ("transfer-lr-width", "training-width", "collapse-width", "surface-lr-init_scale"):
        svg = whole[0][name].svg
        ElementTree.fromstring(svg)
        assert INK in svg
        sizes[name] = len(svg)
        points = max(d.count("L") for d in svg.split(' d="'))
        assert points <= 2 * MAX_POINTS + 2
    assert max(sizes.values()) < 150_000
    assert whole[0]["transfer-lr-width"].png.startswith(b"\x89PNG")


def test_lines_instead_of_a_product_have_no_surface(tmp_path: Path) -> None:
    found, missing = drawn_from(stored(tmp_path, TINY.replace("product: true\n", "")))
    assert not [name for name in found if name.startswith(("surface", "pairs"))]
    assert [line for line in missing if line.startswith("surface-lr-init_scale: ")]
    assert {"transfer-lr-width", "transfer-init_scale-width"} <= set(found)


def share(trial: Trial, of: int) -> bool:
    return int(hashlib.md5(trial.id.encode(), usedforsecurity=False).hexdigest(), 16) % of == 0


PARTIAL: dict[str, Callable[[Trial], bool]] = {
    "half": lambda trial: share(trial, 2),
    "a few": lambda trial: share(trial, 30),
    "the base alone": lambda trial: trial.shape == trial.base,
    "no base": lambda trial: trial.shape != trial.base,
    "all diverged": lambda trial: trial.hps.lr > 0.1,
}


@pytest.mark.first
@pytest.mark.parametrize("name", PARTIAL)
def test_partial_stores_give_what_they_hold_and_say_what_is_missing(tmp_path: Path, name: str) -> None:
    found, missing = drawn_from(stored(tmp_path, TINY, PARTIAL[name]))
    assert found
    for figure in found.values():
        figure.figure.draw_without_rendering()
    said = {line.partition(": ")[0]: line.partition(": ")[2] for line in missing}
    assert all(said.values())
    absent = {name for name in NAMES if not name.endswith("granularity")} - set(found) - set(said)
    assert absent <= {"pairs-completep-moe"}, "without a cell at the base nothing asks for it"


def test_training_curves_are_those_of_each_shape_s_best_hp(tmp_path: Path) -> None:
    results = stored(tmp_path, SMALL)
    report = analyze(results).report
    assert report is not None
    best = best_cells(report, results.line("lr", "validation"))
    info = training_block(report, "width", best, results.curves)
    assert isinstance(info, Block)
    table = info.table()
    control = table[table["parameterization"] == "sp"]
    finding = next(
        finding for finding in report.findings if (finding.axis, finding.parameterization) == ("width", "sp")
    )
    values = {scale: curve["lr"].unique().tolist() for scale, curve in control.groupby("width")}
    assert values == {shape.scale: [shape.best_value] for shape in finding.shapes}
    assert control["lr"].nunique() > 1
    assert (control["min_nats"] < control["mean_nats"]).all(), "two seeds"
    assert (control["mean_nats"] < control["max_nats"]).all()
    ends = control.groupby("width")["mean_nats"].last()
    assert ends.to_dict() == pytest.approx({shape.scale: shape.best_loss for shape in finding.shapes}, abs=0.03)
    start, (low, high) = draw(info).axes[0].get_xlim()[0], draw(info).axes[0].get_ylim()
    late = table[table["step"] >= start]
    assert start == pytest.approx(table["step"].max() / 10)
    assert low < late["min_nats"].min() < late["max_nats"].max() < high
    assert high - low < 1.1 * (late["max_nats"].max() - late["min_nats"].min()), "no part of the panel is blank"
    nothing = training_block(report, "width", best[:0], results.curves)
    assert nothing == "no best trial along width has a loss curve"
    none_finished = best_cells(replace(report, findings=()), results.line("lr", "validation"))
    assert none_finished.empty
