"""Reading a table: as programs write it or damaged, it is read as the plain one, or refused with the place."""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from foreign_runs import foreign_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import examples

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.outside.checks import CELL, odd
from hpxfer.outside.columns import COLUMNS
from hpxfer.outside.files import read_table
from hpxfer.outside.judging import prepare
from hpxfer.outside.runs import Read, read_runs

NAMES = {"value": "lr", "scale": "width", "arm": "method"}


def table(**columns: Any) -> pd.DataFrame:
    """Return a small table of two arms and three widths, with these columns added."""
    arms = {"good": 0.0, "plain": -1.0}
    return foreign_table(arms, seed=1, seeds=(0, 1), log2_lrs=range(-11, -7)).round({"loss": 5}).assign(**columns)


def ready(frame: pd.DataFrame, where: str = "table", **given: Any) -> Read:
    return prepare(frame, where=where, **{"columns": NAMES, **given})


def runs_of(found: Read) -> set[tuple[Any, ...]]:
    return set(found.runs[["arm", "scale", "value", "seed", "loss"]].itertuples(index=False, name=None))


def spoiled(**cells: Any) -> pd.DataFrame:
    """Return the table with another cell in row 3 of each of these columns."""
    frame = table().astype(object)
    for column, cell in cells.items():
        frame.at[2, column] = cell
    return frame


PLAIN = runs_of(ready(table()))
BOTH = pd.concat([table(n_layer=2), table(n_layer=4)], ignore_index=True)
CHAIN = table()
CHAIN.loc[:2, "lr"] = [2.0**-13, 2.0**-12.985, 2.0**-12.97]
SHAPE = {"columns": {"value": "lr", "arm": "method"}, "shape": ["width"]}
# What is wrong with a table or an option -> its message.
REFUSED: dict[str, tuple[pd.DataFrame, dict[str, Any], str]] = {
    "comma": (spoiled(loss="3,2"), {}, r"row 3, column loss: must be a number .*, got '3,2'"),
    "-inf": (spoiled(loss=-math.inf), {}, r"row 3, column loss: must be a number .*, got -inf"),
    "dict": (spoiled(loss={"val": 3.0}), {}, r"row 3, column loss: must be a number"),
    "text": (spoiled(lr="fast"), {}, r"row 3, column lr \(value\): must be 0 or a number .*, got 'fast'"),
    "negative": (spoiled(lr=-0.1), {}, r"row 3, column lr \(value\): must be 0 or a number .*, got -0.1"),
    "zero": (spoiled(width=0), {}, r"row 3, column width \(scale\): must be a number from 1e-30 .*, got 0"),
    "empty": (spoiled(width=None), {}, r"row 3, column width \(scale\): must be a number .*, got an empty cell"),
    "half": (spoiled(seed=0.5), {}, r"row 3, column seed: must be a whole number, got 0\.5"),
    "no arm": (spoiled(method=""), {}, r"row 3, column method \(arm\): must be a name, got an empty cell"),
    "two": (spoiled(loss="x", seed="y"), {}, r"(?s)row 3, column loss.*row 3, column seed"),
    "many": (table(loss=9e31), {}, r"row 1, column loss: .*, as in rows 2 to 48$"),
    "power": (table(log2_lr=-9999).drop(columns="lr"), {"columns": {}}, r"row 1, column log2_lr \(value\): must be 0"),
    "no loss": (
        table().drop(columns="loss"),
        {},
        r"column loss is missing: .*--map loss=NAME .*'method', 'width', 'lr'",
    ),
    "nothing": (pd.DataFrame({"config": [{}], "seed": [0]}), {"columns": {}}, "columns scale, value and loss are miss"),
    "no column": (table(), {"columns": {"scale": "wdith"}}, r"'wdith' is not in the table; did you mean 'width'"),
    "no such": (table(), {"columns": {"los": "loss"}}, r"--map: unknown column 'los'; did you mean 'loss'\?"),
    "twice": (pd.concat([table(), table()["lr"]], axis=1), {}, r"column 'lr' must be there once"),
    "title": (table().set_axis(["t", *[""] * (len(table().columns) - 1)], axis=1), {}, "must name the columns"),
    "no rows": (table().head(0), {}, "at least one row"),
    "one thing": (table(), {"columns": {"value": "width", "scale": "width"}}, "got it as scale and as value"),
    "one loss": (table(), {"columns": {**NAMES, "loss": "lr"}}, "must be one thing, got it as value and as loss"),
    "one shape": (table(), {**SHAPE, "shape": ["width", "lr"]}, "one thing, got it as a shape column and as value"),
    "same shape": (table(), {**SHAPE, "shape": ["width"] * 2}, r"--shape: must name 'width' once, got it twice"),
    "accuracy": (table(acc=0.1), {"columns": {**NAMES, "loss": "acc"}}, r"falls as models get better, got 'acc'"),
    "two arms": (table(optimizer=table()["seed"].map(str)), {"columns": {}}, "arm must be one of 'method', 'opt"),
    "two sizes": (table(depth=table()["width"] / 64), {"columns": {}}, r"column scale must be one of .*with --shape"),
    "choice": (table(), {"duplicates": "lst"}, r"--duplicates: unknown choice 'lst'; did you mean 'last'"),
    "two losses": (
        pd.concat([table(), table().head(1).assign(loss=9.0)], ignore_index=True),
        {},
        r"row 49, column loss: one HP value, .* got 9 here and .* in row 1; .*last",
    ),
    "joined": (
        pd.concat([table(), table().head(1).assign(lr=2.0**-11 * 1.001)], ignore_index=True),
        {},
        "row 49, column loss: one HP value",
    ),
    "two layers": (BOTH, {}, r"row 49, column loss: .*the rows differ in n_layer"),
    "steps": (table(steps=[900, *[1000] * 47]), {}, r"row 2, column steps: must be the same .* of width 256, got 1000"),
    "units": (table(unit=["nats", "bits"] * 24), {}, r"row 2, column unit: must be the same .* got 'bits' here"),
    "losses": (table(loss_name=["a", "b"] * 24), {}, r"row 2, column loss_name: must be the same .* got 'b' here"),
    "one scale": (
        table().query("width == 256"),
        {},
        r"row 1, column width \(scale\): axis 'width' must have two scales .* 256 alone",
    ),
    "no base": (table(), {"base": ["width=300"]}, r"--base: must name one shape .* got no shape at width 300"),
    "no axis": (table(), {"base": ["wdth=256"]}, r"--base: unknown axis or scale 'wdth'; did you mean 'width'"),
    "no name": (table(), {"base": ["256"]}, r"--base: must be NAME=SIZE, got '256'"),
    "two bases": (table(is_base=table()["width"] < 1000), {}, r"row 9, column is_base: must mark one base"),
    "half a base": (table(is_base=table().index == 0), {}, r"row 2, column is_base: must be as in row 1"),
    "a size of another name": (
        table(steps=[200.0] * 5 + [math.nan] + [200.0] * (len(table()) - 6)),
        {**SHAPE, "shape": ["width", "steps"]},
        r"row 6, column steps: must be a number .*, got an empty cell",
    ),
    "no flag": (table(is_base="perhaps"), {}, r"row 1, column is_base: must be true or false, got 'perhaps'"),
    "chain": (CHAIN, {}, r"column lr \(value\): .* got the chain .*--tolerance 0"),
    "no state": (table(status="weird"), {}, r"row 1, column status: must be one of finished, .* got 'weird'"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_mistake_is_named_with_its_place(wrong: str) -> None:
    frame, given, message = REFUSED[wrong]
    with pytest.raises(HpxferError, match=message):
        ready(frame, **given)


@pytest.mark.parametrize("columns", ["width", "lr", "seed"])
def test_a_column_for_each_width_is_no_row_for_each_run(columns: str) -> None:
    index = [name for name in ("method", "width", "lr", "seed") if name != columns]
    wide = table().pivot(index=index, columns=columns, values="loss").rename(columns="val_{}".format).reset_index()
    with pytest.raises(HpxferError, match="a row is one run"):
        ready(wide, columns={})


def tracker(prefix: str, metric: str, **more: Any) -> pd.DataFrame:
    names = {"lr": f"{prefix}lr", "width": f"{prefix}n_embd", "seed": f"{prefix}seed", "method": f"{prefix}method"}
    return table().rename(columns={**names, "loss": metric}).assign(**more)


EXPORTS = {
    "W&B": tracker("", "val/loss", Name="run", State="finished", **{"train/loss": 2.0, "train/lr": 0.0, "n_layer": 4}),
    "W&B, nested": tracker("config.model.", "summary.val/loss", state="finished", **{"summary.train/loss": 1.0}),
    "Optuna": tracker("user_attrs_", "value", state="COMPLETE").rename(columns={"user_attrs_lr": "params_lr"}),
    "MLflow": tracker("params.", "metrics.val_loss", status="FINISHED", run_id="a").astype(str),
    "Ray Tune": tracker("config/", "eval_loss", done=True, training_iteration=9, trial_id="a"),
    "TensorBoard": tracker("", "Value", Step=99, **{"Wall time": 1.0}),
    "words": table().rename(columns={"lr": "Learning Rate", "width": "hiddenSize", "loss": "valLoss", "seed": "Seed"}),
    "powers": table(lr=lambda frame: [f" 2**{math.log2(lr):.0f} " for lr in frame["lr"]]),
    "fractions": table(lr=lambda frame: [f"1/{1 / lr:.0f}" for lr in frame["lr"]]),
    "exponents": table(
        log2_lr=lambda frame: [math.log2(lr) for lr in frame.pop("lr")],
        **{"log2(width)": lambda frame: [math.log2(width) for width in frame.pop("width")]},
    ),
    "decimal commas": table().map(lambda cell: str(cell).replace(".", ",")),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_read_as_the_plain_table(name: str, tmp_path: Path) -> None:
    found = ready(EXPORTS[name], columns={})
    assert runs_of(found) == PLAIN
    taken = [column for column, own in found.columns.items() if column != own]
    assert all(f"{column} from {found.columns[column]}" in found.notes[0] for column in taken)
    path = tmp_path / "runs.csv"
    EXPORTS[name].to_csv(path, index=False, sep=";", quoting=1, encoding="utf-8-sig", lineterminator="\r\n")
    assert runs_of(ready(read_table(path), columns={})) == PLAIN


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_what_lies_between_cells_is_seen_in_the_line_of_names(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "runs.csv"
    lines = [["scale", "value", '"loss, of all; data"', ""], ["64", "0.1", "3", ""], ["128", "2^-3", "2", ""]]
    path.write_text("\n".join(mark.join(cells) for cells in [*lines, ["", "", "", ""]]))
    found = read_runs(read_table(path), where="runs.csv", columns={"loss": "loss, of all; data"}).runs
    assert found[["scale", "value", "loss"]].to_numpy().tolist() == [[64, 0.1, 3], [128, 0.125, 2]]


def test_files_hold_the_same_as_frames(tmp_path: Path) -> None:
    frame = table(steps=10)
    frame.to_csv(tmp_path / "runs.csv", index=False)
    frame.to_csv(tmp_path / "runs.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "runs.parquet")
    frame.to_json(tmp_path / "runs.jsonl", orient="records", lines=True, double_precision=15)
    for path in tmp_path.iterdir():
        pd.testing.assert_frame_equal(ready(read_table(path)).runs, ready(frame).runs)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("runs.txt", b"lr,width,loss\n", r"must be a table, \.csv, \.tsv, \.parquet, \.jsonl, got '\.txt'"),
        ("runs.csv", b"", "must have a line of column names"),
        ("runs.csv", b"lr,loss\n1,2,3\n", r"row 1: must have a cell for each of the 2 columns, got 3 cells"),
        ("runs.csv", b'lr,loss\n"1,2\n', "must be CSV"),
        ("runs.csv", b"lr\xff\n", "must be UTF-8, got byte 2"),
        ("runs.parquet", b"PAR1nothingPAR1", "must be a Parquet file"),
        ("runs.jsonl", b'{"lr": 1}\n{"lr"\n', "must be JSON lines"),
        ("gone.csv", None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(HpxferError, match=message):
        read_table(tmp_path / name)


def test_the_last_of_two_rows_is_kept_and_what_they_differ_in_is_told() -> None:
    kept = ready(pd.concat([table(), table().head(1).assign(loss=9.0)], ignore_index=True), duplicates="last")
    assert len(kept.runs) == 48
    assert kept.runs.loc[kept.runs["row"].isin((1, 49)), "loss"].tolist() == [9.0]
    assert "1 results are left out" in kept.notes[-1]
    assert ready(BOTH, duplicates="last").notes[-1].endswith("they differ in n_layer")


def test_the_last_row_of_a_run_must_be_that_of_its_last_step() -> None:
    logs = pd.concat([table(step=step, loss=table()["loss"] + 100 / step) for step in (300, 200, 100)])
    for mapped in ({}, {"steps": "step"}):
        with pytest.raises(HpxferError, match=r"must be that of its last step, got step 200 here and 300 in row 1$"):
            ready(logs, duplicates="last", columns=NAMES | mapped)
    ordered = ready(logs.sort_values("step", kind="stable"), duplicates="last")
    assert {loss for *_, loss in runs_of(ordered)} == set(table()["loss"] + 100 / 300)


def test_a_run_that_was_tried_again_counts_once() -> None:
    again = table(status="finished")
    lost = again.head(2).assign(status=["failed", "running"], loss=None)
    found = ready(pd.concat([lost, again], ignore_index=True))
    assert len(found.runs) == len(again)
    assert found.runs["loss"].notna().all()
    kept = ready(pd.concat([again, lost], ignore_index=True), duplicates="last").runs
    assert not kept.duplicated(CELL).any()
    assert kept["status"].tolist().count("failed") == 1


def test_the_states_of_trackers_are_known_and_an_unfinished_run_has_no_loss() -> None:
    states = {
        "finished": "finished COMPLETE TrialState.COMPLETE FINISHED TERMINATED",
        "failed": "crashed failed killed KILLED ERROR FAIL",
        "running": "running preempted PRUNED WAITING SCHEDULED",
    }
    words = [(status, word) for status, line in states.items() for word in line.split()]
    found = ready(table(State=[word for _, word in words] + ["finished"] * (48 - len(words)))).runs
    assert found["status"].tolist()[: len(words)] == [status for status, _ in words]
    assert found["loss"].isna().equals(found["status"] != "finished")


EMPTY = {"none": None, "NaN": math.nan, "NA": pd.NA, "text": "", "None": "None", "N/A": "N/A"}


@pytest.mark.parametrize("state", [None, "finished", "FAIL"])  # Optuna's FAIL also says so of a NaN
@pytest.mark.parametrize("cell", EMPTY.values(), ids=EMPTY)
def test_an_empty_loss_is_asked_about(state: str | None, cell: Any) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2, 0.3, 0.4], "scale": [1, 2, 1, 2], "loss": [3.0, cell, cell, 2.0]})
    if state is not None:
        frame["state"] = ["finished", state, state, "finished"]
    asked = r"row 2, column loss: must be .* got an empty cell, as in row 3; give --empty diverged .*--empty missing"
    with pytest.raises(HpxferError, match=asked):
        read_runs(frame, where="runs.csv")
    for empty, loss in (("diverged", math.inf), ("missing", math.nan)):
        found = read_runs(frame, where="runs.csv", empty=empty).runs[1:3]
        assert found["status"].tolist() == [empty] * 2
        assert found["loss"].tolist() == pytest.approx([loss] * 2, nan_ok=True)
    with pytest.raises(HpxferError, match="--empty: unknown choice 'mising'; did you mean 'missing'"):
        read_runs(frame, where="runs.csv", empty="mising")


@pytest.mark.parametrize(
    ("cell", "status", "found"),
    [
        *((cell, "finished", ["diverged", math.inf]) for cell in ("nan", "NaN", " NAN ", "inf", math.inf)),
        (None, "diverged", ["diverged", math.inf]),
        (None, "failed", ["failed", math.nan]),
        (1.0, "running", ["running", math.nan]),
    ],
)
def test_loss_and_status_are_read_together(cell: Any, status: str, found: list[Any]) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2], "scale": [1, 2], "loss": [3.0, cell], "status": ["finished", status]})
    for empty in ("refuse", "diverged", "missing"):
        read = read_runs(frame.astype(object), where="runs.csv", empty=empty).runs
        assert read[["status", "loss"]].iloc[-1].tolist() == pytest.approx(found, nan_ok=True)


def test_a_base_is_marked_named_or_the_smallest() -> None:
    def based(frame: pd.DataFrame, *base: str, **given: Any) -> tuple[tuple[str, ...], set[float]]:
        read = ready(frame, base=base, **given)
        return read.assumed_bases, set(read.runs.loc[read.runs["is_base"], "scale"])

    assert based(table()) == (("width",), {256})
    for base in ("width=512", "scale=512"):
        assert based(table(), base) == ((), {512})
    assert based(table(is_base=lambda frame: frame["width"] == 512)) == ((), {512})
    for sizes in ({}, SHAPE):  # what rows mark is of no account then
        assert based(table(is_base=table().index == 0), "width=512", **sizes) == ((), {512})


def test_values_are_joined_or_pointed_out_and_what_no_column_says_is_assumed_aloud() -> None:
    frame, spelled = table(), [value * (1 + 0.003 * (row % 3 - 1)) for row, value in enumerate(table()["lr"])]
    found = ready(table(lr=spelled))
    assert found.runs["value"].nunique() == 4
    assert "12 spellings of lr are 4 values, within 0.02 octaves each" in found.notes
    assert ready(CHAIN, tolerance=0.0).runs["value"].nunique() == 7
    near = table(lr=frame["lr"].where(frame["width"] > 256, frame["lr"] * 1.03))
    powers = table(lr=-np.log2(frame["lr"]))
    plain = frame.query("method == 'good' and seed == 0")[["lr", "width", "loss"]].assign(method="m")
    for table_, words in (
        (near, "if they are one, --tolerance 0.1 joins them"),
        (powers, "if these are exponents, name"),
        (table(lr=-np.log10(frame["lr"])), "lr is 2.40824 to 3.31133 in steps of 0.301; if these are exponents"),
        (plain, "no column names seeds"),
        (plain, "no column says how runs ended"),
        (plain, "no column has steps"),
        (plain, "no base is marked, so the smallest scale is taken, width 256; name it with --base width=256"),
    ):
        assert words in " ".join(ready(table_).notes)
    by_width = table(steps=lambda frame: frame["width"])  # other shapes may train longer
    assert ready(by_width).runs["steps"].iloc[0] == 256


@pytest.mark.parametrize(
    ("column", "rows", "cell", "note"),
    [
        ("method", [4], "Good ", r"^arm 'Good' has 1 row \(5\), and the others have 23 to 24: is it 'good'\?$"),
        ("method", [4, 5, 6], "goood", r"^arm 'goood' has 3 rows \(5 to 7\), .*: is it 'good'\?$"),
        ("method", [4], "x", r"^arm 'x' has 1 row \(5\), and the others have 23 to 24$"),
        ("width", [0], 2560, r"^width 2560 has 1 row \(1\), and the others have 15 to 16: is it 256\?$"),
        ("lr", [2], 2.0**-10 * 1000, r"^lr 0\.976562 has 1 row \(3\), and the others have 11 to 12: is it 0\.00097"),
        ("lr", [2], 0.0015, r"^lr 0\.0015 has 1 row \(3\), and the others have 11 to 12: is it 0\.00097"),
    ],
)
def test_a_name_or_number_of_few_rows_is_named(column: str, rows: list[int], cell: Any, note: str) -> None:
    frame = table().astype({column: object})
    frame.loc[rows, column] = cell
    (found,) = odd(ready(frame))
    assert re.search(note, found)
    assert found in hpxfer.judge(frame, columns=NAMES).notes


@pytest.mark.parametrize("seed", range(3))
def test_a_table_with_gaps_has_nothing_odd(seed: int) -> None:
    """Missing runs, more seeds near the optimum, values per shape, an arm's values that move, a short last line."""
    arms = {"completep-moe": 0.0, "completep": -0.5, "sp": -1.0}
    frame = foreign_table(arms, seed=seed, widths=(128, 256, 512, 1024))
    octaves = np.log2(frame["lr"] * frame["width"] / 128)
    moved = frame["lr"] * np.where(frame["method"] == "sp", (128 / frame["width"]) ** 0.5, 1.0)
    near = frame["lr"].between(2.0**-11, 2.0**-9)
    for kept in (
        frame[np.random.default_rng(seed).random(len(frame)) > 0.1 * (seed + 1)],
        frame[near | (frame["seed"] == 0)],
        frame[octaves.between(-11.5, -6.5)],
        frame.assign(lr=moved),
        frame[near | (frame["width"] < 1024)],
    ):
        for table_ in (kept, kept[kept["seed"] == 0]):
            assert odd(ready(table_)) == []


CELLS = st.one_of(
    st.none(),
    st.text(max_size=12),
    st.floats(),
    st.integers(),
    st.integers(min_value=10**300, max_value=10**320),
    st.booleans(),
    st.binary(max_size=4),
    st.lists(st.integers(), max_size=2),
    st.sampled_from(["nan", "inf", "-inf", "1e400", "0x10", "1_000", "٣", " 3 ", "finished", "diverged", "running"]),
    st.sampled_from([pd.NA, pd.NaT, np.float32("nan"), np.int64(3), np.bool_(True), np.array([1.0, 2.0])]),
    st.sampled_from([decimal.Decimal("1e-3"), decimal.Decimal("sNaN"), 1j, datetime.date(2026, 1, 1), object()]),
)
PLACE = re.compile(r"row \d+, column \S+|^table: columns? ")


def sound() -> list[dict[str, Any]]:
    """Return the rows of a table that can be judged, with every column."""
    return [
        {
            "arm": arm,
            "axis": "width",
            "scale": scale,
            "is_base": scale == 64,
            "hp": "lr",
            "value": 2.0**log2,
            "seed": seed,
            "loss": 3.0 + 0.04 * (log2 + 8) ** 2 + 0.003 * seed,
            "status": "finished",
            "run_id": f"{arm}-{scale}-{log2}-{seed}",
            "steps": 100,
            "loss_name": "validation loss",
            "unit": "nats",
            "scale_name": "width",
            "shape": f"w{scale}",
        }
        for arm in ("a", "b")
        for scale in (64, 128)
        for log2 in (-10, -9, -8, -7, -6)
        for seed in (0, 1)
    ]


def framed(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame that keeps every cell as it is."""
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in rows[0]})


def refusal(call: Callable[[], object]) -> str | None:
    """Return the message of a refusal; None if the call goes through."""
    try:
        call()
    except HpxferError as error:
        return str(error)
    return None


@settings(max_examples=examples(400), deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 39), st.sampled_from(sorted(COLUMNS)), CELLS), min_size=1, max_size=4))
def test_a_spoiled_cell_is_read_or_named(changes: list[tuple[int, str, Any]]) -> None:
    rows = sound()
    for row, column, cell in changes:
        rows[row][column] = cell
    message = refusal(lambda: ready(framed(rows), columns={}))
    assert message is None or PLACE.search(message)


@settings(max_examples=examples(150), deadline=None)
@given(
    sizes=st.lists(st.tuples(*[st.sampled_from([1, 2, 4.0, "8", None, "x"])] * 3), min_size=1, max_size=20),
    base=st.lists(st.sampled_from(["a=1", "b=2", "c=8", "d=1", "a", "a=0"]), max_size=2),
    scale=st.sampled_from([None, "a", "d"]),
)
def test_shape_columns_of_anything_are_read_or_named(
    sizes: list[tuple[Any, Any, Any]], base: list[str], scale: str | None
) -> None:
    rows = [dict(zip("abc", dims, strict=True), value=1e-3, loss=3.0 - 0.01 * at) for at, dims in enumerate(sizes)]
    columns = {} if scale is None else {"scale": scale}
    message = refusal(lambda: ready(framed(rows), shape="abc", columns=columns, base=base))
    assert message is None or message.startswith(("table: ", "--base: "))


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_read_can_be_judged(data: st.DataObject) -> None:
    """Numbers of any size, missing runs and diverged ones: the verdict copes, without a warning."""
    rows = sound()
    drawn = {
        "loss": st.floats(min_value=-1e30, max_value=1e30),
        "value": st.floats(min_value=1e-30, max_value=1e30),
        "status": st.sampled_from(["diverged", "failed", "running"]),
    }
    for at in data.draw(st.lists(st.integers(0, 39), max_size=40)):
        column = data.draw(st.sampled_from(sorted(drawn)))
        rows[at][column] = data.draw(drawn[column])
    message = refusal(lambda: ready(framed(rows), columns={}, duplicates="last"))
    if message is not None:
        assert PLACE.search(message)
        return
    found = hpxfer.judge(framed(rows), control="b", duplicates="last")
    assert found.summary().startswith(found.report.headline)
    assert {finding.verdict for finding in found.report.findings} <= {"transfers", "stays", "drifts", "undecided"}


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)),
    kind=st.sampled_from(["csv", "parquet", "jsonl"]),
)
def test_a_file_of_anything_is_read_or_refused(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"runs.{kind}"
    path.write_bytes(content)
    with pytest.raises(HpxferError, match="runs"):  # no such bytes are a table with a scale, a value and a loss
        ready(read_table(path), str(path), columns={})


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_parquet_file_is_read_or_refused(data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / "runs.parquet"
    pd.DataFrame(sound()).to_parquet(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    message = refusal(lambda: ready(read_table(path), columns={}))
    assert message is None or message.startswith(("table: ", str(path)))
