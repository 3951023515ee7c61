"""`hpxfer watch --serve` from the command line: its address, its end, and options that do not go together."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import Fails, hpxfer
from made_runs import run_status
from report_cases import write_store
from tiny import write_tiny

from hpxfer.driver import run
from hpxfer.live.serve import served
from hpxfer.progress.file import write
from hpxfer.store.location import location_at

POLLS = 6_000
LIMIT_S = 300


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command, and yield its process and the address that it prints."""
    command = [sys.executable, "-m", "hpxfer", "watch", str(folder), "--serve", *options]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what is ignored, a child ignores too
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.fullmatch(r".*: (http://127\.0\.0\.1:\d+/[\w-]{32}/)\n", process.stdout.readline())
            assert found is not None
            assert process.stdout.readline() == "The page follows the run. Ctrl-C ends it.\n"
            yield process, found[1]
        finally:
            signal.signal(signal.SIGINT, before)
            process.kill()


def state_of(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}state", timeout=LIMIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def until(url: str, has_come: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a state of which this holds, and return it."""
    for _ in range(POLLS):
        state = state_of(url)
        if has_come(state):
            return state
        time.sleep(0.1)
    raise AssertionError("it never came")


def with_report(url: str) -> dict[str, Any]:
    """Wait for the first report, and return the state then."""
    return until(url, lambda state: state["report"] > 0)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_over_is_served_until_it_is_ended(number: signal.Signals, code: int, tmp_path: Path) -> None:
    folder = write_store(tmp_path / "a")
    write(folder, state="ended", run="a", counter=1, run_status=run_status())
    before = files(folder)
    with serving(folder) as (process, url):
        assert with_report(url)["state"] == "ended"
        with urllib.request.urlopen(f"{url}report", timeout=LIMIT_S) as answer:
            assert '<section id="verdict">' in answer.read().decode()
        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (code, "", "")
    assert files(folder) == before


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path / "later") as (process, url):
        assert state_of(url)["state"] == "unknown"
        folder = write_store(tmp_path / "later", every=3)
        assert with_report(url)["state"] == "none"
        write(folder, state="stopped", run="a", counter=1, run_status=run_status())
        until(url, lambda state: state["state"] == "stopped")
        (folder / "progress.json").write_text("{")
        state = until(url, lambda state: "progress.json: must be JSON" in state["run"])
        assert state["state"] == "stopped"  # the last view stays
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
    assert err.startswith(f"warning: {tmp_path / 'later'}: must be a results folder, got nothing of that name")


def test_results_in_a_bucket_are_served_under_their_uri(s3: str, tmp_path: Path) -> None:
    run(write_tiny(tmp_path), results=s3, executor=Fails(1))
    with served(location_at(f"{s3}/tiny")) as page:

        def sleep(_: float) -> None:
            if page.judging.judged.number:
                raise InterruptedError
            time.sleep(0.1)

        with pytest.raises(InterruptedError):
            page.follow(sleep)
        state, contents = page.state.ask(), page.state.contents()
    assert (state["state"], state["title"]) == ("ended", f"30 of 30 · {s3}/tiny")
    assert "29 of 30 trials have a result" in contents
    assert str(page.location.folder) not in contents


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--serve", "--once"), "--serve: must come without --once, --json and --wait, got --once; "),
        (("--serve", "--json"), "--serve: must come without --once, --json and --wait, got --json; "),
        (("--serve", "--once", "--json"), "--serve: must come without --once, --json and --wait, got --once, --json; "),
        (("--serve", "--wait", "1"), "--serve: must come without --once, --json and --wait, got --wait; "),
        (("--port", "8000"), "--port: must come with --serve, got it alone; add --serve"),
    ],
)
def test_options_that_do_not_go_together(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = hpxfer(capsys, "watch", tmp_path, *options)
    assert (code, out) == (2, "")
    assert err.startswith(f"hpxfer: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("port", ["0", "-1", "65536", "http"])
def test_what_is_no_port_is_refused(port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hpxfer(capsys, "watch", tmp_path, "--serve", "--port", port)
    assert (code, out) == (2, "")
    assert "--port" in err


def test_a_file_is_never_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").touch()
    code, out, err = hpxfer(capsys, "watch", tmp_path / "a", "--serve")
    assert (code, out) == (2, "")
    assert "must be a results folder, got a file" in err
