"""The Slurm script, run with stand-ins for Slurm, Ray and hpxfer that note how they were called."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_ports

SCRIPT = Path(__file__).parents[2] / "sweeps" / "cluster" / "slurm.sh"
LONG_S = 300  # of anything that is waited for
# Each notes its name and arguments, one call a file; a head listens, so that the script goes on.
HEADER = """\
import os, signal, socket, sys, time
from pathlib import Path

CALLS = Path(os.environ["CALLS"])

def note(name, arguments):
    token = os.environ.get("RAY_AUTH_TOKEN_PATH")
    rights = oct((os.stat(token).st_mode | os.stat(os.path.dirname(token)).st_mode) & 0o077) if token else ""
    lines = [name, *arguments, "mode=" + os.environ.get("RAY_AUTH_MODE", ""), f"others={rights}"]
    path = Path(CALLS, f"{time.monotonic_ns()}-{os.getpid()}")
    path.with_suffix(".tmp").write_text("\\n".join(lines))
    path.with_suffix(".tmp").rename(path.with_suffix(".call"))
"""
STANDINS = {
    "srun": """
first = next(index for index, one in enumerate(sys.argv) if index and not one.startswith("--"))
note("srun", sys.argv[1:])
os.execvp(sys.argv[first], sys.argv[first:])
""",
    "scontrol": "print('node-a\\nnode-b\\nnode-c')",
    "hostname": "print('127.0.0.1')",
    "ray": """
signal.signal(signal.SIGTERM, lambda *_: (note("ray ended", []), sys.exit(0)))
if "--head" in sys.argv:
    port = next(int(one.partition("=")[2]) for one in sys.argv if one.startswith("--port="))
    listener = socket.create_server(("127.0.0.1", port))
note("ray", sys.argv[1:])
time.sleep(300)
""",
    "hpxfer": """
def store(*_):
    time.sleep(0.2)
    note("hpxfer stored", [])
    sys.exit(130)

signal.signal(signal.SIGTERM, store)
note("hpxfer", sys.argv[1:])
while sum(one.read_text().startswith("ray\\n") for one in CALLS.glob("*.call")) < 3:
    time.sleep(0.01)
(CALLS / "running").touch()
if os.environ["HOW"] == "wait":
    time.sleep(300)
sys.exit(int(os.environ["HOW"]))
""",
}


def write_standins(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, body in STANDINS.items():
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{HEADER}\n{body}", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def start(folder: Path, sweep: str, how: str) -> subprocess.Popen[str]:
    write_standins(folder / "an env" / "bin")
    (folder / "calls").mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "HOME": str(folder),
        "HPXFER_ENV": str(folder / "an env"),
        "HPXFER_RAY_PORT": str(free_ports(1)[0]),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node-[a-c]",
        "SLURM_CPUS_PER_TASK": "4",
        "CALLS": str(folder / "calls"),
        "HOW": how,
    }
    return subprocess.Popen(
        ["bash", str(SCRIPT), sweep, "my results", "--set", "training.steps=30"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def calls(folder: Path) -> list[list[str]]:
    """What was called, in order."""
    return [path.read_text().splitlines() for path in sorted((folder / "calls").glob("*.call"))]


@pytest.mark.parametrize("code", [0, 3])
def test_a_head_and_its_workers_start_and_the_exit_code_is_the_drivers(tmp_path: Path, code: int) -> None:
    sweep = "a sweep; touch harm $(touch harm).yaml"
    script = start(tmp_path, sweep, str(code))
    out, _ = script.communicate(timeout=LONG_S)
    assert script.returncode == code, out
    made = calls(tmp_path)
    rays = [one for one in made if one[0] == "ray"]
    (head,) = [one for one in rays if "--head" in one]
    assert "--dashboard-host=127.0.0.1" in head
    assert "--num-cpus=4" in head
    nodes = [part for one in made if one[0] == "srun" and "ray" in one for part in one if "--nodelist" in part]
    assert sorted(nodes) == ["--nodelist=node-a", "--nodelist=node-b", "--nodelist=node-c"]
    (port,) = [one.partition("=")[2] for one in head if one.startswith("--port=")]
    assert sum(f"--address=127.0.0.1:{port}" in one for one in rays) == 2
    (driver,) = [one for one in made if one[0] == "hpxfer"]
    asked = ["run", sweep, "--address", f"127.0.0.1:{port}", "--yes", "--results", "my results"]
    assert driver[1:10] == [*asked, "--set", "training.steps=30"]
    assert all("mode=token" in one and "others=0o0" in one for one in [driver, *rays])
    assert sum(one[0] == "ray ended" for one in made) == 3
    assert not (tmp_path / "harm").exists()
    assert not list(tmp_path.glob(".hpxfer-*"))


def test_slurms_warning_lets_the_driver_store_before_ray_ends(tmp_path: Path) -> None:
    script = start(tmp_path, "sweep.yaml", "wait")
    deadline = time.monotonic() + LONG_S
    while not (tmp_path / "calls" / "running").exists():
        assert time.monotonic() < deadline
        assert script.poll() is None
        time.sleep(0.02)
    script.send_signal(signal.SIGTERM)
    out, _ = script.communicate(timeout=LONG_S)
    assert script.returncode == 130, out
    names = [one[0] for one in calls(tmp_path)]
    assert names.index("hpxfer stored") < names.index("ray ended")


def test_without_a_sweep_it_says_how_to_call_it() -> None:
    end = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, timeout=LONG_S)
    assert end.returncode != 0
    assert "usage: sbatch" in end.stderr


def test_the_script_is_clean() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True, timeout=LONG_S)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    end = subprocess.run(["shellcheck", str(SCRIPT)], capture_output=True, text=True, timeout=LONG_S)
    assert end.returncode == 0, end.stdout
