"""`hpxfer report --reference` and `--reference-curves`: what they add, and mistakes without a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import Fails, hpxfer
from tiny import write_tiny

from hpxfer.driver import run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder), results=folder / "results", executor=Fails(0))
    return folder / "results" / "tiny"


def test_a_curve_and_an_arm_are_references(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves = tmp_path / "gpt2.csv"
    curves.write_text("name,step,loss\ngpt2,1,4.0\ngpt2,10,3.9\n")
    given = ("--output", tmp_path, "--format", "json", "--reference", "sp", "--reference-curves", curves)
    code, _, err = hpxfer(capsys, "report", results, *given)
    assert code == 0, err
    (sweep,) = json.loads((tmp_path / "report.json").read_text())["sweeps"]
    rows = [row for answer in sweep["analysis"]["steps_to_loss"] for row in answer["rows"]]
    assert {row["reference"].split(" ")[0] for row in rows} == {"sp", "gpt2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,step,loss\na,1,x\n", "curves.csv: line 2: column loss: must be a number > 0"),
        ("", "curves.csv: line 1: must have the columns"),
        (None, "curves.csv: must be a CSV file, cannot be read: "),
    ],
)
def test_mistakes_in_the_file_end_in_one_message(
    text: str | None, message: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "curves.csv"
    if text is None:
        os.mkfifo(path)  # which nothing is ever written to
    else:
        path.write_text(text)
    code, _, err = hpxfer(capsys, "report", results, "--output", tmp_path / "out", "--reference-curves", path)
    assert (code, "Traceback" in err) == (2, False)
    assert message in err.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_an_arm_that_is_not_there_ends_in_one_message(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = hpxfer(capsys, "report", results, "--output", tmp_path / "out", "--reference", "w48")
    assert (code, "Traceback" in err) == (2, False)
    assert "reference: must be a shape of the sweep, got 'w48'" in err
    assert not (tmp_path / "out").exists()
