"""Files of a few kilobytes that stand for gigabytes are passed over, and what is stored can always be read again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fixture_types import Patch
from made_results import files, made, trials_of

from hpxfer.errors import HpxferError
from hpxfer.store import CURVES, TRIALS, Store
from hpxfer.store.parquet import MOST_ERROR_BYTES, MOST_NAME_BYTES, MOST_ROW_TEXT_BYTES, MOST_TEXT_BYTES, shortened
from hpxfer.store.rows import trials_table

TRIALS_OF_SPEC = trials_of()
ROW = trials_table([made(TRIALS_OF_SPEC[0])]).to_pylist()[0]
# Reads a folder as `report` and `run` do, and prints its peak memory in bytes.
READER = """
import re, sys
from pathlib import Path
from hpxfer.store import Store
store = Store.open(Path(sys.argv[1]), write=False)
frame = store.read_trials().to_pandas()
store.done_ids(), store.outcomes("validation_loss_nats"), store.read_curves().to_pandas()
(peak,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(len(frame), len(store.problems), int(peak) * 1024)
"""


def forge_trials(path: Path, num_rows: int, **changed: Any) -> None:
    """Write one row many times. Each of its texts is in the file once."""
    row = ROW | changed
    columns = []
    for field in TRIALS:
        text = field.type == pa.string()
        kind = pa.dictionary(pa.int32(), pa.string()) if text else field.type
        value = pa.array([row[field.name]], field.type)
        columns.append((value.dictionary_encode().cast(kind) if text else value).take(pa.array([0] * num_rows)))
    table = pa.table(columns, names=TRIALS.names)
    # Without Arrow's own schema, which would say that the texts are dictionaries.
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(TRIALS.metadata)


def forge_curves(path: Path, num_rows: int) -> None:
    row = {"trial_id": TRIALS_OF_SPEC[0].id, "metric": "loss", "layer": 0, "role": None, "step": 1, "value": 1.0}
    group = pa.Table.from_pylist([row], schema=CURVES).take(pa.array([0]).take(pa.array([0] * 2**20)))
    with pq.ParquetWriter(path, CURVES, compression="zstd") as writer:
        for _ in range(num_rows // 2**20):
            writer.write_table(group)


FORGED = {
    "a huge name": ({"num_rows": 1000, "host": "x" * 10_000_000}, "column host has a text of 10000000 bytes"),
    "a huge JSON text": ({"num_rows": 1000, "resolved": "x" * 10_000_000}, "column resolved has a text of 10000000"),
    "long texts in every row": ({"num_rows": 1200, "setting": "x" * 1_000_000}, "1200 rows hold 12"),
    "more rows than bytes": ({"num_rows": 100_000}, "has 100000 rows in "),
    "a file of zeros": ({"num_rows": 1, "resolved": "x" * 120_000_000}, "unpacks to "),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FORGED)
def test_what_asks_for_too_much_memory_is_passed_over(tmp_path: Path, case: str) -> None:
    how, why = FORGED[case]
    store = Store.open(tmp_path, write=True)
    store.append([made(trial) for trial in TRIALS_OF_SPEC[:2]])
    path = tmp_path / "trials-000002.parquet"
    forge_trials(path, **how)
    content = path.read_bytes()
    store = Store.open(tmp_path, write=True)
    assert store.done_ids() == {trial.id for trial in TRIALS_OF_SPEC[:2]}
    assert len(store.read_trials()) == 2
    store.append([made(TRIALS_OF_SPEC[2])])
    store.compact()
    assert path.read_bytes() == content
    (problem,) = store.problems
    assert problem.startswith(f"{path}: ")
    assert why in problem
    assert len(problem) < 400


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of one program is read from /proc")
def test_the_peak_of_memory_is_bounded(tmp_path: Path) -> None:
    Store.open(tmp_path, write=True).append([made(trial) for trial in TRIALS_OF_SPEC[:2]])
    forged = [how for how, _ in FORGED.values()]
    for number, how in enumerate(forged, 2):
        forge_trials(tmp_path / f"trials-{number:06d}.parquet", **how)
    forge_curves(tmp_path / "curves-000002.parquet", 12 * 2**20)
    assert sum(map(len, files(tmp_path).values())) < 2_000_000
    found = subprocess.run([sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, check=True)
    rows, problems, peak = map(int, found.stdout.split())
    assert (rows, problems) == (2, 1 + len(forged))
    assert peak < 700_000_000  # 0.2 GB of it are the libraries


@pytest.mark.parametrize("column", [pa.array([["a"]]), pa.array([b"a"]), pa.array([None])])
def test_a_column_of_another_type_is_passed_over(tmp_path: Path, column: pa.Array) -> None:
    Store.open(tmp_path, write=True).append([made(TRIALS_OF_SPEC[0])])
    table = trials_table([made(TRIALS_OF_SPEC[1])])
    at = table.column_names.index("resolved")
    pq.write_table(table.set_column(at, "resolved", column), tmp_path / "trials-000002.parquet")
    store = Store.open(tmp_path, write=False)
    assert store.done_ids() == {TRIALS_OF_SPEC[0].id}
    assert "has no column resolved of type string" in store.problems[0]


def test_long_texts_in_reasonable_number_are_read(tmp_path: Path) -> None:
    forge_trials(tmp_path / "trials.parquet", 10, setting="x" * 60_000)
    store = Store.open(tmp_path, write=False)
    assert store.read_trials()["setting"].to_pylist() == ["x" * 60_000]  # of one id, one row counts
    assert store.problems == []


@pytest.mark.parametrize("character", ["x", "\u20ac"])
def test_a_long_error_is_stored_without_its_middle(tmp_path: Path, character: str) -> None:
    trial, result = made(TRIALS_OF_SPEC[0], "failed")
    text = "Traceback: first" + character * 10_000_000 + "last line"
    store = Store.open(tmp_path, write=True)
    store.append([(trial, replace(result, error=text))])
    (kept,) = store.read_trials(["error"])["error"].to_pylist()
    assert kept.startswith("Traceback: first")
    assert kept.endswith("last line")
    assert " bytes are left out " in kept
    assert len(kept.encode()) <= MOST_ERROR_BYTES
    assert shortened("short" * 10) == "short" * 10
    assert shortened("x" * MOST_ERROR_BYTES) == "x" * MOST_ERROR_BYTES


def test_what_could_not_be_read_again_is_never_stored(tmp_path: Path, monkeypatch: Patch) -> None:
    trial, result = made(TRIALS_OF_SPEC[0])
    store = Store.open(tmp_path, write=True)
    with pytest.raises(HpxferError, match=f"column device has a text of 5000 bytes, and at most {MOST_NAME_BYTES}"):
        store.append([(trial, replace(result, device="x" * 5000))])
    long = replace(trial, plugins=(("data:x", "y" * MOST_ROW_TEXT_BYTES),))
    with pytest.raises(HpxferError, match=f"bytes of text, and at most {MOST_ROW_TEXT_BYTES} per row"):
        store.append([(long, result), *(made(trial) for trial in TRIALS_OF_SPEC[1:4])])  # on average they are short
    assert 2 * MOST_ROW_TEXT_BYTES < MOST_TEXT_BYTES
    assert len(store.read_trials()) == 0
