"""Ties in a results folder: it holds what was decided, and mixes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import hpxfer
from driver_cases import InProcess, Made
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.results import load_results
from hpxfer.spec import load_sweep

TABLES = ("parameterizations: [completep-moe, sp]", "parameterizations: [mssp-i, sp]")


def write(folder: Path, *edits: tuple[str, str], ties: str | None = None) -> Path:
    given = [] if ties is None else [("  context: ", f"  ties: {ties}\n  context: ")]
    return write_tiny(folder, TABLES, *given, *edits)


def test_a_folder_holds_the_value_that_its_trials_have(tmp_path: Path) -> None:
    results = run(write(tmp_path), results=tmp_path, executor=InProcess())
    assert load_sweep(tmp_path / "tiny" / "sweep.yaml", trusted=False).model.ties == {"mssp-i": "random"}
    assert set(results.cells["status"]) == {"finished"}
    start = results.curves.query("metric == 'load_deviation' and step == 0").groupby("trial_id")["value"].max()
    zero = results.trials.query("parameterization == 'mssp-i'")["trial_id"]
    assert start[list(zero)].max() < 0.35  # of 0.5; a fair draw of so few tokens
    again = Made()
    run(write(tmp_path), results=tmp_path, executor=again)
    run(tmp_path / "tiny" / "sweep.yaml", executor=again)
    assert again.given == []
    assert list((tmp_path / "tiny").glob("sweep-*.yaml")) == []


def test_a_value_that_the_file_gives_trains_anew_and_deletes_nothing(tmp_path: Path) -> None:
    run(write(tmp_path, ties="index"), results=tmp_path, executor=Made())
    folder = tmp_path / "tiny"
    before = set(load_results(folder).trials["trial_id"])
    anew = Made()
    run(write(tmp_path, ties="{mssp-i: random}"), results=tmp_path, executor=anew)
    assert {
        trial.parameterization and trial.parameterization.name for stack in anew.given for trial in stack.trials
    } == {"mssp-i"}  # the control's trials stay
    found = load_results(folder)
    assert before < set(found.trials["trial_id"])
    assert set(found.cells["status"]) == {"finished"}
    rows = found.trials.set_index("trial_id").loc[list(set(found.cells["trial_id"]))]
    assert set(rows.query("parameterization == 'mssp-i'")["setting"].str.contains('"ties":"random"')) == {True}


def test_a_folder_of_other_tables_takes_what_a_new_one_takes(tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=tmp_path, executor=Made())
    assert load_sweep(tmp_path / "tiny" / "sweep.yaml", trusted=False).model.ties is None
    more = Made()
    run(write(tmp_path), results=tmp_path, executor=more)
    assert {trial.setting.ties for stack in more.given for trial in stack.trials} == {"random"}  # no control again


def test_the_command_line_says_what_is_no_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = hpxfer(capsys, "plan", write(tmp_path, ties="lowest"))
    assert code == 2
    assert "model.ties: must be index, random, fixed_bias, or a mapping of tables to one of them, got 'lowest'" in said
    with pytest.raises(HpxferError, match=r"model\.ties: must name tables of the sweep, got 'mup'"):
        prepare(write(tmp_path, ties="{mup: random}"))
