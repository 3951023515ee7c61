"""A loss that is spelled nan is one of a run that diverged. What an empty cell is, only the user knows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from foreign_runs import foreign_table

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.outside.judged import JudgedTable
from hpxfer.outside.read import read_table
from hpxfer.outside.runs import Read, read_runs

EMPTY = {"none": None, "NaN": math.nan, "NA": pd.NA, "text": "", "None": "None", "N/A": "N/A"}


def read(frame: pd.DataFrame) -> Read:
    return read_runs(frame, where="runs.csv")


def lossless(cell: Any) -> pd.DataFrame:
    """Return a table in which three of four runs have no loss at the transferred LR, and above it."""
    frame = foreign_table({"good": 0.0, "plain": -1.0}, seed=1).astype({"loss": object})
    lost = (frame["width"] == 1024) & (frame["lr"] > 2**-9.5) & (frame["seed"] > 0)
    frame.loc[lost & (frame["method"] == "good"), "loss"] = cell
    return frame


def judged(frame: pd.DataFrame | Path, **given: Any) -> JudgedTable:
    return hpxfer.judge(frame, control="plain", base="width=256", **given)


@pytest.mark.parametrize("spelled", ["nan", "NaN", " NAN "])
def test_a_run_whose_loss_is_nan_has_diverged(spelled: str) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2], "scale": [1, 2], "loss": ["3.0", spelled], "status": ["finished"] * 2})
    assert [(run.status, run.loss) for run in read(frame).runs][-1] == ("diverged", math.inf)


@pytest.mark.parametrize("state", [None, "finished", "FAIL"])  # Optuna's FAIL also says so of a NaN
@pytest.mark.parametrize("cell", EMPTY.values(), ids=EMPTY)
def test_an_empty_loss_is_asked_about(state: str | None, cell: Any) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2, 0.3, 0.4], "scale": [1, 2, 1, 2], "loss": [3.0, cell, cell, 2.0]})
    if state is not None:
        frame["state"] = ["finished", state, state, "finished"]
    asked = r"row 2, column loss: must be .* got an empty cell, as in row 3; give --empty diverged .*--empty missing"
    with pytest.raises(HpxferError, match=asked):
        read(frame)
    for empty, loss in (("diverged", math.inf), ("missing", None)):
        found = read_runs(frame, where="runs.csv", empty=empty).runs
        assert [(run.status, run.loss) for run in found[1:3]] == [(empty, loss)] * 2
    with pytest.raises(HpxferError, match="--empty: unknown choice 'mising'; did you mean 'missing'"):
        read_runs(frame, where="runs.csv", empty="mising")


@pytest.mark.parametrize("state", ["failed", "running"])
def test_a_status_says_what_an_empty_loss_is(state: str) -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2], "scale": [1, 2], "loss": [3.0, math.nan], "status": ["finished", state]})
    for empty in ("refuse", "diverged", "missing"):
        assert read_runs(frame, where="runs.csv", empty=empty).runs[1].status == state


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
def test_no_hp_transfers_while_its_runs_have_no_result(kind: str, tmp_path: Path) -> None:
    """The empty cells that pandas writes for NaN, Parquet's null, and NaN in a frame."""
    table: pd.DataFrame | Path = lossless(math.nan).astype({"loss": float})
    if kind != "frame":
        path = tmp_path / f"runs.{kind}"
        table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
        table = path
    with pytest.raises(HpxferError, match=r"column loss: .*--empty diverged"):
        judged(table)
    missing, diverged = judged(table, empty="missing"), judged(table, empty="diverged")
    assert missing.report.findings[0].verdict == "undecided"
    assert "width 1024: 3 runs have no result at the transferred HP" in missing.summary()
    assert "12 of 192 runs have no result (12 missing): rows" in missing.summary()
    assert "probability" not in missing.summary().splitlines()[2]
    assert missing.report.findings[0].to_add[0].scales == (1024,)
    assert diverged.report.findings[0].verdict == "drifts"
    assert diverged.summary() == judged(lossless("nan")).summary().replace("Table table", f"Table {diverged.name}")


def test_one_lost_run_at_the_transferred_hp_is_enough() -> None:
    frame = lossless(math.nan)
    frame = frame[frame["loss"].notna() | (frame["seed"] == 1)].assign(
        status=lambda left: left["loss"].notna().map({True: "finished", False: "crashed"})
    )
    assert judged(frame).report.findings[0].verdict == "undecided"
    whole = judged(frame[frame["status"] == "finished"])
    assert whole.report.findings[0].verdict == "transfers"


def test_the_last_row_counts_with_a_result_or_not() -> None:
    epochs = pd.concat([lossless(3.3).assign(epoch=1), lossless(math.nan).assign(epoch=2)], ignore_index=True)
    for empty, verdict in (("diverged", "drifts"), ("missing", "undecided")):
        found = judged(epochs, duplicates="last", empty=empty)
        assert found.report.findings[0].verdict == verdict
    again = pd.concat([lossless(3.3).assign(status="finished"), lossless(3.3).head(1).assign(status="failed")])
    kept = {run.cell: run for run in judged(again, duplicates="last").runs}
    assert [run.status for run in kept.values()].count("failed") == 1


def test_a_file_with_an_empty_loss_of_a_finished_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"{value},{scale},0,3.1,finished" for scale in (64, 128) for value in (0.01, 0.02)]
    path.write_text("\n".join(["value,scale,seed,loss,status", *rows, "0.04,128,0,,finished"]))
    with pytest.raises(HpxferError, match=r"row 5, column loss: must be .* got an empty cell"):
        read(read_table(path))
