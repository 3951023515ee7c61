"""What is put into a store comes back, once, and is readable without hpxfer."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from made_results import DIGEST, SPEC, files, made, stored, trials_of

from hpxfer.model.cost import count_params
from hpxfer.store import CURVES, SHAPE_COLUMNS, TRIALS, Store
from hpxfer.trial import Setting
from hpxfer.trial.identity import LOCAL, canonical

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


def test_no_curves_at_all(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.append([(trial, replace(result, curves=())) for trial, result in map(made, TRIALS_OF_SPEC[:2])])
    store.append([])
    store.compact()
    assert sorted(files(tmp_path)) == ["curves.parquet", "trials.parquet"]
    assert (len(store.read_trials()), len(store.read_curves())) == (2, 0)


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


def test_finished_and_diverged_trials_are_done_and_failed_ones_are_not(tmp_path: Path) -> None:
    first, second, third, *_ = TRIALS_OF_SPEC
    store = Store.open(tmp_path, write=True)
    store.append([made(first), made(second, "diverged"), made(third, "failed")])
    assert store.done_ids() == {first.id, second.id}
    store.append([made(third, at=1)])
    assert store.done_ids() == {first.id, second.id, third.id}
    store.compact()
    assert Store.open(tmp_path, write=False).done_ids() == {first.id, second.id, third.id}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("loser", "winner"),
    [(("failed", 9), ("finished", 1)), (("failed", 9), ("diverged", 1)), (("finished", 1), ("diverged", 2))],
)
def test_one_result_stands_for_a_trial_with_its_own_curves(
    tmp_path: Path, loser: tuple, winner: tuple, order: tuple[int, int], compact: bool
) -> None:
    trial = TRIALS_OF_SPEC[0]
    pairs = [made(trial, status, at=at) for status, at in (loser, winner)]
    store = Store.open(tmp_path, write=True)
    for index in order:
        store.append([pairs[index]])
    if compact:
        store.compact()
    alone = Store.open(tmp_path / "alone", write=True)
    alone.append([pairs[1]])
    assert stored(tmp_path) == stored(tmp_path / "alone")


def test_twice_in_one_write_is_stored_once(tmp_path: Path) -> None:
    trial = TRIALS_OF_SPEC[0]
    store = Store.open(tmp_path, write=True)
    store.append([made(trial, at=5), made(trial, "failed", at=9), made(trial, at=2)])
    Store.open(tmp_path / "alone", write=True).append([made(trial, at=5)])
    assert stored(tmp_path) == stored(tmp_path / "alone")
    assert len(pq.read_table(tmp_path / "trials-000001.parquet")) == 1


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
def test_any_split_and_order_gives_the_same_table(
    tmp_path_factory: pytest.TempPathFactory, history: list[list[int] | None]
) -> None:
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


def test_another_driver_never_takes_a_number_in_use(tmp_path: Path) -> None:
    first, other = Store.open(tmp_path, write=True), Store.open(tmp_path, write=True)
    for store, trial in zip((first, other, other, first), TRIALS_OF_SPEC, strict=False):
        store.append([made(trial)])
    assert sum(name.startswith("trials-") for name in files(tmp_path)) == 4
    assert first.done_ids() == other.done_ids() == {trial.id for trial in TRIALS_OF_SPEC[:4]}


def test_a_folder_that_is_not_there_is_an_empty_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "new", write=False)
    assert store.done_ids() == set()
    assert len(store.read_trials()) == len(store.read_curves()) == 0
    assert not (tmp_path / "new").exists()


def test_json_columns_are_canonical(tmp_path: Path) -> None:
    store = Store.open(tmp_path, write=True)
    store.append([made(TRIALS_OF_SPEC[-1])])
    (row,) = store.read_trials().to_pylist()
    for field in TRIALS:
        text = row[field.name]
        if field.metadata[b"unit"] == b"JSON" and text is not None:
            assert text == canonical(json.loads(text))


def test_the_made_up_sweep_has_enough_trials() -> None:
    assert len(TRIALS_OF_SPEC) == len({trial.id for trial in TRIALS_OF_SPEC}) == 18
    assert SPEC.judged_hp == "lr"
