"""`hpxfer run` and what reads its results, with a URI for a folder, on a real S3 server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command_line import hpxfer
from s3_server import Server
from store_rows import abandon, stored
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Train
from hpxfer.results import load_results
from hpxfer.storage.lease import leased
from hpxfer.store import Store
from hpxfer.store.location import RemoteLocation, open_location
from hpxfer.trial.events import Ended
from hpxfer.trial.result import TrialResult

pytestmark = pytest.mark.slow

Names = Callable[[str], list[str]]
SMALL = (("width: [16, 32]", "width: [16]"), ("log2: [-8, -4]", "log2: [-6, -5]"), ("workers: 2", "workers: 1"))
NUM_TRIALS = 4


def test_a_sweep_is_run_read_and_not_run_again(
    s3: str, s3_names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = write_tiny(tmp_path, *SMALL)
    sweep.write_text(f"{sweep.read_text()}storage: '{s3}'\n")
    code, out, _ = hpxfer(capsys, "run", sweep, "--json")
    assert (code, json.loads(out)["num_failed"]) == (0, 0)
    assert f"{s3}/tiny/trials.parquet" in json.loads(out)["files"]
    names = s3_names("tiny")
    assert {"curves.parquet", "sweep.yaml", "transfer.png", "transfer.svg", "trials.parquet"} <= set(names)
    assert not [name for name in names if name.endswith(".tmp") or name == "lease.json"]
    there = load_results(f"{s3}/tiny")
    assert (len(there.trials), there.folder.name) == (NUM_TRIALS, "tiny")
    assert set(there.curves["trial_id"]) == set(there.trials["trial_id"])
    code, out, _ = hpxfer(capsys, "plan", sweep, "--json")
    assert json.loads(out)["num_done"] == NUM_TRIALS
    with monkeypatch.context() as patch:
        patch.setattr("hpxfer.driver.drive._train", None)  # nothing is trained
        code, out, err = hpxfer(capsys, "run", sweep)
    assert (code, err) == (0, "")
    assert f"{NUM_TRIALS} trials, all done" in out
    assert str(tmp_path / "cache") not in out
    code, out, err = hpxfer(capsys, "report", f"{s3}/tiny", "--format", "json")
    assert (code, err) == (0, "")
    assert (tmp_path / "report" / "report.json").exists()
    assert s3_names("tiny") == names
    code, out, _ = hpxfer(capsys, "watch", f"{s3}/tiny", "--once")
    assert code == 0
    assert f"{s3}/tiny: the run has ended; {NUM_TRIALS} trials are stored" in out
    assert not (tmp_path / "results").exists()


def test_a_second_driver_is_refused(s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = write_tiny(tmp_path, *SMALL)
    location = open_location(s3, "tiny")
    with leased(location.lease_storage, location.where, bump_s=0.2):
        code, _, err = hpxfer(capsys, "run", sweep, "--results", s3)
    assert code == 2
    assert f"hpxfer: {s3}/tiny: in use by process {os.getpid()} on host" in err


def test_a_driver_that_is_killed_goes_on(s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one_by_one = ("workers: 2", "workers: 1, stack_size: 1")
    sweep = write_tiny(tmp_path, *SMALL[:2], one_by_one, ("steps: 6", "steps: 60"))
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", s3]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    location = open_location(s3, "tiny")
    while not list(location.folder.glob("trials*.parquet")):
        ended = process.poll() is not None
        location.refresh()
        assert not ended or list(location.folder.glob("trials*.parquet")), process.communicate()[1]
    process.kill()
    process.communicate()
    location.refresh()
    before = Store.open(location.folder, write=False).read_trials().to_pylist()
    assert 1 <= len(before) <= NUM_TRIALS
    code, _, _ = hpxfer(capsys, "run", sweep, "--results", s3)
    assert code == 0
    location.refresh()
    after = {row["trial_id"]: row for row in Store.open(location.folder, write=False).read_trials().to_pylist()}
    assert len(after) == NUM_TRIALS
    assert all(after[row["trial_id"]] == row for row in before)


@dataclass
class OneByOne:
    """An executor that makes up a result for each stack, and calls `after` when it has been stored."""

    after: Callable[[int], None]
    given: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # of the stacks

    def run(self, more: More, train: Train, on_event: OnEvent) -> None:
        """See `Executor.run`."""
        for number, stack in enumerate(more(), 1):
            self.given += [trial.id for trial in stack.trials]
            self.sizes.append(len(stack.trials))
            on_event(
                stack,
                Ended(
                    results=tuple(
                        TrialResult(
                            trial_id=trial.id, status="finished", validation_loss_nats=2.0, final_window_loss_nats=2.0
                        )
                        for trial in stack.trials
                    )
                ),
            )
            self.after(number)


def test_a_run_that_loses_its_storage_goes_on(s3: str, s3_server: Server, tmp_path: Path) -> None:
    job = prepare(write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 4")), results=s3)
    assert isinstance(job.location, RemoteLocation)
    with ExitStack() as stack:
        cut = OneByOne(lambda number: stack.enter_context(s3_server.forbidding()) if number == 2 else None)
        with pytest.raises(HpxferError, match="results cannot be written") as error:
            run(job, executor=cut)
    mirror = job.folder.parent
    assert f"what is not pushed yet is in {mirror}; the same command" in str(error.value)
    abandon(job.location)
    far = open_location(s3, "tiny")
    far.lease_storage.drop(far.lease_storage.read() or b"")  # it names this process, which lives
    assert len(cut.sizes) == 3  # that were trained
    assert len(stored(far.folder)) == sum(cut.sizes[:2])
    again = OneByOne(lambda number: None)
    results = run(prepare(job.spec, results=s3), executor=again)
    assert set(results.trials["status"]) == {"finished"}
    assert set(again.given).isdisjoint(cut.given)
    assert set(results.trials["trial_id"]) == {*cut.given, *again.given}
    assert not mirror.exists()


def test_results_wins_over_storage(s3: str, tmp_path: Path) -> None:
    sweep = write_tiny(tmp_path)
    sweep.write_text(f"{sweep.read_text()}storage: '{s3}'\n")
    assert prepare(sweep).location.where == f"{s3}/tiny"
    assert prepare(sweep, results=tmp_path).location.where == str(tmp_path / "tiny")


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("no bucket", "there is no bucket nowhere-7f3a, or these credentials do not see it; check its name"),
        ("no server", "NETWORK_CONNECTION"),
        ("no rights", "does not exist in our records"),
        ("unknown scheme", "must be of a known scheme, got qqq://"),
        ("no package", "needs a package that is not installed"),
        ("credentials", "must hold no credentials"),
        ("read-only", "must be storage that can be written"),
    ],
)
def test_storage_that_cannot_be_had_is_one_message(
    case: str, said: str, s3: str, s3_server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = {
        "no bucket": "s3://nowhere-7f3a/prefix",
        "no server": "s3://bucket/prefix?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1",
        "unknown scheme": "qqq://bucket/prefix",
        "no package": "abfs://box@account.dfs.core.windows.net/prefix",
        "credentials": "s3://AKIA:s3cr3t@bucket/prefix",
        "read-only": "https://example.com/prefix",
    }
    sweep = write_tiny(tmp_path, *SMALL)
    with s3_server.forbidding() if case == "no rights" else nullcontext():
        for command in (("plan", sweep, "--results"), *([] if case == "no server" else [("report",)])):
            code, out, err = hpxfer(capsys, *command, roots.get(case, s3))
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert said in err
            assert "s3cr3t" not in err


def test_results_that_are_not_there_are_one_message(s3: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "recipe"):
        code, _, err = hpxfer(capsys, command, f"{s3}/tiny")
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"hpxfer: {s3}/tiny: must be the results of a sweep")


def test_results_in_storage_are_reused(s3: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = write_tiny(tmp_path, *SMALL)
    job = prepare(sweep, results=s3)
    run(job, executor=OneByOne(lambda number: None))
    reuse = ("--results", tmp_path / "other", "--reuse", f"{s3}/tiny")
    code, out, _ = hpxfer(capsys, "plan", sweep, *reuse)
    assert code == 0
    assert f"{NUM_TRIALS} trials are copied from {s3}/tiny" in out
