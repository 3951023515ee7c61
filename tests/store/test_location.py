"""Results in storage, on a real S3 server: the mirror wherever a push is cut, and commands with URIs for folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer
from fixture_types import Capsys, Patch
from made_executors import Made
from obstore.store import MemoryStore
from s3_server import Server
from store_rows import SPEC, abandon, num_points, planted_pairs, stored
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.executors.executor import More, OnEvent, Trains
from hpxfer.results import load_results
from hpxfer.storage import objects
from hpxfer.storage.lease import leased
from hpxfer.storage.objects import Bucket
from hpxfer.store import Store
from hpxfer.store.location import Mirror, location_at
from hpxfer.trial.events import Ended, Event
from hpxfer.trial.stack import Stack

Names = Callable[[str], list[str]]


class Killed(BaseException):
    """The process ends here."""


def opened(root: str) -> Mirror:
    return location_at(root, "small")


def mirrors(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("run-*"))


def test_what_is_pushed_is_there_for_the_next(s3: str, s3_names: Names, tmp_path: Path) -> None:
    pairs = planted_pairs()
    location = opened(s3)
    assert stored(location.folder) == {}
    location.begin()
    store = Store.open(location.folder, write=True)
    store.save_sweep(SPEC, "0123456789abcdef")
    for pair in pairs[:3]:
        store.append([pair])
        location.push()
    assert s3_names("small") == [
        *(f"{kind}-00000{number}.parquet" for kind in ("curves",) for number in (1, 2, 3)),
        "sweep.yaml",
        *(f"trials-00000{number}.parquet" for number in (1, 2, 3)),
    ]
    other = location_at(f"{s3}/small/")
    assert set(stored(other.folder)) == {trial.id for trial, _ in pairs[:3]}
    store.compact()
    location.push()
    assert s3_names("small") == ["curves.parquet", "sweep.yaml", "trials.parquet"]
    other.refresh()
    assert set(stored(other.folder)) == {trial.id for trial, _ in pairs[:3]}
    assert num_points(other.folder) == num_points(location.folder) > 0
    location.close()
    other.close()
    assert mirrors(tmp_path) == []


def test_a_push_that_has_nothing_new_asks_for_nothing(s3: str, monkeypatch: Patch) -> None:
    location = opened(s3)
    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    location.push()
    asked: list[str] = []
    for name in ("write", "stamps"):
        monkeypatch.setattr(Bucket, name, lambda *_, name=name: asked.append(name))
    location.push()
    assert asked == []


def number_of_steps(s3: str, monkeypatch: Patch, stop: int | None) -> tuple[int, Mirror]:
    """Store, merge and store again, and push each time; end like a killed process before step `stop` in the storage."""
    steps = 0
    plain = {name: getattr(Bucket, name) for name in ("write", "remove")}

    def counted(name: str) -> Any:
        def step(*args: Any, **kwargs: Any) -> None:
            nonlocal steps
            if steps == stop:
                raise Killed
            steps += 1
            plain[name](*args, **kwargs)

        return step

    location = opened(s3)
    location.begin()
    pairs = planted_pairs()
    store = Store.open(location.folder, write=True)
    store.save_sweep(SPEC, "0123456789abcdef")
    with monkeypatch.context() as patch:
        for name in plain:
            patch.setattr(Bucket, name, counted(name))
        try:
            for pair in pairs[:2]:
                store.append([pair])
                location.push()
            store.compact()
            location.push()
            store.append([pairs[2]])
            store.compact()
            location.push()
        except Killed:
            pass
    return steps, location


@pytest.mark.slow
@pytest.mark.parametrize("server", ["s3", "memory"])
def test_a_kill_before_any_step_of_a_push_loses_nothing(s3: str, server: str, monkeypatch: Patch) -> None:
    if server == "memory":
        memory = MemoryStore()
        monkeypatch.setattr(objects, "_store", lambda uri, patient: memory)
    total, location = number_of_steps(f"{s3}/whole", monkeypatch, None)
    want, points = stored(location.folder), num_points(location.folder)
    assert len(want) == 3
    assert total >= 12
    for stop in range(total) if server == "memory" else (3, total - 3):
        root = f"{s3}/{stop}"
        _, killed = number_of_steps(root, monkeypatch, stop)
        had = stored(killed.folder)
        # Elsewhere, what had come home is read, each trial once and whole.
        far = location_at(f"{root}/small")
        assert stored(far.folder).items() <= had.items()
        assert [
            problem for problem in Store.open(far.folder, write=False).problems if "has no trials file" not in problem
        ] == []
        # On this machine the next run pushes the rest.
        abandon(killed)
        following = opened(root)
        following.begin()
        assert stored(following.folder) == had
        assert Store.open(following.folder, write=False).problems == []
        assert not killed.folder.parent.exists()
        assert stored(location_at(f"{root}/small").folder) == had
        store = Store.open(following.folder, write=True)
        store.append([pair for pair in planted_pairs()[:3] if pair[0].id not in had])
        store.compact()
        following.push()
        again = location_at(f"{root}/small").folder
        assert stored(again) == want
        assert num_points(again) == points


def test_a_mirror_that_lives_is_left_alone(s3: str) -> None:
    alive, following = opened(s3), opened(s3)
    Store.open(alive.folder, write=True).append(planted_pairs()[:1])
    following.begin()
    assert stored(following.folder) == {}
    alive.push()
    following.refresh()
    assert len(stored(following.folder)) == 1


def test_two_that_write_the_same_part_overwrite_nothing(s3: str) -> None:
    first, second = opened(s3), opened(s3)
    pairs = planted_pairs()
    Store.open(first.folder, write=True).append(pairs[:1])
    Store.open(second.folder, write=True).append(pairs[1:2])
    first.push()
    with pytest.raises(HpxferError, match="written by another run") as error:
        second.push()
    assert str(second.folder.parent) in str(error.value)
    assert set(stored(location_at(f"{s3}/small").folder)) == {pairs[0][0].id}
    abandon(second)
    following = opened(s3)
    following.begin()
    assert set(stored(location_at(f"{s3}/small").folder)) == {trial.id for trial, _ in pairs[:2]}


@pytest.mark.parametrize("lost_at", [2, 3])
def test_a_driver_that_loses_its_lease_within_a_push_writes_no_further_file(
    lost_at: int, s3: str, s3_names: Names
) -> None:
    """The first question is asked before the push, and one before each file."""
    location, asked = opened(s3), []

    def check() -> None:
        asked.append(s3_names("small"))
        if len(asked) == lost_at:
            raise HpxferError("the lease was taken over")

    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    with pytest.raises(HpxferError, match="taken over"):
        location.push(check)
    assert s3_names("small") == asked[-1] == ["curves-000001.parquet"][: lost_at - 2]


def test_a_reader_is_not_misled_by_files_that_are_merged_meanwhile(s3: str, monkeypatch: Patch) -> None:
    writer = opened(s3)
    store = Store.open(writer.folder, write=True)
    for pair in planted_pairs()[:2]:
        store.append([pair])
    writer.push()
    fetch, merged = Bucket.fetch, []

    def overtaken(self: Bucket, name: str, target: Path) -> None:
        if not merged:
            merged.append(name)
            store.compact()
            writer.push()
        fetch(self, name, target)

    monkeypatch.setattr(Bucket, "fetch", overtaken)
    assert len(stored(location_at(f"{s3}/small").folder)) == 2


@pytest.mark.slow
def test_a_network_that_is_down_is_waited_for(s3: str, s3_server: Server) -> None:
    location = opened(s3)
    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    s3_server.stop()
    back = threading.Timer(2.0, s3_server.start)
    back.start()
    location.push(lambda: None)
    back.join()
    assert len(stored(location_at(f"{s3}/small").folder)) == 1


def test_what_waiting_does_not_mend_is_said_at_once(s3: str, s3_server: Server) -> None:
    location = opened(s3)
    Store.open(location.folder, write=True).append(planted_pairs()[:1])
    with s3_server.forbidding(), pytest.raises(HpxferError, match="does not exist in our records") as error:
        location.push()
    assert str(location.folder.parent) in str(error.value)
    location.close()
    assert location.folder.exists()


def test_what_nothing_reads_is_not_mirrored(s3: str, s3_names: Names) -> None:
    opened(s3)._bucket.write("notes.txt", b"x")
    location = opened(s3)
    location.begin()
    location.push()
    assert s3_names("small") == ["notes.txt"]
    assert not (location.folder / "notes.txt").exists()


def test_a_damaged_part_of_a_dead_process_is_named_and_not_lost(s3: str, s3_names: Names) -> None:
    killed = opened(s3)
    Store.open(killed.folder, write=True).append(planted_pairs()[:1])
    (killed.folder / "trials-000001.parquet").write_bytes(b"PAR1")
    abandon(killed)
    following = opened(s3)
    following.begin()
    assert s3_names("small") == ["curves-000001.parquet", "trials-000001.parquet"]
    (problem,) = Store.open(following.folder, write=False).problems
    assert "trials-000001.parquet: not a whole Parquet file" in problem
    assert not killed.folder.parent.exists()


def test_what_a_user_removed_from_the_bucket_stays_away(s3: str, s3_names: Names) -> None:
    """A mirror that a killed process left behind holds nothing that the bucket has not had."""
    killed = opened(s3)
    Store.open(killed.folder, write=True).append(planted_pairs()[:1])
    killed.push()
    for name in s3_names("small"):
        killed._bucket.remove(name)
    abandon(killed)
    following = opened(s3)
    following.begin()
    assert stored(following.folder) == {}
    assert s3_names("small") == []
    assert not killed.folder.parent.exists()


SMALL = (("width: [16, 32]", "width: [16]"), ("log2: [-8, -4]", "log2: [-6, -5]"), ("workers: 2", "workers: 1"))
NUM_TRIALS = 4


@pytest.mark.slow
def test_a_sweep_is_run_read_and_not_run_again(
    s3: str, s3_names: Names, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
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
        patch.setattr("hpxfer.driver.drive.Run", None)  # nothing is trained
        code, out, err = hpxfer(capsys, "run", sweep)
    assert (code, err) == (0, "")
    assert f"{NUM_TRIALS} trials, all done" in out
    assert str(tmp_path / "cache") not in out
    code, out, err = hpxfer(capsys, "report", f"{s3}/tiny", "--format", "json")
    assert (code, err) == (0, "")
    assert (tmp_path / "report" / "report.json").exists()
    assert s3_names("tiny") == names
    code, out, _ = hpxfer(capsys, "watch", f"{s3}/tiny", "--once")
    assert (code, f"{s3}/tiny: the run has ended; {NUM_TRIALS} trials are stored" in out) == (0, True)
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_a_second_driver_is_refused(s3: str, tmp_path: Path, capsys: Capsys) -> None:
    sweep = write_tiny(tmp_path, *SMALL)
    location = location_at(s3, "tiny")
    with leased(location.lease_storage, location.where, bump_s=0.2):
        code, _, err = hpxfer(capsys, "run", sweep, "--results", s3)
    assert (code, f"hpxfer: {s3}/tiny: in use by process {os.getpid()} on host" in err) == (2, True)


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on(s3: str, tmp_path: Path, capsys: Capsys) -> None:
    one_by_one = ("workers: 2", "workers: 1, stack_size: 1")
    sweep = write_tiny(tmp_path, *SMALL[:2], one_by_one, ("steps: 6", "steps: 60"))
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", s3]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    location = location_at(s3, "tiny")
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


class OneByOne(Made):
    """An executor that makes results up, and calls `after` when those of a stack have been stored."""

    def __init__(self, after: Callable[[int], object] = lambda number: None) -> None:
        super().__init__()
        self.after = after

    def run(self, more: More, train: Trains, on_event: OnEvent) -> None:
        def then(stack: Stack, event: Event) -> None:
            on_event(stack, event)
            if isinstance(event, Ended):
                self.after(len(self.given))

        super().run(more, train, then)

    def ids(self) -> set[str]:
        return {trial.id for stack in self.given for trial in stack.trials}


@pytest.mark.slow
def test_a_run_that_loses_its_storage_goes_on(s3: str, s3_server: Server, tmp_path: Path) -> None:
    job = prepare(write_tiny(tmp_path, ("workers: 2", "workers: 2, stack_size: 4")), results=s3)
    assert isinstance(job.location, Mirror)
    with ExitStack() as stack:
        cut = OneByOne(lambda number: stack.enter_context(s3_server.forbidding()) if number == 2 else None)
        with pytest.raises(HpxferError, match="results cannot be written") as error:
            run(job, executor=cut)
    mirror = job.folder.parent
    assert f"what is not pushed yet is in {mirror}; the same command" in str(error.value)
    abandon(job.location)
    far = location_at(s3, "tiny")
    far.lease_storage.drop(far.lease_storage.read() or b"")  # it names this process, which lives
    assert len(cut.given) == 3  # that were trained
    assert len(stored(far.folder)) == sum(len(stack.trials) for stack in cut.given[:2])
    again = OneByOne()
    results = run(prepare(job.spec, results=s3), executor=again)
    assert set(results.trials["status"]) == {"finished"}
    assert again.ids().isdisjoint(cut.ids())
    assert set(results.trials["trial_id"]) == cut.ids() | again.ids()
    assert not mirror.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root", "said"),
    [
        ("s3://nowhere-7f3a/prefix", "The specified bucket does not exist (NoSuchBucket); check its name"),
        ("s3://bucket/prefix?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1", "error sending request"),
        (None, "does not exist in our records"),  # no rights
        ("qqq://bucket/prefix", "or a URI with one of s3://, gs://, az://"),
        ("s3://AKIA:s3cr3t@bucket/prefix", "must hold no credentials"),
    ],
)
def test_storage_that_cannot_be_had_is_one_message(
    root: str | None, said: str, s3: str, s3_server: Server, tmp_path: Path, capsys: Capsys
) -> None:
    sweep = write_tiny(tmp_path, *SMALL)
    with s3_server.forbidding() if root is None else nullcontext():
        for command in (("plan", sweep, "--results"), *([] if said == "error sending request" else [("report",)])):
            code, out, err = hpxfer(capsys, *command, root or s3)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert said in err
            assert "s3cr3t" not in err


@pytest.mark.slow
def test_results_that_are_not_there_and_results_elsewhere(s3: str, tmp_path: Path, capsys: Capsys) -> None:
    for command in (["report"], ["recipe", "write"]):
        code, _, err = hpxfer(capsys, *command, f"{s3}/tiny")
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"hpxfer: {s3}/tiny: must be a results folder with sweep.yaml")
    sweep = write_tiny(tmp_path)
    sweep.write_text(f"{sweep.read_text()}storage: '{s3}'\n")
    assert prepare(sweep).location.where == f"{s3}/tiny"
    assert prepare(sweep, results=tmp_path).location.where == str(tmp_path / "tiny")
