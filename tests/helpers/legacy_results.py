"""A results folder as the last hpxfer with legacy ids left it, when it was killed.

`tests/rekey/legacy.tar.xz` was written by that version: six trials of a small grid, made up, not trained. Two are in
the compacted part, one finished and one failed in the first numbered part, the failed one finished in the second, and
the last two have a checkpoint.
"""

from __future__ import annotations

import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from made_results import DATA

from hpxfer.results import Results, load_results
from hpxfer.store import Store

ARCHIVE = Path(__file__).parents[1] / "rekey" / "legacy.tar.xz"
NUM_TRIALS, NUM_STORED = 6, 4


def legacy_folder(folder: Path) -> Path:
    """Unpack the results into a new folder and return it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def made_up_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the digest in the sweep file stand for its data: the results were made up, and no data has this digest."""
    monkeypatch.setattr("hpxfer.driver.prepared.data_ref", lambda *_: DATA)


def files(folder: Path) -> dict[str, bytes]:
    """Return path -> content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def seen(folder: Path) -> tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]:
    """Return all that is read of results: trials, curves, cells. A NaN equals itself."""
    store = Store.open(folder, write=False)
    cells = json.loads(load_results(folder).cells.to_json(orient="records"))
    return store.read_trials().to_pylist(), sorted(map(repr, store.read_curves().to_pylist())), cells


def sweep_ids(folder: Path) -> list[str]:
    """Return today's ids of the sweep's trials, by its expansion alone."""
    results: Results = load_results(folder)
    return [trial.id for trial in results.expansion.trials()]


def ids_in_files(folder: Path) -> set[str]:
    """Return the ids that stand in the Parquet files themselves, read without hpxfer."""
    return {trial_id for path in folder.glob("*.parquet") for trial_id in pq.read_table(path)["trial_id"].to_pylist()}


def checkpoint_parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the facts and the tensors of a checkpoint, read without hpxfer."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["facts"]), content[8 + size :]
