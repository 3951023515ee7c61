"""A folder of an older hpxfer: it reads as ever, and whatever would train in it names `hpxfer rekey`."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command_line import hpxfer
from legacy_results import (
    NUM_STORED,
    NUM_TRIALS,
    checkpoint_parts,
    files,
    ids_in_files,
    legacy_folder,
    made_up_data,
    seen,
    sweep_ids,
)
from made_results import DATA, made

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.results import load_results
from hpxfer.spec import load_sweep
from hpxfer.store import Store
from hpxfer.store.legacy import legacy_id
from hpxfer.trial import Expansion


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made_up_data(monkeypatch)
    return legacy_folder(tmp_path / "results" / "small")


def test_the_fixture_holds_legacy_ids_alone(folder: Path) -> None:
    expansion = Expansion(load_sweep(folder / "sweep.yaml"), DATA)
    trials = list(expansion.trials())
    old = [legacy_id(trial, expansion.trainer_version) for trial in trials]
    assert len(set(old) | {trial.id for trial in trials}) == 2 * NUM_TRIALS
    assert ids_in_files(folder) == set(old[:NUM_STORED])
    (path,) = (folder / "checkpoints").iterdir()
    assert checkpoint_parts(path)[0]["trials"] == old[NUM_STORED:]


def test_every_trial_is_found_in_its_cells(folder: Path) -> None:
    results = load_results(folder)
    ids = sweep_ids(folder)
    assert (results.problems, set(results.trials["trial_id"])) == ((), set(ids[:NUM_STORED]))
    status = dict(zip(results.cells["trial_id"], results.cells["status"], strict=True))
    assert status == dict.fromkeys(ids[:NUM_STORED], "finished") | dict.fromkeys(ids[NUM_STORED:], "missing")
    assert set(results.curves["trial_id"]) == set(ids[:NUM_STORED])
    # Loss and curve of a made-up result say which trial it is of.
    for trial in list(results.expansion.trials())[:NUM_STORED]:
        row = results.trials.set_index("trial_id").loc[trial.id]
        assert row["validation_loss_nats"] == 1.0 + trial.hps.lr
        curve = results.curves[
            (results.curves["trial_id"] == trial.id) & (results.curves["metric"] == "train_loss_nats")
        ]
        assert curve["value"].tolist()[1] == 1.0 + trial.hps.lr


def test_reading_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = files(folder)
    code, _, err = hpxfer(capsys, "report", folder, "--format", "json", "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    assert files(folder) == before


def test_a_mixed_folder_has_each_trial_once(folder: Path) -> None:
    before = seen(folder)
    store = Store.open(folder, write=True)
    trials = list(load_results(folder).expansion.trials())
    store.append([made(trials[0], "failed"), made(trials[NUM_STORED], at=9)])
    found = Store.open(folder, write=False).read_trials().to_pylist()
    added = [row for row in found if row["trial_id"] == trials[NUM_STORED].id]
    assert len(added) == 1
    assert [row for row in found if row not in added] == before[0]


def test_a_row_that_does_not_prove_its_id_keeps_it(folder: Path) -> None:
    path = folder / "trials.parquet"
    table = pq.read_table(path)
    column = table.schema.get_field_index("seed")
    pq.write_table(table.set_column(column, table.schema.field("seed"), [[7, 7]]), path)
    old = set(table["trial_id"].to_pylist())
    store = Store.open(folder, write=False)
    assert set(store.unproven_ids()) == old
    assert old < set(store.read_trials()["trial_id"].to_pylist())
    assert set(load_results(folder).cells["status"]) == {"finished", "missing"}


def test_a_run_refuses_and_names_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(folder)
    root = folder.parent
    with pytest.raises(HpxferError, match=f"{folder}: has trial ids of an older hpxfer; `hpxfer rekey {folder}`"):
        run(folder / "sweep.yaml", results=root)
    code, out, err = hpxfer(capsys, "run", folder / "sweep.yaml", "--results", root)
    assert (code, out) == (2, "")
    assert f"`hpxfer rekey {folder}` rewrites them and trains nothing; then run again" in err
    assert files(folder) == before


def test_checkpoints_alone_are_enough_to_refuse(folder: Path) -> None:
    for path in folder.glob("*.parquet"):
        path.unlink()
    with pytest.raises(HpxferError, match="`hpxfer rekey"):
        run(folder / "sweep.yaml", results=folder.parent)


def test_a_plan_counts_what_is_stored_and_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "plan", folder / "sweep.yaml", "--results", folder.parent, "--json")
    assert (code, json.loads(out)["num_done"]) == (0, NUM_STORED)
    assert f"warning: {folder}: has trial ids of an older hpxfer; `hpxfer rekey {folder}` rewrites them" in err


def test_reuse_names_the_command(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HpxferError, match=f"--reuse {folder}: has trial ids .* `hpxfer rekey {folder}`"):
        prepare(folder / "sweep.yaml", results=tmp_path / "other", reuse=[folder])
