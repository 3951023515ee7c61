"""Everything at once, on stores of real sweeps with planted losses: whole, partial and odd ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from planted_results import planted_results
from planted_store import PlantedStore
from sweep_text import edited
from there import there

from hpxfer.analysis import Analysis, analyze
from hpxfer.spec import parse_sweep
from hpxfer.trial import Trial

GRID = ("lr: [0.01]", "lr: {log2: [-9, -4]}\n  init_scale: {log2: [-2, 2]}")
BASE = ("router_bias_lr: 0.01", "router_bias_lr: 0.01\n  lr: 0.015625")
AXES = ("width: [32, 64]", "width: [32, 64, 128]\n  depth: [2, 4, 8]\n  granularity: [1, 2, 4]")
SEEDS = ("seeds: 2", "seeds: 3")
PLAN = PlantedStore(drift={"sp": -1.0}, cliff=2.0)
SMALL = (GRID, BASE, AXES, SEEDS)


def made(folder: Path, *edits: tuple[str, str], plan: PlantedStore = PLAN) -> Analysis:
    found = analyze(planted_results(parse_sweep(edited(*edits)), folder, plan))
    json.dumps(found.to_dict(), allow_nan=False)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return made(tmp_path_factory.mktemp("whole"), *SMALL)


def test_the_verdicts_are_those_of_what_was_planted(whole: Analysis) -> None:
    assert (whole.hp, whole.loss, [report.hp for report in whole.reports]) == ("lr", "validation", ["lr", "init_scale"])
    verdicts = {finding.key: finding.verdict for finding in there(whole.report).findings}
    assert verdicts["width", "completep-moe"] == "transfers"
    assert verdicts["width", "sp"] == "drifts"


def test_the_joint_drift_names_the_dimension_that_moves_it(whole: Analysis) -> None:
    slopes = {
        (answer.parameterization, slope.dimension): slope.octaves_per_doubling
        for answer in whole.found("joint")
        if answer.hp == "lr"
        for slope in answer.slopes
    }
    assert slopes["sp", "width"] == pytest.approx(-1.0, abs=0.1)
    assert slopes["sp", "depth"] == pytest.approx(0.0, abs=0.1)
    assert slopes["completep-moe", "width"] == pytest.approx(0.0, abs=0.1)


def test_every_analysis_is_there_for_every_axis_and_parameterization(whole: Analysis) -> None:
    keys = {(axis, label) for axis in ("width", "depth", "granularity") for label in ("completep-moe", "sp")}
    for name in ("improvement", "collapse", "balance", "steps_to_loss"):
        assert {(answer.axis, answer.parameterization) for answer in whole.found(name)} == keys
    assert {(answer.hp, answer.axis, answer.parameterization) for answer in whole.found("stability")} == {
        (hp, *key) for hp in ("lr", "init_scale") for key in keys
    }
    assert len(whole.found("loss_fits")) == len(whole.found("power_laws")) == 8


def test_numbers_are_those_that_were_planted(whole: Analysis) -> None:
    law = next(
        answer
        for answer in whole.found("power_laws")
        if (answer.parameterization, answer.count) == ("completep-moe", "total")
    )
    assert law.floor == pytest.approx(PLAN.floor, abs=0.05)
    assert there(law.floor_low) <= PLAN.floor <= there(law.floor_high)
    stability = next(
        answer
        for answer in whole.found("stability")
        if (answer.hp, answer.axis, answer.parameterization) == ("lr", "width", "sp")
    )
    assert stability.edge_octaves_per_doubling == pytest.approx(-1.0, abs=0.5)
    improvement = next(
        answer for answer in whole.found("improvement") if (answer.axis, answer.parameterization) == ("width", "sp")
    )
    assert improvement.monotone is False or improvement.left_out
    assert next(answer for answer in whole.found("improvement") if answer.axis == "depth").monotone is True
    assert {len(answer.groups) for answer in whole.found("experts_size")} == {1}
    assert whole.found("surfaces")[0].why_not is not None
    assert [note for note in whole.notes if "diverged" in note]


def test_the_floor_of_the_law_is_what_normalized_curves_are_over(whole: Analysis) -> None:
    found = next(
        answer
        for answer in whole.found("collapse")
        if (answer.axis, answer.parameterization) == ("width", "completep-moe")
    )
    assert found.floor_nats == pytest.approx(PLAN.floor, abs=0.05)
    assert "power law" in found.floor_from
    assert len(found.curves) == 3


def test_a_product_has_surfaces_and_its_base_once(tmp_path: Path) -> None:
    found = made(tmp_path, GRID, BASE, ("seeds: 2", "seeds: 2\nproduct: true"))
    assert [(answer.shape, answer.is_base) for answer in found.found("surfaces")].count(("w32 d2 E4A1 h32", True)) == 1
    assert len(found.found("surfaces")) == 3
    assert {(answer.first, answer.second) for answer in found.found("surfaces")} == {("lr", "init_scale")}
    assert all(answer.why_not is None for answer in found.found("surfaces"))
    base = next(answer for answer in found.found("surfaces") if answer.is_base)
    assert base.interaction == pytest.approx(0.0, abs=0.1)
    assert {answer.hp for answer in found.reports} == {"lr", "init_scale"}


PARTS: dict[str, Callable[[Trial], bool]] = {
    "one trial": lambda trial: trial.seed == 0 and trial.hps.lr == 2.0**-6 and trial.shape == trial.base,
    "base only": lambda trial: trial.shape == trial.base,
    "no base": lambda trial: trial.shape != trial.base,
    "one seed": lambda trial: trial.seed == 1,
    "two values": lambda trial: trial.hps.lr < 2.0**-7,
    "every third": lambda trial: int(trial.id, 16) % 3 == 0,
    "largest only": lambda trial: trial.shape.width == 128,
}


@pytest.mark.parametrize("name", PARTS)
def test_a_partial_store_says_what_it_can_and_why_not_the_rest(name: str, tmp_path: Path) -> None:
    plan = PlantedStore(drift={"sp": -1.0}, kept=PARTS[name])
    found = made(tmp_path, *SMALL, plan=plan)
    assert any("have not been run" in note for note in found.notes)
    for statistic in ("joint", "improvement", "power_laws", "collapse"):
        assert found.found(statistic)
    if name in ("one trial", "base only", "no base"):
        for statistic in ("collapse", "improvement"):
            assert all(answer.why_not for answer in found.found(statistic))


def test_all_diverged_is_said_and_not_raised(tmp_path: Path) -> None:
    found = made(tmp_path, *SMALL, plan=PlantedStore(cliff=-10.0))
    assert all(all(answer.all_diverge) for answer in found.found("stability"))
    assert {answer.verdict for answer in there(found.report).findings} == {"undecided"}
