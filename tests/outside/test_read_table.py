"""Reading a table: mistakes by row and column, what is assumed aloud, and losses that are nan or empty."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from foreign_runs import foreign_table

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.outside.checks import CELL
from hpxfer.outside.files import read_table
from hpxfer.outside.judging import JudgedTable, prepare
from hpxfer.outside.runs import Read, read_runs

COLUMNS = {"value": "lr", "scale": "width", "arm": "method"}


def table(**columns: Any) -> pd.DataFrame:
    """Return a small table of two arms and three widths, with these columns added."""
    return foreign_table({"good": 0.0, "plain": -1.0}, seed=1, seeds=(0, 1)).assign(**columns)


def ready(frame: pd.DataFrame, **given: Any) -> Read:
    return prepare(frame, where="runs.csv", **{"columns": COLUMNS, **given})[0]


def spoiled(row: int, column: str, cell: Any) -> pd.DataFrame:
    """Return the table with one other cell; `row` counts from 1."""
    frame = table().astype(object)
    frame.loc[row - 1, column] = cell
    return frame


@pytest.mark.parametrize(
    ("row", "column", "cell", "message"),
    [
        (3, "loss", "3,2", r"row 3, column loss: must be a number .*, got '3,2'; write the number"),
        (3, "loss", -float("inf"), r"row 3, column loss: must be a number .*, got -inf"),
        (5, "lr", "fast", r"row 5, column lr \(value\): must be 0 or a number .*, got 'fast'"),
        (5, "lr", -0.1, r"row 5, column lr \(value\): must be 0 or a number .*, got -0.1"),
        (6, "width", 0, r"row 6, column width \(scale\): must be a number from 1e-30 .*, got 0"),
        (6, "width", None, r"row 6, column width \(scale\): must be a number .*, got an empty cell"),
        (7, "seed", 0.5, r"row 7, column seed: must be a whole number, got 0\.5"),
        (7, "method", "", r"row 7, column method \(arm\): must be a name, got an empty cell"),
    ],
)
def test_a_bad_cell_is_named(row: int, column: str, cell: Any, message: str) -> None:
    with pytest.raises(HpxferError, match=rf"^runs\.csv: {message}"):
        ready(spoiled(row, column, cell))


def test_every_bad_cell_is_named_at_once() -> None:
    frame = spoiled(3, "loss", "x")
    frame.loc[8, "seed"] = "y"
    with pytest.raises(HpxferError, match=r"(?s)row 3, column loss.*row 9, column seed"):
        ready(frame)


def test_a_missing_column_is_named_with_what_is_there() -> None:
    with pytest.raises(HpxferError, match=r"column loss is missing: .*--map loss=NAME .*'method', 'width', 'lr'"):
        ready(table().drop(columns="loss"))
    with pytest.raises(HpxferError, match=r"column 'wdith' is not in the table; did you mean 'width'\?"):
        ready(table(), columns={**COLUMNS, "scale": "wdith"})
    with pytest.raises(HpxferError, match=r"--map: unknown column 'los'; did you mean 'loss'\?"):
        ready(table(), columns={**COLUMNS, "los": "loss"})
    with pytest.raises(HpxferError, match=r"column 'lr' must be there once"):
        ready(pd.concat([table(), table()["lr"]], axis=1))
    with pytest.raises(HpxferError, match="at least one row"):
        ready(table().head(0))


@pytest.mark.parametrize(
    ("columns", "shape", "message"),
    [
        ({**COLUMNS, "value": "width"}, (), r"column 'width' must be one thing, got it as scale and as value; map "),
        ({**COLUMNS, "loss": "lr"}, (), r"column 'lr' must be one thing, got it as value and as loss; map "),
        ({"value": "lr"}, ("width", "lr"), r"column 'lr' must be one thing, got it as a shape column and as value"),
        ({"value": "lr"}, ("width", "width"), r"--shape: must name 'width' once, got it twice"),
    ],
)
def test_a_column_is_one_thing(columns: dict[str, str], shape: tuple[str, ...], message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        ready(table(), columns=columns, shape=shape)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_what_lies_between_cells_is_seen_in_the_line_of_names(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "runs.csv"
    lines = [["scale", "value", '"loss, of all; data"', ""], ["64", "0.1", "3", ""], ["128", "2^-3", "2", ""]]
    path.write_text("\n".join(mark.join(cells) for cells in [*lines, ["", "", "", ""]]))
    found = read_runs(read_table(path), where="runs.csv", columns={"loss": "loss, of all; data"}).runs
    assert found[["scale", "value", "loss"]].to_numpy().tolist() == [[64, 0.1, 3], [128, 0.125, 2]]


def test_two_results_of_one_seed_are_refused_or_the_last_is_kept() -> None:
    frame = pd.concat([table(), table().head(1).assign(loss=9.0)], ignore_index=True)
    with pytest.raises(HpxferError, match=r"row 97, column loss: one HP value, .* got 9 here and .* in row 1; .*last"):
        ready(frame)
    kept = ready(frame, duplicates="last")
    assert len(kept.runs) == 96
    assert kept.runs.loc[kept.runs["row"].isin((1, 97)), "loss"].tolist() == [9.0]
    assert "1 results are left out" in kept.notes[-1]
    with pytest.raises(HpxferError, match=r"--duplicates: unknown choice 'lst'; did you mean 'last'"):
        ready(frame, duplicates="lst")


def test_a_run_that_was_tried_again_counts_once() -> None:
    again = table(status="finished")
    lost = again.head(2).assign(status=["failed", "running"], loss=None)
    found = ready(pd.concat([lost, again], ignore_index=True))
    assert len(found.runs) == len(again)
    assert found.runs["loss"].notna().all()


def test_mixed_steps_names_and_units_are_refused() -> None:
    steps = table(steps=1000)
    steps.loc[4, "steps"] = 900
    with pytest.raises(
        HpxferError, match=r"row 5, column steps: must be the same for all results of width 256, got 900"
    ):
        ready(steps)
    by_width = table(steps=lambda frame: frame["width"])  # other shapes may train longer
    assert ready(by_width).runs["steps"].iloc[0] == 256
    for column, words in (("unit", ["nats", "bits"]), ("loss_name", ["validation", "train"])):
        with pytest.raises(HpxferError, match=rf"row 2, column {column}: must be the same .* got '{words[1]}' here"):
            ready(table(**{column: words * 48}))


def test_unfinished_runs_have_no_loss_whatever_is_written() -> None:
    """A run that still trains may lie below all others for the moment."""
    found = ready(table(status=["running", "failed", *["finished"] * 94], loss=lambda f: f["loss"] - (f.index < 2) * 9))
    assert found.runs["loss"].isna().tolist()[:3] == [True, True, False]


def test_diverged_is_a_result() -> None:
    frame = table(status="finished").astype(object)
    frame.loc[0, ["status", "loss"]] = ["diverged", None]
    frame.loc[1, "loss"] = "inf"
    assert ready(frame).runs[["loss", "status"]].to_numpy().tolist()[:2] == [[math.inf, "diverged"]] * 2
    frame.loc[2, "loss"] = None
    with pytest.raises(HpxferError, match=r"row 3, column loss: must be a number .*, got an empty cell"):
        ready(frame)


def test_one_scale_is_refused_with_its_rows() -> None:
    frame = table()
    with pytest.raises(
        HpxferError, match=r"row 1, column width \(scale\): axis 'width' must have two scales .* 256 alone"
    ):
        ready(frame[frame["width"] == 256])


def test_a_base_is_marked_named_or_the_smallest() -> None:
    def based(frame: pd.DataFrame, *base: str) -> tuple[tuple[str, ...], set[float]]:
        read, assumed = prepare(frame, where="runs.csv", columns=COLUMNS, base=base)
        return assumed, set(read.runs.loc[read.runs["is_base"], "scale"])

    assert based(table()) == (("width",), {256})
    assert "no base is marked, so the smallest scale is taken, width 256; name it with --base width=256" in str(
        ready(table()).notes
    )
    for base in ("width=512", "scale=512"):
        assert based(table(), base) == ((), {512})
    assert based(table(is_base=lambda frame: frame["width"] == 512)) == ((), {512})


@pytest.mark.parametrize(
    ("columns", "base", "message"),
    [
        (
            {},
            ["width=300"],
            r"--base: must name one shape of axis 'width', got no shape at width 300; the scales are 256",
        ),
        ({}, ["wdth=256"], r"--base: unknown axis or scale 'wdth'; did you mean 'width'"),
        ({}, ["256"], r"--base: must be NAME=SIZE, got '256'"),
        ({"is_base": lambda f: f["width"] < 1000}, [], r"row 17, column is_base: must mark one base"),
        ({"is_base": lambda f: f.index == 0}, [], r"row 2, column is_base: must be as in row 1"),
        ({"is_base": "perhaps"}, [], r"row 1, column is_base: must be true or false, got 'perhaps'"),
    ],
)
def test_a_base_that_is_none_is_refused(columns: dict[str, Any], base: list[str], message: str) -> None:
    with pytest.raises(HpxferError, match=message):
        ready(table(**columns), base=base)


@pytest.mark.parametrize("base", [[], ["width=512"]])
def test_rows_of_one_shape_agree_whether_it_is_the_base_also_where_the_user_names_it(base: list[str]) -> None:
    frame = table(is_base=lambda frame: frame.index == 0)
    with pytest.raises(HpxferError, match=r"row 2, column is_base: must be as in row 1"):
        ready(frame, columns={"value": "lr", "arm": "method"}, shape=["width"], base=base)


def test_spellings_of_one_value_are_joined_and_chains_are_refused() -> None:
    frame = table()
    frame["lr"] = [value * (1 + 0.003 * (row % 3 - 1)) for row, value in enumerate(frame["lr"])]
    found = ready(frame)
    assert found.runs["value"].nunique() == 8
    assert "24 spellings of lr are 8 values, within 0.02 octaves each" in found.notes
    chain = table()
    chain.loc[:2, "lr"] = [2.0**-13, 2.0**-12.985, 2.0**-12.97]
    with pytest.raises(HpxferError, match=r"column lr \(value\): .* got the chain .*--tolerance 0"):
        ready(chain)
    assert ready(chain, tolerance=0.0).runs["value"].nunique() == 10


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
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(HpxferError, match=message):
        read_table(path)
    with pytest.raises(HpxferError, match="cannot be read"):
        read_table(tmp_path / "gone.csv")


def test_values_that_are_joined_may_be_the_same_cell() -> None:
    frame = pd.concat([table(), table().head(1).assign(lr=2.0**-13 * 1.001)], ignore_index=True)
    with pytest.raises(HpxferError, match=r"row 97, column loss: one HP value"):
        ready(frame)


def test_what_no_column_says_is_assumed_aloud() -> None:
    notes = " ".join(
        ready(table().query("method == 'good' and seed == 0")[["lr", "width", "loss"]].assign(method="m")).notes
    )
    for words in ("seeds", "how runs ended", "steps"):
        assert words in notes


EMPTY = {"none": None, "NaN": math.nan, "NA": pd.NA, "text": "", "None": "None", "N/A": "N/A"}


def read(frame: pd.DataFrame) -> Read:
    return read_runs(frame, where="runs.csv")


def lossless(cell: Any) -> pd.DataFrame:
    """Return a table in which three of four runs have no loss at the transferred LR, and above it."""
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=1).astype({"loss": object})
    lost = (frame["width"] == 1024) & (frame["lr"] > 2**-9.5) & (frame["seed"] > 0)
    frame.loc[lost & (frame["method"] == "good"), "loss"] = cell
    return frame


def judged_table(frame: pd.DataFrame | Path, **given: Any) -> JudgedTable:
    return hpxfer.judge(frame, control="plain", base="width=256", **given)


@pytest.mark.parametrize("spelled", ["nan", "NaN", " NAN "])
def test_a_run_whose_loss_is_nan_has_diverged(spelled: str) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2], "scale": [1, 2], "loss": ["3.0", spelled], "status": ["finished"] * 2})
    assert read(frame).runs[["status", "loss"]].iloc[-1].tolist() == ["diverged", math.inf]


@pytest.mark.parametrize("state", [None, "finished", "FAIL"])  # Optuna's FAIL also says so of a NaN
@pytest.mark.parametrize("cell", EMPTY.values(), ids=EMPTY)
def test_an_empty_loss_is_asked_about(state: str | None, cell: Any) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2, 0.3, 0.4], "scale": [1, 2, 1, 2], "loss": [3.0, cell, cell, 2.0]})
    if state is not None:
        frame["state"] = ["finished", state, state, "finished"]
    asked = r"row 2, column loss: must be .* got an empty cell, as in row 3; give --empty diverged .*--empty missing"
    with pytest.raises(HpxferError, match=asked):
        read(frame)
    for empty, loss in (("diverged", math.inf), ("missing", math.nan)):
        found = read_runs(frame, where="runs.csv", empty=empty).runs[1:3]
        assert found["status"].tolist() == [empty] * 2
        assert found["loss"].tolist() == pytest.approx([loss] * 2, nan_ok=True)
    with pytest.raises(HpxferError, match="--empty: unknown choice 'mising'; did you mean 'missing'"):
        read_runs(frame, where="runs.csv", empty="mising")


@pytest.mark.parametrize("state", ["failed", "running"])
def test_a_status_says_what_an_empty_loss_is(state: str) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2], "scale": [1, 2], "loss": [3.0, math.nan], "status": ["finished", state]})
    for empty in ("refuse", "diverged", "missing"):
        assert read_runs(frame, where="runs.csv", empty=empty).runs["status"][1] == state


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_no_hp_transfers_while_its_runs_have_no_result(kind: str, tmp_path: Path) -> None:
    """The empty cells that pandas writes for NaN, Parquet's null, and NaN in a frame."""
    table: pd.DataFrame | Path = lossless(math.nan).astype({"loss": float})
    if kind != "frame":
        path = tmp_path / f"runs.{kind}"
        table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
        table = path
    with pytest.raises(HpxferError, match=r"column loss: .*--empty diverged"):
        judged_table(table)
    missing, diverged = judged_table(table, empty="missing"), judged_table(table, empty="diverged")
    assert missing.report.findings[0].verdict == "undecided"
    assert "width 1024: 3 runs have no result at the transferred HP" in missing.summary()
    assert "12 of 192 runs have no result (12 missing): rows" in missing.summary()
    assert "probability" not in missing.summary().splitlines()[2]
    assert missing.report.findings[0].to_add[0].scales == (1024,)
    assert diverged.report.findings[0].verdict == "drifts"
    assert diverged.summary() == judged_table(lossless("nan")).summary().replace(
        "Table table", f"Table {diverged.name}"
    )


def test_one_lost_run_at_the_transferred_hp_is_enough() -> None:
    frame = lossless(math.nan)
    frame = frame[frame["loss"].notna() | (frame["seed"] == 1)].assign(
        status=lambda left: left["loss"].notna().map({True: "finished", False: "crashed"})
    )
    assert judged_table(frame).report.findings[0].verdict == "undecided"
    whole = judged_table(frame[frame["status"] == "finished"])
    assert whole.report.findings[0].verdict == "transfers"


def test_the_last_row_counts_with_a_result_or_not() -> None:
    epochs = pd.concat([lossless(3.3).assign(epoch=1), lossless(math.nan).assign(epoch=2)], ignore_index=True)
    for empty, verdict in (("diverged", "drifts"), ("missing", "undecided")):
        found = judged_table(epochs, duplicates="last", empty=empty)
        assert found.report.findings[0].verdict == verdict
    again = pd.concat([lossless(3.3).assign(status="finished"), lossless(3.3).head(1).assign(status="failed")])
    kept = judged_table(again, duplicates="last").runs
    assert not kept.duplicated(CELL).any()
    assert kept["status"].tolist().count("failed") == 1
