"""Which arm another arm is compared with: by default, as the user names it, and on stores with planted losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from planted_results import planted_results
from planted_store import PlantedStore
from sweep_text import edited

from hpxfer.analysis import Analysis, analyze
from hpxfer.analysis.references import ReferenceCurve, References
from hpxfer.analysis.statistics.reference_arm import chosen_arm
from hpxfer.errors import HpxferError
from hpxfer.results import Results
from hpxfer.spec import parse_sweep
from hpxfer.trial import Trial

GRID = ("lr: [0.01]", "lr: {log2: [-8, -5]}")
DENSE_BASE = (
    "base: {width: 32, depth: 2, num_experts: 4, num_active: 1, expert_ratio: 1, head_dim: 32}",
    "base: {width: 32, depth: 2, dense_ratio: 2, head_dim: 32}",
)
MUE = (
    ("completep-moe, sp", "complete-mue, sp"),
    ("  context: 64", "  context: 64\n  gate: normalized_sigmoid\n  ffn: swiglu"),
)
TO_MOE = (
    "width: [32, 64]",
    "moe:\n    - {num_experts: 4, num_active: 2, expert_ratio: 1}\n    - {num_experts: 16, num_active: 2, "
    "expert_ratio: 1}\n  dense: [{dense_ratio: 4}]",
)
DENSE_POINTS = (
    "width: [32, 64]",
    "width: [32, 64]\n  dense:\n    allow_kappa_change: true\n    shapes:\n      - {num_experts: 0}\n"
    "      - {num_experts: 0, steps: 400, schedule: {decay: wsd, warmup: 10, decay_length: 100}}",
)


def planted(folder: Path, *edits: tuple[str, str], plan: PlantedStore | None = None) -> Results:
    return planted_results(parse_sweep(edited(GRID, *edits)), folder, plan or PlantedStore(drift={"sp": -1.0}))


def pairs(found: Analysis, axis: str) -> Mapping[str, set[tuple[str, str]]]:
    """Return parameterization -> (arm, reference) of each of its rows along an axis."""
    answers = [answer for answer in found.found("steps_to_loss") if answer.axis == axis]
    assert all(answer.why_not is None for answer in answers)
    return {answer.parameterization: {(row.arm, row.reference) for row in answer.rows} for answer in answers}


def test_moe_shapes_are_compared_with_the_dense_one_of_equal_active_parameters(tmp_path: Path) -> None:
    found = analyze(planted(tmp_path, DENSE_BASE, TO_MOE, *MUE))
    expected = {("w32 d2 E4A2 h32", "w32 d2 D64"), ("w32 d2 E16A2 h32", "w32 d2 D64")}
    assert pairs(found, "moe") == {"complete-mue": expected, "sp": expected}
    (answer,) = [
        answer for answer in found.found("steps_to_loss") if (answer.axis, answer.parameterization) == ("moe", "sp")
    ]
    assert all(row.active_ratio == pytest.approx(1, abs=0.05) for row in answer.rows)
    first, second = answer.rows
    assert (first.num_seeds, first.num_reached) == (2, 2)
    assert first.speed_up > 1  # the planted loss falls with all parameters
    assert second.speed_up > first.speed_up
    assert {curve.name: curve.kind for curve in answer.curves} == {
        "w32 d2 D64": "reference",
        "w32 d2 E4A2 h32": "arm",
        "w32 d2 E16A2 h32": "arm",
    }


@pytest.mark.slow
def test_a_moe_base_may_have_a_dense_arm_with_steps_and_a_schedule_of_its_own(tmp_path: Path) -> None:
    found = analyze(planted(tmp_path, DENSE_POINTS))
    own = ("w32 d2 E4A1 h32 b512 t200", "w32 d2 D32 b512 t200")  # of two dense shapes, the one with as many steps
    assert pairs(found, "dense") == {"completep-moe": {own}, "sp": {own}}
    long = analyze(planted(tmp_path / "long", DENSE_POINTS), references=References(arm="w32 d2 D32 b512 t400 wsd"))
    found_rows = next(answer for answer in long.found("steps_to_loss") if answer.axis == "dense").rows
    assert {(row.arm, row.reference_steps) for row in found_rows} == {
        ("w32 d2 E4A1 h32 b512 t200", 400),
        ("w32 d2 D32 b512 t200", 400),
    }


def test_without_a_dense_shape_the_control_is_the_reference_and_its_own_is_the_base(tmp_path: Path) -> None:
    found = analyze(planted(tmp_path))
    assert pairs(found, "width") == {
        "completep-moe": {("w64 d2 E4A1 h64", "sp w64 d2 E4A1 h64")},  # at the base both are one arm
        "sp": {("w64 d2 E4A1 h64", "w32 d2 E4A1 h32")},
    }
    row = found.found("steps_to_loss")[0].rows[0]
    assert row.reference_value < row.arm_value  # of the control's own best value, an octave lower


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ("w64", {"completep-moe": {("w32", "w64")}, "sp": {("w32", "w64")}}),
        ("sp", {"completep-moe": {("w64", "sp w64")}, "sp": set()}),
        ("sp width 32", {"completep-moe": {("w64", "sp w32")}, "sp": {("w64", "w32")}}),
        ("completep-moe w64 d2 E4A1 h64", {"sp": {("w32", "completep-moe w64"), ("w64", "completep-moe w64")}}),
    ],
)
def test_the_user_may_name_the_reference(
    spelled: str, expected: Mapping[str, set[tuple[str, str]]], tmp_path: Path
) -> None:
    found = analyze(planted(tmp_path), references=References(arm=spelled))
    rows = {answer.parameterization: answer.rows for answer in found.found("steps_to_loss")}
    for label, wanted in expected.items():
        short = {(_width(row.arm), _width(row.reference)) for row in rows[label]}
        assert short == wanted


def _width(name: str) -> str:
    return name.split(" d2")[0]


def test_an_arm_that_is_not_there_is_an_error_with_the_legal_names(tmp_path: Path) -> None:
    results = planted(tmp_path)
    with pytest.raises(HpxferError) as caught:
        analyze(results, references=References(arm="w48"))
    assert str(caught.value) == (
        f"{tmp_path}: reference: must be a shape of the sweep, got 'w48'; the shapes are width 32, width 64; or start "
        "with a parameterization: completep-moe, sp"
    )
    for spelled in ("", "sp w48", "completep"):
        with pytest.raises(HpxferError):
            chosen_arm(results, spelled)


def test_curves_from_elsewhere_are_references_of_every_arm(tmp_path: Path) -> None:
    curve = ReferenceCurve(name="gpt2", losses=(9.0, 6.0, 5.0), steps=(10.0, 50.0, 5000.0))
    results = planted(tmp_path, DENSE_BASE, TO_MOE, *MUE)
    found = analyze(results, references=References(curves=(curve,)))
    rows = next(answer for answer in found.found("steps_to_loss") if answer.axis == "moe").rows
    against = {row.arm: row for row in rows if row.reference == "gpt2"}
    assert set(against) == {"w32 d2 D64", "w32 d2 E4A2 h32", "w32 d2 E16A2 h32"}
    assert all(row.speed_up > 25 for row in against.values())  # 200 steps in all


PARTS = {
    "no reference": lambda trial: trial.shape.num_experts > 0,
    "one seed of the reference": lambda trial: trial.shape.num_experts > 0 or trial.seed == 1,
    "no arms": lambda trial: trial.shape == trial.base,
}


@pytest.mark.parametrize("name", PARTS)
def test_partial_stores_say_what_is_missing(name: str, tmp_path: Path) -> None:
    def kept(trial: Trial) -> bool:
        return bool(PARTS[name](trial))

    found = analyze(planted(tmp_path, DENSE_BASE, TO_MOE, *MUE, plan=PlantedStore(kept=kept)))
    answers = [answer for answer in found.found("steps_to_loss") if answer.axis == "moe"]
    rows = [row for answer in answers for row in answer.rows]
    if name == "one seed of the reference":
        assert {(row.num_seeds, row.num_missing) for row in rows} == {(1, 1)}
    elif name == "no arms":
        assert {row.in_brief for row in rows} == {"no seed has a whole loss curve of both"}
    else:
        assert all(answer.why_not for answer in answers)


def test_an_arm_that_diverges_at_the_transferred_value_is_said_to(tmp_path: Path) -> None:
    plan = PlantedStore(drift={"sp": -3.0}, cliff=1.5)
    found = analyze(planted(tmp_path, plan=plan), references=References(arm="w32"))
    row = next(answer for answer in found.found("steps_to_loss") if answer.parameterization == "sp").rows[0]
    assert (row.num_diverged, row.num_reached, row.arm_end_nats) == (2, 0, None)
    assert row.in_brief == "not reached by any of 2 seeds, 2 diverged; it has 3.93 times the active parameters"
