"""Which arm another is compared with, reference curves from CSV, and shapes that train on data of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from found_rows import rows
from planted_results import DIGEST, planted_results
from planted_store import PlantedStore
from sweep_text import edited

from hpxfer.analysis import Analysis, analyze
from hpxfer.analysis.references import ReferenceCurve, References, read_reference_curves
from hpxfer.analysis.statistics.reference_arm import chosen_arm
from hpxfer.errors import HpxferError
from hpxfer.figures import all_figures
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


def reached(found: Analysis, **where: str) -> list[SimpleNamespace]:
    """Return the rows of arms against references."""
    return rows(found.found("steps_to_loss").frame, **where)


def pairs(found: Analysis, axis: str) -> Mapping[str, set[tuple[str, str]]]:
    """Return parameterization -> (arm, reference) of each of its rows along an axis."""
    assert not any(of.startswith(f"{axis} ") for of, _ in found.found("steps_to_loss").unknown)
    along = reached(found, axis=axis)
    return {
        label: {(row.arm, row.reference) for row in along if row.parameterization == label}
        for label in {row.parameterization for row in along}
    }


def test_moe_shapes_are_compared_with_the_dense_one_of_equal_active_parameters(tmp_path: Path) -> None:
    found = analyze(planted(tmp_path, DENSE_BASE, TO_MOE, *MUE))
    expected = {("w32 d2 E4A2 h32", "w32 d2 D64"), ("w32 d2 E16A2 h32", "w32 d2 D64")}
    assert pairs(found, "moe") == {"complete-mue": expected, "sp": expected}
    first, second = reached(found, axis="moe", parameterization="sp")
    assert (first.active_ratio, second.active_ratio) == pytest.approx((1, 1), abs=0.05)
    assert (first.num_seeds, first.num_reached) == (2, 2)
    assert first.speed_up > 1  # the planted loss falls with all parameters
    assert second.speed_up > first.speed_up
    curves = rows(found.found("loss_curves").frame, axis="moe", parameterization="sp")
    assert {row.curve: row.kind for row in curves} == {
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
    arms = reached(long, axis="dense", parameterization="completep-moe")
    assert {(row.arm, row.reference_steps) for row in arms} == {
        ("w32 d2 E4A1 h32 b512 t200", 400),
        ("w32 d2 D32 b512 t200", 400),
    }


def test_without_a_dense_shape_the_control_is_the_reference_and_its_own_is_the_base(tmp_path: Path) -> None:
    found = analyze(planted(tmp_path))
    assert pairs(found, "width") == {
        "completep-moe": {("w64 d2 E4A1 h64", "sp w64 d2 E4A1 h64")},  # at the base both are one arm
        "sp": {("w64 d2 E4A1 h64", "w32 d2 E4A1 h32")},
    }
    row = reached(found)[0]
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
def test_a_user_names_the_reference(spelled: str, expected: Mapping[str, set[tuple[str, str]]], tmp_path: Path) -> None:
    found = analyze(planted(tmp_path), references=References(arm=spelled))
    for label, wanted in expected.items():
        short = {(_width(row.arm), _width(row.reference)) for row in reached(found, parameterization=label)}
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
    against = reached(found, axis="moe", reference="gpt2", parameterization="sp")
    assert {row.arm for row in against} == {"w32 d2 D64", "w32 d2 E4A2 h32", "w32 d2 E16A2 h32"}
    assert all(row.speed_up > 25 for row in against)  # 200 steps in all


PARTS = {
    "no reference": lambda trial: trial.shape.num_experts > 0,
    "one seed of the reference": lambda trial: trial.shape.num_experts > 0 or trial.seed == 1,
    "no arms": lambda trial: trial.shape == trial.base,
}


@pytest.mark.first
@pytest.mark.parametrize("name", PARTS)
def test_partial_stores_say_what_is_missing(name: str, tmp_path: Path) -> None:
    def kept(trial: Trial) -> bool:
        return bool(PARTS[name](trial))

    found = analyze(planted(tmp_path, DENSE_BASE, TO_MOE, *MUE, plan=PlantedStore(kept=kept)))
    along = reached(found, axis="moe")
    if name == "one seed of the reference":
        assert {(row.num_seeds, row.num_missing) for row in along} == {(1, 1)}
    elif name == "no arms":
        assert {row.in_brief for row in along} == {"no seed has a whole loss curve of both"}
    else:
        assert along == []
        why = dict(found.found("steps_to_loss").unknown)
        assert all(why[f"moe {label} lr"] for label in ("complete-mue", "sp"))


def test_an_arm_that_diverges_at_the_transferred_value_is_said_to(tmp_path: Path) -> None:
    plan = PlantedStore(drift={"sp": -3.0}, cliff=1.5)
    found = analyze(planted(tmp_path, plan=plan), references=References(arm="w32"))
    row = reached(found, parameterization="sp")[0]
    assert (row.num_diverged, row.num_reached, row.arm_end_nats) == (2, 0, None)
    assert row.in_brief == "not reached by any of 2 seeds, 2 diverged; it has 3.93 times the active parameters"


OTHER = "fedcba9876543210"
DATA = (
    "source: builtin:stdlib",
    f"source: builtin:stdlib\n  digest: {DIGEST}\n  validation: builtin:stdlib\n  validation_digest: {DIGEST}",
)
LONG = "w32 d2 E4A1 h32 b512 t400"


def on_data(folder: Path, digest: str) -> Results:
    own = f"data: {{source: 'text:/more.txt', digest: {digest}}}"
    axes = ("width: [32, 64]", f"long:\n    shapes: [{{steps: 300}}, {{steps: 400, {own}}}]")
    spec = parse_sweep(edited(("lr: [0.01]", "lr: {log2: [-8, -5]}"), DATA, axes))
    return planted_results(spec, folder, PlantedStore(drift={"sp": -1.0}))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return on_data(tmp_path_factory.mktemp("other"), OTHER)


@pytest.fixture(scope="module")
def found(results: Results) -> Analysis:
    return analyze(results)


def test_steps_to_the_same_loss_have_no_factor_between_them(found: Analysis) -> None:
    every = reached(found)
    between = [row for row in every if LONG in row.arm and LONG not in row.reference]
    assert between
    assert all((row.other_data, row.speed_up, row.num_seeds) == ("text:/more.txt", None, 0) for row in between)
    same = [row for row in every if row not in between]
    assert any(LONG in row.arm for row in same), "the control at this shape trains on the same data"
    assert all(row.other_data is None and row.num_seeds == 2 for row in same)


def test_the_collapse_leaves_them_out_by_name(found: Analysis) -> None:
    for row in rows(found.found("collapse").frame):
        assert row.other_data == LONG
        curves = rows(found.found("collapse_curves").frame, axis=row.axis, parameterization=row.parameterization)
        assert {curve.shape for curve in curves} == {"w32 d2 E4A1 h32 b512 t200", "w32 d2 E4A1 h32 b512 t300"}
    assert not found.found("collapse").unknown


def test_figures_name_them(results: Results, found: Analysis) -> None:
    figures, _ = all_figures(results, found)
    captions = {figure.name: figure.caption for figure in figures}
    for name in ("collapse-long", "normalized-collapse-long", "training-long", "steps-to-loss-long"):
        assert LONG in captions[name].rpartition("comparable")[2], name


def test_data_of_the_same_digest_are_the_same_data(tmp_path: Path) -> None:
    results = on_data(tmp_path, DIGEST)
    found = analyze(results)
    for name in ("steps_to_loss", "collapse"):
        assert {row.other_data for row in rows(found.found(name).frame)} == {None}
    figures, _ = all_figures(results, found)
    assert not any("comparable" in figure.caption for figure in figures)


def written(folder: Path, text: str) -> Path:
    path = folder / "curves.csv"
    path.write_bytes(text.encode())
    return path


def test_curves_by_name_whose_rows_may_alternate(tmp_path: Path) -> None:
    text = '\ufeffname,tokens,loss\r\n"a, b",1000,4.5\r\nc,0,11\r\n\r\n"a, b",2e3,3.5\r\nc,10,4\r\nc, 20 ,3\r\n'
    first, second = read_reference_curves(written(tmp_path, text))
    assert (first.name, first.tokens, first.losses, first.steps) == ("a, b", (1000.0, 2000.0), (4.5, 3.5), ())
    assert (second.name, second.tokens, second.losses) == ("c", (10.0, 20.0), (4.0, 3.0))  # 0 is on no log axis


def test_steps_and_tokens_may_both_be_given(tmp_path: Path) -> None:
    (found,) = read_reference_curves(written(tmp_path, "loss,step,name,tokens\n4,1,a,100\n3,2,a,300\n"))
    assert (found.steps, found.tokens, found.losses) == ((1.0, 2.0), (100.0, 300.0), (4.0, 3.0))


HEAD = "name,step,loss\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: must have the columns name, loss, and step or tokens, got an empty file; add name"),
        ("name,loss\n", "line 1: must have the columns name, loss, and step or tokens, got name, loss; add step or"),
        ("name,steps,loss\n", "line 1: column 'steps': unknown; did you mean 'step'?"),
        ("name,step,step,loss\n", "line 1: column step: must stand once, got it twice; take one out"),
        (HEAD, "must hold at least one curve, got a header alone; add rows"),
        (HEAD + "a,1\n", "line 2: must have 3 values, one per column, got 2"),
        (HEAD + "a,1,4\n,2,3\n", "line 3: column name: must have 1 to 60 printable characters, got ''"),
        (HEAD + f"{'x' * 61},1,4\n", "line 2: column name: must have 1 to 60 printable characters, got 'xxx"),
        (HEAD + "a,one,4\n", "line 2: column step: must be a number >= 0, got 'one'; correct it, or take the row out"),
        (HEAD + "a,1,4\na,2,\n", "line 3: column loss: must be a number > 0, the cross entropy in nats, got ''"),
        (HEAD + "a,1,nan\n", "line 2: column loss: must be a number > 0, the cross entropy in nats, got 'nan'"),
        (HEAD + "a,1,0\n", "line 2: column loss: must be a number > 0, the cross entropy in nats, got '0'"),
        (HEAD + "a,5,4\na,5,3\n", "line 3: column step: must ascend along the curve 'a', got 5 after 5 of line 2"),
        (
            HEAD + "a,20,4\nb,1,4\na,10,3\nb,2,4\n",
            "line 4: column step: must ascend along the curve 'a', got 10 after 20 of line 2; sort the rows",
        ),
        (
            "name,step,tokens,loss\na,1,9,4\na,2,8,3\n",
            "line 3: column tokens: must ascend along the curve 'a', got 8 after 9 of line 2; sort the rows",
        ),
        (HEAD + "a,0,4\na,1,3\n", "the curve 'a' must have at least 2 points above 0, got 1"),
        (HEAD + 'a,1,"4\n', "must be CSV, got "),
    ],
)
def test_a_mistake_is_named_by_line_and_column(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(HpxferError) as caught:
        read_reference_curves(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"must be a CSV file, cannot be read: No such file"):
        read_reference_curves(tmp_path / "none.csv")
    with pytest.raises(HpxferError, match=r"cannot be read: Is a directory"):
        read_reference_curves(tmp_path)
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"name,step,loss\n\xff\xfe,1,2\n")
    with pytest.raises(HpxferError, match=r"must be UTF-8 text, got other bytes"):
        read_reference_curves(path)
