"""The KubeRay manifest, the Slurm script, and that nothing of ours lets Ray send statistics."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ports import free_ports
from waiting import LONG_S, until

import hpxfer

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "sweeps" / "cluster"
SCHEMA = json.loads((Path(__file__).parent / "rayjob_schema.json").read_text(encoding="utf-8"))


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / "rayjob.yaml").read_text(encoding="utf-8")))


def rayjob() -> dict[str, Any]:
    (found,) = [one for one in documents() if one["kind"] == "RayJob"]
    return found


def templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod specs of the head and of each worker group."""
    cluster = job["spec"]["rayClusterSpec"]
    return [one["template"]["spec"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def pinned(package: str) -> str:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{package}==(\S+)$", text, re.MULTILINE)
    return str(version)


def test_the_manifest_fits_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(rayjob())


def test_versions_are_those_that_the_tests_run_with() -> None:
    ray = pinned("ray")
    assert rayjob()["spec"]["rayClusterSpec"]["rayVersion"] == ray
    assert f"\nFROM rayproject/ray:{ray}-py311\n" in (CLUSTER / "Dockerfile").read_text(encoding="utf-8")
    images = {one["image"] for spec in templates(rayjob()) for one in spec["containers"]}
    assert images == {f"REGISTRY/hpxfer:{hpxfer.__version__}"}


def test_nothing_reaches_beyond_the_cluster_and_the_token_stays_on() -> None:
    cluster = rayjob()["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert cluster["headGroupSpec"]["enableIngress"] is False
    text = (CLUSTER / "rayjob.yaml").read_text(encoding="utf-8")
    assert not re.search(r"NodePort|LoadBalancer|hostNetwork|hostPort|privileged|RAY_AUTH_MODE", text)
    for spec in templates(rayjob()):
        assert spec["securityContext"]["runAsNonRoot"]
        for container in spec["containers"]:
            assert {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"} in container["env"], container["name"]


def test_every_mount_has_its_volume_and_all_pods_share_the_results() -> None:
    (claim,) = [one for one in documents() if one["kind"] == "PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for spec in templates(rayjob()):
        volumes = {one["name"]: one for one in spec["volumes"]}
        mounts = {
            one["name"]: one["mountPath"] for container in spec["containers"] for one in container["volumeMounts"]
        }
        assert mounts.keys() == volumes.keys()
        assert mounts["results"] == "/results"
        assert volumes["results"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_entrypoint_is_a_command_of_ours() -> None:
    from typer.main import get_command

    from hpxfer.cli.app import app

    program, command, *arguments = rayjob()["spec"]["entrypoint"].split()
    assert program == "hpxfer"
    found = get_command(app).commands[command]
    options = {name for parameter in found.params for name in parameter.opts}
    assert {one for one in arguments if one.startswith("--")} <= options
    mounts = {one["mountPath"] for spec in templates(rayjob()) for one in spec["containers"][0]["volumeMounts"]}
    assert {
        str(Path(one).parent) if one.endswith(".yaml") else one for one in arguments if one.startswith("/")
    } == mounts


SCRIPT = Path(__file__).parents[2] / "sweeps" / "cluster" / "slurm.sh"
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
    until(lambda: (tmp_path / "calls" / "running").exists() or script.poll() is not None, "the driver does not start")
    assert script.poll() is None
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


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "sweeps").rglob("*.md"))]
BLOCKS = [
    (path.name, block)
    for path in PAGES
    for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    if "ray start" in block
]
# Stands in for `ray`: it prints what Ray itself would decide in that environment.
STUB = f"""#!/bin/sh
case "$1" in start) exec {sys.executable} -c \
'import sys; from ray._common.usage import usage_lib; print("enabled", usage_lib.usage_stats_enabled())' "$@";; esac
"""


def enabled(script: str, folder: Path) -> list[str]:
    """Return what Ray decides about its statistics at every `ray start` of a shell script."""
    stub = folder / "ray"
    stub.write_text(STUB, encoding="utf-8")
    stub.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**kept, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    end = subprocess.run(["sh", "-e", "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert end.returncode == 0, end.stderr
    return end.stdout.splitlines()


def test_a_cluster_that_is_started_by_a_page_sends_none(tmp_path: Path) -> None:
    """Each block is a shell of its own: it is what one copies on one machine."""
    assert len(BLOCKS) >= 2
    found = {(name, block): enabled(block, tmp_path) for name, block in BLOCKS}
    assert set(map(tuple, found.values())) == {("enabled False",)}, found


def test_without_the_variable_ray_would_send_them(tmp_path: Path) -> None:
    assert enabled("ray start --head", tmp_path) == ["enabled True"]


def joined(path: Path) -> str:
    """Return a file with the lines of its split texts as one."""
    return re.sub(r'"\s*f?"', "", path.read_text(encoding="utf-8"))


FILES = [*(ROOT / "hpxfer").rglob("*.py"), *(ROOT / "sweeps" / "cluster").glob("*.sh")]
HEADS = [path for path in sorted(FILES) if "ray start --head" in joined(path)]


def test_a_script_or_a_message_that_starts_a_head_turns_them_off() -> None:
    assert {"client.py", "ray_session.py", "slurm.sh"} <= {path.name for path in HEADS}
    for path in HEADS:
        text = joined(path)
        for start in re.finditer(r"ray start --head[^`]*", text):
            turned_off = "export RAY_USAGE_STATS_ENABLED=0" in text[: start.start()]
            assert turned_off or "--disable-usage-stats" in start.group(), f"{path}: {start.group()}"
