"""Searches at the base that are judged by an error: pages show accuracy, and of equal points all name the same."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from searched import searched
from sweep_text import SAMPLES, edited

from hpxfer.analysis import analyze
from hpxfer.figures import all_figures
from hpxfer.recipe.from_sweep import recipe_of
from hpxfer.report.best_points import points_text
from hpxfer.report.write import write_report
from hpxfer.results import Results
from hpxfer.search import Outcome
from hpxfer.spec import parse_sweep
from hpxfer.spec.vocabulary import data_sizes
from hpxfer.trial import DataRef, Expansion, Trial

BASE = ("width: {shapes: [{width: 64, expert_width: 32}]}", "width: [32]")
STAGED = (
    "search: {kind: staged-grid, multipliers: [init_scale, router.lr_mult, expert_in.lr_mult], "
    "broad: {points: 3, ratio: 64}, fine: {points: 5, ratio: 4}, recenters: 0}\n"
)
PRODUCT = ("lr: [0.01]", "lr: {log2: [-6, -2]}\n  init_scale: {log2: [-2, 2]}")
JUDGE = "judge: {loss: validation_top5_error}\n"


def error(trial: Trial) -> Outcome:
    """A share of 100 samples with a flat bottom: lr and init_scale do not matter within an octave of 2^-4 and 1."""
    away = max(abs(math.log2(trial.hps.lr) + 4), abs(math.log2(trial.hps.init_scale)))
    return Outcome("finished", min(0.95, 0.25 + (0.07 * away if away > 1 else 0.0)))


def results_of(text: str, folder: Path) -> Results:
    spec = parse_sweep(text)
    return searched(Expansion(spec, DataRef(digest="abc", **data_sizes(spec.data))), error, folder, at_once=64)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Results:
    text = edited(BASE, ("lr: [0.01]", "lr: {log2: [-8, -1]}"), text=SAMPLES)
    return results_of(text + STAGED + JUDGE, tmp_path_factory.mktemp("staged"))


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of(edited(BASE, PRODUCT, text=SAMPLES) + "product: true\n" + JUDGE, tmp_path_factory.mktemp("grid"))


@pytest.mark.parametrize("which", ["staged", "product"])
def test_nothing_says_nats_of_an_error(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    results: Results = request.getfixturevalue(which)
    analysis = analyze(results)
    headline, question = points_text(results).splitlines()
    assert "(75.00%, " in headline
    assert question.endswith("judged by validation top-5 accuracy. There is no larger shape, so nothing transfers.")
    figures, _ = all_figures(results, analysis)
    assert {"staged": "search-heatmaps", "product": "pairs"}[which] in " ".join(figure.name for figure in figures)
    for figure in figures:
        assert "nats" not in figure.title + figure.caption + figure.csv.splitlines()[0], figure.name
    text = write_report([results.folder], output=tmp_path, form="md", full=True).text()
    page = (tmp_path / "report.md").read_text()
    for said in (text, page):
        assert "75.00%" in said
        assert not [line for line in said.splitlines() if re.search(r"\bnats\b", line) and "training" not in line]
    file = recipe_of(results).file
    assert file.provenance.search is not None
    assert "nats" not in file.provenance.search.why
    assert file.fitted is not None
    assert (file.fitted.unit, file.fitted.loss_value) == ("share", 0.25)


@pytest.mark.parametrize("which", ["staged", "product"])
def test_of_equal_errors_the_middle_is_the_best_everywhere(which: str, request: pytest.FixtureRequest) -> None:
    results: Results = request.getfixturevalue(which)
    hps = recipe_of(results).file.hps
    assert (hps.lr, hps.init_scale, hps.multipliers) == (2.0**-4, 1.0, {})
    for arm in analyze(results).found("search_best"):
        assert arm.at.startswith("lr 0.0625, init_scale 1")


def test_pairs_without_effect_have_their_optimum_at_the_center(staged: Results) -> None:
    """The first of equal points would be a corner of the grid, which would say that the pairs interact."""
    found = analyze(staged).found("pair_optima")
    assert len(found) == 2 * 3
    for pair in found:
        assert not pair.differ
        assert (pair.alone_first, pair.alone_second, pair.cost_nats) == (1.0, 1.0, 0.0)
