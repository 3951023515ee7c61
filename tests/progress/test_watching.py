"""Watching a run from another shell: what it says while it goes on, when it ends, and of a damaged report."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import hpxfer
from fixture_types import Capsys, Patch
from made_executors import Made
from made_results import DIGEST, SPEC, made, trials_of
from made_runs import Clock, planned, run_status, running_stack, shape_progress, stack_of
from tiny import write_tiny
from tiny_trials import BASE

from hpxfer.driver import run
from hpxfer.errors import HpxferError
from hpxfer.host.machine import machine_id, process_started
from hpxfer.progress.counts import RunCounts, writing
from hpxfer.progress.status import FILE, State, as_data, read, write
from hpxfer.progress.watch import GONE_S, RunView, view_now, views
from hpxfer.storage.lease import LEASE_FILE, Holder, LeaseFile, encoded
from hpxfer.store import Store
from hpxfer.store.location import location_at
from hpxfer.trial.events import Event, Progress
from hpxfer.trial.stack import Stack

POLLS = 20_000
OnEvent = Callable[[Stack, Event], None]


def put(folder: Path, state: State = "running", counter: int = 1, run: str = "a", **changed: Any) -> None:
    """Write what a driver does: its report, and its lease while it runs."""
    write(folder, state=state, run=run, counter=counter, run_status=run_status(**changed))
    if state == "running":
        (folder / LEASE_FILE).write_text("1")


def at(folder: Path) -> RunView:
    return view_now(location_at(folder))


def elsewhere(folder: Path) -> None:
    """Make the report one of a driver on another host."""
    data = json.loads((folder / FILE).read_text())
    (folder / FILE).write_text(json.dumps({**data, "host": "far", "machine": "another", "pid": 1, "started": "1"}))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    put(tmp_path, counter=3)
    found = read(tmp_path)
    assert (found.state, found.counter, found.pid, found.is_gone) == ("running", 3, os.getpid(), False)
    assert found.progress == run_status()
    assert {path.name for path in tmp_path.iterdir()} == {FILE, LEASE_FILE}


def test_the_report_moves_while_nothing_happens_and_says_how_the_run_ended(tmp_path: Path) -> None:
    counts, stack = RunCounts(planned({BASE: (3, 0)})), stack_of(BASE, 1)
    with writing(tmp_path, counts, every_s=0.001):
        counts.add(stack, Progress(tokens=64, step=1))
        first = read(tmp_path)
        assert first is not None
        for _ in range(POLLS):
            last = read(tmp_path)
            if last.counter > first.counter + 1:
                break
            time.sleep(0.005)
        assert last.counter > first.counter + 1
        assert (last.state, last.progress.running[0].step) == ("running", 1)
    ended = read(tmp_path)
    assert (ended.state, ended.run) == ("ended", first.run)
    with pytest.raises(KeyboardInterrupt), writing(tmp_path, counts):
        raise KeyboardInterrupt
    stopped = read(tmp_path)
    assert stopped.state == "stopped"
    assert stopped.run != first.run


def test_a_disk_that_refuses_the_report_stops_no_run(tmp_path: Path) -> None:
    with writing(tmp_path / "none", RunCounts(planned({BASE: (1, 0)}))):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00", '{"progress": {"version": 99}, "state": "x"}'])
def test_a_broken_report_is_one_clear_message(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(HpxferError, match=f"{FILE}: must hold the progress of a run of this hpxfer"):
        read(tmp_path)


def test_one_look_says_what_the_driver_said_last(tmp_path: Path) -> None:
    assert at(tmp_path).state == "none"
    (tmp_path / LEASE_FILE).touch()
    assert at(tmp_path).state == "waiting"  # a driver has taken the folder and says nothing yet
    put(tmp_path)
    assert at(tmp_path).state == "running"
    (tmp_path / LEASE_FILE).unlink()
    assert at(tmp_path).state == "gone"  # it gave up its lease without a last word
    (tmp_path / LEASE_FILE).touch()
    put(tmp_path, "ended")
    assert at(tmp_path).state == "waiting"  # it writes its last files, or the next one begins
    (tmp_path / LEASE_FILE).unlink()
    assert (at(tmp_path).state, at(tmp_path).is_over) == ("ended", True)


def test_a_driver_of_this_host_that_was_killed_is_gone_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hpxfer.progress.status import read, write;"
        "folder = Path(sys.argv[1]);"
        "status = read(folder).progress;"
        "write(folder, state='running', run='b', counter=1, run_status=status); print('on', flush=True);"
        "sys.stdin.read()"
    )
    put(tmp_path)
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout.readline() == b"on\n"
        assert at(tmp_path).state == "running"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert at(tmp_path).state == "gone"
    assert "the same `hpxfer run` trains the rest" in at(tmp_path).text()


def held_by(folder: Path, pid: int) -> None:
    """Give the folder's lease to a process of this host."""
    lease_file = LeaseFile(folder)
    lease_file.path.unlink(missing_ok=True)
    mine = Holder(nonce="b", host=socket.gethostname(), pid=pid, machine=machine_id(), started=process_started(pid))
    lease_file.create(encoded(mine))


def test_between_a_killed_driver_and_the_first_word_of_the_next_a_watch_waits(tmp_path: Path) -> None:
    put(tmp_path)
    data = json.loads((tmp_path / FILE).read_text())
    with subprocess.Popen([sys.executable, "-c", ""]) as driver:
        driver.wait()
    (tmp_path / FILE).write_text(json.dumps({**data, "pid": driver.pid, "started": "1"}))
    held_by(tmp_path, driver.pid)
    assert at(tmp_path).state == "gone"
    held_by(tmp_path, os.getpid())
    found = at(tmp_path)
    assert (found.state, found.is_over) == ("waiting", False)
    assert found.text().endswith("a driver holds the folder; it has reported nothing yet")


def test_a_watch_stays_where_a_driver_is_gone_until_the_next_comes(tmp_path: Path) -> None:
    clock, states = Clock(), []
    put(tmp_path)
    (tmp_path / LEASE_FILE).unlink()  # gone without a last word
    for view in views(location_at(tmp_path), next_s=10, clock=clock, sleep=clock.sleep):
        states.append(view.state)
        if clock.now == 3:
            put(tmp_path, run="b")
        if clock.now == 5:
            (tmp_path / LEASE_FILE).unlink()
    assert states == ["gone"] * 4 + ["running"] * 2 + ["gone"] * 11  # each time it waits anew


def test_a_driver_elsewhere_is_gone_once_its_report_stands_still(tmp_path: Path) -> None:
    clock, counter = Clock(), itertools.count()
    put(tmp_path)
    elsewhere(tmp_path)
    found = []
    for view in views(location_at(tmp_path), clock=clock, sleep=clock.sleep):
        found.append(view.state)
        if clock.now < 100:
            put(tmp_path, counter=next(counter))
            elsewhere(tmp_path)
    assert found[-1] == "gone"
    assert set(found[:-1]) == {"running"}
    assert 100 + GONE_S - 1 <= clock.now <= 100 + GONE_S + 2


def test_a_driver_elsewhere_whose_stacks_are_silent_lives_by_its_lease(tmp_path: Path) -> None:
    clock = Clock()
    put(tmp_path)
    elsewhere(tmp_path)
    for view in views(location_at(tmp_path), clock=clock, sleep=clock.sleep):
        if clock.now >= 5 * GONE_S:
            break
        assert view.state == "running"
        (tmp_path / LEASE_FILE).write_text(str(clock.now // 10))


def test_a_watch_ends_with_the_run_and_not_between_two(tmp_path: Path) -> None:
    clock, states = Clock(), []
    put(tmp_path, "stopped")
    (tmp_path / LEASE_FILE).write_text("1")
    for view in views(location_at(tmp_path), clock=clock, sleep=clock.sleep):
        states.append(view.state)
        if clock.now == 3:
            put(tmp_path, run="b")
        if clock.now == 5:
            put(tmp_path, "ended", run="b")
            (tmp_path / LEASE_FILE).unlink()
    assert states == ["waiting"] * 4 + ["running"] * 2 + ["ended"]


def test_a_lease_that_nobody_keeps_does_not_hold_a_watch_for_good(tmp_path: Path) -> None:
    (tmp_path / LEASE_FILE).write_text("1")
    clock = Clock()
    assert [view.state for view in views(location_at(tmp_path), clock=clock, sleep=clock.sleep)][-1] == "gone"
    put(tmp_path, "stopped")
    clock = Clock()
    assert [view.state for view in views(location_at(tmp_path), clock=clock, sleep=clock.sleep)][-1] == "stopped"


@pytest.mark.parametrize(
    ("state", "failed", "code"), [("ended", 0, 0), ("ended", 1, 1), ("stopped", 0, 1), ("running", 0, 0)]
)
def test_the_command_looks_once(state: State, failed: int, code: int, tmp_path: Path, capsys: Capsys) -> None:
    put(tmp_path, state, failed=failed)
    found, out, err = hpxfer(capsys, "watch", tmp_path, "--once")
    assert (found, err) == (code, "")
    assert "w16 d1" in out
    found, out, err = hpxfer(capsys, "watch", tmp_path, "--once", "--json")
    assert (found, err) == (code, "")
    data = json.loads(out)
    assert (data["state"], data["progress"]["failed"], data["pid"]) == (state, failed, os.getpid())


def test_the_command_follows_a_run_to_its_end(tmp_path: Path, capsys: Capsys) -> None:
    put(tmp_path, "ended", failed=0, num_notes=1, notes=("widened",))
    code, out, _ = hpxfer(capsys, "watch", tmp_path)
    assert code == 0
    assert out.startswith("search: widened\ntrials 2/10 done")
    assert "0 trials are stored" in out


def test_the_command_says_that_the_driver_is_gone_and_how_long_it_waits(
    tmp_path: Path, capsys: Capsys, monkeypatch: Patch
) -> None:
    watch = sys.modules["hpxfer.progress.watch"]
    monkeypatch.setattr(watch, "EVERY_S", 0.0)
    put(tmp_path)
    (tmp_path / LEASE_FILE).unlink()
    for wait in (0, 1e-9):
        code, out, err = hpxfer(capsys, "watch", tmp_path, "--wait", wait)
        assert (code, err) == (1, "")
        assert out.count("the driver is gone") == (2 if wait else 1)
        assert ("waiting 1e-09 s for the next run, Ctrl-C ends" in out) is bool(wait)
    monkeypatch.setattr("hpxfer.progress.views", lambda location, next_s: [at(tmp_path)])
    assert "; waiting for the next run, Ctrl-C ends\n" in hpxfer(capsys, "watch", tmp_path, "--wait", "inf")[1]


def test_a_folder_without_a_run_is_said_so(tmp_path: Path, capsys: Capsys) -> None:
    """The trials of a run whose report is not there, such as those that `hpxfer fetch` brings."""
    store = Store.open(tmp_path, write=True)
    store.save_sweep(SPEC, DIGEST)
    code, out, err = hpxfer(capsys, "watch", tmp_path)
    assert (code, out) == (2, "")
    assert f"{tmp_path}: must hold a run's report or at least one trial in trials*.parquet, got neither; " in err
    store.append([made(trial) for trial in trials_of()])
    code, out, _ = hpxfer(capsys, "watch", tmp_path)
    assert (code, "no run has reported here; 18 trials are stored" in out) == (0, True)


def test_a_foreign_lease_makes_no_results_folder(tmp_path: Path, capsys: Capsys) -> None:
    no_results = f"{tmp_path}: must be a results folder with sweep.yaml and trials*.parquet, got neither"
    for once in ((), ("--once",), ("--once", "--json")):
        code, out, err = hpxfer(capsys, "watch", tmp_path, *once)
        assert (code, out, no_results in err) == (2, "", True)
    (tmp_path / LEASE_FILE).write_text('{"rent": 900}')
    for path in (tmp_path, tmp_path / "none", tmp_path / LEASE_FILE):
        code, out, err = hpxfer(capsys, "watch", path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert (no_results if path == tmp_path else "must be a results folder") in err
    (tmp_path / LEASE_FILE).unlink()
    held_by(tmp_path, os.getpid())  # a driver that has written nothing else yet
    code, out, _ = hpxfer(capsys, "watch", tmp_path, "--once")
    assert (code, "it has reported nothing yet" in out) == (0, True)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: Capsys) -> None:
    put(tmp_path, state="ended")
    (tmp_path / "trials.parquet").write_bytes(b"PAR1")
    _, out, err = hpxfer(capsys, "watch", tmp_path, "--once")
    assert "0 trials are stored" in out
    assert f"warning: {tmp_path / 'trials.parquet'}: " in err


def test_a_real_run_can_be_watched_while_it_goes_on_and_after(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(*_: object) -> None:
        seen.append(at(tmp_path / "tiny").state)

    run(write_tiny(tmp_path), results=tmp_path, executor=Made(), on_event=look)
    last = at(tmp_path / "tiny")
    assert (set(seen), last.state) == ({"running"}, "ended")
    assert (last.run_status.finished, last.run_status.num_left) == (30, 30)
    assert "30 trials are stored" in last.text()


STATUS = as_data(run_status(running=(running_stack(),), shapes=(shape_progress(),), notes=("a",), errors=("b",)))
DATA = {
    "state": "running",
    "run": "r",
    "counter": 1,
    "host": "h",
    "pid": 1,
    "machine": machine_id(),
    "started": None,
    "progress": STATUS,
}
ODD: list[Any] = [{"values": 1}, [1], "text", 1e300, -1, True, 10**400, float("nan"), float("inf")]
# Fields of numbers that may be negative, and of texts.
OF_NUMBER = ("elapsed_s", "tokens_per_s", "eta_s", "best_loss", "loss_nats", "running_s")
OF_TEXT = ("best_text", "sweep", "reads", "id", "label", "host", "best")


def check_refused(folder: Path, data: Any) -> None:
    (folder / FILE).write_text(json.dumps(data))
    with pytest.raises(HpxferError, match=r"progress\.json: must hold the progress") as error:
        read(folder)
    assert len(str(error.value)) < 400


def test_every_field_of_the_status_and_its_parts(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(json.dumps(DATA))
    found = read(tmp_path)
    assert as_data(found.progress) == STATUS
    wholes = {None: STATUS, "running": STATUS["running"][0], "shapes": STATUS["shapes"][0]}
    for part, whole in wholes.items():
        for name, odd in itertools.product(sorted(whole), ODD):
            if not fits(name, odd, whole[name]):
                harmed = {**whole, name: odd}
                check_refused(tmp_path, {**DATA, "progress": {**STATUS, part: [harmed]} if part else harmed})


@pytest.mark.parametrize("pid", [0, -1, 10**30, 1e400])
def test_a_process_that_cannot_be(tmp_path: Path, pid: float) -> None:
    check_refused(tmp_path, {**DATA, "pid": pid})


def fits(name: str, odd: Any, sound: Any) -> bool:
    """Return whether the value is legal there."""
    if name in OF_TEXT:
        return isinstance(odd, str)
    if name in OF_NUMBER:
        return odd in (-1, 1e300) and not isinstance(odd, bool)
    return odd is True and (isinstance(sound, bool) or name == "version")
