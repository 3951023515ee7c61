"""Processes by number: on Linux through /proc, elsewhere through psutil. Both must give the same answers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hpxfer.host import process
from hpxfer.host.process import machine_id, process_is_gone, process_started
from hpxfer.storage.lease import Holder


@pytest.fixture(params=["Linux", "no /proc"])
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The system that is asked; where it is `no /proc`, /proc is hidden, as on macOS."""
    if request.param == "no /proc":
        monkeypatch.setattr(process, "_PROC", tmp_path / "proc")
    elif not Path("/proc/self").exists():
        pytest.skip("this system has no /proc")
    return str(request.param)


@pytest.mark.usefixtures("system")
def test_a_process_is_there_until_it_ends() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_started(child.pid)
    assert started is not None
    assert process_started(child.pid) == started
    assert not process_is_gone(child.pid, started)
    assert not process_is_gone(child.pid, None)
    assert process_is_gone(child.pid, "another start")  # the number was given to another process
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked for its exit code
    assert process_is_gone(child.pid, started)
    assert process_started(child.pid) is None
    child.communicate()
    assert process_is_gone(child.pid, started)
    assert process_is_gone(child.pid, None)
    assert process_started(child.pid) is None


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("number", [2**22 + 1, 10**30])
def test_a_number_that_no_process_can_have(number: int) -> None:
    assert process_started(number) is None
    assert process_is_gone(number, None) is (number < 2**31)  # the system cannot be asked about the other


def test_a_process_that_may_not_be_seen_counts_as_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def hidden(pid: int) -> psutil.Process:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(process, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(psutil, "Process", hidden)
    assert process_started(os.getpid()) is None
    assert not process_is_gone(os.getpid(), "a start")


def test_the_holder_of_a_lease_is_gone_when_its_process_is(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system != "Linux":
        monkeypatch.setattr(process, "sysctl", lambda _: "1C5A-88")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = Holder(
        nonce="n",
        host=socket.gethostname(),
        pid=child.pid,
        machine=machine_id(),
        started=process_started(child.pid),
    )
    assert not holder.is_gone
    assert not replace(holder, host="elsewhere").is_gone
    child.kill()
    child.communicate()
    assert holder.is_gone
    assert not replace(holder, host="elsewhere").is_gone
    assert not replace(holder, machine="another boot").is_gone
    monkeypatch.setattr("hpxfer.storage.lease.machine_id", lambda: None)
    assert not holder.is_gone
    assert not replace(holder, machine=None).is_gone  # two hosts may share a name


def test_the_machine_is_named_by_its_boot(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "Linux":
        assert machine_id() == machine_id() is not None
        return
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine_id() is None
    tool = tmp_path / "sysctl"
    tool.write_text('#!/bin/sh\n[ "$2" = kern.bootsessionuuid ] && echo 1C5A-88\n')
    tool.chmod(0o755)
    assert machine_id() == "1C5A-88"
