"""Machines, systems and processes: what a container has, macOS as far as Linux can play it, Windows refused."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fixture_types import Patch
from tiny import write_tiny

from hpxfer.host import machine
from hpxfer.host.machine import (
    cpu_name,
    gpu_bytes,
    gpu_name,
    has_cuda,
    host_bytes,
    machine_id,
    num_cpus,
    process_is_gone,
    process_started,
)
from hpxfer.storage.lease import Holder

MANY = 10**6


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", MANY), ("200000 100000", 2), ("50000 100000", 1), ("odd", MANY), (None, MANY)]
)
def test_the_quota_of_a_container_counts(quota: str | None, cpus: int, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(MANY), raising=False)
    path = tmp_path / "cpu.max"
    if quota is not None:
        path.write_text(quota)
    assert num_cpus(path) == cpus


def test_affinity_counts_and_what_is_asked_for_wins(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert num_cpus(tmp_path / "none") == 3
    assert has_cuda("cuda", tmp_path)
    (tmp_path / "nvidia0").touch()
    assert not has_cuda("cpu", tmp_path)


def tool(folder: Path, name: str, script: str) -> None:
    """Write a command of the system."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("devices", "visible", "torch", "found"),
    [
        (["nvidia0"], None, "2.13.0", True),
        (["nvidia3", "nvidiactl"], "GPU-1", "2.13.0+cu130", True),
        (["nvidiactl", "nvidia-uvm", "null"], None, "2.13.0", False),
        ([], None, "2.13.0", False),
        (["nvidia0"], "", "2.13.0", False),
        (["nvidia0"], "-1", "2.13.0", False),
        (["nvidia0"], None, "2.13.0+cpu", False),
    ],
)
def test_a_gpu_counts_if_torch_will_see_it(
    devices: list[str], visible: str | None, torch: str, found: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    for name in devices:
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("hpxfer.host.machine.version", lambda name: torch)
    assert has_cuda("auto", tmp_path) is found


@pytest.mark.parametrize(
    ("answer", "found"), [(r"143771\n81559\n", 81559 * 2**20), ("", None), (r"[N/A]\n", None), (None, None)]
)
def test_the_smallest_gpu_counts(answer: str | None, found: int | None, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if answer is not None:
        tool(tmp_path, "nvidia-smi", f"printf '{answer}'")
    assert gpu_bytes() == found


def test_names_are_those_of_drivers_and_systems(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_name() is None
    tool(tmp_path, "nvidia-smi", 'echo "NVIDIA H200"\necho "NVIDIA L4"')
    assert gpu_name() == "NVIDIA H200"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert cpu_name().endswith(" (arm64)")
    tool(tmp_path, "sysctl", '[ "$2" = machdep.cpu.brand_string ] && echo "Apple M4"')
    assert cpu_name() == "Apple M4 (arm64)"


def test_the_cpus_name_is_the_kernels(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor : 0\nmodel name\t: Chip 9000 @ 3GHz\nflags : a\nmodel name\t: another\n")
    assert cpu_name(path).startswith("Chip 9000 @ 3GHz (")
    assert cpu_name(tmp_path / "none") != ""


@pytest.mark.parametrize(
    ("memory", "limit", "found"),
    [
        (2**21, "max\n", 2**21),
        (2**21, "1048576\n", 2**20),
        (2**20, str(2**40), 2**20),
        (None, "odd", None),
        (None, None, None),
        (2**21, None, 2**21),  # macOS: no cgroups
    ],
)
def test_memory_is_the_machines_or_its_containers(
    memory: int | None, limit: str | None, found: int | None, tmp_path: Path, monkeypatch: Patch
) -> None:
    def total() -> SimpleNamespace:
        if memory is None:
            raise FileNotFoundError("/proc/meminfo")
        return SimpleNamespace(total=memory)

    assert (host_bytes(tmp_path / "none") or 0) > 2**28  # of this machine
    monkeypatch.setattr(psutil, "virtual_memory", total)
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert host_bytes(tmp_path / "memory.max") == found


@pytest.fixture(params=["Linux", "no /proc"])
def system(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Patch) -> str:
    """The system that is asked; where it is `no /proc`, /proc is hidden, as on macOS."""
    if request.param == "no /proc":
        monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
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


def test_a_process_that_may_not_be_seen_counts_as_running(monkeypatch: Patch, tmp_path: Path) -> None:
    def hidden(pid: int) -> psutil.Process:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(psutil, "Process", hidden)
    assert process_started(os.getpid()) is None
    assert not process_is_gone(os.getpid(), "a start")


def test_the_holder_of_a_lease_is_gone_when_its_process_is(system: str, monkeypatch: Patch) -> None:
    if system != "Linux":
        monkeypatch.setattr(machine, "sysctl", lambda _: "1C5A-88")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = Holder(
        nonce="n", host=socket.gethostname(), pid=child.pid, machine=machine_id(), started=process_started(child.pid)
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


def test_the_machine_is_named_by_its_boot(system: str, tmp_path: Path, monkeypatch: Patch) -> None:
    if system == "Linux":
        assert machine_id() == machine_id() is not None
        return
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine_id() is None
    tool(tmp_path, "sysctl", '[ "$2" = kern.bootsessionuuid ] && echo 1C5A-88')
    assert machine_id() == "1C5A-88"


# Packages are imported before the system is given another name, as they load what fits the real one.
AS_ON_MACOS = """
import os, subprocess, sys
import matplotlib.pyplot, pandas, psutil, pyarrow.fs, pyarrow.parquet, scipy.optimize, scipy.stats, torch
from pathlib import Path
sys.platform = "darwin"
del os.sched_getaffinity
from hpxfer.host import machine
machine._PROC = machine._CPU_INFO = machine._CPU_QUOTA = machine._MEMORY_LIMIT = Path("/nowhere")
from hpxfer.cli import main
main()
"""


@pytest.mark.slow
def test_a_whole_run(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    for arguments, word in ((("run", "tiny.yaml", "--executor", "local"), "Next: "), (("list",), "30/30")):
        command = [sys.executable, "-c", AS_ON_MACOS, *arguments]
        end = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert end.returncode == 0, end.stderr
        assert word in end.stdout


SENTENCE = "hpxfer must run on Linux or macOS, got Windows; use the Windows Subsystem for Linux (WSL 2)"


def on_windows(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code that believes to be on Windows."""
    command = [sys.executable, "-c", f"import sys\nsys.platform = 'win32'\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command_line_is_one_message() -> None:
    end = on_windows("sys.argv = ['hpxfer', 'plan', 'x.yaml']\nfrom hpxfer.cli import main\nmain()")
    assert (end.returncode, end.stdout, end.stderr) == (2, "", f"hpxfer: {SENTENCE}\n")


@pytest.mark.parametrize("name", ["run", "load_results"])
def test_the_functions_raise_and_the_import_does_not(name: str) -> None:
    end = on_windows(f"import hpxfer\nprint(hpxfer.__version__)\nhpxfer.{name}")
    assert end.returncode == 1
    assert end.stdout
    assert end.stderr.splitlines()[-1] == f"hpxfer.errors.HpxferError: {SENTENCE}"
