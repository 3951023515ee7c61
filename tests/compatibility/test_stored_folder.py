"""The promise of docs/compatibility.md: a folder of this format, made-up results of a user's own trainer, is read."""

from __future__ import annotations

import tarfile
from pathlib import Path

from hpxfer import Recipe, load_results, transfer_report

ARCHIVE = Path(__file__).with_name("stored.tar.xz")


def test_a_stored_folder_gives_its_verdict_and_its_recipe(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    results = load_results(tmp_path)
    assert set(results.cells["status"]) == {"finished"}
    assert len(results.trials) == 84
    verdicts = {finding.parameterization: finding.verdict for finding in transfer_report(results).findings}
    assert verdicts == {"own:scaled": "transfers", "own:plain": "drifts"}
    assert Recipe.load(tmp_path / "recipe.yaml").file.parameterization.name == "own:scaled"
