"""The trials that a page carries: all of them, unpacked as the page's script does."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from report_cases import EVIL, write_store

from hpxfer.report import trials
from hpxfer.report.trials import trial_data
from hpxfer.results import load_results

MANY = 10**9


def unpacked(packed: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return data


def cell(column: Any, row: int) -> Any:
    if isinstance(column, list):
        return column[row]
    return None if column["at"][row] < 0 else column["values"][column["at"][row]]


def test_every_trial_is_there_with_the_multipliers_that_were_stored(tmp_path: Path) -> None:
    results = load_results(write_store(tmp_path))
    data = unpacked(trial_data(results, MANY).packed)
    stored = results.trials.set_index("trial_id")
    ids = data["columns"]["trial_id"]
    assert sorted(ids) == sorted(stored.index)
    for row, trial_id in enumerate(ids):
        stored_row = stored.loc[trial_id]
        whole = json.loads(stored_row["resolved"])
        shown = cell(data["shared"]["resolved"], row)
        assert shown == {**whole, "roles": {role: whole["roles"][role] for role in shown["roles"]}}
        assert {"router", "expert_in", "readout"} <= set(shown["roles"])
        assert not {"dense_in", "dense_out", "shared_in"} & set(shown["roles"]), "the model has none"
        assert cell(data["columns"]["lr"], row) == stored_row["lr"]
        assert cell(data["columns"]["seed"], row) == stored_row["seed"]
        assert cell(data["columns"]["status"], row) == stored_row["status"]
        loss = cell(data["columns"]["validation_loss_nats"], row)
        assert (loss is None) == (stored_row["status"] != "finished")
        assert loss is None or loss == pytest.approx(stored_row["validation_loss_nats"], rel=1e-6)


def test_what_seeds_share_stands_once(tmp_path: Path) -> None:
    results = load_results(write_store(tmp_path, ("seeds: 2", "seeds: 5")))
    data = unpacked(trial_data(results, MANY).packed)
    assert len(data["columns"]["trial_id"]) == 90
    assert len(data["shared"]["resolved"]["values"]) == 18
    assert len(data["shared"]["setting"]["values"]) == 1


def test_the_shared_base_belongs_to_no_parameterization(tmp_path: Path) -> None:
    data = unpacked(trial_data(load_results(write_store(tmp_path)), MANY).packed)
    labels = [cell(data["columns"]["label"], row) for row in range(36)]
    assert {label: labels.count(label) for label in set(labels)} == {trials.BASE: 12, "completep-moe": 12, "sp": 12}


def test_what_was_not_run_is_there_as_missing_and_keeps_its_hps(tmp_path: Path) -> None:
    data = unpacked(trial_data(load_results(write_store(tmp_path, every=3)), MANY).packed)
    rows = [row for row in range(36) if cell(data["columns"]["status"], row) == "missing"]
    assert len(rows) == 24
    for row in rows:
        assert cell(data["columns"]["lr"], row) > 0
        assert cell(data["shared"]["resolved"], row) is None


def test_a_trial_that_the_sweep_no_longer_holds_is_said_to_be_so(tmp_path: Path) -> None:
    folder = write_store(tmp_path)
    path = folder / "sweep.yaml"
    text = path.read_text()
    assert text.count("    - 64.0\n") == 1
    path.write_text(text.replace("    - 64.0\n", ""))
    data = unpacked(trial_data(load_results(folder), MANY).packed)
    places = [cell(data["columns"]["axes"], row) for row in range(36)]
    assert places.count(trials.NOT_IN_SWEEP) == 24


def test_errors_are_kept_and_long_ones_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = load_results(write_store(tmp_path, failing=(0,)))
    assert EVIL in unpacked(trial_data(results, MANY).packed)["columns"]["error"]["values"][0]
    monkeypatch.setattr(trials, "ERROR_CHARACTERS", 5)
    (error,) = unpacked(trial_data(results, MANY).packed)["columns"]["error"]["values"]
    assert error == "Trace ... (cut; trials.parquet holds it)"


def test_too_much_leaves_the_multipliers_out_then_all_and_says_so(tmp_path: Path) -> None:
    results = load_results(write_store(tmp_path))
    full = trial_data(results, MANY)
    assert not full.left_out
    less = trial_data(results, len(full.packed) - 1)
    assert 0 < len(less.packed) < len(full.packed)
    assert less.left_out.startswith("the resolved multipliers and settings of 36 trials")
    assert unpacked(less.packed)["shared"]["resolved"] == []
    none = trial_data(results, len(less.packed) - 1)
    assert (none.packed, none.num_trials) == ("", 36)
    assert none.left_out.startswith("the table of 36 trials")


def test_equal_stores_give_equal_text(tmp_path: Path) -> None:
    first, second = (load_results(write_store(tmp_path / name)) for name in "ab")
    assert trial_data(first, MANY) == trial_data(second, MANY)
