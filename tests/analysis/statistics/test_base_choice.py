"""The choice of a base in a report, and what tells the base models of two arms apart."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from found_rows import rows
from there import of

from hpxfer.analysis import analyze, transfer_report
from hpxfer.analysis.analyze import difference_at_base
from hpxfer.analysis.statistics.base_choice import scales_training
from hpxfer.model.cost import train_flops
from hpxfer.results import Results, load_results
from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS

PUBLISHED = Path(__file__).parents[3] / "results" / "published"


@pytest.fixture(scope="module")
def results() -> Results:
    """The published sweep along its width alone."""
    whole = load_results(PUBLISHED / "transfer")
    return replace(whole, spec=whole.spec.model_copy(update={"axes": {"width": whole.spec.axes["width"]}}))


Readings = dict[
    tuple[str, str, str], list[SimpleNamespace] | str
]  # of an HP, axis and arm: rows, or why there are none


@pytest.fixture(scope="module")
def readings(results: Results) -> Readings:
    found = analyze(results).found("bases")
    out: Readings = {(hp, axis, label): why for name, why in found.unknown for axis, label, hp in [name.split()]}
    for (hp, axis, label), bases in found.frame.groupby(["hp", "axis", "parameterization"]):
        out[str(hp), str(axis), str(label)] = rows(bases)
    return out


def test_sp_alone_scales_nothing() -> None:
    unscaled = {name for name in PARAMETERIZATIONS.names() if not scales_training(parameterization(name))}
    assert unscaled == {"sp"}


def test_every_hp_axis_and_arm_is_read(results: Results, readings: Readings) -> None:
    labels = [choice.label() for choice in results.expansion.choices]
    assert set(readings) == {
        (hp, axis, label) for hp in results.spec.grid for axis in results.spec.axes for label in labels
    }


def test_sp_has_no_base(readings: Readings) -> None:
    for (_, _, label), found in readings.items():
        assert (found == "sp has no base: nothing scales with it") is (label == "sp")
        assert isinstance(found, str) is (label == "sp")


def test_the_cost_is_of_all_trials(results: Results, readings: Readings) -> None:
    line = results.line("lr")
    here = line[(line["axis"] == "width") & (line["parameterization"] == "completep-moe")]
    shapes = {axis.label(point.shape): point.shape for axis in results.expansion.axes for point in axis.points}
    bases = of(list, readings["lr", "width", "completep-moe"])
    for row in bases:
        trial = train_flops(shapes[row.shape], results.expansion.setting_at(shapes[row.shape]))
        assert row.tuning_flops == pytest.approx(trial * (here["shape"] == row.shape).sum())
    costs = [row.tuning_flops for row in bases]
    assert costs == sorted(costs)


def test_a_row_says_what_its_report_says(results: Results, readings: Readings) -> None:
    for base in ("width 64", "width 128"):
        report = transfer_report(results.from_base(base), "init_scale")
        (finding,) = (finding for finding in report.findings if finding.key == ("width", "completep-moe"))
        bases = of(list, readings["init_scale", "width", "completep-moe"])
        (row,) = (row for row in bases if f"{row.scale_name} {row.scale:.0f}" == base)
        assert (row.verdict, row.tuned_value) == (finding.verdict, finding.base_value)
        assert row.loss_given_up_nats == finding.shapes[-1].regret_nats


def test_init_scale_is_no_hp_to_tune_at_the_smallest_width(readings: Readings) -> None:
    """Its optimum rises from width to width: the HP of width 32 gives up too much, that of width 64 does not."""
    smallest, second, *others = of(list, readings["init_scale", "width", "completep-moe"])
    assert [row.octaves_to_next > 0 for row in (smallest, second, *others[:-1])] == [True] * 3
    assert smallest.verdict != "transfers"
    assert not smallest.recommended
    assert second.loss_given_up_high < smallest.limit_nats < smallest.loss_given_up_low
    assert smallest.transfer_chance < 0.02 < 0.9 < second.transfer_chance


@pytest.mark.slow
def test_the_report_says_which_axes_it_leaves_out() -> None:
    analysis = analyze(load_results(PUBLISHED / "transfer").from_base("w64"))
    assert analysis.notes[0] == "judged from width 64, a shape that depth, experts, expert_ratio, joint do not have"
    assert {report.sweep for report in analysis.reports} == {"transfer from width 64"}
    assert {finding.axis for report in analysis.reports for finding in report.findings} == {"width"}
    assert all(math.isfinite(row.scale) and row.scale >= 64 for row in rows(analysis.found("bases").frame))


@pytest.mark.parametrize(
    ("sweep", "arms", "said"),
    [
        ("regime-iii", ("mssp-iii", "mup-iii"), "tied_experts True against False"),
        ("transfer", ("completep-moe", "sp"), None),
    ],
)
def test_what_tells_two_arms_apart_at_the_base(sweep: str, arms: tuple[str, str], said: str | None) -> None:
    assert difference_at_base(load_results(PUBLISHED / sweep), *arms) == said


def test_from_a_larger_base_tables_differ_and_the_reports_say_how() -> None:
    results = load_results(PUBLISHED / "transfer").from_base("w64")
    found = {finding.parameterization: finding for finding in transfer_report(results).findings}
    mine, control = found["completep-moe"], found["sp"]
    assert mine.shares_base == ()
    assert mine.base_value != control.base_value
    (reason,) = (reason for reason in mine.reasons if "the model of sp is another one there" in reason)
    assert "init_std" in reason
    assert reason.endswith("more): it hands on 2^-7, not 2^-6")
