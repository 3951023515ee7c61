"""What is put into a store comes back, once, and is readable without hpxfer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pandas as pd
import pyarrow.parquet as pq
import pytest
from fixture_types import Folders
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from made_results import DIGEST, SPEC, files, made, stored, trials_of
from user_sweeps import ARMS, TABLES

from hpxfer.model.cost import count_params
from hpxfer.recipe.file import LossName
from hpxfer.scaling.shape import Shape
from hpxfer.spec import load_sweep, parse_sweep
from hpxfer.spec.sweep import JudgeSpec
from hpxfer.store import CURVES, SHAPE_COLUMNS, SWEEP_FILE, TRIALS, Store
from hpxfer.store.losses import LOSS_COLUMNS, LOSS_NUMBERS
from hpxfer.store.schema import UNKNOWN_SETTING, shape_of_row
from hpxfer.trial import DataRef, Expansion, Setting, Trial
from hpxfer.trial.identity import LOCAL, canonical
from hpxfer.trial.result import TrialResult

TRIALS_OF_SPEC = trials_of()


def test_a_row_holds_its_trial_and_its_result(tmp_path: Path) -> None:
    trial, result = made(next(trial for trial in TRIALS_OF_SPEC if trial.parameterization is not None))
    trial = replace(trial, hps=trial.hps.with_value("router.lr_mult", 0.25))
    store = Store.open(tmp_path, write=True)
    store.append([(trial, result)])
    (row,) = store.read_trials().to_pylist()
    choice = trial.parameterization
    assert choice is not None
    count = count_params(trial.shape, trial.setting)
    for name, value in vars(result).items():
        assert name == "curves" or row[name] == value
    assert (row["parameterization"], json.loads(row["conventions"])) == (choice.name, dict(choice.conventions))
    assert {name: row[name] for name in SHAPE_COLUMNS} == {**dataclasses.asdict(trial.shape), "own": None}
    assert json.loads(row["base_shape"]) == trial.base.dims()
    assert (row["lr"], row["beta2"], row["seed"]) == (trial.hps.lr, 0.95, trial.seed)
    assert json.loads(row["multipliers"]) == {"router.lr_mult": 0.25}
    resolved = json.loads(row["resolved"])
    assert resolved["roles"] == {role: dataclasses.asdict(numbers) for role, numbers in trial.resolved().items()}
    assert resolved["globals"] == dataclasses.asdict(trial.globals())
    assert resolved["structure"] == {"tied_experts": False, "router_bias_std": 0.0}
    assert (row["params_total"], row["params_active"]) == (count.total, count.active)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_folder_may_have_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff")
    folder.mkdir()
    Store.open(folder, write=True).append([made(TRIALS_OF_SPEC[0])])
    store = Store.open(folder, write=False)
    assert (store.done_ids(), list(store.problems)) == ({TRIALS_OF_SPEC[0].id}, [])


def test_columns_and_the_json_of_the_rest_are_the_whole_setting(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.append([made(TRIALS_OF_SPEC[0])])
    (row,) = store.read_trials().to_pylist()
    rest = json.loads(row["setting"])
    names = set(Setting.__dataclass_fields__)
    assert {*rest, *(names & set(row))} == names - set(LOCAL)
    assert not set(rest) & set(row)
    assert row["data_digest"] == DIGEST
    assert rest["init"]["matrices"] == "fan_in"
    for field in TRIALS:
        text = row[field.name]
        if field.metadata[b"unit"] == b"JSON" and text is not None:
            assert text == canonical(json.loads(text))


def test_curves_come_back_point_by_point(tmp_path: Path) -> None:
    trial, result = made(TRIALS_OF_SPEC[0], at=3)
    bare = made(TRIALS_OF_SPEC[1])
    store = Store.open(tmp_path, write=True)
    store.append([(trial, result), (bare[0], replace(bare[1], curves=()))])
    expected = [
        (trial.id, curve.metric, curve.layer, curve.role, step, repr(value))
        for curve in result.curves
        for step, value in zip(curve.steps, curve.values, strict=True)
    ]
    rows = [tuple(row.values()) for row in store.read_curves().to_pylist()]
    assert [(*row[:-1], repr(row[-1])) for row in rows] == expected
    none = Store.open(tmp_path / "none", write=True)  # no curves at all
    none.append([(trial, replace(result, curves=())) for trial, result in map(made, TRIALS_OF_SPEC[:2])])
    none.append([])
    none.compact()
    assert sorted(files(tmp_path / "none")) == ["curves.parquet", "trials.parquet"]
    assert (len(none.read_trials()), len(none.read_curves())) == (2, 0)


def test_pandas_alone_reads_the_files(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    first, second, *rest = TRIALS_OF_SPEC
    store.append([made(first), made(second, "diverged")])
    store.append([made(trial) for trial in rest])
    store.compact()
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert sorted(frame["trial_id"]) == sorted(trial.id for trial in TRIALS_OF_SPEC)
    by_id = frame.set_index("trial_id")
    assert by_id["validation_loss_nats"].isna().to_dict() == {trial.id: trial == second for trial in TRIALS_OF_SPEC}
    assert by_id.loc[second.id, "diverged_step"] == 7
    assert by_id["parameterization"].isna().to_dict() == {
        trial.id: trial.shape == trial.base for trial in TRIALS_OF_SPEC
    }
    curves = pd.read_parquet(tmp_path / "curves.parquet")
    assert len(curves) == 5 * len(TRIALS_OF_SPEC)
    assert curves["role"].isna().equals(curves["metric"] == "train_loss_nats")


def test_every_column_in_a_file_has_a_unit_and_a_description(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.append([made(TRIALS_OF_SPEC[0])])
    for name, schema in (("trials-000001.parquet", TRIALS), ("curves-000001.parquet", CURVES)):
        found = pq.read_schema(tmp_path / name)
        assert found.names == schema.names
        assert found.metadata[b"hpxfer.schema"] == b"8"
        for field in found:
            assert field.metadata[b"unit"]
            assert field.metadata[b"description"]
    assert pq.read_schema(tmp_path / "trials-000001.parquet").field("validation_loss_nats").metadata[b"unit"] == b"nats"


@st.composite
def _histories(draw: st.DrawFn) -> list[list[int] | None]:
    """Return the indices of all results in any order, cut into any writes, with None for a `compact`."""
    order = draw(st.permutations(range(8)))
    cuts = sorted(draw(st.sets(st.integers(1, 7))))
    writes: list[list[int] | None] = [
        list(order[low:high]) for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True)
    ]
    for place in sorted(draw(st.sets(st.integers(1, len(writes)))), reverse=True):
        writes.insert(place, None)
    return writes


@given(history=_histories())
@settings(max_examples=examples(25), deadline=None)
def test_any_split_and_order_gives_the_same_table(tmp_path_factory: Folders, history: list[list[int] | None]) -> None:
    first, second, third, fourth, *_ = TRIALS_OF_SPEC
    pairs = [
        made(first, "failed", at=1),
        made(first, at=2),
        made(second, at=3),
        made(second, "failed", at=4),
        made(third, "diverged", at=5),
        made(third, at=6),
        made(third, "failed", at=7),
        made(fourth, "failed", at=8),
    ]
    plain, folder = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("history")
    Store.open(plain, write=True).append(pairs)
    store = Store.open(folder, write=True)
    for indices in history:
        if indices is None:
            store.compact()
        else:
            store.append([pairs[index] for index in indices])
    assert stored(folder) == stored(plain)
    assert store.done_ids() == {first.id, second.id, third.id}  # a failed trial is run again
    assert store.problems == []
    standing = {pairs[index][1].finished_at for index in (1, 2, 5, 7)}
    assert {row["finished_at"] for row in stored(plain)[0]} == standing


def test_compacting_again_changes_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.compact()
    assert files(tmp_path) == {}
    for trial in TRIALS_OF_SPEC[:3]:
        store.append([made(trial)])
    store.compact()
    before = files(tmp_path)
    store.compact()
    assert files(tmp_path) == before
    assert sorted(before) == ["curves.parquet", "trials.parquet"]
    store = Store.open(tmp_path / "new", write=False)  # a folder that is not there is an empty store
    assert (store.done_ids(), len(store.read_trials()), len(store.read_curves())) == (set(), 0, 0)
    assert not (tmp_path / "new").exists()


def test_another_driver_never_takes_a_number_in_use(tmp_path: Path) -> None:
    first, other = Store.open(tmp_path, write=True), Store.open(tmp_path, write=True)
    for store, trial in zip((first, other, other, first), TRIALS_OF_SPEC, strict=False):
        store.append([made(trial)])
    assert sum(name.startswith("trials-") for name in files(tmp_path)) == 4
    assert first.done_ids() == other.done_ids() == {trial.id for trial in TRIALS_OF_SPEC[:4]}


def test_every_loss_has_a_column_a_field_and_a_name_in_sweeps_and_recipes() -> None:
    assert set(LOSS_NUMBERS) <= set(TRIALS.names) & {field.name for field in fields(TrialResult)}
    assert get_args(JudgeSpec.model_fields["loss"].annotation) == tuple(LOSS_COLUMNS) == get_args(LossName)


EDITED = SPEC.model_copy(update={"seeds": (0, 1, 2)})


def test_an_edited_sweep_is_kept_beside(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.save_sweep(SPEC, DIGEST)
    data = SPEC.data.model_copy(update={"digest": DIGEST})
    assert load_sweep(tmp_path / SWEEP_FILE) == SPEC.model_copy(update={"data": data})
    old = files(tmp_path)[SWEEP_FILE]
    store.save_sweep(SPEC, DIGEST)
    assert files(tmp_path) == {SWEEP_FILE: old}
    store.save_sweep(EDITED, DIGEST)
    store.save_sweep(SPEC, DIGEST)
    store.save_sweep(EDITED, DIGEST)
    kept = f"sweep-{hashlib.blake2b(old).hexdigest()[:8]}.yaml"
    assert files(tmp_path)[kept] == old
    assert len(files(tmp_path)) == 3
    assert load_sweep(tmp_path / SWEEP_FILE).seeds == (0, 1, 2)
    assert load_sweep(tmp_path / kept).seeds == (0, 1)


def test_the_place_of_the_old_one_is_never_overwritten(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    (tmp_path / SWEEP_FILE).write_bytes(b"\xff by hand")
    name = hashlib.blake2b(b"\xff by hand").hexdigest()
    (tmp_path / f"sweep-{name[:8]}.yaml").write_text("another")
    store.save_sweep(SPEC, DIGEST)
    found = files(tmp_path)
    assert (found[f"sweep-{name[:8]}.yaml"], found[f"sweep-{name}.yaml"]) == (b"another", b"\xff by hand")


DATA = DataRef(digest="d1", tokenizer="none", vocab_size=0)


def user_trials(text: str) -> list[Trial]:
    return list(Expansion(parse_sweep(text), DATA).trials())


def store_of(folder: Path, trials: list[Trial]) -> Store:
    store = Store.open(folder, write=True)
    store.append([made(trial) for trial in trials])
    return store


def test_a_shape_comes_back_from_arrow_and_from_pandas(tmp_path: Path) -> None:
    """In pandas a null of a whole number is NaN, and a column with one holds floats."""
    built_in, *users = [trials_of()[0], *user_trials(ARMS), *user_trials(TABLES)]
    store = store_of(tmp_path, [built_in, *users])
    shapes = {trial.id: trial.shape for trial in (built_in, *users)}
    table = store.read_trials(["trial_id", *SHAPE_COLUMNS])
    frame = table.to_pandas()
    assert frame["width"].isna().any()
    for rows in (table.to_pylist(), frame.to_dict("records"), frame.astype(object).to_dict("records")):
        assert {row["trial_id"]: shape_of_row(row) for row in rows} == shapes
    assert shape_of_row({**dict.fromkeys(SHAPE_COLUMNS, float("nan")), "own": None}) == Shape(width=0, depth=0)


def test_built_in_and_user_trials_lie_in_one_folder_and_what_is_not_known_is_null(tmp_path: Path) -> None:
    arm, table = (user_trials(text)[-1] for text in (ARMS, TABLES))
    store = store_of(tmp_path, [*trials_of()[:3], table])
    store.append([(arm, replace(made(arm)[1], loss_name="eval", loss_unit="bits per byte"))])
    rows = {row["trial_id"]: row for row in store.read_trials().to_pylist()}
    unknown = {"params_total", "params_active", "context", "vocab_size", "tokenizer", "num_experts", "head_dim"}
    for trial_id, row in rows.items():
        is_own = trial_id in (arm.id, table.id)
        assert (row["own"] is not None) == (row["trainer"] is not None) == is_own
        assert {row[name] is None for name in {*unknown, *UNKNOWN_SETTING} - {"trainer"}} == {is_own}
    assert (rows[arm.id]["width"], rows[arm.id]["depth"]) == (None, None)
    assert (rows[table.id]["width"], rows[table.id]["depth"]) == (128, 2)
    assert (rows[arm.id]["loss_name"], rows[arm.id]["loss_unit"]) == ("eval", "bits per byte")
