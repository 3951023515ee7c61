"""The measurement of what a check finds: which wrong tables it makes, and what it counts of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wrong_tables import main, wrong_tables

from hpxfer.scaling.evaluate import parameterization
from hpxfer.scaling.monomial import ONE, width

pytestmark = pytest.mark.slow


def test_wrong_tables_change_what_the_model_has_and_what_does_something() -> None:
    found = {wrong.name: wrong for wrong in wrong_tables(parameterization("completep-moe"), "adam", "width")}
    assert ("embedding", "lr", width**-0.5) in found["embedding lr width^-0.5"].factors
    assert {role for wrong in found.values() for role, _, _ in wrong.factors}.isdisjoint({"router_bias", "shared_in"})
    assert not any(name.startswith("norm init_std") for name in found)
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
