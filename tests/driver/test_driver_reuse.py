"""Results of other folders are copied and not trained again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from driver_cases import InProcess, Made, trained
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError


def test_results_of_other_folders_are_copied_with_their_curves_and_not_trained(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    result = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=InProcess())
    before = {path.name: path.read_bytes() for path in result.folder.iterdir()}
    more = write_tiny(tmp_path, ("seeds: 2", "seeds: 3"), ("name: tiny", "name: other"))
    job = prepare(more, results=tmp_path, reuse=[result.folder])
    assert job.reuse.counts() == {str(result.folder): 30}
    assert (job.plan.num_done, len(job.missing)) == (30, 15)
    assert not job.folder.exists()
    executor = Made()
    results = run(job, executor=executor)
    assert trained(executor) == 15
    assert {path.name: path.read_bytes() for path in result.folder.iterdir()} == before
    copied = results.trials[results.trials["trial_id"].isin(result.trials["trial_id"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(copied, result.trials, check_dtype=False)  # made-up results lack some numbers
    of_one = results.curves[results.curves["trial_id"].isin(result.trials["trial_id"])]
    columns = ["metric", "layer", "role", "step", "value"]
    for trial_id in result.trials["trial_id"]:
        expected = result.curves[result.curves["trial_id"] == trial_id][columns].astype({"metric": str, "role": str})
        found = of_one[of_one["trial_id"] == trial_id][columns].astype({"metric": str, "role": str})
        pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))
    again = Made()
    run(more, results=tmp_path, reuse=[result.folder], executor=again)
    assert again.given == []


def test_what_a_reused_folder_can_give_no_more_is_trained(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    result = run(write_tiny(tmp_path / "one"), results=tmp_path / "one", executor=Made())
    job = prepare(write_tiny(tmp_path), results=tmp_path, reuse=[result.folder])
    assert job.reuse.counts() == {str(result.folder): 30}
    (result.folder / "trials.parquet").unlink()  # after a look at it
    executor = Made()
    assert len(run(job, executor=executor).trials) == trained(executor) == 30


def test_only_what_is_done_is_reused_and_the_first_folder_counts(tmp_path: Path) -> None:
    for name, fail in (("one", 4), ("two", 7)):
        (tmp_path / name).mkdir()
        run(write_tiny(tmp_path / name), results=tmp_path / name, executor=Made(fail=fail))
    sweep = write_tiny(tmp_path)
    job = prepare(sweep, results=tmp_path, reuse=[tmp_path / "one" / "tiny", tmp_path / "two" / "tiny"])
    counts = job.reuse.counts()
    assert counts[str(tmp_path / "one" / "tiny")] == 26
    executor = Made()
    run(job, executor=executor)
    assert trained(executor) == len(job.missing) == 30 - sum(counts.values())


def test_a_reused_folder_must_be_another_results_folder(tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    own = run(sweep, results=tmp_path, executor=Made()).folder
    with pytest.raises(HpxferError, match=r"must be a results folder with sweep\.yaml, got none"):
        prepare(sweep, results=tmp_path, reuse=[tmp_path])
    with pytest.raises(HpxferError, match="must be another folder than the sweep's own"):
        prepare(sweep, results=tmp_path, reuse=[own])
