"""Small runs of the studies of wrong tables, of the model of memory and of the difficulty of samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import memory_peaks
import pytest
import sample_difficulty
from wrong_limits import WITH_FACTORS, answer, wrong_factors
from wrong_tables import main, wrong_tables

from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.monomial import ONE, width
from hpxfer.scaling.tables import PARAMETERIZATIONS

pytestmark = pytest.mark.slow


def test_wrong_tables_change_what_the_model_has_and_what_does_something() -> None:
    found = {wrong.name: wrong for wrong in wrong_tables(parameterization("completep-moe"), "adam", "width")}
    assert ("embedding", "lr", width**-0.5) in found["embedding lr width^-0.5"].factors
    assert {role for wrong in found.values() for role, _, _ in wrong.factors}.isdisjoint({"router_bias", "shared_in"})
    (constant,) = (wrong for wrong in found.values() if wrong.kind == "constant eps of all roles")
    assert ("attn_q", "eps", ONE) in constant.factors
    assert ("router", "eps") not in {(role, factor) for role, factor, _ in constant.factors}  # it is constant anyway


def test_the_counts_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--table", "completep", "--axis", "depth", "--route", "held", "--kind", "constant eps of all roles"]
    assert main([*asked, "--seeds", "2", "--correct", "1", "--output", str(tmp_path)]) == 0
    (row,) = json.loads((tmp_path / "wrong_tables.jsonl").read_text())["rows"]
    assert row["found_of"] == {"constant eps of all roles": [1, 1]}
    assert (row["passed"], row["false_alarms"], row["correct"]) == ([], 0, 1)
    assert capsys.readouterr().out == "completep adam depth held: 1 of 1 found, 0 false alarms of 1\n"


def test_a_wrong_factor_is_told_from_the_limit_and_the_right_table_is_not() -> None:
    tables = dict(wrong_factors())
    assert {name.partition(":")[0] for name in tables} == set(WITH_FACTORS)
    assert not answer(PARAMETERIZATIONS.get("mup-ii"), "random").missed
    assert answer(tables["mup-ii: readout init_std * width^0.5"], "random").missed


def test_the_model_of_memory_is_held_against_a_stack() -> None:
    """In a process of its own, whose peak is its own."""
    command = [sys.executable, memory_peaks.__file__, "64", "8", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 0.5 < float(said.split()[-1]) < 3.0, said


def test_samples_are_learned_by_both_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("STEPS", 3), ("HELD_OUT", 50)):
        monkeypatch.setattr(sample_difficulty, name, value)
    monkeypatch.setattr(sys, "argv", ["sample_difficulty.py", "builtin:shapes"])
    sample_difficulty.main()
    assert capsys.readouterr().out.count("top-5 error") == 4
