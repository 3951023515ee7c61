"""The promise of docs/compatibility.md: folders, sweeps and recipes that earlier versions wrote are read.

The archives hold the trials, the sweep and the recipe of the quickstart as versions 2 and 3 of the store wrote them,
made-up results of version 7, and those of a small command as its own trainer of version 8.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from hpxfer import Recipe, load_results, transfer_report
from hpxfer.spec import load_sweep
from hpxfer.store.schema import OLDEST_VERSION, SCHEMA_VERSION, VERSION_KEY

HERE = Path(__file__).parent
PUBLISHED = HERE.parents[1] / "results" / "published" / "quickstart"
LEGACY = HERE.parent / "rekey" / "legacy.tar.xz"
# version of the store's schema -> what holds it, the number of trials, the parameterization -> verdict
STORED = {
    # Two seeds: the loss given up is not known to 1% of the loss, so that nothing is said to transfer.
    2: (HERE / "schema-2.tar.xz", 60, {"completep-moe": "undecided", "sp": "drifts"}),
    3: (HERE / "schema-3.tar.xz", 60, {"completep-moe": "undecided", "sp": "drifts"}),
    4: (LEGACY, None, None),
    5: (PUBLISHED, 180, {"completep-moe": "transfers", "sp": "drifts"}),
    6: (PUBLISHED.parent / "init_matrices_300", 72, {"completep-moe": "undecided"}),
    7: (HERE / "schema-7.tar.xz", None, None),
    # A user's own trainer with arms of its own.
    8: (HERE / "schema-8.tar.xz", 84, {"own:scaled": "transfers", "own:plain": "drifts"}),
}


def folder_of(version: int, tmp_path: Path) -> Path:
    source = STORED[version][0]
    if source.is_dir():
        return Path(shutil.copytree(source, tmp_path / "quickstart"))
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path if (tmp_path / "sweep.yaml").exists() else tmp_path / "quickstart"


def test_every_version_that_is_read_has_a_stored_folder() -> None:
    assert list(STORED) == list(range(OLDEST_VERSION, SCHEMA_VERSION + 1))


@pytest.mark.parametrize("version", STORED)
def test_a_folder_of_each_version_gives_its_verdict(version: int, tmp_path: Path) -> None:
    _, num_trials, verdicts = STORED[version]
    folder = folder_of(version, tmp_path)
    assert pq.read_schema(folder / "trials.parquet").metadata[VERSION_KEY] == str(version).encode()
    results = load_results(folder)
    # The archives leave the curves out, and nothing else is amiss.
    assert [text for text in results.problems if "have lost their curves" not in text] == []
    assert bool(results.problems) == (not (folder / "curves.parquet").exists())
    assert set(results.trials["trial_id"]) & set(results.cells["trial_id"])
    if num_trials is not None:
        assert set(results.cells["status"]) == {"finished"}
        assert len(results.trials) == num_trials
        assert {finding.parameterization: finding.verdict for finding in transfer_report(results).findings} == verdicts


@pytest.mark.parametrize("version", [2, 3, 5])
def test_sweep_and_recipe_of_each_version_load(version: int, tmp_path: Path) -> None:
    folder = folder_of(version, tmp_path)
    assert load_sweep(folder / "sweep.yaml").name == "quickstart"
    recipe = Recipe.load(folder / "recipe.yaml")
    assert recipe.file.hps.lr == pytest.approx(2**-6, rel=1e-3)
