"""A trial whose curves are lost is missing: a run trains it again, and refuses a result that is not the stored one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_results import stored
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.results import load_results

FEW = (
    ("width: [16, 32]", "width: [16]"),
    ("parameterizations: [completep-moe, sp]", "parameterizations: [sp]"),
    ("workers: 2", "workers: 1"),  # each is a process that imports torch
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder, *FEW), results=folder)
    return folder


@pytest.fixture
def folder(done: Path, tmp_path: Path) -> Path:
    """The folder of a finished sweep of one shape: tiny.yaml, and its results in `tiny`."""
    return Path(shutil.copytree(done, tmp_path / "x"))


@pytest.mark.first
@pytest.mark.parametrize("how", ["cut off", "gone"])
def test_lost_curves_come_back_and_the_results_stay(folder: Path, how: str) -> None:
    tiny, path = folder / "tiny", folder / "tiny" / "curves.parquet"
    losses, curves = load_results(tiny).trials.set_index("trial_id")["validation_loss_nats"], stored(tiny)[1]
    path.unlink() if how == "gone" else path.write_bytes(path.read_bytes()[:-100])
    ready = prepare(folder / "tiny.yaml", results=folder)
    assert (len(ready.missing), ready.plan.num_done) == (len(losses), 0)
    lost = f"{tiny}: {len(losses)} trials have lost their curves; a run trains them again"
    assert lost in ready.problems
    assert lost in load_results(tiny).problems
    assert prepare(folder / "tiny.yaml", results=folder, overrides=["resources.curves=none"]).missing == ()
    assert len(prepare(folder / "tiny.yaml", results=folder / "new", reuse=[tiny]).missing) == len(losses)
    found = run(folder / "tiny.yaml", results=folder)
    assert found.trials.set_index("trial_id")["validation_loss_nats"].equals(losses)
    assert stored(tiny)[1] == curves
    assert lost not in found.problems
    assert prepare(folder / "tiny.yaml", results=folder).missing == ()


@pytest.mark.slow
def test_another_result_is_refused(folder: Path) -> None:
    tiny, path = folder / "tiny", folder / "tiny" / "trials.parquet"
    (tiny / "curves.parquet").unlink()
    table = pq.read_table(path)
    at = table.column_names.index("validation_loss_nats")
    losses = [loss + 2.0**-40 for loss in table.column(at).to_pylist()]
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array(losses)), path, compression="zstd")
    with pytest.raises(HpxferError, match="it must come out as stored, finished with validation_loss_nats"):
        run(folder / "tiny.yaml", results=folder)
    assert load_results(tiny).trials["validation_loss_nats"].tolist() == losses
