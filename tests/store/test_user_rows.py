"""Rows of a user's own trainer: what is not known of them is null."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
from made_results import made, trials_of
from user_sweeps import ARMS, TABLES

from hpxfer.scaling.shape import Shape
from hpxfer.spec import parse_sweep
from hpxfer.store import SHAPE_COLUMNS, Store
from hpxfer.store.schema import UNKNOWN_SETTING, shape_of_row
from hpxfer.trial import DataRef, Expansion, Trial

DATA = DataRef(digest="d1", tokenizer="none", vocab_size=0)


def user_trials(text: str) -> list[Trial]:
    return list(Expansion(parse_sweep(text), DATA).trials())


def stored(folder: Path, trials: list[Trial]) -> Store:
    store = Store.open(folder, write=True)
    store.append([made(trial) for trial in trials])
    return store


def test_what_is_not_known_is_null(tmp_path: Path) -> None:
    (arm, table) = (user_trials(text)[-1] for text in (ARMS, TABLES))
    rows = {row["trial_id"]: row for row in stored(tmp_path, [arm, table]).read_trials().to_pylist()}
    unknown = {"params_total", "params_active", "context", "vocab_size", "tokenizer", "num_experts", "head_dim"}
    for row in rows.values():
        assert {name: row[name] for name in unknown} == dict.fromkeys(unknown)
    assert (rows[arm.id]["width"], rows[arm.id]["depth"]) == (None, None)
    assert (rows[table.id]["width"], rows[table.id]["depth"]) == (128, 2)


def test_a_shape_comes_back_from_arrow_and_from_pandas(tmp_path: Path) -> None:
    """In pandas a null of a whole number is NaN, and a column with one holds floats."""
    built_in, *users = [trials_of()[0], *user_trials(ARMS), *user_trials(TABLES)]
    store = stored(tmp_path, [built_in, *users])
    shapes = {trial.id: trial.shape for trial in (built_in, *users)}
    table = store.read_trials(["trial_id", *SHAPE_COLUMNS])
    frame = table.to_pandas()
    assert frame["width"].isna().any()
    for rows in (table.to_pylist(), frame.to_dict("records"), frame.astype(object).to_dict("records")):
        assert {row["trial_id"]: shape_of_row(row) for row in rows} == shapes
    assert shape_of_row({**dict.fromkeys(SHAPE_COLUMNS, float("nan")), "own": None}) == Shape(width=0, depth=0)


def test_built_in_and_user_trials_lie_in_one_folder_and_only_theirs_have_nulls(tmp_path: Path) -> None:
    store = stored(tmp_path, [*trials_of()[:3], *user_trials(ARMS)[:3]])
    frame = store.read_trials().to_pandas()
    is_own = frame["own"].notna()
    assert is_own.sum() == 3
    nullable = [*UNKNOWN_SETTING, "width", "params_total"]
    assert frame.loc[~is_own, [name for name in nullable if name != "trainer"]].notna().all(axis=None)
    assert frame.loc[is_own, "trainer"].notna().all()
    assert frame.loc[~is_own, "trainer"].isna().all()


def test_the_unit_of_a_loss_stays_with_its_row(tmp_path: Path) -> None:
    trial, result = made(user_trials(ARMS)[0])
    store = Store.open(tmp_path, write=True)
    store.append([(trial, replace(result, loss_name="eval", loss_unit="bits per byte"))])
    frame: pd.DataFrame = store.read_trials().to_pandas()
    assert frame[["loss_name", "loss_unit"]].to_numpy().tolist() == [["eval", "bits per byte"]]
