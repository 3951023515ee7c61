"""A results folder as tables: every cell of the grid, one HP's line, and clear errors where there is nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from made_results import DATA, DIGEST, SPEC, made, trials_of
from sweep_text import edited

from hpxfer.errors import HpxferError
from hpxfer.results import Results, load_results
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.data_section import vocabulary
from hpxfer.store import SWEEP_FILE, Store
from hpxfer.trial import Expansion, Trial

LRS = [0.005, 0.01, 0.02]
LINE = [
    *("axis", "scale_name", "scale", "shape", "is_base", "parameterization", "value", "seed", "loss", "status"),
    *("trial_id", "diverged_step"),
]
TWO_LINES = (("lr: [0.01]", "lr: [0.005, 0.01]\n  init_scale: [0.5, 1.0, 2.0]"), ("hps:\n", "hps:\n  lr: 0.01\n"))


def stored(folder: Path, spec: SweepSpec = SPEC, trials: Sequence[Trial] | None = None) -> Results:
    """Return the loaded results of a sweep of which these trials are finished, by default all."""
    store = Store.open(folder, write=True)
    store.save_sweep(spec, DIGEST)
    store.append([made(trial) for trial in (trials_of(spec) if trials is None else trials)])
    return load_results(folder)


def product(*edits: tuple[str, str]) -> SweepSpec:
    return parse_sweep(edited(*edits, ("seeds: 2", "product: true\nseeds: 1")))


def test_trials_are_what_pandas_reads_alone(tmp_path: Path) -> None:
    results = stored(tmp_path)
    Store.open(tmp_path, write=True).compact()
    pd.testing.assert_frame_equal(results.trials, pd.read_parquet(tmp_path / "trials.parquet"))
    assert results.trials["trial_id"].is_unique
    assert (results.folder, results.problems, results.spec.data.digest) == (tmp_path, (), DIGEST)


def test_every_cell_has_its_row_the_shared_base_included(tmp_path: Path) -> None:
    cells = stored(tmp_path).cells
    expected = list(Expansion(SPEC, DATA).cells())
    assert cells["trial_id"].tolist() == [cell.trial.id for cell in expected]
    assert cells["lr"].tolist() == [cell.trial.hps.lr for cell in expected]
    assert cells["scale"].tolist() == [cell.scale for cell in expected]
    assert set(zip(cells["shape"], cells["is_base"], strict=True)) == {
        ("w32 d2 E4A1 h32", True),
        ("w64 d2 E4A1 h64", False),
    }
    assert set(cells["axis"] + cells["scale_name"] + cells["line"]) == {"widthwidthlr"}
    base = cells[cells["is_base"]]
    ids = {label: rows["trial_id"].tolist() for label, rows in base.groupby("parameterization")}
    assert ids["sp"] == ids["completep-moe"]
    assert (cells["status"] == "finished").all()
    assert cells["validation_loss_nats"].tolist() == [1.0 + cell.trial.hps.lr + cell.trial.seed for cell in expected]


def test_shapes_that_differ_in_their_schedule_have_names_of_their_own(tmp_path: Path) -> None:
    spec = parse_sweep(edited(("  width: [32, 64]", "  width: [64]\n  duration: [400]")))
    line = stored(tmp_path, spec).line()
    assert set(zip(line["axis"], line["scale"], line["shape"], strict=True)) == {
        ("width", 32.0, "w32 d2 E4A1 h32"),
        ("width", 64.0, "w64 d2 E4A1 h64"),
        ("duration", 200.0, "w32 d2 E4A1 h32 b512 t200"),
        ("duration", 400.0, "w32 d2 E4A1 h32 b512 t400"),
    }
    assert set(line["status"]) == {"finished"}
    assert line["is_base"].sum() == 2 * 2 * 2  # on both axes, for both tables, two seeds


def test_another_base_leaves_out_smaller_shapes_and_axes_without_it(tmp_path: Path) -> None:
    spec = parse_sweep(edited(("  width: [32, 64]", "  width: [32, 64, 128]\n  depth: [4]")))
    whole = stored(tmp_path, spec)
    from_64 = whole.from_base("w64")
    assert (from_64.name, from_64.left_out) == ("small from width 64", ("depth",))
    line = from_64.line()
    assert set(zip(line["shape"], line["is_base"], strict=True)) == {
        ("w64 d2 E4A1 h64", True),
        ("w128 d2 E4A1 h128", False),
    }
    kept = whole.line().query("axis == 'width' and scale >= 64").reset_index(drop=True)
    pd.testing.assert_frame_equal(line.drop(columns="is_base"), kept.drop(columns="is_base"))
    assert (whole.name, whole.left_out) == ("small", ())


def test_a_base_is_one_shape_whatever_an_axis_calls_it(tmp_path: Path) -> None:
    spec = parse_sweep(edited(("  width: [32, 64]", "  width: [64]\n  duration: [400]")))
    results = stored(tmp_path, spec).from_base("width 32")
    assert results.left_out == ()
    assert results.line()["is_base"].sum() == 2 * 2 * 2
    assert stored(tmp_path, spec).from_base("steps 400").left_out == ("width",)


def test_a_cell_without_a_result_is_missing(tmp_path: Path) -> None:
    present, *absent = trials_of()
    cells = stored(tmp_path, trials=[present]).cells
    assert len(cells) == 24
    missing = cells["status"] == "missing"
    assert set(cells["trial_id"][missing]) == {trial.id for trial in absent}
    assert set(cells["status"][~missing]) == {"finished"}
    assert cells["validation_loss_nats"][missing].isna().all()


def test_a_trial_that_an_edited_sweep_left_behind_is_in_trials_alone(tmp_path: Path) -> None:
    stored(tmp_path)
    results = stored(tmp_path, SPEC.model_copy(update={"seeds": (1, 2)}))
    assert set(results.trials["seed"]) == {0, 1, 2}
    assert set(results.cells["seed"]) == {1, 2}
    assert set(results.cells["status"]) == {"finished"}


def test_curves_are_read_when_asked_for(tmp_path: Path) -> None:
    first, second, *_ = trials_of()
    results = stored(tmp_path, trials=[first])
    Store.open(tmp_path, write=True).append([made(second)])  # a run goes on while its results are looked at
    assert set(results.curves["trial_id"]) == {first.id}
    assert results.curves.columns.tolist() == ["trial_id", "metric", "layer", "role", "step", "value"]
    assert results.curves["step"].tolist() == [0, 10, 20, 0, 10]
    assert set(load_results(tmp_path).curves["trial_id"]) == {first.id, second.id}


def test_the_line_of_the_judged_hp(tmp_path: Path) -> None:
    results = stored(tmp_path)
    line = results.line()
    assert line.columns.tolist() == LINE
    assert len(line) == 2 * 2 * 3 * 2
    assert sorted(set(line["value"])) == LRS
    pd.testing.assert_frame_equal(line, results.line("lr", "validation"))
    other = results.line(loss="final_window")
    assert other["loss"].tolist() == [loss + 0.5 for loss in line["loss"]]


def test_the_sweep_says_by_which_loss(tmp_path: Path) -> None:
    judge = SPEC.judge.model_copy(update={"loss": "final_window"})
    results = stored(tmp_path, SPEC.model_copy(update={"judge": judge}))
    pd.testing.assert_frame_equal(results.line(), results.line("lr", "final_window"))


def test_only_a_finished_trial_has_a_loss_on_the_line(tmp_path: Path) -> None:
    first, second, third, *_ = trials_of()
    store = Store.open(tmp_path, write=True)
    store.save_sweep(SPEC, DIGEST)
    low = {"validation_loss_nats": 0.1, "final_window_loss_nats": 0.1}
    results = [
        (trial, replace(made(trial, status)[1], **low)) for trial, status in ((first, "diverged"), (second, "failed"))
    ]
    store.append([*results, made(third)])
    line = load_results(tmp_path).line()
    assert line.groupby("status")["loss"].count().to_dict() == {"diverged": 0, "failed": 0, "finished": 2, "missing": 0}


def test_each_line_goes_through_the_base_values(tmp_path: Path) -> None:
    results = stored(tmp_path, parse_sweep(edited(*TWO_LINES)))
    assert sorted(set(results.line("lr")["value"])) == [0.005, 0.01]
    scales = results.line("init_scale")
    assert sorted(set(scales["value"])) == [0.5, 1.0, 2.0]
    assert set(scales["loss"]) == {1.01, 2.01}  # made-up losses are 1 + LR + seed: the base LR
    assert len(scales) == 2 * 2 * 3 * 2


def test_a_line_of_a_product_holds_the_others_at_their_base_values(tmp_path: Path) -> None:
    results = stored(tmp_path, product(*TWO_LINES))
    scales = results.line("init_scale")
    assert sorted(set(scales["value"])) == [0.5, 1.0, 2.0]
    assert set(scales["loss"]) == {1.01}
    assert len(results.line("lr")) == 2 * 2 * 2
    assert len(results.cells) == 2 * 2 * 2 * 3


def test_a_line_that_a_product_does_not_hold(tmp_path: Path) -> None:
    """The judged HP's line is checked when the sweep is loaded; another's may still be asked for."""
    grid = ("lr: [0.01]", "lr: [0.005, 0.01]\n  router.lr_mult: [0.5, 1.0, 2.0]")
    results = stored(tmp_path / "none", product(grid))
    assert set(results.line("lr")["value"]) == {0.005, 0.01}
    with pytest.raises(HpxferError) as error:
        results.line("router.lr_mult")
    assert str(error.value) == (
        f"{tmp_path / 'none'}: the line of router.lr_mult needs lr at its base value, got none; grid.lr: 0.005, 0.01"
    )
    results = stored(tmp_path / "off", product(grid, ("router_bias_lr: 0.01", "lr: 0.3")))
    with pytest.raises(HpxferError) as error:
        results.line("router.lr_mult")
    assert str(error.value) == (
        f"{tmp_path / 'off'}: the line of router.lr_mult needs lr at its base value, got 0.3; grid.lr: 0.005, 0.01"
    )


def test_the_data_is_not_needed(tmp_path: Path) -> None:
    edit = ("source: builtin:stdlib", "source: tokens:/gone/*.bin\n  vocab_size: 1000")
    spec = parse_sweep(edited(edit))
    data = replace(DATA, tokenizer="ids", vocab_size=1000)
    results = stored(tmp_path, spec, list(Expansion(spec, data).trials()))
    assert set(results.cells["status"]) == {"finished"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("builtin:stdlib", ("ascii", 128)),
        ("text:a.txt", ("bytes", 256)),
        ("text:a.txt\n  tokenizer: ascii", ("ascii", 128)),
        ("tokens:*.bin", ("gpt2", 50304)),
        ("tokens:*.bin\n  vocab_size: 99", ("ids", 99)),
    ],
)
def test_the_vocabulary_follows_from_the_sweep(source: str, expected: tuple[str, int]) -> None:
    assert vocabulary(parse_sweep(edited(("builtin:stdlib", source))).data) == expected


def test_files_that_were_passed_over_are_named(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "trials-000009.parquet").write_bytes(b"PAR1")
    results = load_results(tmp_path)
    (problem,) = results.problems
    assert problem.startswith(f"{tmp_path}/trials-000009.parquet: ")
    assert set(results.cells["status"]) == {"finished"}


def test_an_unknown_hp_loss_or_base_names_the_nearest(tmp_path: Path) -> None:
    results = stored(tmp_path)
    for ask, message in (
        (lambda: results.line("lrr"), f"{tmp_path}: hp: must be scanned by the sweep, got 'lrr'; did you mean 'lr'?"),
        (lambda: results.line(loss="final-window"), "loss: unknown loss 'final-window'; did you mean 'final_window'?"),
        (
            lambda: results.from_base("w96"),
            f"{tmp_path}: base: must be a shape of the sweep, got 'w96'; the shapes are width 32, width 64",
        ),
    ):
        with pytest.raises(HpxferError) as error:
            ask()
        assert str(error.value) == message


def unrun(folder: Path) -> None:
    Store.open(folder, write=True).save_sweep(SPEC, DIGEST)


def with_sweep(text: str) -> Callable[[Path], object]:
    return lambda folder: (stored(folder), (folder / SWEEP_FILE).write_text(text))


MADE = "`hpxfer run SWEEP.yaml` makes it"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda at: None, f": must be a results folder with sweep.yaml and trials*.parquet, got no sweep.yaml; {MADE}"),
        (lambda at: at.write_text("a note"), f"got no sweep.yaml; {MADE}"),
        (Path.mkdir, f": must be a results folder with sweep.yaml and trials*.parquet, got no sweep.yaml; {MADE}"),
        (unrun, f": must hold at least one trial in trials*.parquet, got none; {MADE}"),
        (
            lambda at: (unrun(at), (at / "trials.parquet").write_bytes(b"")),
            "trials.parquet: an empty file; passed over",
        ),
        (with_sweep(edited()), "/sweep.yaml: data.digest: must be given"),
        (with_sweep("name: ["), "/sweep.yaml: the stored sweep is damaged"),
    ],
)
def test_a_folder_without_results_is_refused(make: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    make(tmp_path / "at")
    with pytest.raises(HpxferError) as error:
        load_results(tmp_path / "at")
    assert str(error.value).startswith(str(tmp_path / "at"))
    assert message in str(error.value)
