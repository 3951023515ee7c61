"""Curves that are lost: a run and a report say whose, and `run --retrain-missing-curves` brings them back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Fails, hpxfer
from made_results import stored
from tiny import write_tiny

from hpxfer.driver import drive, run
from hpxfer.store import Store

FEW = (
    ("width: [16, 32]", "width: [16]"),
    ("parameterizations: [completep-moe, sp]", "parameterizations: [sp]"),
    ("workers: 2", "workers: 1"),  # each is a process that imports torch
)
OPTION = "--retrain-missing-curves"


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder, *FEW), results=folder / "results")
    return folder


@pytest.fixture
def folder(done: Path, tmp_path: Path) -> Path:
    """The folder of a finished run of one shape: tiny.yaml, and its results in results/tiny."""
    return Path(shutil.copytree(done, tmp_path / "x"))


def ids_of(folder: Path) -> list[str]:
    return [str(name) for name in Store.open(folder, write=False).read_trials(["trial_id"])["trial_id"].to_pylist()]


def without(path: Path, trial_ids: list[str]) -> None:
    """Write a curves file again without some trials, as a compaction of damaged parts leaves it."""
    table = pq.read_table(path)
    keep = [str(name) not in trial_ids for name in table["trial_id"].to_pylist()]
    pq.write_table(table.filter(pa.array(keep)), path, compression="zstd")


def command(folder: Path, *more: str) -> list[str]:
    return ["run", str(folder / "tiny.yaml"), "--results", str(folder / "results"), *more]


def test_a_truncated_file_is_trained_again_and_every_stored_result_stays(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = folder / "results" / "tiny"
    before, ids = stored(tiny), ids_of(tiny)
    path = tiny / "curves.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    code, out, err = hpxfer(capsys, *command(folder))
    assert code == 0
    assert f"{len(ids)} of {len(ids)} trials have lost their curves; their losses are stored." in err
    assert f"`hpxfer run {tiny}/sweep.yaml {OPTION}`" in err
    assert f"  {len(ids)} of w16 d1 E2A1 h16: {ids[0][:8]}, {ids[1][:8]}, " in err
    code, out, _ = hpxfer(capsys, *command(folder, "--json"))
    assert json.loads(out)["lost_curves"] == ids
    code, _, err = hpxfer(capsys, "report", tiny, "--format", "text")
    assert (code, "have lost their curves" in err) == (0, True)
    code, out, err = hpxfer(capsys, "run", tiny / "sweep.yaml", OPTION)  # the command of the message
    assert code == 0
    assert f"{len(ids)} trials, 0 done, {len(ids)} to run" in out
    assert f"{len(ids)} trials have their curves again; all their stored results stayed as they were" in err
    assert "nothing needs the damaged curves files any more" in err
    assert stored(tiny) == before
    path.unlink()
    code, _, err = hpxfer(capsys, *command(folder))
    assert (code, "curves" in err) == (0, False)
    assert stored(tiny) == before


def test_exactly_the_trials_that_lost_theirs_are_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = folder / "results" / "tiny"
    before, ids = stored(tiny), ids_of(tiny)
    without(tiny / "curves.parquet", ids[1:3])
    (folder / "tiny.yaml").write_text((folder / "tiny.yaml").read_text().replace("seeds: 2", "seeds: 3"))  # 5 missing
    code, out, err = hpxfer(capsys, *command(folder, OPTION, "--json"))
    assert (code, json.loads(out)["lost_curves"]) == (0, [])
    assert f"  2 of w16 d1 E2A1 h16: {ids[1][:8]}, {ids[2][:8]}\n" in err
    assert json.loads(out)["plan"]["num_trials"] == len(ids)
    assert json.loads(out)["plan"]["num_done"] == len(ids) - 2
    assert ids_of(tiny) == ids
    assert stored(tiny) == before


def test_results_that_come_out_otherwise_are_said_loudly_and_not_stored(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = folder / "results" / "tiny"
    ids = ids_of(tiny)
    path = tiny / "trials.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("validation_loss_nats")
    losses = table.column(at).to_pylist()
    losses[table["trial_id"].to_pylist().index(ids[1])] += 2.0**-40
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(losses)), path, compression="zstd")
    without(tiny / "curves.parquet", ids[1:3])
    rows = stored(tiny)[0]
    code, _, err = hpxfer(capsys, *command(folder, OPTION))
    assert code == 1
    assert "1 trials have their curves again" in err
    assert "NOT EQUAL: 1 trials came out otherwise than stored." in err
    assert f"  {ids[1]}: validation_loss_nats is " in err
    assert stored(tiny)[0] == rows
    assert Store.open(tiny, write=False).without_curves() == {ids[1]}


def test_trials_that_fail_keep_what_is_stored(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = folder / "results" / "tiny"
    rows, ids = stored(tiny)[0], ids_of(tiny)
    without(tiny / "curves.parquet", ids)
    (tiny / "curves.parquet").write_bytes(b"")
    monkeypatch.setattr(drive, "make_executor", lambda placement: Fails(1))
    code, _, err = hpxfer(capsys, *command(folder, OPTION))
    assert code == 1
    assert ": failed: Traceback: a bug" in err
    assert ": has no curves" in err
    assert stored(tiny)[0] == rows


def test_where_nothing_is_lost_nothing_is_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = stored(folder / "results" / "tiny")
    code, _, err = hpxfer(capsys, *command(folder, OPTION))
    assert code == 0
    assert "no trial has lost its curves; nothing is trained" in err
    assert stored(folder / "results" / "tiny") == before
