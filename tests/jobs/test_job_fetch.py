"""Fetching: what a job stored comes home once, and nothing that is here already is lost. Without Ray."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer
from far_cluster import ADDRESS, JOB, Far
from made_results import DIGEST, SPEC, files, made, stored, trials_of

from hpxfer.errors import HpxferError
from hpxfer.jobs import answers, client
from hpxfer.jobs.commands import ROOT_KEY, SWEEP_KEY, fetch
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.store import Store


def store(folder: Path, *pairs: Any, spec: SweepSpec = SPEC) -> Store:
    found = Store.open(folder, write=True)
    found.append(pairs)
    found.save_sweep(spec, DIGEST)
    return found


TRIALS = trials_of()
FIRST, SECOND, THIRD = (made(trial) for trial in TRIALS[:3])
NOTHING = f"{JOB}: is RUNNING, and no trial of it has finished; see `ray job logs --address {ADDRESS} {JOB}`"


def bring(far: Far, results: Path) -> Any:
    return fetch(far, JOB, results)  # type: ignore[arg-type]


def test_results_come_home_as_they_are(tmp_path: Path) -> None:
    far = Far(tmp_path / "far")
    store(tmp_path / "far" / SPEC.name, FIRST, made(TRIALS[1], "diverged"))
    found = bring(far, tmp_path / "here")
    assert (found.folder, found.num_new, found.num_known) == (tmp_path / "here" / SPEC.name, 2, 0)
    assert stored(found.folder) == stored(tmp_path / "far" / SPEC.name)
    assert load_sweep(found.folder / "sweep.yaml").data.digest == DIGEST
    assert far.asked == ["fetch"]
    again = bring(far, tmp_path / "here")
    assert (again.num_new, again.num_known) == (0, 2)


def test_results_that_are_here_stay_and_the_sweep_that_was_here_is_kept(tmp_path: Path) -> None:
    mine = made(TRIALS[0], at=5)
    other = SPEC.model_copy(update={"seeds": (0, 1, 2, 3)})
    here = store(tmp_path / "here" / SPEC.name, mine, spec=other)
    store(tmp_path / "far" / SPEC.name, FIRST, SECOND)
    found = bring(Far(tmp_path / "far"), tmp_path / "here")
    assert (found.num_new, found.num_known) == (1, 1)
    losses = {row["trial_id"]: row["validation_loss_nats"] for row in here.read_trials().to_pylist()}
    assert losses == {
        mine[0].id: mine[1].validation_loss_nats,
        SECOND[0].id: SECOND[1].validation_loss_nats,
    }
    kept = [load_sweep(path).seeds for path in found.folder.glob("sweep-*.yaml")]
    assert kept == [(0, 1, 2, 3)]


def test_a_failed_trial_here_gives_way_to_a_finished_one(tmp_path: Path) -> None:
    here = store(tmp_path / "here" / SPEC.name, made(TRIALS[0], "failed"))
    store(tmp_path / "far" / SPEC.name, FIRST, made(TRIALS[1], "failed"))
    assert bring(Far(tmp_path / "far"), tmp_path / "here").num_new == 1
    assert here.done_ids() == {TRIALS[0].id}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_folder_that_both_see_is_read_where_it_is(scheme: str, tmp_path: Path) -> None:
    root = f"{scheme}{tmp_path / 'shared'}"
    far = Far(tmp_path / "shared", metadata={SWEEP_KEY: SPEC.name, ROOT_KEY: root})
    store(tmp_path / "shared" / SPEC.name, FIRST)
    (tmp_path / "shared" / SPEC.name / "jobs.txt").write_text(f"hpxfer-other-1\n{JOB}\n")
    assert bring(far, tmp_path / "here").num_new == 1
    before = files(tmp_path / "shared" / SPEC.name)
    assert bring(far, tmp_path / "shared").num_known == 1  # into itself: there is nothing to bring
    assert files(tmp_path / "shared" / SPEC.name) == before
    assert far.asked == []


def test_a_folder_of_the_same_path_on_another_machine_is_not_taken_for_the_jobs(tmp_path: Path) -> None:
    far = Far(tmp_path / "far")
    store(tmp_path / "far" / SPEC.name, FIRST)
    (tmp_path / "far" / SPEC.name / "jobs.txt").write_text(f"{JOB}-of-another-name\n")
    bring(far, tmp_path / "here")
    assert far.asked == ["fetch"]


@pytest.mark.parametrize("left", ["nothing", "mark", "sweep", "failed trials"])
@pytest.mark.parametrize("seen", [True, False], ids=["shared", "far"])
def test_a_job_without_results_brings_none(left: str, seen: bool, tmp_path: Path) -> None:
    """Whatever the job has left, and whether this machine sees its folder or not, nothing is written here."""
    folder = tmp_path / "far" / SPEC.name
    if left != "nothing":
        folder.mkdir(parents=True)
    if seen and left != "nothing":
        (folder / "jobs.txt").write_text(f"{JOB}\n")
    if left == "sweep":
        Store.open(folder, write=True).save_sweep(SPEC, DIGEST)
    if left == "failed trials":
        store(folder, made(TRIALS[0], "failed"))
    for here in ("here", "far"):
        before = set(tmp_path.rglob("*"))
        with pytest.raises(HpxferError, match=NOTHING):
            bring(Far(tmp_path / "far", "RUNNING"), tmp_path / here)
        assert set(tmp_path.rglob("*")) == before


def test_a_job_of_someone_else_has_nothing_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(
        HpxferError, match=r"must be a job of `hpxfer submit`, got another.* `ray job list --address http://head:8265`"
    ):
        bring(Far(tmp_path / "far", metadata={"name": "theirs"}), tmp_path / "here")


def test_too_much_for_a_log_is_said_before_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_FETCH_BYTES", 1000)
    store(tmp_path / "far" / SPEC.name, FIRST)
    with pytest.raises(HpxferError, match="a job's log carries at most"):
        bring(Far(tmp_path / "far"), tmp_path / "here")


def test_names_in_an_answer_stay_inside_the_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = {"../../harm.parquet": b"x"}
    monkeypatch.setattr(answers, "files_of", lambda folder: sent)
    with pytest.raises(HpxferError, match="sent a file of another name"):
        bring(Far(tmp_path / "far"), tmp_path / "here")
    assert not list(tmp_path.rglob("harm.parquet"))


def test_the_command_names_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    far, here = Far(tmp_path / "far", "RUNNING"), tmp_path / "my results"
    monkeypatch.setattr(client, "connect", lambda address: far)
    command = ("fetch", JOB, "--address", ADDRESS, "--results", here)
    assert hpxfer(capsys, *command) == (2, "", f"hpxfer: {NOTHING}\n")
    assert not here.exists()
    store(tmp_path / "far" / SPEC.name, FIRST)
    code, out, err = hpxfer(capsys, *command)
    assert (code, out) == (0, f"{here}/{SPEC.name}: 1 trials are new, 0 were here\n")
    assert shlex.split(err.removeprefix("next: ")) == ["hpxfer", "report", f"{here}/{SPEC.name}"]
