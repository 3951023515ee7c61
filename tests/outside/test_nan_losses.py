"""A loss that is spelled nan is one of a run that diverged; an empty cell is none."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from hpxfer.errors import HpxferError
from hpxfer.outside.read import read_table
from hpxfer.outside.runs import Read, read_runs


def read(frame: pd.DataFrame) -> Read:
    return read_runs(frame, where="runs.csv")


def table(tmp_path: Path, loss: str) -> Path:
    path = tmp_path / "runs.csv"
    rows = [f"{value},{scale},0,3.1,finished" for scale in (64, 128) for value in (0.01, 0.02)]
    path.write_text("\n".join(["value,scale,seed,loss,status", *rows, f"0.04,128,0,{loss},finished"]))
    return path


@pytest.mark.parametrize("spelled", ["nan", "NaN", " NAN "])
def test_a_run_whose_loss_is_nan_has_diverged(tmp_path: Path, spelled: str) -> None:
    runs = read(read_table(table(tmp_path, spelled))).runs
    assert [(run.status, run.loss) for run in runs][-1] == ("diverged", math.inf)


def test_an_empty_loss_of_a_finished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=r"row 5, column loss: must be .* got an empty cell"):
        read(read_table(table(tmp_path, "")))


def test_a_nan_of_a_frame_may_be_missing_and_is_refused() -> None:
    frame = pd.DataFrame({"value": [0.1, 0.2], "scale": [1, 2], "loss": [3.0, math.nan], "status": ["finished"] * 2})
    with pytest.raises(HpxferError, match="row 2, column loss"):
        read(frame)
