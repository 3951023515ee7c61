"""`hpxfer plan` and `hpxfer run`: ended midway, twice at once, with a bug, asked about, refused, on a full disk."""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from command_line import Fails, hpxfer, started
from tiny import write_tiny

from hpxfer.cli import consent
from hpxfer.driver import prepare, run
from hpxfer.plan import hardware
from hpxfer.storage import lease
from hpxfer.storage.lease import Holder, encoded
from hpxfer.storage.lease_file import LEASE_FILE, LeaseFile
from hpxfer.store import Store, parquet

LONG_S = 300  # of anything that is waited for; a loaded machine is slow


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds tiny.yaml and, in results/, its finished run of made-up results."""
    folder = tmp_path_factory.mktemp("done")
    run(write_tiny(folder), results=folder / "results", executor=Fails(0))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_leaves_a_store_from_which_the_next_goes_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    sweep = write_tiny(tmp_path, ("steps: 6", "steps: 300"), ("workers: 2", "workers: 1, stack_size: 2"))
    command = [sys.executable, "-m", "hpxfer.cli", "run", str(sweep), "--results", str(tmp_path / "results")]
    process = started(command)
    store = tmp_path / "results" / "tiny"
    deadline = time.monotonic() + LONG_S
    while not list(store.glob("trials-*.parquet")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=LONG_S)
    assert process.returncode == code
    assert ("the same command goes on from there" in err) is (number != signal.SIGKILL)
    assert "Traceback" not in err
    assert (store / LEASE_FILE).exists() is (number == signal.SIGKILL)
    num_done = prepare(sweep, results=tmp_path / "results").plan.num_done
    assert 0 < num_done < 30
    rest = Fails(0)
    assert len(run(sweep, results=tmp_path / "results", executor=rest).trials) == 30
    assert rest.num_given == 30 - num_done
    assert not (store / LEASE_FILE).exists()


def test_sigterm_ends_a_run_between_two_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cluster asks a job to end: what has come is stored first, and the exit code says which signal it was."""
    append = Store.append

    def ended(store: Store, pairs: Sequence[Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        append(store, pairs)

    monkeypatch.setattr(Store, "append", ended)
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))
    sweep = write_tiny(tmp_path)
    code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    assert (code, "the same command goes on from there" in err) == (143, True)
    assert prepare(sweep, results=tmp_path).plan.num_done == 10  # the base, which begins


def test_a_second_run_is_refused_naming_host_and_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.01)
    sweep, folder = write_tiny(tmp_path), tmp_path / "tiny"
    folder.mkdir()
    lease_file, ended = LeaseFile(folder), threading.Event()
    steps = [encoded(Holder(nonce="first", host="elsewhere", pid=4242, counter=number)) for number in (0, 1)]
    lease_file.create(steps[0])

    def move() -> None:
        for old in itertools.cycle((0, 1)):
            lease_file.swap(steps[old], steps[1 - old])
            if ended.wait(0.05):
                return

    mover = threading.Thread(target=move)
    mover.start()
    try:
        code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    finally:
        ended.set()
        mover.join()
    assert code == 2
    assert f"hpxfer: {folder}: in use by process 4242 on host elsewhere, which is running since" in err
    assert "checking for at most 60 s whether that run is alive" in err
    assert [path.name for path in folder.iterdir()] == [LEASE_FILE]


def test_a_bug_is_shown_once_and_ends_the_run_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(30, "bug"))
    sweep = write_tiny(tmp_path)
    code, out, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
    assert code == 1
    assert err.count("Traceback: a bug") == 1
    assert "the run stopped at 10 failed trials" in err
    assert "30 trials, 0 done" in out
    assert not (tmp_path / "tiny" / "recipe.yaml").exists()


def ended(*_: object, **__: object) -> bool:
    """Answer as Ctrl-C and Ctrl-D do."""
    raise typer.Abort


@pytest.mark.slow
def test_what_costs_much_is_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, "ASK_WORKER_HOURS", 0.0)
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))
    sweep = write_tiny(tmp_path)
    arguments = ("run", sweep, "--results", tmp_path)
    code, _, err = hpxfer(capsys, *arguments)
    assert code == 2
    assert "hours of CPU workers needs consent" in err
    assert "there is no terminal to ask at; give --yes" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    code, _, err = hpxfer(capsys, *arguments)
    assert (code, "nothing was run" in err) == (130, True)
    assert not (tmp_path / "tiny").exists()
    monkeypatch.setattr(typer, "confirm", ended)
    code, _, err = hpxfer(capsys, *arguments)
    assert (code, "nothing was run" in err) == (130, True)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: True)
    assert hpxfer(capsys, *arguments)[0] == 0
    monkeypatch.setattr(typer, "confirm", None)  # nothing is left to run, and nothing to ask
    assert hpxfer(capsys, *arguments)[0] == 0


@pytest.mark.parametrize(("of", "asked"), [("ASK_WORKER_HOURS", True), ("ASK_GPU_HOURS", False)])
def test_hardware_that_is_not_there_is_planned_for_and_not_asked_about(
    of: str, asked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, of, 0.0)
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 2, device: cpu"))
    code, out, err = hpxfer(capsys, "run", sweep, "--results", tmp_path, "--hardware", "h100")
    assert "GPU-hours" in out  # the estimate is of what was named
    assert code == (2 if asked else 0)
    assert ("hours of CPU workers needs consent" in err) is asked


def test_a_run_is_warned_of_the_machine_that_it_stays_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "host_bytes", lambda: 2**30)
    sweep = write_tiny(tmp_path, ("workers: 2", "workers: 1000000, device: cpu"))
    for command, warned in (("plan", False), ("run", True)):
        arguments = (
            command,
            sweep,
            "--results",
            tmp_path,
            "--hardware",
            "h100",
            "--no-strict-memory",
            "--max-gpu-hours",
            0,
        )
        code, _, err = hpxfer(capsys, *arguments)
        assert code == 2
        assert ("each of 30 workers has" in err) == warned


def test_a_file_that_was_passed_over_is_not_among_those_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "trials.parquet").write_text("not Parquet")
    code, out, err = hpxfer(capsys, "run", write_tiny(tmp_path), "--results", tmp_path)
    assert code == 0
    assert f"warning: {folder / 'trials.parquet'}: " in err
    written = out.partition("written:\n")[2].split()
    assert str(folder / "trials.parquet") not in written
    stored = [file for file in written if Path(file).name.startswith("trials-")]
    assert sum(len(pd.read_parquet(file)) for file in stored) == 30


def test_a_figure_that_a_run_cannot_write_names_an_option_of_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))
    (tmp_path / "tiny" / "transfer.png").mkdir(parents=True)
    code, _, err = hpxfer(capsys, "run", write_tiny(tmp_path), "--results", tmp_path)
    assert code == 2
    assert "the figure cannot be written: Is a directory; choose another folder with --results" in err


def test_yes_is_the_answer_to_the_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, "ASK_WORKER_HOURS", 0.0)
    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))
    assert hpxfer(capsys, "run", write_tiny(tmp_path), "--results", tmp_path, "--yes")[0] == 0


@pytest.mark.parametrize("command", ["plan", "run"])
def test_more_gpu_hours_than_allowed_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    sweep = write_tiny(tmp_path)
    priced = (command, sweep, "--results", tmp_path, "--hardware", "h100", "--price-per-hour", "2")
    code, out, err = hpxfer(capsys, *priced, "--max-gpu-hours", "0")
    assert code == 2
    assert "--max-gpu-hours: the plan must stay within 0 GPU-hours, got about " in err
    assert "30 trials" in out
    assert not (tmp_path / "tiny").exists()
    assert hpxfer(capsys, "plan", *priced[1:], "--max-gpu-hours", "nan")[0] == 2
    code, _, err = hpxfer(capsys, *priced[:-1], "inf")  # no number that JSON knows
    assert (code, err) == (2, "hpxfer: --price-per-hour must be a number from 0, got inf\n")
    assert hpxfer(capsys, "plan", *priced[1:], "--max-gpu-hours", "1")[0] == 0


def test_trials_are_listed(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", done / "tiny.yaml", "--results", done / "results")
    code, out, _ = hpxfer(capsys, *arguments, "--trials", "--json")
    listed = json.loads(out)["trials"]
    assert (code, len(listed)) == (0, 30)
    assert {trial["status"] for trial in listed} == {"finished"}
    code, out, _ = hpxfer(capsys, *arguments, "--trials")
    assert code == 0
    assert all(trial["trial_id"] in out for trial in listed)
    (done / "more").mkdir(exist_ok=True)
    more = write_tiny(done / "more", ("seeds: 2", "seeds: 3"))
    _, out, _ = hpxfer(capsys, "plan", more, "--results", done / "results", "--trials", "--json")
    assert {trial["seed"] for trial in json.loads(out)["trials"] if trial["status"] == "missing"} == {2}


def test_reused_trials_stand_in_the_plan(done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, folder = write_tiny(tmp_path), done / "results" / "tiny"
    code, out, _ = hpxfer(capsys, "plan", sweep, "--results", tmp_path, "--reuse", folder)
    assert (code, f"30 trials are copied from {folder}" in out) == (0, True)
    code, out, _ = hpxfer(capsys, "plan", sweep, "--results", tmp_path, "--reuse", folder, "--json")
    assert json.loads(out)["reused"] == {str(folder): 30}
    assert json.loads(out)["num_left"] == 0
    code, _, _ = hpxfer(capsys, "run", sweep, "--results", tmp_path, "--reuse", folder)
    assert code == 0
    assert len(pd.read_parquet(tmp_path / "tiny" / "trials.parquet")) == 30


def test_a_folder_that_cannot_be_written_or_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys.modules["hpxfer.driver.drive"], "make_executor", lambda *_, **__: Fails(0))
    sweep = write_tiny(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LeaseFile, "create", full)
        code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
        assert code == 2
        assert f"{tmp_path / 'tiny'}: its lease cannot be written: No space left on device" in err
    with monkeypatch.context() as patch:
        patch.setattr(parquet, "write", full)
        code, _, err = hpxfer(capsys, "run", sweep, "--results", tmp_path)
        assert code == 2
        assert (
            "cannot be written: No space left on device; 0 trials are safely stored in it, the last 10 are not" in err
        )
        assert "Traceback" not in err
    assert hpxfer(capsys, "run", sweep, "--results", tmp_path)[0] == 0
